"""Downstream tasks: losses, metrics, predictions, freezing, LoRA."""

import csv
import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from lightning import Trainer
from torchmetrics.functional.text import squad

from fourfold.callbacks.monitoring.predictions import PredictionWriter
from fourfold.errors import InputError
from fourfold.finetuning.config import TuningConfig
from fourfold.finetuning.layer_lr_decay import layer_ids
from fourfold.finetuning.lora import is_lora
from fourfold.models import CausalLM
from fourfold.optim import OptimizerConfig, make_optimizer
from fourfold.tasks import load_task
from fourfold.training.finetuning import apply_finetuning
from tests.fixtures.tiny_tasks import DOWNSTREAM, causal, documents, images, sequences

MAKERS = {**DOWNSTREAM, "documents": documents}
tasks = pytest.mark.parametrize("name", MAKERS)


def trainer(folder: Path, **options: Any) -> Trainer:
    return Trainer(
        accelerator="cpu",
        precision="64-true",
        logger=False,
        enable_checkpointing=False,
        default_root_dir=folder,
        enable_progress_bar=False,
        enable_model_summary=False,
        use_distributed_sampler=False,
        num_sanity_val_steps=0,
        **options,
    )


def built(name: str, texts: Path, **options: Any) -> tuple[Any, Any]:
    """Return a task with random weights in fp64, and its data."""
    task, data = MAKERS[name](texts, **options)
    found = {field: getattr(data, field) for field in task.inferred_from_data}
    task.config = type(task.config)(**{**vars(task.config), **found})
    task.configure_model()
    torch.manual_seed(0)
    with torch.no_grad():
        for parameter in task.model.parameters():
            parameter.normal_(std=0.3)
    task.artifacts = data.artifacts()
    return task.double().eval(), data


@tasks
def test_metrics_do_not_depend_on_batch_size(name: str, texts: Path, tmp_path: Path) -> None:
    found = []
    for rows in (1000, 3):
        torch.manual_seed(0)
        task, data = MAKERS[name](texts, max_rows=rows)
        trainer(tmp_path).test(task, data, verbose=False)
        found.append(task.summary)
    assert found[0].keys() == found[1].keys()
    for key, value in found[0].items():
        if isinstance(value, list):  # counts
            assert found[1][key] == value
        else:
            assert math.isclose(found[1][key], value, rel_tol=1e-6, abs_tol=1e-12), key


@tasks
def test_checkpoint_alone_restores_the_task(name: str, texts: Path, tmp_path: Path) -> None:
    task, data = MAKERS[name](texts)
    fit = trainer(tmp_path, max_steps=1, limit_val_batches=0)
    fit.fit(task, data)
    fit.save_checkpoint(tmp_path / "a.ckpt")
    again = load_task(tmp_path / "a.ckpt")
    assert type(again) is type(task)
    for key, value in task.model.state_dict().items():
        assert torch.equal(again.model.state_dict()[key], value.float())
    assert again.artifacts == task.artifacts


