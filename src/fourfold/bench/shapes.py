"""What is measured: named sizes of the four families, and the words of `fourfold bench`.

Nothing heavy is imported here, so that a misspelt word is answered at once. The feed-forward layer
is four times as wide as the stream in all of them.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

OURS = "fourfold"
FAMILIES = ("causal_lm", "masked_lm", "vit", "encoder_decoder")
PEERS = ("transformers", "timm", "nanogpt", "x_transformers", "torch")
# Work: the families that can do it.
WORKS = {
    "train": FAMILIES,
    "evaluate": FAMILIES,
    "memory": FAMILIES,
    "greedy": ("causal_lm",),
    "beam": ("encoder_decoder",),
    "sentences": ("masked_lm", "encoder_decoder"),
    "growth": ("causal_lm",),
}
PRECISIONS = ("bf16", "fp32")


@dataclass(frozen=True)
class Shape:
    """One model and its batch.

    Args:
        d_model: D.
        n_layers: N; of an encoder-decoder, on each side.
        n_heads: H.
        n_out: Words V of the vocabulary, or classes K of images.
        batch: Rows B.
        length: Tokens T of a row; the mean of both sides of a sentence pair; an image's side.
        patch_size: Of images.
    """

    d_model: int
    n_layers: int
    n_heads: int
    n_out: int
    batch: int
    length: int
    patch_size: int = 16

    @property
    def d_ff(self) -> int:
        """Hidden width of the feed-forward layer."""
        return 4 * self.d_model

    @property
    def max_len(self) -> int:
        """Positions of a model whose rows are not all of `length` tokens."""
        return 4 * self.length


@dataclass(frozen=True)
class Writing:
    """What a decoder is asked for: tokens of a prompt (of a source: `Shape.length`), new tokens."""

    prompt: int
    new: int
    batches: tuple[int, ...]


SIZES: dict[str, dict[str, Shape]] = {
    "laptop": {
        "causal_lm": Shape(384, 6, 6, 50304, 4, 512),
        "masked_lm": Shape(384, 6, 6, 30522, 16, 128),
        "vit": Shape(192, 12, 3, 1000, 8, 224),
        "encoder_decoder": Shape(256, 3, 4, 8000, 64, 13),
    },
    # Wide enough for its matrix products to run at their full rate.
    "wide": {
        "causal_lm": Shape(768, 4, 12, 50304, 4, 512),
        "masked_lm": Shape(768, 4, 12, 30522, 4, 512),
    },
    # GPT-2 124M, BERT base, ViT-B/16 and Vaswani base.
    "gpu": {
        "causal_lm": Shape(768, 12, 12, 50257, 16, 1024),
        "masked_lm": Shape(768, 12, 12, 30522, 32, 512),
        "vit": Shape(768, 12, 12, 1000, 128, 224),
        "encoder_decoder": Shape(512, 6, 8, 37000, 960, 26),
    },
    # Says nothing about speed: that everything runs.
    "tiny": {
        "causal_lm": Shape(32, 2, 2, 101, 2, 16),
        "masked_lm": Shape(32, 2, 2, 101, 2, 16),
        "vit": Shape(32, 2, 2, 10, 2, 32),
        "encoder_decoder": Shape(32, 2, 2, 101, 4, 8),
    },
}
WRITING = {
    "laptop": Writing(32, 64, (1, 32)),
    "wide": Writing(32, 64, (1, 32)),
    "gpu": Writing(128, 128, (1, 32)),
    "tiny": Writing(4, 3, (1, 2)),
}
BEAM, NEW_IN_BEAM = 5, 32

_GROWTH: dict[str, tuple[int, ...]] = {
    "length": (128, 256, 512, 1024, 2048, 4096, 8192),
    "vocabulary": (2048, 8192, 32768, 131072),
    "batch": (1, 2, 4, 8, 16, 32),
}
GROWTH: dict[str, dict[str, tuple[int, ...]]] = {
    **dict.fromkeys(("laptop", "wide", "gpu"), _GROWTH),
    "tiny": {"length": (8, 16), "vocabulary": (50, 101), "batch": (1, 2)},
}
# What of a `Shape` grows; a length does in a batch of one.
GROWING: dict[str, Callable[[int], dict[str, Any]]] = {
    "length": lambda x: {"length": x, "batch": 1},
    "vocabulary": lambda x: {"n_out": x},
    "batch": lambda x: {"batch": x},
}


@dataclass(frozen=True)
class Settings:
    """How it is measured.

    Args:
        size: A row of SIZES.
        families: Of FAMILIES.
        works: Of WORKS.
        peers: Of PEERS.
        precision: Of training: autocast to bf16, or fp32; of decoding, that of the weights.
        compiled: Whether each way is measured compiled as well.
        nanogpt: Path of nanoGPT's `model.py`.
        rounds: How often each way is measured.
        dropout: Of all that have it.
        growth: Of GROWING.
        budget: Seconds that one measurement of memory, or one point of a growth, may take.
        device: cpu, cuda or cuda:N.
        threads: Of the CPU.
    """

    size: str = "laptop"
    families: tuple[str, ...] = FAMILIES
    works: tuple[str, ...] = ("train", "evaluate", "memory", "greedy", "beam")
    peers: tuple[str, ...] = PEERS
    precision: str = "bf16"
    compiled: bool = False
    nanogpt: str | None = None
    rounds: int = 7
    dropout: float = 0.0
    growth: tuple[str, ...] = tuple(GROWING)
    budget: float = 300.0
    device: str = "cpu"
    threads: int = 1

    def shape(self, family: str) -> Shape | None:
        """The family's shape in this size, if it has one."""
        return SIZES[self.size].get(family)
