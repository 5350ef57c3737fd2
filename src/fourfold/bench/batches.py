"""One made-up batch of each family, the same for all ways.

Shapes: B rows, T tokens, S source tokens, V vocabulary, K classes.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from fourfold.bench.shapes import Shape
from fourfold.data.batch import CausalBatch, ImageBatch, MaskedBatch, PairBatch
from fourfold.losses import IGNORED

MASKED = 0.15  # share of tokens that a masked LM is asked for
FIRST = 4  # ids below are padding, beginning, end and mask
SPREAD = 0.3  # standard deviation of a sentence's length by its mean


def draw(family: str, shape: Shape, device: torch.device, seed: int = 0) -> Any:
    """The batch on its device."""
    batch = DRAWS[family](shape, torch.Generator().manual_seed(seed))
    moved = {k: v.to(device) for k, v in batch._asdict().items() if isinstance(v, Tensor)}
    return batch._replace(**moved)


def _words(shape: Shape, generator: torch.Generator, *sizes: int) -> Tensor:
    return torch.randint(FIRST, shape.n_out, sizes, generator=generator)


def _causal(shape: Shape, generator: torch.Generator) -> CausalBatch:
    text = _words(shape, generator, shape.batch, shape.length + 1)  # (B, T + 1)
    return CausalBatch(text[:, :-1].contiguous(), text[:, 1:].contiguous())


def _masked(shape: Shape, generator: torch.Generator) -> MaskedBatch:
    ids = _words(shape, generator, shape.batch, shape.length)  # (B, T)
    hidden = torch.rand(ids.numel(), generator=generator).argsort()[: round(MASKED * ids.numel())]
    places = torch.zeros(ids.numel(), dtype=torch.bool)
    places[hidden] = True
    places = places.view_as(ids)
    return MaskedBatch(ids.masked_fill(places, FIRST - 1), ids.masked_fill(~places, IGNORED))


def _images(shape: Shape, generator: torch.Generator) -> ImageBatch:
    images = torch.randn(shape.batch, 3, shape.length, shape.length, generator=generator)
    labels = torch.randint(shape.n_out, (shape.batch,), generator=generator)  # (B,)
    return ImageBatch(images, labels, torch.arange(shape.batch))


def _pairs(shape: Shape, generator: torch.Generator) -> PairBatch:
    src, src_mask = _sentences(shape, generator)
    tgt, tgt_mask = _sentences(shape, generator, opened=True)
    return PairBatch(src, tgt, src_mask, tgt_mask, torch.arange(shape.batch))


def _sentences(
    shape: Shape, generator: torch.Generator, *, opened: bool = False
) -> tuple[Tensor, Tensor]:
    """Sentences that end with EOS (2), the targets open with BOS (1); padding is 0."""
    noise = torch.randn(shape.batch, generator=generator)
    lengths = (shape.length * (1 + SPREAD * noise)).round().long()
    lengths = lengths.clamp(max(2, shape.length // 2), 2 * shape.length)[:, None] + opened  # (B, 1)
    places = torch.arange(int(lengths.max()))
    ids = _words(shape, generator, shape.batch, len(places))  # (B, S)
    ids[places.expand_as(ids) == lengths - 1] = 2
    if opened:
        ids[:, 0] = 1
    mask = places < lengths
    return ids.masked_fill(~mask, 0), mask


DRAWS: dict[str, Callable[[Shape, torch.Generator], Any]] = {
    "causal_lm": _causal,
    "masked_lm": _masked,
    "vit": _images,
    "encoder_decoder": _pairs,
}
