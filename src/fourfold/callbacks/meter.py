"""How fast training goes, without waiting for the device."""

import time


class Meter:
    """Counts tokens or images against the clock; validation and the like do not count.

    The clock is the host's. It never waits for a GPU, whose queue is short against the seconds
    between two readings.
    """

    def __init__(self) -> None:
        self._units, self._paused = 0, 0.0
        self._since = self._pause_since = time.monotonic()

    def add(self, units: int) -> None:
        """A batch of so many tokens or images is done."""
        self._units += units

    def pause(self) -> None:
        """Something else than training begins."""
        self._pause_since = time.monotonic()

    def go_on(self) -> None:
        """Training goes on."""
        self._paused += time.monotonic() - self._pause_since

    def read(self) -> float:
        """Units a second since the last reading."""
        now = time.monotonic()
        seconds = now - self._since - self._paused
        units, self._units, self._paused, self._since = self._units, 0, 0.0, now
        return units / seconds if seconds > 0 else 0.0
