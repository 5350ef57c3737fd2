"""Benchmark workloads: model sizes, settings and synthetic batches.

Shapes: B rows, T tokens, S source tokens, V vocabulary, K classes.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fourfold.data.loading.batches import CausalBatch, ImageBatch, MaskedBatch, PairBatch
from fourfold.losses import IGNORE_INDEX

FOURFOLD = "fourfold"  # the contender that others are compared with
PEER_NAMES = ("transformers", "timm", "nanogpt", "litgpt", "lm_eval", "minicons")
FAMILIES = ("causal_lm", "llama", "masked_lm", "vit", "encoder_decoder")
PRECISIONS = ("bf16", "fp32")
# Workloads, and the families that each is defined for.
WORKLOADS = {
    "train": FAMILIES,
    "evaluate": FAMILIES,
    "memory": FAMILIES,
    "greedy": ("causal_lm", "llama"),
    "beam": ("encoder_decoder",),
    "score": ("causal_lm", "masked_lm"),
}
DEFAULT_WORKLOADS = ("train", "evaluate", "memory", "greedy", "beam")

PAD_ID = 0
BOS_ID = 1
EOS_ID = 2
MASK_ID = 3
FIRST_ID = 4  # smallest id of an ordinary token
MLM_PROBABILITY = 0.15
LENGTH_DEVIATION = 0.3  # standard deviation of sentence lengths, relative to their mean


@dataclass(frozen=True)
class Shape:
    """Sizes of a model and of its batch."""

    d_model: int
    n_layers: int  # of an encoder-decoder, in each stack
    n_heads: int
    n_out: int  # size of the vocabulary, or number of classes
    batch: int
    length: int  # tokens of a row; mean length of source and target; height and width of an image
    patch_size: int = 16

    @property
    def d_ff(self) -> int:
        """Hidden width of the feed-forward layer."""
        return 4 * self.d_model

    @property
    def llama(self) -> tuple[int, int]:
        """Heads of keys and values, and hidden width, with which a layer of Llama has equal size.

        Half of the keys and values leave 3 D^2 parameters in attention. Three matrices of width 3 D
        have 9 D^2.
        """
        return self.n_heads // 2, 3 * self.d_model

    def n_tokens(self, family: str) -> int:
        """Return the number of tokens or patches of a batch; in each stack on average."""
        n_patches = (self.length // self.patch_size) ** 2 + 1  # with the class token
        return self.batch * (n_patches if family == "vit" else self.length)

    @property
    def max_len(self) -> int:
        """Positions of a model whose rows differ in length."""
        return 4 * self.length


@dataclass(frozen=True)
class GreedyDecoding:
    """Sizes of greedy decoding."""

    prompt_len: int
    max_new_tokens: int
    batch_sizes: tuple[int, ...]  # each is one measurement


SIZES: dict[str, dict[str, Shape]] = {
    "laptop": {
        "causal_lm": Shape(384, 6, 6, 50304, 4, 512),
        "llama": Shape(384, 6, 6, 50304, 4, 512),
        "masked_lm": Shape(384, 6, 6, 30522, 16, 128),
        "vit": Shape(192, 12, 3, 1000, 8, 224),
        "encoder_decoder": Shape(256, 3, 4, 8000, 64, 13),
    },
    # 7 million parameters, for `score`; a batch is a number of pairs of each paradigm.
    "small": {
        "causal_lm": Shape(256, 6, 8, 8192, 20, 128),
        "masked_lm": Shape(256, 6, 8, 8192, 1, 128),
    },
    # GPT-2 124M with its vocabulary padded as in nanoGPT, BERT base, ViT-B/16 and Vaswani base.
    "gpu": {
        "causal_lm": Shape(768, 12, 12, 50304, 16, 1024),
        "llama": Shape(768, 12, 12, 50304, 16, 1024),
        "masked_lm": Shape(768, 12, 12, 30522, 32, 512),
        "vit": Shape(768, 12, 12, 1000, 128, 224),
        "encoder_decoder": Shape(512, 6, 8, 37000, 480, 26),
    },
    # Only checks that everything runs.
    "tiny": {
        "causal_lm": Shape(32, 2, 2, 101, 2, 16),
        "llama": Shape(32, 2, 2, 101, 2, 16),
        "masked_lm": Shape(32, 2, 2, 101, 2, 16),
        "vit": Shape(32, 2, 2, 10, 2, 32),
        "encoder_decoder": Shape(32, 2, 2, 101, 4, 8),
    },
}
GREEDY_DECODING = {
    "laptop": GreedyDecoding(32, 64, (1, 32)),
    "small": GreedyDecoding(32, 64, (1, 32)),
    "gpu": GreedyDecoding(128, 128, (1, 32)),
    "tiny": GreedyDecoding(4, 3, (1, 2)),
}
NUM_BEAMS = 5
BEAM_MAX_NEW_TOKENS = 32


@dataclass(frozen=True)
class Settings:
    """Settings of a benchmark run; the options of the command line describe them."""

    size: str = "laptop"
    families: tuple[str, ...] = FAMILIES
    workloads: tuple[str, ...] = DEFAULT_WORKLOADS
    peers: tuple[str, ...] = PEER_NAMES
    precision: str = "bf16"
    compile: bool = False
    nanogpt: str | None = None
    rounds: int = 7
    dropout: float = 0.0
    device: str = "cpu"
    threads: int = 1

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> "Settings":
        """Restore settings from JSON, which turns tuples into lists."""
        return cls(**{k: tuple(v) if isinstance(v, list) else v for k, v in values.items()})

    def shape(self, family: str) -> Shape | None:
        """Return the shape of a family in this size, None if the size lacks the family."""
        return SIZES[self.size].get(family)


def make_batch(family: str, shape: Shape, device: torch.device, seed: int = 0) -> Any:
    """Create the synthetic batch of a family, which is the same for all contenders."""
    batch = _MAKERS[family](shape, torch.Generator().manual_seed(seed))
    return _to_device(batch, device)


def _random_tokens(shape: Shape, generator: torch.Generator, *sizes: int) -> Tensor:
    return torch.randint(FIRST_ID, shape.n_out, sizes, generator=generator)


def _causal_batch(shape: Shape, generator: torch.Generator) -> CausalBatch:
    text = _random_tokens(shape, generator, shape.batch, shape.length + 1)  # (B, T + 1)
    return CausalBatch(text[:, :-1].contiguous(), text[:, 1:].contiguous())


def _masked_batch(shape: Shape, generator: torch.Generator) -> MaskedBatch:
    ids = _random_tokens(shape, generator, shape.batch, shape.length)  # (B, T)
    n_masked = round(MLM_PROBABILITY * ids.numel())
    masked = torch.zeros(ids.numel(), dtype=torch.bool)
    masked[torch.rand(ids.numel(), generator=generator).argsort()[:n_masked]] = True
    masked = masked.view_as(ids)
    return MaskedBatch(ids.masked_fill(masked, MASK_ID), ids.masked_fill(~masked, IGNORE_INDEX))


def _image_batch(shape: Shape, generator: torch.Generator) -> ImageBatch:
    images = torch.randn(shape.batch, 3, shape.length, shape.length, generator=generator)
    labels = torch.randint(shape.n_out, (shape.batch,), generator=generator)  # (B,)
    return ImageBatch(images, labels, torch.arange(shape.batch))


def _pair_batch(shape: Shape, generator: torch.Generator) -> PairBatch:
    src, src_mask = _random_sentences(shape, generator)
    tgt, tgt_mask = _random_sentences(shape, generator, add_bos=True)
    return PairBatch(src, tgt, src_mask, tgt_mask, torch.arange(shape.batch))


def _random_sentences(
    shape: Shape, generator: torch.Generator, *, add_bos: bool = False
) -> tuple[Tensor, Tensor]:
    """Create padded sentences that end with EOS, and their mask."""
    noise = torch.randn(shape.batch, generator=generator)
    lengths = (shape.length * (1 + LENGTH_DEVIATION * noise)).round().long()
    lengths = lengths.clamp(max(2, shape.length // 2), 2 * shape.length)[:, None]
    lengths = lengths + add_bos  # (B, 1)
    positions = torch.arange(int(lengths.max()))
    ids = _random_tokens(shape, generator, shape.batch, len(positions))  # (B, S)
    ids[positions.expand_as(ids) == lengths - 1] = EOS_ID
    if add_bos:
        ids[:, 0] = BOS_ID
    mask = positions < lengths
    return ids.masked_fill(~mask, PAD_ID), mask


_MAKERS: dict[str, Callable[[Shape, torch.Generator], Any]] = {
    "causal_lm": _causal_batch,
    "llama": _causal_batch,
    "masked_lm": _masked_batch,
    "vit": _image_batch,
    "encoder_decoder": _pair_batch,
}


def _to_device(batch: Any, device: torch.device) -> Any:
    tensors = {k: v.to(device) for k, v in batch._asdict().items() if isinstance(v, Tensor)}
    return batch._replace(**tensors)
