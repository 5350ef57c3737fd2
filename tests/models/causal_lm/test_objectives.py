"""Loss and metrics of the objectives prefix and hybrid, compared with separate forward passes."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from fourfold.losses import IGNORE_INDEX
from fourfold.models import CausalLM
from fourfold.tasks import CausalLanguageModeling
from tests.fixtures.tiny_tasks import causal, hybrid, prefix_lm

TOLERANCE: dict[str, Any] = {"rtol": 1e-10, "atol": 1e-10}


def built(make: Any, texts: Path, **options: Any) -> tuple[CausalLanguageModeling, Any]:
    """Return a task in fp64 with its model, and the first batch of its data."""
    task, data = make(texts, **options)
    torch.manual_seed(0)
    config = {**vars(task.config), "vocab_size": data.vocab_size}
    task.model = CausalLM(type(task.config)(**config)).double()
    return task, data.split("train").batch(np.arange(12), 0, 1)


def gradients(task: CausalLanguageModeling, loss: Tensor) -> list[Tensor]:
    return list(torch.autograd.grad(loss, list(task.model.parameters()), allow_unused=False))


def losses(task: CausalLanguageModeling, ids: Tensor, targets: Tensor, **options: Any) -> Tensor:
    """Compute the loss (B, T) of each target from all logits."""
    logits = task.model(ids, **options)
    return torch.nn.functional.cross_entropy(
        logits.mT, targets, reduction="none", ignore_index=IGNORE_INDEX
    )


def test_hybrid_equals_two_separate_passes(texts: Path) -> None:
    """A causal pass of the causal rows, and a pass without a causal mask of the masked rows."""
    task, batch = built(hybrid, texts)
    is_masked = batch.prefix.any(1)
    assert 0 < is_masked.sum() < 12
    total, count = task.step(batch)
    found = gradients(task, total)
    p, share, loss_share = 0.15, 1 / 3, 0.5
    parts, expected_count = [], 0.0
    for rows, weight in (
        (is_masked, loss_share / (share * p)),
        (~is_masked, (1 - loss_share) / (1 - share)),
    ):
        ids, targets = batch.ids[rows], batch.targets[rows]
        options = {"prefix": torch.ones_like(ids, dtype=torch.bool)} if rows is is_masked else {}
        weight = float(np.float32(weight))
        parts.append(weight * losses(task, ids, targets, **options).sum())
        expected_count += weight * float((targets != IGNORE_INDEX).sum())
    torch.testing.assert_close(total, sum(parts), **TOLERANCE)
    assert float(count) == pytest.approx(expected_count, rel=1e-12)
    for ours, theirs in zip(found, gradients(task, sum(parts)), strict=True):
        torch.testing.assert_close(ours, theirs, **TOLERANCE)


def test_no_masked_rows_is_the_causal_loss(texts: Path) -> None:
    task, batch = built(causal, texts, objective="hybrid", masked_rows=0.0)
    total, count = task.step(batch)
    expected = losses(task, batch.ids, batch.targets)
    torch.testing.assert_close(total, expected.sum(), **TOLERANCE)
    assert int(count) == int((batch.targets != IGNORE_INDEX).sum())


def test_the_loss_of_a_prefix_lm_is_that_of_each_document_alone(texts: Path) -> None:
    task, batch = built(prefix_lm, texts, documents="line")
    total, count = task.step(batch)
    expected, n_targets = torch.zeros((), dtype=torch.float64), 0
    for row in range(12):
        for document in batch.documents[row].unique():
            own = batch.documents[row] == document
            parts = [x[row, own][None] for x in (batch.ids, batch.targets)]
            expected = expected + losses(task, *parts, prefix=batch.prefix[row, own][None]).sum()
            n_targets += int((parts[1] != IGNORE_INDEX).sum())
    torch.testing.assert_close(total, expected, **TOLERANCE)
    assert int(count) == n_targets


def test_metrics_of_the_types_of_rows(texts: Path) -> None:
    task, batch = built(hybrid, texts)
    _, data = hybrid(texts)
    task.__class__ = type("WithData", (CausalLanguageModeling,), {"datamodule": data})
    with torch.no_grad():
        task.update_metrics(batch, "val")
        found = task.compute_metrics("val")
        total, count = task.step(batch)
        nll = losses(task, batch.ids, batch.targets, prefix=batch.prefix)
    is_masked = batch.prefix.any(1)
    assert found["loss"] == pytest.approx(float(total / count), rel=1e-9)
    for name, rows in (("causal", ~is_masked), ("masked", is_masked)):
        mean = nll[rows].sum() / (batch.targets[rows] != IGNORE_INDEX).sum()
        assert found[f"{name}_loss"] == pytest.approx(float(mean), rel=1e-9)
        assert 0 <= found[f"{name}_accuracy"] <= 1
        assert found[f"{name}_ppl_token"] == pytest.approx(float(mean.exp()), rel=1e-9)
    assert "ppl_token" not in found


@pytest.mark.parametrize("share", [0.0, 1.0])
def test_metrics_of_a_type_without_rows_are_left_out(texts: Path, share: float) -> None:
    options = {"masked_rows": share, "masked_loss": None}
    task, batch = built(causal, texts, objective="hybrid", **options)
    _, data = causal(texts, objective="hybrid", **options)
    task.__class__ = type("WithData", (CausalLanguageModeling,), {"datamodule": data})
    with torch.no_grad():
        task.update_metrics(batch, "val")
    names = set(task.compute_metrics("val"))
    masked_names = {"loss", "masked_loss", "masked_accuracy", "masked_ppl_token"}
    causal_names = {"loss", "accuracy", "ppl_token", "ppl_word", "ppl_byte"}
    assert names == (masked_names if share else causal_names)
