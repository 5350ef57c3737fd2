"""Weights of classes against torch and scikit-learn, and their weighted mean over micro-batches."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from sklearn.utils.class_weight import compute_class_weight

from fourfold.data.vision.eval_transforms import TransformConfig
from fourfold.errors import InputError
from tests.fixtures.tiny_tasks import (
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
    assert task.loss.compute() == pytest.approx(expected.item(), rel=1e-6)


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
    pairs = [(task.class_loss(logits, y), task.divisors(logits, y).sum()) for y in (classes, hot)]
    torch.testing.assert_close(pairs[0], pairs[1], rtol=1e-12, atol=0)


@pytest.mark.parametrize("name", WEIGHTS)
def test_balanced_weights_are_those_of_sklearn(name: str, texts: Path, tmp_path: Path) -> None:
    task, data = prepared(*(pair := weighted(name, texts, "balanced")), tmp_path), pair[1]
    rows = data.split("train").labels
    labels = np.asarray(getattr(rows, "ids", rows))
    labels = labels[labels != -100]
    expected = compute_class_weight("balanced", classes=np.unique(labels), y=labels)
    np.testing.assert_allclose(task._weights, expected, rtol=1e-12)
    assert len(set(expected)) > 1


@pytest.mark.parametrize(
    ("make", "weights", "problem"),
    [
        (sequences, [1.0, 2.0], "model.class_weights must be 3 numbers, one for each class, got 2"),
        (scores, "balanced", "model.class_weights must be None for a regression"),
    ],
)
def test_wrong_weights(make: Any, weights: Any, problem: str, texts: Path, tmp_path: Path) -> None:
    task, data = make(texts)
    task.class_weights = weights
    with pytest.raises(InputError, match=problem):
        train(task, data, tmp_path)


def test_balanced_weights_need_each_class(texts: Path, tmp_path: Path) -> None:
    task, data = weighted("sequences", texts, "balanced", classes=["0", "1", "2", "never"])
    with pytest.raises(InputError, match="the class never has no training example"):
        train(task, data, tmp_path)
    task, data = weighted("sequences", texts, "balanced")
    config = replace(task.config, vocab_size=100, n_classes=3)
    task = type(task)(config, class_weights="balanced")
    with pytest.raises(InputError, match="have no attribute labels"):
        train(task, data.train_dataloader(), tmp_path)


def test_weights_and_teacher(texts: Path, tmp_path: Path) -> None:
    task, data = weighted("images", texts)
    task.teacher = "anything"
    with pytest.raises(InputError, match="model.class_weights must be None with a teacher"):
        train(task, data, tmp_path)


def test_negative_weights() -> None:
    task, _ = images(Path())
    with pytest.raises(InputError, match="class_weights must be at least 0, got -1"):
        type(task)(class_weights=[1.0, -1.0])
