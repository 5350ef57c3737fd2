"""Tiny data for each family, and one training run in fp64 that ends after one optimizer step."""

import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning import Callback, Trainer

from fourfold.callbacks.resume import ExactResume
from fourfold.data import CausalTextData, ImageData, MaskedTextData, TranslationData
from fourfold.data.tokenizer_training import TokenizerConfig
from fourfold.models import CausalLMConfig, EncoderDecoderConfig, MaskedLMConfig, ViTConfig
from fourfold.optim import OptimizerConfig, ScheduleConfig
from fourfold.tasks import (
    CausalLanguageModeling,
    ImageClassification,
    MaskedLanguageModeling,
    Task,
    Translation,
)

SMALL = {"d_model": 16, "n_layers": 1, "n_heads": 2, "d_ff": 24, "dropout": 0.0}
# Weights move by exactly the gradient, so that equal weights mean equal gradients.
SGD = OptimizerConfig(name="sgd", lr=1.0, momentum=0.0, weight_decay=0.0)
FLAT = ScheduleConfig(name="constant")
WORDS = ["one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten"]


def sentences(n: int, seed: int) -> list[str]:
    rng = random.Random(seed)
    return [" ".join(rng.choices(WORDS, k=rng.randint(1, 9))) + f" {i}." for i in range(n)]


@pytest.fixture(scope="session")
def texts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with 16 pairs and some running text, each in three splits."""
    folder = tmp_path_factory.mktemp("texts")
    for k, split in enumerate(("train", "val", "test")):
        for j, lang in enumerate(("en", "de")):
            lines = sentences(16, 10 * k + j)
            (folder / f"{split}.{lang}").write_text("\n".join(lines) + "\n")
        (folder / f"{split}.txt").write_text("\n".join(sentences(60, 100 + k)) + "\n")
    return folder


def translation(texts: Path, **kwargs: Any) -> tuple[Task, Any]:
    config = EncoderDecoderConfig(**SMALL, vocab_size=None, max_len=64)
    files = {name: str(texts / (name + ".{lang}")) for name in ("train", "val", "test")}
    data = TranslationData(
        source="files", **files, tokenizer=TokenizerConfig(kind="char"), max_len=64,
        max_tokens=4096, **kwargs,
    )  # fmt: skip
    return Translation(config, SGD, FLAT, beam=2), data


def causal(texts: Path, **kwargs: Any) -> tuple[Task, Any]:
    config = CausalLMConfig(**SMALL, attn_dropout=0.0, vocab_size=None, max_len=32)
    files = {name: str(texts / f"{name}.txt") for name in ("train", "val", "test")}
    data = CausalTextData(
        source="files",
        **files,
        tokenizer=TokenizerConfig(kind="char"),
        block_size=32,
        batch_size=kwargs.pop("max_rows", 32),
        **kwargs,
    )
    return CausalLanguageModeling(config, SGD, FLAT), data


def masked(texts: Path, **kwargs: Any) -> tuple[Task, Any]:
    config = MaskedLMConfig(**SMALL, attn_dropout=0.0, vocab_size=None, max_len=32)
    files = {name: str(texts / f"{name}.txt") for name in ("train", "val", "test")}
    data = MaskedTextData(
        source="files",
        **files,
        tokenizer=TokenizerConfig(kind="char"),
        max_len=32,
        batch_size=kwargs.pop("max_rows", 32),
        **kwargs,
    )
    return MaskedLanguageModeling(config, SGD, FLAT), data


def sentence_pairs(texts: Path, **kwargs: Any) -> tuple[Task, Any]:
    """BERT's two tasks; rows have different numbers of hidden tokens."""
    task, data = masked(
        texts, layout="segment_pairs", documents="line", sentences="punctuation", **kwargs
    )
    config = replace(task.config, n_segments=2, next_sentence=True)
    return MaskedLanguageModeling(config, SGD, FLAT), data


def images(texts: Path, **kwargs: Any) -> tuple[Task, Any]:
    config = ViTConfig(**SMALL, image_size=8, patch_size=2, n_channels=1, n_classes=None)
    data = ImageData(batch_size=kwargs.pop("max_rows", 64), **kwargs)
    return ImageClassification(config, SGD, FLAT), data


FAMILIES = {"translation": translation, "causal": causal, "masked": masked, "images": images}


class KeepWeights(Callback):
    """Writes them down, since with several processes the model only lives in the children."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def on_train_end(self, trainer: Trainer, pl_module: Any) -> None:
        if trainer.is_global_zero:
            torch.save(pl_module.model.state_dict(), self.file)


def train(task: Task, data: Any, folder: Path, **kwargs: Any) -> dict[str, torch.Tensor]:
    """Weights after training."""
    torch.manual_seed(0)
    options: dict[str, Any] = {"max_epochs": 1, "precision": "64-true", "accelerator": "cpu"}
    trainer = Trainer(
        **(options | kwargs), logger=False, enable_checkpointing=False, default_root_dir=folder,
        enable_progress_bar=False, enable_model_summary=False, use_distributed_sampler=False,
        limit_val_batches=0, callbacks=[ExactResume(), KeepWeights(folder / "weights.pt")],
    )  # fmt: skip
    trainer.fit(task, data)
    weights: dict[str, torch.Tensor] = torch.load(folder / "weights.pt")
    return weights
