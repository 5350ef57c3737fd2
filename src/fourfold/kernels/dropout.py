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
        like: Tensor that gives the mask its shape and device.
        p: Probability of dropping an element.

    Returns:
        A tuple of the mask, True = keep, and the factor on the kept elements that preserves the
        mean. The mask is bool, or has the data type of `like` in compiled code.
    """
    dropped = min(round(p * N_LEVELS), N_LEVELS)
    factor = N_LEVELS / max(N_LEVELS - dropped, 1)
    if torch.compiler.is_compiling():
        return _operator(like.shape, dropped, like.dtype, like.device), factor
    return _draw(like.shape, dropped, like.device), factor


def _draw(shape: Sequence[int], dropped: int, device: torch.device) -> Tensor:
    """Draw a bool mask of the elements to keep.

    Args:
        shape: Shape of the mask.
        dropped: Probability of dropping an element, in units of 1 / 65,536.
        device: Device of the mask.
    """
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
    """Draw a mask of the elements to keep in a floating-point data type: 1 = keep, 0 = drop.

    Compiled code calls this operator, because compiled code reads bool tensors slowly. The masks
    equal those of eager code if the compiler keeps the order of the draws.

    Args:
        shape: Shape of the mask.
        dropped: Probability of dropping an element, in units of 1 / 65,536.
        dtype: Data type of the mask.
        device: Device of the mask.
    """
    return _draw(shape, dropped, device).to(dtype)


@_operator.register_fake
def _(shape: Sequence[int], dropped: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    return torch.empty(shape, dtype=dtype, device=device)


class Dropout(nn.Dropout):
    """`nn.Dropout` that draws its mask with `keep_mask` on a CPU."""

    def forward(self, x: Tensor) -> Tensor:
        """Set elements of x to 0 at random in training mode, and divide the others by 1 - p.

        The result has the shape of x. In evaluation mode, x is returned unchanged.
        """
        if not (self.training and self.p):
            return x
        if x.device.type != "cpu":
            return F.dropout(x, self.p)
        kept, factor = keep_mask(x, self.p)
        return x * kept.to(x.dtype).mul_(factor)
