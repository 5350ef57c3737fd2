"""Training on texts from the token cache: exact resume, ranks, results without the cache."""

import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from fourfold.data import CausalTextData
from fourfold.data.loading.array_cache import cached_arrays
from fourfold.data.text import token_cache

Run = Callable[..., Any]


class Killed(BaseException):
    """Stands for SIGKILL; no handler catches it."""


@pytest.fixture
def fit(run: Run, here: Path) -> Callable[..., dict[str, Any]]:
    """Train on a small text with a cache, and return the last checkpoint."""
    rng = random.Random(0)
    words = ["the cat", "a hat", "sat", "on", "the mat.", "\n\n"]
    (here / "t.txt").write_text(" ".join(rng.choices(words, k=300)))
    config = {"d_model": 16, "n_layers": 1, "n_heads": 2, "d_ff": 32, "max_len": 8}
    recipe = {
        "model": {
            "class_path": "fourfold.tasks.CausalLanguageModeling",
            "init_args": {"config": {**config, "vocab_size": None}},
        },
        "data": {
            "class_path": "fourfold.data.CausalTextData",
            "init_args": {
                "source": "files",
                "train": str(here / "t.txt"),
                "tokenizer": {"kind": "byte_bpe", "vocab_size": 270},
                "block_size": 8,
                "batch_size": 4,
                "cache_dir": str(here / "cache"),
            },
        },
        "trainer": {"max_steps": 8, "accelerator": "cpu", "log_every_n_steps": 2},
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


def same(one: dict[str, Any], other: dict[str, Any]) -> None:
    for key in ("state_dict", "optimizer_states"):
        torch.testing.assert_close(one[key], other[key], rtol=0, atol=0)
    assert one["CausalTextData"] == other["CausalTextData"]


def test_killed_training_resumes_bitwise(
    fit: Any, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from fourfold.tasks import CausalLanguageModeling as Task

    with monkeypatch.context() as patch:
        in_memory = lambda self, split, options, produce: cached_arrays(None, "", produce)  # noqa: E731
        patch.setattr(CausalTextData, "cached", in_memory)
        whole = fit("memory")
    assert not (here / "cache").exists()
    step = Task.training_step

    def killed(self: Any, batch: Any, batch_idx: int) -> Any:
        if self.trainer.fit_loop.total_batch_idx == 5:
            raise Killed
        return step(self, batch, batch_idx)

    for name in ("cache kept", "cache removed"):
        with monkeypatch.context() as patch:
            patch.setattr(Task, "training_step", killed)
            with pytest.raises(Killed):
                fit(name)
        if name == "cache removed":
            shutil.rmtree(here / "cache")
        same(fit(name, "--resume=must"), whole)


def test_one_of_two_ranks_encodes(fit: Any, here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    encode = token_cache._encode_stream

    def noted(*arguments: Any) -> Any:
        with (here / "encoded").open("a") as file:
            file.write(f"{os.getpid()}\n")
        return encode(*arguments)

    monkeypatch.setattr(token_cache, "_encode_stream", noted)
    ranks = ("--trainer.devices=2", "--trainer.strategy=ddp_fork")
    first = fit("first", *ranks)
    assert len((here / "encoded").read_text().split()) == 1
    same(fit("second", *ranks), first)
    assert len((here / "encoded").read_text().split()) == 1
    fit("other tokenizer", *ranks, "--data.tokenizer.vocab_size=265")
    assert len((here / "encoded").read_text().split()) == 2