@tasks
def test_step_equals_the_plain_formula(name: str, texts: Path) -> None:
    task, data = built(name, texts)
    batch = next(iter(data.train_dataloader()))
    total, count = task.step(batch)
    model = task.model
    if name == "sequences":
        logits = model(batch.ids, segments=batch.segments, mask=batch.mask)
        plain = F.cross_entropy(logits, batch.labels, reduction="sum")
    elif name == "scores":
        logits = model(batch.ids, segments=batch.segments, mask=batch.mask)
        plain = ((logits[:, 0] - batch.labels) ** 2).sum()
    elif name == "causal_sequences":  # GPT-1, eq. 5; each row alone
        plain = torch.zeros((), dtype=torch.float64)
        for ids, mask, label in zip(batch.ids, batch.mask, batch.labels, strict=True):
            row = ids[mask][None]
            h = model.hidden(row)
            logits = model.classifier(h[:, -1])
            language = F.cross_entropy(model.logits(h)[0, :-1], row[0, 1:])
            plain += F.cross_entropy(logits, label[None]) + 0.5 * language
    elif name == "documents":
        logits = model(batch.ids, batch.n_words, batch.n_sentences)
        plain = F.cross_entropy(logits, batch.labels, reduction="sum")
    elif name == "words":
        logits = model(batch.ids, mask=batch.mask)
        plain = F.cross_entropy(logits.flatten(0, 1), batch.labels.flatten(), reduction="sum")
    else:
        logits = model(batch.ids, segments=batch.segments, mask=batch.mask)
        logits = logits.masked_fill(~batch.mask[..., None], -torch.inf)
        halves = zip(logits.unbind(-1), (batch.starts, batch.ends), strict=True)
        plain = sum(F.cross_entropy(z, y, reduction="sum") for z, y in halves) / 2
    rows = (batch.labels != -100).sum() if name == "words" else len(batch.rows)
    assert count == rows
    torch.testing.assert_close(total, plain)


def test_best_answers_are_those_of_all_spans(texts: Path) -> None:
    """Compare with every pair of tokens, one by one."""
    task, data = built("questions", texts)
    dataset = data.split("val")
    batch = dataset.batch(torch.arange(12).numpy(), 0, 0)
    start, end = task.logits(batch)
    for row, found in enumerate(task.best_answers(batch, start, end, dataset, 5)):
        window = dataset.windows[row]
        context = dataset.questions[window.question].context
        places = batch.context[row].nonzero()[:, 0].tolist()
        every = sorted(
            (float(start[row, i] + end[row, j]), window.text(context, i, j))
            for i in places
            for j in places
            if i <= j < i + 8
        )[::-1]
        assert [text for _, text in every[:5]] == [answer.text for answer in found]
        assert found[0].score == pytest.approx(every[0][0])
        assert found[0].null == pytest.approx(float(start[row, 0] + end[row, 0]))


def squad_f1(predictions: list[str], questions: list[Any]) -> float:
    found = [{"prediction_text": text, "id": str(i)} for i, text in enumerate(predictions)]
    true = [{"answers": {"text": x.answers}, "id": str(i)} for i, x in enumerate(questions)]
    return float(squad(found, true)["f1"]) / 100


def test_question_is_scored_once_over_all_its_windows(texts: Path, tmp_path: Path) -> None:
    task, data = DOWNSTREAM["questions"](texts)
    torch.manual_seed(0)
    trainer(tmp_path).test(task, data, verbose=False)
    dataset = data.split("test")
    assert len(dataset) > len(dataset.questions)  # there are several windows
    best: dict[int, Any] = {}
    with torch.no_grad():
        for batch in data.test_dataloader():
            rows = batch.rows.tolist()
            for row, (answer,) in zip(
                rows, task.best_answers(batch, *task.logits(batch), dataset, 1), strict=True
            ):
                q = dataset.windows[row].question
                if q not in best or answer.score > best[q].score:
                    best[q] = answer
    found = [best[q].text for q in range(len(dataset.questions))]
    assert task.summary["test/f1"] == pytest.approx(squad_f1(found, dataset.questions))


