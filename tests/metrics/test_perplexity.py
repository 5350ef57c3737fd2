"""Perplexity: definition per unit, independence of batches, overflow, precision of sums."""

import math

import pytest
import torch

from fourfold.losses import IGNORE_INDEX
from fourfold.metrics import Perplexity

NLL = [0.5, 2.25, 1.0, 3.5, 0.0, 0.125]  # 0 without a target


def add(metric: Perplexity, nll: float, n_correct: int = 0, **sizes: int) -> None:
    """Add two tokens."""
    targets = torch.tensor([1, 1])
    predictions = torch.tensor([n_correct > 0, n_correct > 1]).long()
    metric.update(torch.tensor([nll, 0.0]), predictions, targets, **sizes)


def perplexity(batch_sizes: list[int], n_words: int = 3, n_bytes: int = 20) -> dict[str, float]:
    metric = Perplexity()
    targets = torch.tensor([3, 1, 4, 1, IGNORE_INDEX, 5])
    predictions = torch.tensor([3, 1, 2, 2, 2, 2])
    rows = (torch.tensor(NLL), predictions, targets)
    for i, batch in enumerate(zip(*(x.split(batch_sizes) for x in rows), strict=True)):
        first = i == 0
        metric.update(*batch, n_words=n_words if first else 0, n_bytes=n_bytes if first else 0)
    return metric.compute()


def test_perplexity_per_token_word_and_byte() -> None:
    total = sum(NLL)
    result = perplexity([6])
    assert result["loss"] == pytest.approx(total / 5)
    assert result["ppl_token"] == pytest.approx(math.exp(total / 5))
    assert result["ppl_word"] == pytest.approx(math.exp(total / 3))
    assert result["ppl_byte"] == pytest.approx(math.exp(total / 20))
    assert result["accuracy"] == pytest.approx(2 / 5)


@pytest.mark.parametrize("batch_sizes", [[1] * 6, [2, 4], [5, 1]])
def test_perplexity_does_not_depend_on_batches(batch_sizes: list[int]) -> None:
    expected = perplexity([6])
    result = perplexity(batch_sizes)
    for key in ("loss", "ppl_token", "ppl_word", "ppl_byte"):
        assert result[key] == expected[key]


def test_ranks_are_summed(monkeypatch: pytest.MonkeyPatch) -> None:
    metric = Perplexity()
    add(metric, 3.0, n_correct=1, n_words=1, n_bytes=4)

    def all_gather_object(values: list[object], value: object) -> None:
        values[:] = [value, [1.0, 2.0, 1.0, 4.0, 0.0], None]  # the third rank had no batch

    monkeypatch.setattr("torch.distributed.is_initialized", lambda: True)
    monkeypatch.setattr("torch.distributed.get_world_size", lambda: 3)
    monkeypatch.setattr("torch.distributed.all_gather_object", all_gather_object)
    result = metric.compute()
    assert result["loss"] == 1.0
    assert result["accuracy"] == 0.25
    assert result["ppl_byte"] == pytest.approx(math.exp(0.5))


def test_units_that_were_not_counted_are_omitted() -> None:
    result = perplexity([6], n_words=0, n_bytes=0)
    assert set(result) == {"loss", "accuracy", "ppl_token"}


def test_large_loss_gives_infinite_perplexity() -> None:
    metric = Perplexity()
    add(metric, 1e6, n_words=1, n_bytes=4)
    assert metric.compute()["ppl_token"] == math.inf
    metric.reset()
    add(metric, 0.0, n_correct=2)
    assert metric.compute() == {"loss": 0.0, "accuracy": 1.0, "ppl_token": 1.0}


def test_small_numbers_are_not_lost_in_the_sum() -> None:
    metric = Perplexity()
    add(metric, 2.0**25)
    for _ in range(8):
        add(metric, 1.0)
    assert metric.compute()["loss"] == (2.0**25 + 8) / 18


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_sums_stay_in_float64_in_a_task_of_low_precision(dtype: torch.dtype) -> None:
    """Lightning casts a task with its metrics; bfloat16 cannot count beyond 256."""
    metric = Perplexity()
    torch.nn.ModuleList([metric]).to(dtype)
    for _ in range(3000):
        metric.update(torch.ones(1, dtype=dtype), torch.tensor([1]), torch.tensor([1]))
    torch.nn.ModuleList([metric]).to(dtype)
    assert metric.compute()["loss"] == 1.0
    assert metric.sums is not None
    assert metric.sums.dtype == torch.float64
