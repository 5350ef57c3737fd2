"""Training on streamed chunks resumes exactly after a kill."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml

from fourfold.data.streaming import chunks as chunks_module
from fourfold.errors import InputError
from fourfold.tokenization.training import TokenizerConfig, train_tokenizer
from tests.fixtures.chunk_files import write_chunks

Run = Callable[..., Any]


class Killed(BaseException):
    """Stands for SIGKILL; no handler catches it."""


@pytest.fixture
def fit(run: Run, here: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., dict[str, Any]]:
    """Train on chunks of an object store, with a cache of two thirds of their size."""
    tokenizer = train_tokenizer(TokenizerConfig("byte_bpe", 280), ["one two"], mask=False)
    rng = np.random.default_rng(0)
    streams = [rng.integers(0, tokenizer.vocab_size, size) for size in (60, 90, 80, 70)]
    tokenizer.save(write_chunks(here / "remote", streams) / "tokenizer.json")

    def fetch(address: str, file: Path, size: int = 0) -> None:
        try:
            shutil.copy(here / address.removeprefix("s3://"), file)
        except FileNotFoundError as error:
            raise InputError("there is no such file", file=address) from error

    monkeypatch.setattr(chunks_module, "fetch", fetch)
    monkeypatch.setattr("fourfold.data.streaming.chunks.fetch", fetch)
    config = {"d_model": 16, "n_layers": 1, "n_heads": 2, "d_ff": 32, "max_len": 8}
    recipe = {
        "model": {
            "class_path": "fourfold.tasks.CausalLanguageModeling",
            "init_args": {"config": {**config, "vocab_size": None}},
        },
        "data": {
            "class_path": "fourfold.data.StreamedCausalTextData",
            "init_args": {
                "train": "s3://remote",
                "block_size": 8,
                "batch_size": 4,
                "shuffle_chunks": 2,
                "cache": str(here / "cache"),
                "max_cache_gb": 480e-9,
            },
        },
        "trainer": {"max_steps": 16, "accelerator": "cpu", "log_every_n_steps": 2},
        "checkpoint": {"every_n_steps": 1},
        "tensorboard": False,
        "log_samples": False,
    }
    (here / "c.yaml").write_text(yaml.safe_dump(recipe))

    def call(name: str, *options: str) -> dict[str, Any]:
        result = run("fit", "--config", here / "c.yaml", "--run_dir", here / name, *options)
        assert result.code == 0, result.err
        last = here / name / "checkpoints/last.ckpt"
        loaded: dict[str, Any] = torch.load(last, weights_only=True)
        return loaded

    return call


@pytest.mark.parametrize(("workers", "batches"), [(0, (4, 10)), (2, (12,))])
def test_killed_training_resumes_bitwise(
    workers: int,
    batches: tuple[int, ...],
    fit: Any,
    here: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from fourfold.tasks import CausalLanguageModeling as Task

    options = f"--data.num_workers={workers}"
    whole = fit("whole", options)
    assert whole["StreamedCausalTextData"]["epoch"] == 1  # an epoch has ten batches
    step = Task.training_step
    for batch in batches:
        with monkeypatch.context() as patch:

            def killed(self: Any, given: Any, batch_idx: int, batch: int = batch) -> Any:
                if self.trainer.fit_loop.total_batch_idx == batch:
                    raise Killed
                return step(self, given, batch_idx)

            patch.setattr(Task, "training_step", killed)
            with pytest.raises(Killed):
                fit(f"killed {batch}", options)
        shutil.rmtree(here / "cache")  # resume does not need the cache
        resumed = fit(f"killed {batch}", options, "--resume=must")
        for key in ("state_dict", "optimizer_states"):
            torch.testing.assert_close(resumed[key], whole[key], rtol=0, atol=0)
        assert resumed["StreamedCausalTextData"] == whole["StreamedCausalTextData"]
    cached = sum(file.stat().st_size for file in (here / "cache").iterdir())
    assert 0 < cached <= 480


@pytest.mark.parametrize("steps", [3, 5])
def test_run_of_two_processes_resumes_on_one(steps: int, fit: Any) -> None:
    exact = (
        *("--trainer.precision=64-true", "--model.schedule.name=constant"),
        *("--model.config.dropout=0", "--model.config.attn_dropout=0"),
        "--model.config.ff_dropout=0",
    )
    two = ("--trainer.devices=2", "--trainer.strategy=ddp_fork")
    one = ("--trainer.accumulate_grad_batches=2",)
    whole = fit("whole", *exact, *one, "--trainer.max_steps=8")
    fit("moved", *exact, *two, f"--trainer.max_steps={steps}")
    moved = fit("moved", *exact, *one, "--trainer.max_steps=8")
    assert moved["StreamedCausalTextData"] == whole["StreamedCausalTextData"]
    for name, weight in whole["state_dict"].items():
        torch.testing.assert_close(moved["state_dict"][name], weight, rtol=1e-9, atol=1e-9)


def test_masked_lm_resumes_within_epoch(run: Run, here: Path) -> None:
    tokenizer = train_tokenizer(TokenizerConfig("wordpiece", 40), ["one two"], mask=True)
    ordinary_ids = np.setdiff1d(np.arange(tokenizer.vocab_size), tokenizer.special_ids)
    rng = np.random.default_rng(0)
    streams = [rng.choice(ordinary_ids, size) for size in (60, 90, 80, 70)]
    tokenizer.save(write_chunks(here / "chunks", streams) / "tokenizer.json")
    write_chunks(here / "held", streams[:1])
    config = {"d_model": 16, "n_layers": 1, "n_heads": 2, "d_ff": 32, "max_len": 10}
    recipe = {
        "model": {
            "class_path": "fourfold.tasks.MaskedLanguageModeling",
            "init_args": {"config": {**config, "vocab_size": None}},
        },
        "data": {
            "class_path": "fourfold.data.StreamedMaskedTextData",
            "init_args": {
                "train": "chunks",
                "val": "held",
                "test": "held",
                "max_len": 10,
                "batch_size": 4,
                "shuffle_chunks": 2,
            },
        },
        "trainer": {"accelerator": "cpu", "max_epochs": -1},
        "checkpoint": {"every_n_steps": 1},
        "tensorboard": False,
        "log_samples": False,
    }
    (here / "m.yaml").write_text(yaml.safe_dump(recipe))
    checkpoints = []
    for name, stops in (("whole", (13,)), ("stopped", (4, 11, 13))):
        for steps in stops:
            max_steps = f"--trainer.max_steps={steps}"
            result = run("fit", "--config", here / "m.yaml", "--run_dir", here / name, max_steps)
            assert result.code == 0, result.err
        checkpoints.append(torch.load(here / name / "checkpoints/last.ckpt", weights_only=True))
    assert checkpoints[0]["StreamedMaskedTextData"]["epoch"] == 1
    for key in ("state_dict", "optimizer_states"):
        torch.testing.assert_close(checkpoints[1][key], checkpoints[0][key], rtol=0, atol=0)
    result = run("test", "--config", here / "m.yaml", "--run_dir", here / "whole")
    assert result.code == 0, result.err
    assert "test/ppl_token" in result.out
