"""Metrics of all tasks: equal to a plain computation, and independent of the batch size."""

import dataclasses
import math
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from lightning import Callback, LightningModule, Trainer
from sacrebleu.metrics import BLEU
from torchmetrics import SumMetric

from fourfold.data import CausalTextData, SyntheticSequenceData
from fourfold.data.loading.batches import CausalBatch
from fourfold.models import CausalLMConfig
from fourfold.models.vit import task as image_classification
from fourfold.tasks import CausalLanguageModeling
from tests.fixtures.tiny_tasks import FAMILIES


def measure(family: str, texts: Path, folder: Path, **kwargs: Any) -> tuple[Any, Any]:
    torch.manual_seed(0)
    task, data = FAMILIES[family](texts, **kwargs)
    trainer = Trainer(
        accelerator="cpu",
        precision="64-true",
        logger=False,
        enable_checkpointing=False,
        default_root_dir=folder,
        enable_progress_bar=False,
        enable_model_summary=False,
        use_distributed_sampler=False,
    )
    trainer.test(task, data, verbose=False)
    return task, data


@pytest.mark.parametrize("family", ["translation", "causal", "images"])
def test_metrics_do_not_depend_on_batch_size(family: str, texts: Path, tmp_path: Path) -> None:
    whole, _ = measure(family, texts, tmp_path, max_rows=1000)
    cut, _ = measure(family, texts, tmp_path, max_rows=3)
    assert whole.summary.keys() == cut.summary.keys()
    for name, value in whole.summary.items():
        if isinstance(value, float):
            assert math.isclose(cut.summary[name], value, rel_tol=1e-6), name
        else:
            assert cut.summary[name] == value, name


@pytest.mark.parametrize("family", FAMILIES)
def test_validation_of_unchanged_weights_is_equal_in_every_epoch(
    family: str, texts: Path, tmp_path: Path
) -> None:
    class Losses(Callback):
        def __init__(self) -> None:
            self.seen: list[float] = []

        def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
            self.seen.append(float(trainer.callback_metrics["val/loss"]))

    task, data = FAMILIES[family](texts)
    task.optimizer = dataclasses.replace(task.optimizer, lr=1e-300)
    trainer = Trainer(
        accelerator="cpu",
        precision="64-true",
        logger=False,
        enable_checkpointing=False,
        default_root_dir=tmp_path,
        enable_progress_bar=False,
        enable_model_summary=False,
        use_distributed_sampler=False,
        max_epochs=3,
        num_sanity_val_steps=0,
        callbacks=[losses := Losses()],
    )
    trainer.fit(task, data)
    assert len(losses.seen) == 3
    assert len(set(losses.seen)) == 1


def test_validation_does_not_reset_a_metric_of_the_training(texts: Path, tmp_path: Path) -> None:
    task, data = FAMILIES["causal"](texts)

    class Counting(type(task)):  # type: ignore[misc]
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            self.n_batches.update(1)
            return super().training_step(batch, batch_idx)

    counting = Counting(task.config, task.optimizer, task.schedule)
    counting.n_batches = SumMetric()
    trainer = Trainer(
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        default_root_dir=tmp_path,
        enable_progress_bar=False,
        enable_model_summary=False,
        use_distributed_sampler=False,
        max_steps=5,
        val_check_interval=1,
    )
    trainer.fit(counting, data)
    assert counting.n_batches.compute() == 5
    assert not counting.ppl.update_called


def test_perplexity_per_byte_is_that_of_the_raw_text(texts: Path, tmp_path: Path) -> None:
    task, data = measure("causal", texts, tmp_path)
    nll = sum(float(task.predict_step(batch, 0).sum()) for batch in data.test_dataloader())
    n_bytes = len((texts / "test.txt").read_bytes())
    tokens = math.log(task.summary["test/ppl_token"]) / task.summary["test/loss"]
    assert math.isclose(tokens, 1.0, rel_tol=1e-6)
    found = math.log(task.summary["test/ppl_byte"])
    # The first or the last byte of a text may be no target: nothing precedes or follows it.
    assert nll / n_bytes <= found * (1 + 1e-6)
    assert found <= nll / (n_bytes - 2) * (1 + 1e-6)


def test_translation_scores_equal_sacrebleu(texts: Path, tmp_path: Path) -> None:
    task, data = measure("translation", texts, tmp_path)
    pairs = [p for batch in data.test_dataloader() for p in task.predict_step(batch, 0)]
    hypotheses = [text for _, text in sorted(pairs)]
    bleu = BLEU()
    expected = bleu.corpus_score(hypotheses, [data.references("test")]).score
    assert task.summary["test/bleu"] == pytest.approx(expected)
    assert task.summary["test/bleu_signature"] == str(bleu.get_signature())


