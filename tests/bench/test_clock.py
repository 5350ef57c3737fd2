import pytest
import torch

from fourfold.bench.clock import (
    Spread,
    copying,
    interleave,
    matrix_product,
    ratios,
)


class Time:
    """A clock that only the ways move."""

    def __init__(self) -> None:
        self.now, self.turns = 0.0, []

    def __call__(self) -> float:
        return self.now

    def way(self, name: str, *seconds: float):
        def turn() -> None:
            self.now += seconds[min(self.turns.count(name), len(seconds) - 1)]
            self.turns.append(name)

        return turn


def test_all_ways_have_a_turn_each_round_and_warming_up_is_not_counted() -> None:
    time = Time()
    ways = {"a": time.way("a", 100.0, 1.0, 2.0, 3.0), "b": time.way("b", 50.0, 4.0)}
    found = interleave(ways, 3, warm=1, clock=time)
    assert found == {"a": [1.0, 2.0, 3.0], "b": [4.0, 4.0, 4.0]}
    rounds = [time.turns[i : i + 2] for i in range(0, 8, 2)]
    assert all(sorted(turns) == ["a", "b"] for turns in rounds)


def test_the_order_changes_and_follows_from_the_seed() -> None:
    def order(seed: int) -> list[str]:
        time = Time()
        interleave({n: time.way(n, 1.0) for n in "abc"}, 8, clock=time, seed=seed)
        return time.turns

    assert order(0) == order(0) != order(1)
    assert len({tuple(order(0)[i : i + 3]) for i in range(0, 30, 3)}) > 1


def test_ratios_are_of_the_same_round() -> None:
    found = ratios({"ours": [1.0, 2.0], "theirs": [2.0, 4.0]}, "ours")
    assert found == {"ours": [1.0, 1.0], "theirs": [2.0, 2.0]}


def test_a_spread_is_read_as_median_least_greatest() -> None:
    spread = Spread.of([3.0, 1.0, 2000.0])
    assert spread == Spread(3.0, 1.0, 2000.0)
    assert spread.text(1.0, 1) == "3.0 [1.0, 2,000.0]"


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_measures_measure(dtype: torch.dtype) -> None:
    product, flops = matrix_product(dtype, torch.device("cpu"))
    assert product().shape == (32, 32)
    assert flops == 2 * 32**3


def test_a_copy_reads_and_writes() -> None:
    copy, moved = copying(torch.device("cpu"))
    assert 2 * len(copy()) == moved
