"""Dropout (Srivastava et al. 2014) with a fast random mask on a CPU."""

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

N_LEVELS = 2**16  # values that a dropout probability can have


def keep_mask(like: Tensor, p: float) -> tuple[Tensor, float]:
    """Draw a random mask of the elements to keep.

    An element uses 16 random bits, a quarter of the bits of a random number in torch. The
    probability p is therefore rounded to a multiple of 1/65,536. The returned factor is 1 / (1 - p)
    for the rounded p.

    Args:
        like: Tensor with the shape and device that the mask gets.
        p: Probability of dropping an element.

    Returns:
        The mask, True = keep, bool or in compiled code in the dtype of `like`; and the factor on
        the kept elements that preserves the mean.
    """
    dropped = min(round(p * N_LEVELS), N_LEVELS)
    factor = N_LEVELS / max(N_LEVELS - dropped, 1)
    if torch.compiler.is_compiling():
        return _operator(like.shape, dropped, like.dtype, like.device), factor
    return _draw(like.shape, dropped, like.device), factor


def _draw(shape: Sequence[int], dropped: int, device: torch.device) -> Tensor:
    """Draw a bool mask that drops each element with the probability `dropped` / 65,536."""
    n_elements = math.prod(shape)
    random_words = torch.empty((n_elements + 3) // 4, dtype=torch.int64, device=device)
    bits = random_words.random_(-(2**63), None).view(torch.int16)
    bits = bits[:n_elements].view(shape)
    if dropped == N_LEVELS:
        return torch.zeros_like(bits).bool()
    return bits >= dropped - N_LEVELS // 2


@torch.library.custom_op(
    "fourfold::keep_mask", mutates_args=(), tags=(torch.Tag.nondeterministic_seeded,)
)
def _operator(
    shape: Sequence[int], dropped: int, dtype: torch.dtype, device: torch.device
) -> Tensor:
    """Draw the mask of `_draw` in a floating-point dtype, because compiled code reads bool slowly.

    Compiled code calls this operator. It draws the same masks as eager code if the compiler keeps
    the order of the draws.
    """
    return _draw(shape, dropped, device).to(dtype)


@_operator.register_fake
def _(shape: Sequence[int], dropped: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    return torch.empty(shape, dtype=dtype, device=device)


class Dropout(nn.Dropout):
    """`nn.Dropout` that draws its mask with `keep_mask` on a CPU."""

    def forward(self, x: Tensor) -> Tensor:
        """Zero elements of x at random in training, and divide the others by 1 - p."""
        if not (self.training and self.p):
            return x
        if x.device.type != "cpu":
            return F.dropout(x, self.p)
        kept, factor = keep_mask(x, self.p)
        return x * kept.to(x.dtype).mul_(factor)
