"""Two ways to show progress: lines for a file, a bar for a terminal."""

from typing import Protocol

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn


class Screen(Protocol):
    """What progress is written to."""

    def start(self, name: str, total: int | None, done: int) -> None:
        """Something of `total` steps (None: nobody knows) begins, of which `done` are done."""

    def update(self, step: int, facts: dict[str, str]) -> None:
        """So far it is, and these facts hold."""

    def say(self, text: str) -> None:
        """A line that stays."""

    def stop(self) -> None:
        """It is over."""


class Lines:
    """One plain line an update, written at once, so that a batch job can be watched."""

    def __init__(self) -> None:
        self._name, self._total = "", ""

    def start(self, name: str, total: int | None, done: int) -> None:
        self._name, self._total = name, _out_of(total)

    def update(self, step: int, facts: dict[str, str]) -> None:
        rest = "  ".join(f"{name} {value}" for name, value in facts.items())
        label = "step" if self._name == "train" else f"{self._name} batch"
        self.say(f"{label} {step:,}{self._total}  {rest}".rstrip())

    def say(self, text: str) -> None:
        print(text, flush=True)

    def stop(self) -> None:
        pass


class Terminal:
    """A bar that rich keeps at the bottom, below the lines that stay."""

    def __init__(self) -> None:
        self._console = Console(highlight=False)
        self._bar: Progress | None = None
        self._task = TaskID(0)

    def start(self, name: str, total: int | None, done: int) -> None:
        self.stop()
        columns = (
            TextColumn(name), BarColumn(), TextColumn("{task.completed:,}" + _out_of(total)),
            TextColumn("{task.fields[facts]}"),
        )  # fmt: skip
        self._bar = Progress(*columns, console=self._console, transient=True, refresh_per_second=4)
        self._task = self._bar.add_task(name, total=total, completed=done, facts="")
        self._bar.start()

    def update(self, step: int, facts: dict[str, str]) -> None:
        if self._bar is not None:
            text = "  ".join(f"{name} [bold]{value}[/bold]" for name, value in facts.items())
            self._bar.update(self._task, completed=step, facts=text)

    def say(self, text: str) -> None:
        self._console.print(text, markup=False)

    def stop(self) -> None:
        if self._bar is not None:
            self._bar.stop()
            self._bar = None


def _out_of(total: int | None) -> str:
    return "" if total is None else f"/{total:,}"
