"""Sample outputs of each task; collecting them does not change the training."""

import csv
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from lightning import Trainer

from fourfold.callbacks.monitoring.sample_logging import (
    N_SAMPLES,
    LogSamples,
    collect_media,
    sample_rows,
)
from tests.fixtures.tiny_tasks import DOWNSTREAM, FAMILIES, JOINED, documents, sentence_pairs

TASKS: dict[str, Any] = {
    **FAMILIES,
    **DOWNSTREAM,
    **JOINED,
    "sentence_pairs": sentence_pairs,
    "documents": documents,
}
SAMPLES = {"samples.csv", "attention.png"}
CONFUSION = {"confusion.csv", "confusion.png"}
MORE: dict[str, set[str]] = {
    "images": {"images.png"} | CONFUSION,
    "sequences": CONFUSION,
    "causal_sequences": CONFUSION,
    "words": CONFUSION,
    "documents": CONFUSION,
}


def make_trainer(folder: Path, **options: Any) -> Trainer:
    return Trainer(
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        default_root_dir=folder,
        enable_progress_bar=False,
        enable_model_summary=False,
        use_distributed_sampler=False,
        num_sanity_val_steps=0,
        callbacks=[LogSamples(folder)],
        **options,
    )


def rows_of(file: Path) -> list[list[str]]:
    return list(csv.reader(file.open(newline="", encoding="utf-8")))


@pytest.mark.parametrize("name", TASKS)
def test_files_of_each_task(
    name: str, texts: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    task, data = TASKS[name](texts)
    make_trainer(tmp_path).test(task, data, verbose=False)
    assert "could not save samples" not in capsys.readouterr().out
    files = {file.name for file in (tmp_path / "test").iterdir()}
    expected = {"samples.csv"} if name in ("questions", "documents") else SAMPLES
    assert files == expected | MORE.get(name, set())
    head, *rows = rows_of(tmp_path / "test/samples.csv")
    n_samples = 10 if name in ("images", "captions") else N_SAMPLES  # digits
    assert len(rows) == min(n_samples, len(data.split("test")))
    assert all(len(row) == len(head) for row in rows)
    assert all(row[0] for row in rows)
    if "confusion.csv" in files:
        classes, *counts = rows_of(tmp_path / "test/confusion.csv")
        assert classes[1:] == [row[0] for row in counts] == task.artifacts["class_names"]
        total = sum(int(n) for row in counts for n in row[1:])
        correct = sum(int(row[i + 1]) for i, row in enumerate(counts))
        score = task.summary["test/top1" if name == "images" else "test/accuracy"]
        assert correct / total == pytest.approx(score)


def test_samples_of_images_name_the_files_of_all_classes(texts: Path, tmp_path: Path) -> None:
    task, data = TASKS["images"](texts)
    make_trainer(tmp_path).test(task, data, verbose=False)
    head, *rows = rows_of(tmp_path / "test/samples.csv")
    assert head == ["file", "true", "predicted", "probability"]
    names = task.artifacts["class_names"]
    assert {row[1] for row in rows} == set(names)
    dataset = data.split("test")
    true = {dataset.location(i): names[k] for i, k in enumerate(dataset.labels.tolist())}
    assert [row[1] for row in rows] == [true[row[0]] for row in rows]


@pytest.mark.parametrize(
    ("labels", "counts"),
    [
        (np.array([0] * 6 + [1, 1, 2] + [0] * 3), [5, 2, 1]),
        (np.arange(10)[::-1], [1] * 10),
        (torch.tensor([1, 0]), [1, 1]),
    ],
)
def test_rows_of_all_classes(labels: Any, counts: list[int]) -> None:
    rows = sample_rows(labels, len(labels))
    assert np.bincount(labels[rows]).tolist() == counts
    assert len(set(sample_rows(np.arange(100), 100))) == 16


@pytest.mark.parametrize("labels", [np.linspace(0, 1, 9), None])
def test_rows_without_classes_are_the_first(labels: Any) -> None:
    assert sample_rows(labels, 9).tolist() == list(range(8))


def test_samples_of_a_translation(texts: Path, tmp_path: Path) -> None:
    task, data = TASKS["translation"](texts)
    make_trainer(tmp_path).test(task, data, verbose=False)
    head, *rows = rows_of(tmp_path / "test/samples.csv")
    assert head == ["source", "reference", "generated"]
    assert [row[0] for row in rows] == data.sources("test")[:N_SAMPLES]
    assert [row[1] for row in rows] == data.references("test")[:N_SAMPLES]
    batch = data.split("test").batch(torch.arange(N_SAMPLES).numpy(), 0, 0)
    assert [row[2] for row in rows] == task.generate_texts(
        batch.src, batch.src_mask, task.num_beams
    )


def test_samples_of_masked_tokens(texts: Path, tmp_path: Path) -> None:
    task, data = TASKS["masked"](texts)
    make_trainer(tmp_path).test(task, data, verbose=False)
    _, *rows = rows_of(tmp_path / "test/samples.csv")
    batch = data.split("test").batch(torch.arange(N_SAMPLES).numpy(), 0, 0)
    for row, targets in zip(rows, batch.targets, strict=True):
        masked = targets[targets != -100].tolist()
        assert row[0].count("<mask>") == len(masked)
        assert row[1] == " ".join(task.tokenizer.decode([i]) for i in masked)


@pytest.mark.parametrize("name", ["translation", "causal", "images"])
def test_collecting_media_changes_no_state(name: str, texts: Path, tmp_path: Path) -> None:
    task, data = TASKS[name](texts)
    before: dict[str, Any] = {}

    class Watch(LogSamples):
        def on_train_end(self, trainer: Trainer, pl_module: Any) -> None:
            pl_module.model.eval()  # as a frozen module
            next(iter(pl_module.model.children())).train()
            before["modes"] = [part.training for part in pl_module.modules()]
            before["random"] = torch.get_rng_state()
            before["weights"] = {k: v.clone() for k, v in pl_module.state_dict().items()}
            assert collect_media(trainer, pl_module, "val").keys() >= {"samples", "attention"}
            assert torch.is_grad_enabled()

    fit = make_trainer(tmp_path, max_steps=1)
    fit.callbacks[:] = [Watch(tmp_path)]
    fit.fit(task, data)
    assert [part.training for part in task.modules()] == before["modes"]
    assert torch.equal(torch.get_rng_state(), before["random"])
    assert task.state_dict().keys() == before["weights"].keys()
    for name, value in task.state_dict().items():
        assert torch.equal(value, before["weights"][name])
    assert not any(part._forward_pre_hooks for part in task.modules())


def test_an_exception_in_sample_outputs_does_not_fail_the_test(
    texts: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    task, data = TASKS["images"](texts)
    monkeypatch.setattr(type(task), "sample_outputs", lambda *_: 1 / 0)
    make_trainer(tmp_path).test(task, data, verbose=False)
    assert "could not save samples of the test split: division by zero" in capsys.readouterr().out
    assert task.summary["test/top1"] >= 0


def test_confusion_matrix_of_two_processes_counts_all_rows(texts: Path, tmp_path: Path) -> None:
    task, data = TASKS["words"](texts)
    make_trainer(tmp_path, devices=2, strategy="ddp_fork").test(task, data, verbose=False)
    _, *rows = rows_of(tmp_path / "test/samples.csv")
    assert len(rows) == N_SAMPLES
    _, *counts = rows_of(tmp_path / "test/confusion.csv")
    words = (texts / "test.conll").read_text().count("\t")
    assert sum(int(n) for row in counts for n in row[1:]) == words
