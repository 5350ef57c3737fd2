"""What each task shows, and that showing it changes nothing."""

import csv
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning import Trainer

from fourfold.callbacks.pictures import ROWS, Pictures, media_of
from scripts.tiny_tasks import DOWNSTREAM, FAMILIES, JOINED, sentence_pairs

TASKS: dict[str, Any] = {**FAMILIES, **DOWNSTREAM, **JOINED, "sentence_pairs": sentence_pairs}
SAMPLES = {"samples.csv", "attention.png"}
CONFUSION = {"confusion.csv", "confusion.png"}
MORE: dict[str, set[str]] = {
    "images": {"images.png"} | CONFUSION,
    "sequences": CONFUSION,
    "causal_sequences": CONFUSION,
    "words": CONFUSION,
}


def trainer(folder: Path, **options: Any) -> Trainer:
    return Trainer(
        accelerator="cpu", logger=False, enable_checkpointing=False, default_root_dir=folder,
        enable_progress_bar=False, enable_model_summary=False, use_distributed_sampler=False,
        num_sanity_val_steps=0, callbacks=[Pictures(folder)], **options,
    )  # fmt: skip


def rows_of(file: Path) -> list[list[str]]:
    return list(csv.reader(file.open(newline="", encoding="utf-8")))


@pytest.mark.parametrize("name", TASKS)
def test_a_test_shows_what_there_is(
    name: str, texts: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:  # fmt: skip
    task, data = TASKS[name](texts)
    trainer(tmp_path).test(task, data, verbose=False)
    assert "could not draw" not in capsys.readouterr().out
    files = {file.name for file in (tmp_path / "test").iterdir()}
    wanted = {"samples.csv"} if name == "questions" else SAMPLES
    assert files == wanted | MORE.get(name, set())
    head, *rows = rows_of(tmp_path / "test/samples.csv")
    assert len(rows) == min(ROWS, len(data.split("test")))
    assert all(len(row) == len(head) for row in rows)
    assert all(row[0] for row in rows)
    if "confusion.csv" in files:
        classes, *counts = rows_of(tmp_path / "test/confusion.csv")
        assert classes[1:] == [row[0] for row in counts] == task.artifacts["class_names"]
        total = sum(int(n) for row in counts for n in row[1:])
        right = sum(int(row[i + 1]) for i, row in enumerate(counts))
        score = task.summary["test/top1" if name == "images" else "test/accuracy"]
        assert right / total == pytest.approx(score)


def test_samples_of_a_translation(texts: Path, tmp_path: Path) -> None:
    task, data = TASKS["translation"](texts)
    trainer(tmp_path).test(task, data, verbose=False)
    head, *rows = rows_of(tmp_path / "test/samples.csv")
    assert head == ["source", "reference", "written"]
    assert [row[0] for row in rows] == data.sources("test")[:ROWS]
    assert [row[1] for row in rows] == data.references("test")[:ROWS]
    batch = data.split("test").batch(torch.arange(ROWS).numpy(), 0, 0)
    assert [row[2] for row in rows] == task.write_texts(batch.src, batch.src_mask, task.beam)


def test_samples_of_hidden_words(texts: Path, tmp_path: Path) -> None:
    task, data = TASKS["masked"](texts)
    trainer(tmp_path).test(task, data, verbose=False)
    _, *rows = rows_of(tmp_path / "test/samples.csv")
    batch = data.split("test").batch(torch.arange(ROWS).numpy(), 0, 0)
    for row, targets in zip(rows, batch.targets, strict=True):
        hidden = targets[targets != -100].tolist()
        assert row[0].count("<mask>") == len(hidden)
        assert row[1] == " ".join(task.tokenizer.decode([i]) for i in hidden)


@pytest.mark.parametrize("name", ["translation", "causal", "images"])
def test_showing_changes_nothing(name: str, texts: Path, tmp_path: Path) -> None:
    task, data = TASKS[name](texts)
    before: dict[str, Any] = {}

    class Watch(Pictures):
        def on_train_end(self, trainer: Trainer, pl_module: Any) -> None:
            pl_module.model.eval()  # a part that is frozen stays so
            next(iter(pl_module.model.children())).train()
            before["modes"] = [part.training for part in pl_module.modules()]
            before["random"] = torch.get_rng_state()
            before["weights"] = {k: v.clone() for k, v in pl_module.state_dict().items()}
            assert media_of(trainer, pl_module, "val").keys() >= {"samples", "attention"}
            assert torch.is_grad_enabled()

    fit = trainer(tmp_path, max_steps=1)
    fit.callbacks[:] = [Watch(tmp_path)]
    fit.fit(task, data)
    assert [part.training for part in task.modules()] == before["modes"]
    assert torch.equal(torch.get_rng_state(), before["random"])
    assert task.state_dict().keys() == before["weights"].keys()
    for name, value in task.state_dict().items():
        assert torch.equal(value, before["weights"][name])
    assert not any(part._forward_pre_hooks for part in task.modules())


def test_a_picture_that_fails_does_not_cost_the_test(
    texts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    task, data = TASKS["images"](texts)
    monkeypatch.setattr(type(task), "show", lambda *_: 1 / 0)
    trainer(tmp_path).test(task, data, verbose=False)
    assert "could not draw the test split: division by zero" in capsys.readouterr().out
    assert task.summary["test/top1"] >= 0


def test_two_processes_count_all_rows(texts: Path, tmp_path: Path) -> None:
    task, data = TASKS["words"](texts)
    trainer(tmp_path, devices=2, strategy="ddp_fork").test(task, data, verbose=False)
    _, *rows = rows_of(tmp_path / "test/samples.csv")
    assert len(rows) == ROWS
    _, *counts = rows_of(tmp_path / "test/confusion.csv")
    words = (texts / "test.conll").read_text().count("\t")
    assert sum(int(n) for row in counts for n in row[1:]) == words