def test_predictions_of_answers_and_numbers_are_written(texts: Path, tmp_path: Path) -> None:
    """The best answer over all windows is the one that the test scores."""
    for name, options in (
        ("questions", {}),
        ("questions", {"allow_no_answer": True}),
        ("scores", {}),
    ):
        torch.manual_seed(0)
        task, data = DOWNSTREAM[name](texts, **options)
        runner = trainer(tmp_path)
        runner.callbacks.append(PredictionWriter(tmp_path))  # type: ignore[attr-defined]
        runner.test(task, data, verbose=False)
        runner.predict(task, data, return_predictions=False)
        if name == "scores":
            with (tmp_path / "predictions.csv").open(newline="") as file:
                lines = list(csv.DictReader(file))
            assert list(lines[0]) == ["row", "value", "file", "true", "text"]
            dataset = data.split("test")
            assert [int(line["row"]) for line in lines] == list(range(40))
            assert [float(line["true"]) for line in lines] == dataset.labels.tolist()
            sentences = zip(*dataset.table.columns[:-1], strict=True)
            assert [line["text"] for line in lines] == ["\t".join(texts) for texts in sentences]
            continue
        found = json.loads((tmp_path / "predictions.json").read_text())
        asked = data.split("test").questions
        assert list(found) == [question.id for question in asked]
        f1 = squad_f1([best[0]["text"] for best in found.values()], asked)
        assert task.summary["test/f1"] == pytest.approx(f1)
        assert all(1 <= len(best) <= 20 for best in found.values())
        assert any("" in [a["text"] for a in best] for best in found.values()) == bool(options)


def test_sentence_in_several_chunks_is_one_line(texts: Path, tmp_path: Path) -> None:
    task, data = DOWNSTREAM["words"](texts)  # rows of 24 characters: most sentences are cut
    runner = trainer(tmp_path)
    runner.callbacks.append(PredictionWriter(tmp_path))  # type: ignore[attr-defined]
    runner.predict(task, data, return_predictions=False)
    lines = (tmp_path / "predictions.txt").read_text().splitlines()
    sentences = data.read()["test"]
    assert len(data.split("test").chunk_keys) > len(sentences)
    assert [len(line.split()) for line in lines] == [len(s.words) for s in sentences]


def changed(texts: Path, folder: Path, tuning: TuningConfig, **options: Any) -> set[str]:
    """Return the names of the weights that training changes."""
    torch.manual_seed(0)
    task, data = sequences(texts, max_rows=2000)
    task.tuning = tuning
    task.optimizer = OptimizerConfig("adamw", lr=0.1)
    before: dict[str, Any] = {}
    build = task.configure_model

    def remember() -> None:
        if task.model is None:
            build()
            before.update({k: v.clone() for k, v in task.model.state_dict().items()})

    task.configure_model = remember  # type: ignore[method-assign]
    trainer(folder, limit_val_batches=0, **({"max_steps": 1} | options)).fit(task, data)
    after = task.model.state_dict()
    return {name for name, value in before.items() if not torch.equal(after[name], value)}


HEAD = {f"classifier.{part}.{p}" for part in ("pool", "classify") for p in ("weight", "bias")}


def test_linear_probe_trains_the_head_only(texts: Path, tmp_path: Path) -> None:
    assert changed(texts, tmp_path, TuningConfig(freeze="all")) == HEAD


def test_all_layers_are_trained_without_freezing(texts: Path, tmp_path: Path) -> None:
    moved = changed(texts, tmp_path, TuningConfig())
    assert {"embed.tokens.weight", "stack.blocks.0.ff.up.weight"} | HEAD <= moved


def test_freezing_all_of_a_tied_language_model_is_rejected(texts: Path, tmp_path: Path) -> None:
    """The last block of a tied language model is not a head."""
    task, data = causal(texts)
    model = CausalLM(replace(task.config, vocab_size=data.vocab_size))
    apply_finetuning(model, TuningConfig(lora_rank=2))
    assert all(is_lora(model, name) for name, p in model.named_parameters() if p.requires_grad)
    model = CausalLM(replace(task.config, vocab_size=data.vocab_size))
    apply_finetuning(model, TuningConfig(freeze="all"))
    with pytest.raises(ValueError, match="empty parameter list"):
        make_optimizer(model, OptimizerConfig())


def test_lowest_layers_are_frozen(texts: Path, tmp_path: Path) -> None:
    moved = changed(texts, tmp_path, TuningConfig(freeze=1))
    assert moved == HEAD  # the only block, and what enters it


