"""Tests of interleaved timing with a simulated clock."""

from collections.abc import Callable

from fourfold.reproduce.interleaved_timing import interleave


class SimulatedClock:
    """A clock that only the functions of `function` advance."""

    def __init__(self) -> None:
        self.now = 0.0
        self.calls: list[str] = []

    def __call__(self) -> float:
        return self.now

    def function(self, name: str, *seconds: float) -> Callable[[], None]:
        """Create a function that takes `seconds[i]` in its call number i."""

        def call() -> None:
            self.now += seconds[min(self.calls.count(name), len(seconds) - 1)]
            self.calls.append(name)

        return call


def test_every_function_is_called_once_per_round_and_warmup_is_not_measured() -> None:
    clock = SimulatedClock()
    functions = {
        "a": clock.function("a", 100.0, 1.0, 2.0, 3.0),
        "b": clock.function("b", 50.0, 4.0),
    }
    seconds = interleave(functions, 3, warm=1, clock=clock)
    assert seconds == {"a": [1.0, 2.0, 3.0], "b": [4.0, 4.0, 4.0]}
    rounds = [clock.calls[i : i + 2] for i in range(0, 8, 2)]
    assert all(sorted(names) == ["a", "b"] for names in rounds)


def test_order_within_rounds_is_random_and_depends_on_the_seed_only() -> None:
    def calls(seed: int) -> list[str]:
        clock = SimulatedClock()
        functions = {name: clock.function(name, 1.0) for name in "abc"}
        interleave(functions, 8, clock=clock, seed=seed)
        return clock.calls

    assert calls(0) == calls(0) != calls(1)
    assert len({tuple(calls(0)[i : i + 3]) for i in range(0, 30, 3)}) > 1
