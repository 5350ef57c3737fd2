"""What has an LSTM in it: the same step however it is cut, and back from its checkpoint."""

import io
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning import Trainer

from fourfold.cli import main
from fourfold.models import RecurrentClassifierConfig, RecurrentLMConfig
from fourfold.tasks import (
    RecurrentLanguageModeling,
    RecurrentSequenceClassification,
    TokenClassification,
    load_task,
)
from scripts.tiny_tasks import FLAT, SGD, SMALL, causal, labelled, train, words

SHAPE: dict[str, Any] = {**SMALL, "vocab_size": None, "max_len": 96}


def language(texts: Path, **kwargs: Any) -> Any:
    task = RecurrentLanguageModeling(RecurrentLMConfig(**SHAPE), optimizer=SGD, schedule=FLAT)
    return task, causal(texts, **kwargs)[1]


def classes(texts: Path, **kwargs: Any) -> Any:
    config = RecurrentClassifierConfig(**SHAPE, head_dropout=0.0)
    task = RecurrentSequenceClassification(config, optimizer=SGD, schedule=FLAT)
    return task, labelled(texts, "kind", **kwargs)


def features(texts: Path, **kwargs: Any) -> Any:
    """A BiLSTM on two layers side by side."""
    task, data = words(texts, **kwargs)
    config: Any = replace(task.config, layers=(0, 1), mix="concat", lstm=5, lstm_layers=2)
    return TokenClassification(config, SGD, FLAT), data


def stepped(task: Any, data: Any, folder: Path) -> Trainer:
    trainer = Trainer(
        accelerator="cpu", logger=False, enable_checkpointing=False, max_steps=1,
        default_root_dir=folder, enable_progress_bar=False, enable_model_summary=False,
        use_distributed_sampler=False, limit_val_batches=0,
    )  # fmt: skip
    trainer.fit(task, data)
    return trainer


@pytest.mark.parametrize("make", [language, classes, features])
def test_one_step_however_it_is_cut(make: Any, texts: Path, tmp_path: Path) -> None:
    n_rows = len(make(texts)[1].split("train"))
    whole = train(*make(texts, max_rows=2000), tmp_path)
    half = train(*make(texts, max_rows=-(-n_rows // 2)), tmp_path, accumulate_grad_batches=2)
    for name, weight in whole.items():
        torch.testing.assert_close(half[name], weight, rtol=1e-9, atol=1e-12, msg=name)


@pytest.mark.parametrize("make", [language, classes, features])
def test_a_checkpoint_is_measured_and_shown(make: Any, texts: Path, tmp_path: Path) -> None:
    task, data = make(texts)
    trainer = stepped(task, data, tmp_path)
    trainer.test(task, data, verbose=False)
    assert task.summary["test/loss"] > 0
    (batch, *_) = list(data.test_dataloader())[:1]
    with torch.no_grad():
        assert all(map(bool, task.show(batch, "test").values()))
    trainer.save_checkpoint(tmp_path / "a.ckpt")
    again = load_task(tmp_path / "a.ckpt")
    assert again.model.config == task.model.config
    for key, value in task.model.state_dict().items():
        assert torch.equal(again.model.state_dict()[key], value)


def test_prompts_of_any_length_are_continued(
    texts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    """Padding would change its state, so that only prompts of one length share a batch."""
    task, data = language(texts)
    trainer = stepped(task, data, tmp_path)
    trainer.save_checkpoint(tmp_path / "a.ckpt")
    lines = ["one two", "three", "one", "one two three four", "two"]
    command = ["generate", "--checkpoint", str(tmp_path / "a.ckpt"), "--max-new", "4"]

    def written(lines: list[str]) -> list[str]:
        data = "".join(line + "\n" for line in lines).encode()
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data)))
        capsys.readouterr()
        assert main(command) == 0
        return capsys.readouterr().out.splitlines()

    found = written(lines)
    assert found == [written([line])[0] for line in lines]
    assert all(after.startswith(line) for line, after in zip(lines, found, strict=True))
