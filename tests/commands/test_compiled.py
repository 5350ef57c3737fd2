"""Compiled blocks: the option, what it compiles, and that it trains the same."""

import csv
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from fourfold.core.stack import Block


@pytest.fixture
def eager(monkeypatch: pytest.MonkeyPatch) -> list[bool | None]:
    """What `compile` is asked for, done without a compiler."""
    asked: list[bool | None] = []
    plain = nn.Module.compile

    def compile_(module: nn.Module, *, dynamic: bool | None) -> None:
        assert isinstance(module, Block)
        asked.append(dynamic)
        plain(module, backend="eager", dynamic=dynamic)

    monkeypatch.setattr(nn.Module, "compile", compile_)
    return asked


def losses(run: Path) -> list[float]:
    with (run / "metrics.csv").open() as file:
        return [float(row["train/loss"]) for row in csv.DictReader(file) if row["train/loss"]]


STEPS = ("--trainer.max_steps=3", "--trainer.log_every_n_steps=1")
PLAIN = ("--model.config.dropout=0", "--model.config.attn_dropout=0")  # compiled it draws anew
CHARACTERS = "--data.tokenizer.kind=char"  # sentences of different lengths


@pytest.mark.parametrize(
    ("task", "more", "dynamic"), [("mt", [CHARACTERS], True), ("vit", [], False)]
)
def test_each_block_once(
    task: str, more: list[str], dynamic: bool, run: Any, configs: dict[str, Path], tmp_path: Path,
    eager: list[bool | None],
) -> None:  # fmt: skip
    fit = ("fit", "--config", configs[task], *STEPS, *PLAIN, *more)
    assert run(*fit, f"--run_dir={tmp_path / 'plain'}").code == 0
    assert not eager
    assert run(*fit, f"--run_dir={tmp_path / 'compiled'}", "--compile=true").code == 0
    assert set(eager) == {dynamic}
    found, wanted = tmp_path / "compiled", tmp_path / "plain"
    assert losses(found) == pytest.approx(losses(wanted), rel=1e-4)
    names = [list(torch.load(directory / "checkpoints/last.ckpt", weights_only=True)["state_dict"])
             for directory in (found, wanted)]  # fmt: skip
    assert names[0] == names[1]


def test_no_compiler(
    run: Any, configs: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    fit = ("fit", "--config", configs["vit"], "--trainer.accelerator=cpu")
    result = run(*fit, "--compile=true", f"--run_dir={tmp_path / 'r'}")
    assert result.code == 2
    assert "there is no C++ compiler" in result.err


@pytest.mark.slow
def test_really(run: Any, configs: dict[str, Path], tmp_path: Path) -> None:
    fit = ("fit", "--config", configs["mt"], *STEPS, *PLAIN, CHARACTERS)
    assert run(*fit, f"--run_dir={tmp_path / 'plain'}").code == 0
    assert run(*fit, f"--run_dir={tmp_path / 'compiled'}", "--compile=true").code == 0
    assert losses(tmp_path / "compiled") == pytest.approx(losses(tmp_path / "plain"), rel=1e-3)
