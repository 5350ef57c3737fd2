"""Dropout (Srivastava et al. 2014) with a fast random mask on a CPU."""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

N_LEVELS = 2**16  # values that a dropout probability can have


def keep_mask(like: Tensor, p: float) -> tuple[Tensor, float]:
    """Draw a random mask of the elements to keep, True = keep, in the shape of `like`.

    An element uses 16 random bits, a quarter of the bits of a random number in torch. The
    probability p is therefore rounded to a multiple of 1/65,536. The second result is 1 / (1 - p)
    for the rounded p, the factor on the kept elements that preserves the mean. In compiled code,
    the mask has the data type of `like`, because such code reads bool tensors slowly.
    """
    dropped = min(round(p * N_LEVELS), N_LEVELS)
    factor = N_LEVELS / max(N_LEVELS - dropped, 1)
    if torch.compiler.is_compiling():
        return _operator(like.shape, dropped, like.dtype, like.device), factor
    n_elements = like.numel()
    words = torch.empty((n_elements + 3) // 4, dtype=torch.int64, device=like.device)
    bits = words.random_(-(2**63), None).view(torch.int16)[:n_elements].view(like.shape)
    if dropped == N_LEVELS:
        return torch.zeros_like(bits).bool(), factor
    return bits >= dropped - N_LEVELS // 2, factor


# The masks equal those of eager code if the compiler keeps the order of the draws.
@torch.library.custom_op(
    "fourfold::keep_mask", mutates_args=(), tags=(torch.Tag.nondeterministic_seeded,)
)
def _operator(
    shape: Sequence[int], dropped: int, dtype: torch.dtype, device: torch.device
) -> Tensor:
    """Draw a mask with the probability `dropped` / 65,536: 1 = keep, 0 = drop."""
    like = torch.empty(1, device=device).expand(shape)  # without memory for all elements
    return keep_mask(like, dropped / N_LEVELS)[0].to(dtype)


@_operator.register_fake
def _(shape: Sequence[int], dropped: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    return torch.empty(shape, dtype=dtype, device=device)


class Dropout(nn.Dropout):
    """`nn.Dropout` that draws its mask with `keep_mask` on a CPU."""

    def forward(self, x: Tensor) -> Tensor:
        """Set elements of x to 0 at random in training mode, and divide the others by 1 - p."""
        if not (self.training and self.p):
            return x
        if x.device.type != "cpu":
            return F.dropout(x, self.p)
        kept, factor = keep_mask(x, self.p)
        return x * kept.to(x.dtype).mul_(factor)