def test_accuracy_is_the_fraction_of_correct_classes(texts: Path, tmp_path: Path) -> None:
    task, data = measure("images", texts, tmp_path)
    right = total = 0
    for given in data.test_dataloader():
        batch = given._replace(images=given.images.double())
        right += int((task.predict_step(batch, 0).argmax(-1) == batch.labels).sum())
        total += len(batch.labels)
    assert task.summary["test/top1"] == pytest.approx(right / total)
    confusion = torch.tensor(task.summary["test/confusion"])
    assert confusion.sum() == total
    assert confusion.diagonal().sum() == right


@pytest.mark.parametrize("family", FAMILIES)
def test_step_equals_the_plain_formula(family: str, texts: Path) -> None:
    task, data = FAMILIES[family](texts)
    task.config = type(task.config)(
        **{
            **vars(task.config),
            **{field: getattr(data, field) for field in task.inferred_from_data},
        }
    )
    task.configure_model()
    task.eval()
    batch = next(iter(data.train_dataloader()))
    if family == "translation":
        logits = task.model(
            batch.src, batch.tgt[:, :-1], src_mask=batch.src_mask, tgt_mask=batch.tgt_mask[:, :-1]
        )
        targets = batch.tgt[:, 1:].masked_fill(~batch.tgt_mask[:, 1:], -100)
    elif family == "masked":
        logits = task.model(
            batch.ids, segments=batch.segments, mask=batch.mask, documents=batch.documents
        )
        targets = batch.targets
    elif family == "causal":
        logits, targets = task.model(batch.ids, documents=batch.documents), batch.targets
    else:
        logits, targets = task.model(batch.images), batch.labels
    smoothing = 0.1 if family == "translation" else 0.0
    plain = F.cross_entropy(
        logits.flatten(0, -2), targets.flatten(), label_smoothing=smoothing, reduction="sum"
    )
    total, count = task.step(batch)
    assert count == (targets != -100).sum()
    torch.testing.assert_close(total, plain, rtol=1e-5, atol=1e-4)


def test_only_a_test_has_a_confusion_matrix(
    texts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    task, _ = measure("images", texts, tmp_path)
    assert "test/confusion" in task.summary
    assert "confusion" not in task.scores
    monkeypatch.setattr(image_classification, "MAX_CONFUSION_CLASSES", 1)
    assert "test/confusion" not in measure("images", texts, tmp_path)[0].summary


def test_task_adds_the_z_loss_in_training_only() -> None:
    config = CausalLMConfig(d_model=8, n_layers=1, n_heads=2, d_ff=16, vocab_size=12, max_len=9)
    ids = torch.randint(12, (2, 9))
    batch = CausalBatch(ids, ids)
    task = CausalLanguageModeling(config, z_loss=0.1)
    task.configure_model()
    task.eval()
    logits = task.model(ids)
    plain_loss = F.cross_entropy(logits.flatten(0, 1), ids.flatten(), reduction="sum")
    z_loss = 0.1 * logits.logsumexp(-1).square().sum()
    torch.testing.assert_close(task.step(batch)[0], plain_loss + z_loss)
    task.update_metrics(batch, "val")
    assert task.compute_metrics("val")["loss"] == pytest.approx(plain_loss.item() / 18)


def test_exact_match_is_the_share_of_sequences_without_a_wrong_target(tmp_path: Path) -> None:
    torch.manual_seed(0)
    config = CausalLMConfig(d_model=16, n_layers=1, n_heads=2, d_ff=16, vocab_size=14, max_len=3)
    task = CausalLanguageModeling(config)
    task.configure_model()
    data = SyntheticSequenceData("addition", length=1, eval_rows=50, batch_size=7)
    quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
    trainer = Trainer(
        accelerator="cpu", default_root_dir=tmp_path, enable_model_summary=False, **quiet
    )
    # A random output matrix gives both kinds of digits, right and wrong.
    weights = task.model.head.output(torch.zeros(1, 16))[1]
    with torch.no_grad():
        weights[4:] += 0.5 * torch.randn(10, 16)
    trainer.test(task, data, verbose=False)
    batch = data.split("test").batch(torch.arange(50).numpy(), 0, 0)
    with torch.inference_mode():
        right = (task.model(batch.ids).argmax(-1) == batch.targets)[:, 1:]
    assert task.summary["test/exact_match"] == right.all(1).float().mean()
    assert task.summary["test/accuracy"] == pytest.approx(right.float().mean().item())
    assert right.any(1).sum() > right.all(1).sum()
    text = CausalTextData(block_size=3, batch_size=7)
    task = CausalLanguageModeling(dataclasses.replace(config, vocab_size=None))
    trainer.test(task, text, verbose=False)
    assert "test/exact_match" not in task.summary
