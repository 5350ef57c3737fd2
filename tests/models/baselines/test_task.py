"""Tasks of baselines: gradient accumulation, checkpoints, generation."""

import io
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning import Trainer

from fourfold.callbacks.monitoring.sample_logging import collect_media
from fourfold.cli import main
from fourfold.models import (
    ConvolutionalLMConfig,
    LadderClassifierConfig,
    LadderLMConfig,
    RecurrentClassifierConfig,
    RecurrentLMConfig,
)
from fourfold.tasks import (
    ConvolutionalLanguageModeling,
    LadderLanguageModeling,
    LadderSequenceClassification,
    RecurrentLanguageModeling,
    RecurrentSequenceClassification,
    TokenClassification,
    load_task,
)
from tests.fixtures.tiny_tasks import FLAT, SGD, SMALL, causal, labelled, train, words

SHAPE: dict[str, Any] = {
    "d_model": SMALL["d_model"],
    "hidden_size": SMALL["d_ff"],
    "n_layers": SMALL["n_layers"],
    "dropout": 0.0,
    "vocab_size": None,
    "max_len": 96,
}


def language(texts: Path, **kwargs: Any) -> Any:
    task = RecurrentLanguageModeling(RecurrentLMConfig(**SHAPE), optimizer=SGD, schedule=FLAT)
    return task, causal(texts, **kwargs)[1]


def convolution(texts: Path, **kwargs: Any) -> Any:
    shape = {key: value for key, value in SHAPE.items() if key != "hidden_size"}
    config = ConvolutionalLMConfig(**shape, block="bytenet", dilations=(1, 2))
    task = ConvolutionalLanguageModeling(config, optimizer=SGD, schedule=FLAT)
    return task, causal(texts, **kwargs)[1]


def classes(texts: Path, **kwargs: Any) -> Any:
    config = RecurrentClassifierConfig(**SHAPE, head_dropout=0.0)
    task = RecurrentSequenceClassification(config, optimizer=SGD, schedule=FLAT)
    return task, labelled(texts, "kind", **kwargs)


def features(texts: Path, **kwargs: Any) -> Any:
    """A BiLSTM on the concatenation of two layers."""
    task, data = words(texts, **kwargs)
    config: Any = replace(
        task.config, feature_layers=(0, 1), feature_mix="concat", lstm_width=5, lstm_layers=2
    )
    return TokenClassification(config, SGD, FLAT), data


def ladder_language(texts: Path, **kwargs: Any) -> Any:
    """A language model of one unscaled head, which has no attention maps."""
    task, data = causal(texts, **kwargs)
    config = LadderLMConfig(**{**vars(task.config), "rung": "projections"})
    return LadderLanguageModeling(config, SGD, FLAT), data


def ladder_classes(texts: Path, **kwargs: Any) -> Any:
    """A classifier of several heads without residual connections."""
    config = LadderClassifierConfig(
        **SMALL,
        rung="heads",
        attn_dropout=0.0,
        head_dropout=0.0,
        n_segments=0,
        pool="mean",
        vocab_size=None,
        max_len=96,
    )
    return LadderSequenceClassification(config, SGD, FLAT), labelled(texts, "kind", **kwargs)


def stepped(task: Any, data: Any, folder: Path) -> Trainer:
    trainer = Trainer(
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        max_steps=1,
        default_root_dir=folder,
        enable_progress_bar=False,
        enable_model_summary=False,
        use_distributed_sampler=False,
        limit_val_batches=0,
    )
    trainer.fit(task, data)
    return trainer


@pytest.mark.parametrize(
    "make", [language, convolution, classes, features, ladder_language, ladder_classes]
)
def test_gradient_accumulation_makes_the_same_step(make: Any, texts: Path, tmp_path: Path) -> None:
    n_rows = len(make(texts)[1].split("train"))
    whole = train(*make(texts, max_rows=2000), tmp_path)
    half = train(*make(texts, max_rows=-(-n_rows // 2)), tmp_path, accumulate_grad_batches=2)
    for name, weight in whole.items():
        torch.testing.assert_close(half[name], weight, rtol=1e-9, atol=1e-12, msg=name)


@pytest.mark.parametrize(
    ("make", "samples"),
    [
        (language, {"samples"}),
        (convolution, set()),
        (classes, {"samples"}),
        (features, {"samples", "attention"}),
        (ladder_language, {"samples"}),
        (ladder_classes, {"samples", "attention"}),
    ],
)
def test_task_from_checkpoint_is_evaluated_and_has_samples(
    make: Any, samples: set[str], texts: Path, tmp_path: Path
) -> None:
    task, data = make(texts)
    trainer = stepped(task, data, tmp_path)
    trainer.test(task, data, verbose=False)
    assert task.summary["test/loss"] > 0
    media: Any = collect_media(trainer, task, "test")
    assert media.keys() - {"confusion"} == samples
    if "samples" in samples:
        assert media["samples"].rows
    trainer.save_checkpoint(tmp_path / "a.ckpt")
    again = load_task(tmp_path / "a.ckpt")
    assert again.model.config == task.model.config
    for key, value in task.model.state_dict().items():
        assert torch.equal(again.model.state_dict()[key], value)


def test_generate_groups_prompts_by_length(
    texts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    """Padding would change the recurrent state, so only prompts of equal length share a batch."""
    task, data = language(texts)
    trainer = stepped(task, data, tmp_path)
    trainer.save_checkpoint(tmp_path / "a.ckpt")
    lines = ["one two", "three", "one", "one two three four", "two"]
    command = ["generate", "--checkpoint", str(tmp_path / "a.ckpt"), "--max-new-tokens", "4"]

    def written(lines: list[str]) -> list[str]:
        data = "".join(line + "\n" for line in lines).encode()
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data)))
        capsys.readouterr()
        assert main(command) == 0
        return capsys.readouterr().out.splitlines()

    found = written(lines)
    assert found == [written([line])[0] for line in lines]
    assert all(after.startswith(line) for line, after in zip(lines, found, strict=True))
