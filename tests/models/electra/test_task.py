"""Replaced token detection: sampling, loss, metrics, resume and micro-batches."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from fourfold.cli import main
from fourfold.data import MaskedTextData
from fourfold.data.loading.batches import MaskedBatch
from fourfold.losses import IGNORE_INDEX
from fourfold.models.electra.model import ElectraBlocksConfig, ElectraConfig
from fourfold.models.electra.task import ReplacedTokenDetection, sample_tokens
from tests.fixtures.tiny_tasks import FLAT, SGD, masked, train

BLOCKS: dict[str, Any] = {"n_layers": 1, "n_heads": 2, "dropout": 0.0, "attn_dropout": 0.0}
CONFIG = ElectraConfig(
    **BLOCKS,
    d_model=16,
    d_ff=24,
    vocab_size=None,
    embedding_size=10,
    max_len=32,
    n_segments=0,
    generator=ElectraBlocksConfig(**BLOCKS, d_model=8, d_ff=12),
)


def detection(texts: Path, **options: Any) -> tuple[ReplacedTokenDetection, MaskedTextData]:
    _, data = masked(texts, **options)
    return ReplacedTokenDetection(CONFIG, SGD, FLAT), data


def built(texts: Path) -> tuple[ReplacedTokenDetection, MaskedTextData]:
    """Return a task with random weights in fp64, and its data."""
    task, data = detection(texts)
    data.setup()
    torch.manual_seed(0)
    task.config = replace(CONFIG, vocab_size=data.vocab_size)
    task.configure_model()
    task.double()
    with torch.no_grad():
        for parameter in task.parameters():
            parameter.normal_(std=0.4)
    return task, data


def rows(data: MaskedTextData, which: list[int], epoch: int = 0) -> Any:
    return data.split("train").batch(np.array(which), epoch, 0)


def of_row(batch: MaskedBatch, values: Tensor, row: int) -> Tensor:
    """Return the values of a row without its padding."""
    return values[row] if batch.mask is None else values[row][batch.mask[row]]


@torch.no_grad()
def test_samples_have_the_distribution_of_the_generator() -> None:
    torch.manual_seed(0)
    x, weight, bias = torch.randn(1, 4), torch.randn(6, 4), torch.randn(6)
    expected = (x @ weight.T + bias).softmax(-1)[0]
    n = 20_000
    found = sample_tokens(x.expand(n, -1), weight, bias, torch.rand(n, dtype=torch.float64))
    frequencies = found.bincount(minlength=6) / n
    assert (frequencies - expected).abs().max() < 4 * 0.5 / n**0.5
    plain = [int((expected.double().cumsum(0) <= u).sum()) for u in (0.0, 0.31, 0.77)]
    draws = torch.tensor([0.0, 0.31, 0.77], dtype=torch.float64)
    assert sample_tokens(x.expand(3, -1), weight, bias, draws).tolist() == plain
    assert sample_tokens(x[:0], weight, bias, draws[:0]).shape == (0,)


@torch.no_grad()
def test_samples_depend_on_seed_epoch_and_row_only(texts: Path) -> None:
    task, data = built(texts)
    lengths = data.split("train").rows.lengths
    which = [int(lengths.argmin()), int(lengths.argmax()), 3]
    batch = rows(data, which)
    assert batch.mask is not None  # there is padding
    together = task.predict_step(batch, 0)[0]
    for i, row in enumerate(which):
        alone = rows(data, [row])
        found = of_row(alone, task.predict_step(alone, 0)[0], 0)
        assert torch.equal(of_row(batch, together, i), found)
    torch.rand(3)  # other random numbers between two calls
    assert torch.equal(together, task.predict_step(batch, 0)[0])
    later = batch._replace(epoch=1)
    assert not torch.equal(together, task.predict_step(later, 0)[0])
    draws = torch.from_numpy(task._draws(batch))
    assert len(draws.unique()) == draws.numel()
    assert 0.4 < draws.mean() < 0.6


def plain_loss(task: ReplacedTokenDetection, batch: MaskedBatch, sampled: Tensor) -> Tensor:
    """Compute the loss by loops over the tokens, with softmax and logarithms."""
    model, mask = task.model, batch.mask
    assert mask is not None
    log_p = model.generator(batch.ids, mask=mask).softmax(-1).log()
    p = model(sampled, mask=mask).sigmoid()
    total = torch.zeros((), dtype=torch.float64)
    for i in range(len(sampled)):
        masked_count, length, detection = 0, 0, torch.zeros((), dtype=torch.float64)
        for t in range(sampled.shape[1]):
            if not mask[i, t]:
                continue
            length += 1
            target = int(batch.targets[i, t])
            is_target = target != IGNORE_INDEX
            if is_target:
                masked_count += 1
                total = total - log_p[i, t, target]
            replaced = is_target and int(sampled[i, t]) != target
            detection = detection - (p[i, t] if replaced else 1 - p[i, t]).log()
        total = total + 50.0 * masked_count * detection / length
    return total


def test_loss_and_gradients_equal_a_plain_implementation(texts: Path) -> None:
    task, data = built(texts)
    lengths = data.split("train").rows.lengths
    batch = rows(data, [int(lengths.argmin()), int(lengths.argmax()), 3])
    sampled = task.predict_step(batch, 0)[0]
    kept = batch.targets == IGNORE_INDEX
    assert torch.equal(sampled[kept], batch.ids[kept])
    loss, count = task.step(batch)
    assert count == int((~kept).sum())
    wanted = plain_loss(task, batch, sampled)
    torch.testing.assert_close(loss, wanted, rtol=1e-10, atol=1e-10)
    parameters = dict(task.model.named_parameters())
    found, expected = (torch.autograd.grad(x, list(parameters.values())) for x in (loss, wanted))
    for name, mine, theirs in zip(parameters, found, expected, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-9, atol=1e-9, msg=name)
    again, _ = task.step(batch._replace(target_positions=None))
    torch.testing.assert_close(again, loss, rtol=0, atol=0)


def test_discriminator_teaches_the_generator_only_through_the_embeddings(texts: Path) -> None:
    task, data = built(texts)
    outputs = task._run(rows(data, [0, 1]))
    own = list(task.model.generator.parameters())
    gradients = torch.autograd.grad(outputs.logits.sum(), own, allow_unused=True)
    assert own
    assert all(gradient is None for gradient in gradients)


@torch.no_grad()
def test_metrics_are_those_of_plain_counts(texts: Path) -> None:
    task, data = built(texts)
    task.model.head.classify.bias.fill_(0.0)
    counts = dict.fromkeys(("real", "correct", "hits", "found", "replaced"), 0)
    nll, bce, n_masked = 0.0, 0.0, 0
    for which in ([0, 1, 2, 3], [4, 5]):
        batch = rows(data, which)
        task.update_metrics(batch, "val")
        outputs = task._run(batch)
        nll += F.cross_entropy(
            task.model.generator(batch.ids, mask=batch.mask).flatten(0, 1),
            batch.targets.flatten(),
            reduction="sum",
        ).item()
        n_masked += int((batch.targets != IGNORE_INDEX).sum())
        for i in range(len(which)):
            logits, ids = (of_row(batch, x, i).tolist() for x in (outputs.logits, outputs.ids))
            targets, inputs = (of_row(batch, x, i).tolist() for x in (batch.targets, batch.ids))
            for z, sample, target, token in zip(logits, ids, targets, inputs, strict=True):
                is_replaced = sample != (token if target == IGNORE_INDEX else target)
                bce += math.log1p(math.exp(-z if is_replaced else z))
                counts["real"] += 1
                counts["correct"] += (z > 0) == is_replaced
                counts["hits"] += z > 0 and is_replaced
                counts["found"] += z > 0
                counts["replaced"] += is_replaced
    metrics = task.compute_metrics("val")
    assert counts["hits"]
    assert metrics["loss_mlm"] == pytest.approx(nll / n_masked)
    assert metrics["ppl_token"] == pytest.approx(math.exp(nll / n_masked))
    assert metrics["loss_detection"] == pytest.approx(bce / counts["real"])
    assert metrics["accuracy"] == counts["correct"] / counts["real"]
    assert metrics["precision"] == counts["hits"] / counts["found"]
    assert metrics["recall"] == counts["hits"] / counts["replaced"]


def test_accumulation_does_not_change_the_gradient(texts: Path, tmp_path: Path) -> None:
    whole = train(*detection(texts, max_rows=2000), tmp_path)
    options: dict[str, Any] = {"accumulate_grad_batches": 10_000}
    for n in (7, 3):
        cut = train(*detection(texts, max_rows=n), tmp_path, **options)
        for name, weight in whole.items():
            torch.testing.assert_close(cut[name], weight, rtol=1e-12, atol=1e-12, msg=name)


def test_a_resumed_run_ends_with_the_same_weights(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    call = ["fit", "--config", "electra/tiny", "--model.schedule.total_steps", "60"]
    call += ["--data.batch_size", "4", "--tensorboard", "false", "--model.config.dropout", "0.1"]
    call += ["--trainer.limit_val_batches", "0", "--data.max_len", "32"]
    for run, steps in (("whole", 8), ("halves", 3), ("halves", 8)):
        assert main([*call, "--run_dir", run, "--trainer.max_steps", str(steps)]) == 0
    whole, halves = (
        torch.load(tmp_path / run / "checkpoints/last.ckpt", weights_only=True)
        for run in ("whole", "halves")
    )
    assert whole["global_step"] == halves["global_step"] == 8
    torch.testing.assert_close(halves["state_dict"], whole["state_dict"], rtol=0, atol=0)
