"""Losses of classification against torch and transformers: weights, several labels, numbers."""

import csv
import json
import math
import re
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
import transformers
from lightning import Trainer
from sklearn.utils.class_weight import compute_class_weight
from transformers.loss.loss_utils import ForSequenceClassificationLoss

import fourfold
from fourfold.callbacks.monitoring.predictions import PredictionWriter
from fourfold.commands.infer.classify import classify_lines
from fourfold.data import ImageData, SequenceData
from fourfold.data.vision.eval_transforms import TransformConfig
from fourfold.errors import InputError
from tests.data.vision.test_image_tables import LABELS, write_table
from tests.fixtures.tiny_tasks import (
    CHARS,
    causal_sequences,
    documents,
    images,
    scores,
    sequences,
    train,
    words,
)

# Their sum over a micro-batch may be below 1.
WEIGHTS = {
    "sequences": (sequences, [0.01, 0.2, 0.03]),
    "causal classes": (causal_sequences, [0.01, 0.2, 0.03]),
    "documents": (documents, [0.01, 0.2, 0.03]),
    "tokens": (words, [0.004, 0.03]),
    "images": (images, [0.001 * 1.9**k for k in range(10)]),
}


def weighted(name: str, texts: Path, weights: Any = None, **options: Any) -> tuple[Any, Any]:
    make, default = WEIGHTS[name]
    task, data = make(texts, **options)
    task.class_weights = default if weights is None else weights
    return task, data


def prepared(task: Any, data: Any, folder: Path) -> Any:
    """Return the task after the first step of a training, in training mode."""
    train(task, data, folder, max_steps=1)
    return task.train()


def read(data: Any, n_rows: int) -> Any:
    """Return a training batch in fp64."""
    batch = data.split("train").batch(np.arange(n_rows), 0, 1)
    return batch._replace(images=batch.images.double()) if hasattr(batch, "images") else batch


@pytest.mark.parametrize("name", WEIGHTS)
def test_weighted_mean_does_not_depend_on_micro_batches(
    name: str, texts: Path, tmp_path: Path
) -> None:
    whole = train(*weighted(name, texts, max_rows=2000), tmp_path)
    for rows in (500,) if name == "images" else (7, 3):
        cut = train(*weighted(name, texts, max_rows=rows), tmp_path, accumulate_grad_batches=10_000)
        for key, weight in whole.items():
            torch.testing.assert_close(cut[key], weight, rtol=1e-12, atol=1e-12, msg=key)
    plain = train(*WEIGHTS[name][0](texts, max_rows=2000), tmp_path)
    assert max((plain[key] - weight).abs().max() for key, weight in whole.items()) > 1e-4