def test_gradual_unfreezing_starts_at_the_head(texts: Path, tmp_path: Path) -> None:
    """First the head is trained, then one more layer per epoch, at last the embeddings."""
    tuning = TuningConfig(gradual_unfreezing_epochs=1)
    assert changed(texts, tmp_path, tuning, max_steps=1) == HEAD
    second = changed(texts, tmp_path, tuning, max_steps=2, max_epochs=2)
    assert any("blocks.0" in name for name in second)
    assert not any(name.startswith("embed.") for name in second)
    third = changed(texts, tmp_path, tuning, max_steps=3, max_epochs=3)
    assert "embed.tokens.weight" in third


def test_sgd_accepts_weights_that_are_unfrozen_later(texts: Path, tmp_path: Path) -> None:
    task, data = sequences(texts, max_rows=2000)
    task.tuning = TuningConfig(gradual_unfreezing_epochs=1)
    task.optimizer = OptimizerConfig("sgd", lr=0.1, momentum=0.9)
    trainer(tmp_path, max_steps=3, max_epochs=3, limit_val_batches=0).fit(task, data)
    assert len(task.optimizers().state) == len(list(task.model.parameters()))


def test_lora_trains_its_updates_and_the_head(texts: Path, tmp_path: Path) -> None:
    moved = changed(texts, tmp_path, TuningConfig(lora_rank=2), max_steps=2, max_epochs=2)
    updates = {name for name in moved if ".attn." in name}
    assert moved - updates == HEAD
    assert {name.split(".attn.")[1] for name in updates} == {"q.a", "q.b", "v.a", "v.b"}


def test_lora_is_restored_from_a_checkpoint(texts: Path, tmp_path: Path) -> None:
    task, data = sequences(texts)
    task.tuning = TuningConfig(lora_rank=2)
    fit = trainer(tmp_path, max_steps=2, limit_val_batches=0)
    fit.fit(task, data)
    fit.save_checkpoint(tmp_path / "a.ckpt")
    again = load_task(tmp_path / "a.ckpt")
    batch = next(iter(data.test_dataloader()))
    torch.testing.assert_close(
        again.double().logits(batch),
        task.eval().logits(batch),  # type: ignore[operator]
    )


def test_every_weight_has_a_layer_id(texts: Path) -> None:
    task, _ = built("documents", texts)
    found, top = layer_ids(task.model)
    assert top == 1
    assert {name for name, depth in found.items() if depth} == {"head.weight", "head.bias"}
    for name in DOWNSTREAM:
        task, _ = built(name, texts)
        found, top = layer_ids(task.model)
        assert top == 2
        assert set(found.values()) == {0, 1, 2}
        assert all(
            (depth == 2) == (not key.startswith(("embed.", "stack.")))
            for key, depth in found.items()
        )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"freeze": 1, "lora_rank": 2}, "leave out freeze"),
        ({"pos_embed_interpolation": "nearest"}, "pos_embed_interpolation must be one of"),
        ({"lora_rank": -1}, "lora_rank must be at least 0"),
        ({"gradual_unfreezing_epochs": 0}, "gradual_unfreezing_epochs must be at least 1"),
    ],
)
def test_invalid_tuning_is_rejected(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        TuningConfig(**options)


def test_fewer_classes_than_in_the_data_are_rejected(texts: Path, tmp_path: Path) -> None:
    task, data = sequences(texts)
    task.config = replace(task.config, n_classes=2)
    with pytest.raises(InputError, match=r"n_classes must be 3, .*, got 2"):
        trainer(tmp_path, max_steps=1).fit(task, data)


def test_more_classes_than_in_the_data_are_rejected(texts: Path, tmp_path: Path) -> None:
    """The additional classes would have no names."""
    task, data = images(texts)
    task.config = replace(task.config, n_classes=1000)
    with pytest.raises(InputError, match=r"n_classes must be 10, .*, got 1000"):
        trainer(tmp_path, max_steps=1).fit(task, data)