@pytest.mark.parametrize("name", ["sequences", "tokens"])
def test_weighted_mean_does_not_depend_on_processes(name: str, texts: Path, tmp_path: Path) -> None:
    whole = train(*weighted(name, texts, max_rows=2000), tmp_path)
    _, data = weighted(name, texts)
    rows = -(-len(data.split("train")) // 2)
    pair = weighted(name, texts, max_rows=rows)
    halves = train(*pair, tmp_path, devices=2, strategy="ddp_fork")
    for key, weight in whole.items():
        torch.testing.assert_close(halves[key], weight, rtol=1e-12, atol=1e-12, msg=key)


@pytest.mark.parametrize("name", ["sequences", "documents", "tokens", "images"])
@pytest.mark.parametrize("label_smoothing", [0.0, 0.2])
def test_training_loss_is_that_of_torch(
    name: str, label_smoothing: float, texts: Path, tmp_path: Path
) -> None:
    task, data = weighted(name, texts)
    if name != "tokens":
        task.label_smoothing = label_smoothing
    elif label_smoothing:
        pytest.skip("no option of the task")
    prepared(task, data, tmp_path)
    batch = read(data, 9)
    total, count = task.step(batch)
    outputs = task.model(batch.images) if name == "images" else task.logits(batch)
    weights = torch.tensor(task.class_weights, dtype=torch.float64)
    expected = F.cross_entropy(
        outputs.flatten(0, -2), batch.labels.flatten(), weights, label_smoothing=label_smoothing
    )
    torch.testing.assert_close(total / count, expected, rtol=1e-12, atol=0)
    task.eval()  # validation has no weights, as it has no label smoothing
    task.update_metrics(batch, "val")
    expected = F.cross_entropy(outputs.flatten(0, -2), batch.labels.flatten())
    assert task.eval_loss.compute() == pytest.approx(expected.item(), rel=1e-6)


def test_weights_of_mixed_images(texts: Path, tmp_path: Path) -> None:
    task, data = weighted("images", texts, transform=TransformConfig(mixup=0.8))
    prepared(task, data, tmp_path)
    batch = read(data, 12)
    weights = torch.tensor(task.class_weights, dtype=torch.float64)
    total, count = task.step(batch)
    labels = batch.labels.double()
    expected = F.cross_entropy(task.model(batch.images), labels, weights, reduction="sum")
    torch.testing.assert_close(total, expected, rtol=1e-12, atol=0)
    torch.testing.assert_close(count, (labels * weights).sum(), rtol=1e-12, atol=0)
    # The weighted mean of images that are not mixed, as for class indices.
    classes = labels.argmax(1)
    hot = F.one_hot(classes, 10).double()
    logits = task.model(batch.images)
    (loss, divisors), (same, same_divisors) = (task.class_loss(logits, y) for y in (classes, hot))
    torch.testing.assert_close(same, loss, rtol=1e-12, atol=0)
    torch.testing.assert_close(same_divisors, divisors, rtol=1e-12, atol=0)
    with torch.autocast("cpu", torch.bfloat16):  # has no effect on the divisors
        _, low = task.class_loss(logits.float(), labels.float())
    torch.testing.assert_close(low.double(), labels @ weights, rtol=1e-6, atol=0)


@pytest.mark.parametrize("name", WEIGHTS)
def test_balanced_weights_are_those_of_sklearn(name: str, texts: Path, tmp_path: Path) -> None:
    task, data = prepared(*(pair := weighted(name, texts, "balanced")), tmp_path), pair[1]
    rows = data.split("train").labels
    labels = np.asarray(getattr(rows, "ids", rows))
    labels = labels[labels != -100]
    expected = compute_class_weight("balanced", classes=np.unique(labels), y=labels)
    np.testing.assert_allclose(task._weights, expected, rtol=1e-12)
    assert len(set(expected)) > 1


NEEDED = "model.class_weights must be 3 finite numbers from 0, one for each class and one of them"


@pytest.mark.parametrize(
    ("make", "weights", "problem"),
    [
        (sequences, [1.0, 2.0], f"{NEEDED} above 0, got [1.0, 2.0]"),
        (sequences, [1.0, -2.0, 1.0], f"{NEEDED} above 0, got [1.0, -2.0, 1.0]"),
        (sequences, [1.0, math.nan, 1.0], NEEDED),
        (sequences, [1.0, math.inf, 1.0], NEEDED),
        (sequences, ["a", "b", "c"], NEEDED),
        (sequences, [0.0, 0.0, 0.0], NEEDED),
        (scores, "balanced", "class_weights must be None for a regression or a single class"),
    ],
)
def test_wrong_weights(make: Any, weights: Any, problem: str, texts: Path, tmp_path: Path) -> None:
    task, data = make(texts)
    task.class_weights = weights
    with pytest.raises(InputError, match=re.escape(problem)):
        train(task, data, tmp_path)


def test_first_step_without_weight(texts: Path, tmp_path: Path) -> None:
    task, data = weighted("sequences", texts, max_rows=1)
    label = int(next(iter(data.train_dataloader())).labels)
    task.class_weights = [float(k != label) for k in range(3)]
    with pytest.raises(InputError, match="labels are ignored, or of a class with weight 0"):
        train(task, data, tmp_path)


def test_balanced_weights_need_each_class(texts: Path, tmp_path: Path) -> None:
    task, data = weighted("sequences", texts, "balanced", classes=["0", "1", "2", "never"])
    with pytest.raises(InputError, match="must be a list: no example has the label never"):
        train(task, data, tmp_path)
    task, data = pictures(texts / "all", ["a b", "a", "a b", "a"], label_separator=" ")
    task.class_weights = "balanced"
    with pytest.raises(InputError, match="must be a list: every example has the label a"):
        train(task, data, tmp_path)
    task, data = weighted("sequences", texts, "balanced")
    config = replace(task.config, vocab_size=100, n_classes=3)
    task = type(task)(config, class_weights="balanced")
    with pytest.raises(InputError, match="the data have no labels"):
        train(task, data.train_dataloader(), tmp_path)


def test_weights_and_teacher(texts: Path, tmp_path: Path) -> None:
    task, data = weighted("images", texts)
    task.teacher = "anything"
    with pytest.raises(InputError, match="needs images of one class, unweighted"):
        train(task, data, tmp_path)


# Several labels, and numbers of images.


def several(texts: Path, **options: Any) -> tuple[Any, Any]:
    """Return a classifier with any number of three labels per row."""
    rng = np.random.default_rng(0)
    for name in ("train", "val", "test"):
        labels = [",".join(x for x in "abc" if rng.random() < 0.4) for _ in range(40)]
        lines = [f"one {label} two {i}\t{label}" for i, label in enumerate(labels)]
        (texts / f"{name}_several.tsv").write_text("\n".join(["text\tlabel", *lines, ""]))
    task, _ = sequences(texts)
    data = SequenceData(
        "files",
        **{name: str(texts / f"{name}_several.tsv") for name in ("train", "val", "test")},  # type: ignore[arg-type]
        label_separator=",",
        tokenizer=CHARS,
        batch_size=options.pop("max_rows", 16),
        **options,
    )
    return task, data


def pictures(folder: Path, labels: list[Any], **options: Any) -> tuple[Any, Any]:
    """Return an image task whose labels a table lists, in the order of the images."""
    source = write_table(folder, labels)
    for split in ("val", "test"):
        write_table(folder, labels, split)
    task, _ = images(folder)
    rows = options.pop("max_rows", 64)
    data = ImageData(str(Path(source).parent), n_channels=1, batch_size=rows, **options)
    task.config = replace(task.config, image_size=4)
    return task, data


def labelled_pictures(folder: Path, **options: Any) -> tuple[Any, Any]:
    return pictures(folder / "labelled", LABELS * 4, label_separator=" ", **options)


def numbered_pictures(folder: Path, **options: Any) -> tuple[Any, Any]:
    return pictures(folder / "numbered", [i / 8 for i in range(24)], regression=True, **options)


LABELLED = {"texts": several, "images": labelled_pictures, "numbers": numbered_pictures}


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("name", ["texts", "images"])
def test_loss_of_several_labels_is_that_of_transformers(
    name: str, weighted: bool, texts: Path, tmp_path: Path
) -> None:
    task, data = LABELLED[name](texts)
    task.class_weights = "balanced" if weighted else None
    prepared(task, data, tmp_path)
    batch = read(data, 9)
    total, count = task.step(batch)
    logits = task.model(batch.images) if name == "images" else task.logits(batch)
    labels = batch.labels.double()
    weights = None
    if weighted:
        every = torch.as_tensor(data.split("train").labels).double()
        weights = (1 - every).sum(0) / every.sum(0)
        assert task.class_weights == "balanced"
    loss = torch.nn.BCEWithLogitsLoss(pos_weight=weights)(logits, labels)
    torch.testing.assert_close(total / count, loss, rtol=1e-12, atol=0)
    if not weighted:  # transformers has no weights
        config = SimpleNamespace(problem_type="multi_label_classification", num_labels=3)
        theirs = ForSequenceClassificationLoss(labels, logits, config)
        torch.testing.assert_close(total / count, theirs, rtol=1e-12, atol=0)


def test_loss_of_numbers_of_images(texts: Path, tmp_path: Path) -> None:
    task, data = prepared(*(pair := numbered_pictures(texts)), tmp_path), pair[1]
    batch = read(data, 9)
    total, count = task.step(batch)
    logits = task.model(batch.images)
    config = SimpleNamespace(problem_type="regression", num_labels=1)
    expected = ForSequenceClassificationLoss(batch.labels.double(), logits, config)
    torch.testing.assert_close(total / count, expected, rtol=1e-12, atol=0)
    torch.testing.assert_close(task.predict_step(batch, 0), logits.float())


def test_training_goes_on_with_the_same_number_of_labels(texts: Path, tmp_path: Path) -> None:
    pairs = sequences(texts), several(texts)
    for (task, data), (_, other) in (pairs, pairs[::-1]):
        trainer = Trainer(accelerator="cpu", max_steps=1, logger=False, default_root_dir=tmp_path)
        trainer.fit(task, data)
        trainer.save_checkpoint(tmp_path / "task.ckpt")
        task = type(task).load_from_checkpoint(tmp_path / "task.ckpt")
        with pytest.raises(InputError, match="--data gives another multi_label than the data"):
            train(task, other, tmp_path)
        train(type(task).load_from_checkpoint(tmp_path / "task.ckpt"), data, tmp_path)


def test_a_single_tag_is_no_number(texts: Path, tmp_path: Path) -> None:
    task, data = words(texts)
    task.config = replace(task.config, vocab_size=100, n_classes=1)
    task.configure_model()
    batch = read(data, 5)
    labels = batch.labels.clamp(max=0)  # 0 at words, otherwise -100
    loss, count = task.step(batch._replace(labels=labels))
    assert (loss, count) == (0.0, (labels == 0).sum())


@pytest.mark.parametrize("name", LABELLED)
def test_micro_batches_of_labels_and_numbers(name: str, texts: Path, tmp_path: Path) -> None:
    make = LABELLED[name]
    weights = None if name == "numbers" else "balanced"
    results = []
    for rows, accumulated in ((500, 1), (7, 1000)):
        task, data = make(texts, max_rows=rows)
        task.class_weights = weights
        results.append(train(task, data, tmp_path, accumulate_grad_batches=accumulated))
    for key, weight in results[0].items():
        torch.testing.assert_close(results[1][key], weight, rtol=1e-12, atol=1e-12, msg=key)


@pytest.mark.parametrize("name", LABELLED)
def test_evaluation_prediction_and_checkpoint(name: str, texts: Path, tmp_path: Path) -> None:
    """Scores, predictions.csv, a loaded checkpoint, and its export agree."""
    task, data = LABELLED[name](texts)
    trainer = Trainer(
        accelerator="cpu",
        max_epochs=2,
        logger=False,
        default_root_dir=tmp_path,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[PredictionWriter(tmp_path)],
    )
    trainer.fit(task, data)
    (scores,) = trainer.test(task, data, verbose=False)
    expected = (
        {"pearson", "spearman", "mae"} if name == "numbers" else {"map", "micro_f1", "macro_f1"}
    )
    assert {x.removeprefix("test/") for x in scores} == expected | {"loss"}
    media = task.sample_outputs(next(iter(data.test_dataloader())), "test")["samples"]
    assert media.columns[-1] == ("predicted" if name == "numbers" else "probability")
    trainer.predict(task, data, return_predictions=False)
    rows = list(csv.DictReader((tmp_path / "predictions.csv").open()))
    trainer.save_checkpoint(tmp_path / "task.ckpt")

    model = fourfold.load(tmp_path / "task.ckpt")
    assert bool(model.artifacts.get("multi_label")) == (name != "numbers")
    fourfold.save(model, tmp_path / "exported")
    again = fourfold.load(tmp_path / "exported")
    named = ["value"] if name == "numbers" else list(model.artifacts["class_names"])
    inputs = [row["text" if name == "texts" else "file"] for row in rows]
    for found in (fourfold.classify(model, inputs), fourfold.classify(again, inputs)):
        for row, values in zip(rows, found.tolist(), strict=True):
            assert [float(row[x]) for x in named] == pytest.approx(values, abs=1e-5)
    task_again = type(task).load_from_checkpoint(tmp_path / "task.ckpt").eval()
    assert task_again.is_multi_label == (name != "numbers")
    if name == "numbers":
        return
    theirs = transformers.AutoConfig.from_pretrained(tmp_path / "exported")
    assert theirs.problem_type == "multi_label_classification"
    assert again.artifacts["multi_label"] is True
    lines = classify_lines(model, inputs[:2])
    assert all(len(line[-6:]) == 6 and set(line[-6::2]) == set(named) for line in lines)
    assert all(
        len(line) == len(lines[0]) - 4 for line in classify_lines(model, inputs[:2], top_k=1)
    )
    page = fourfold.look(model, **({"text": "one"} if name == "texts" else {"image": inputs[0]}))
    shown = json.loads(re.search(r'"classes":(\[\[.*?\]\])', page.html)[1])  # type: ignore[index]
    found = fourfold.classify(model, ["one"] if name == "texts" else inputs[:1])[0]
    assert dict(shown) == pytest.approx(dict(zip(named, found.tolist(), strict=True)), abs=1e-3)
