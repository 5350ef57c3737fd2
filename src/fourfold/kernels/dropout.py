"""Dropout (Srivastava et al. 2014), with masks that a CPU draws faster than torch's own."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

STEPS = 2**16


def keep(like: Tensor, p: float) -> tuple[Tensor, float]:
    """Which numbers of `like` stay when each is dropped with probability `p`, and their factor.

    Sixteen random bits decide on each, a quarter of the draws that a random number takes: p is
    rounded to 1/65,536, and the factor is that of the rounded p.
    """
    if torch.compiler.is_compiling():  # which draws numbers where it uses them
        return torch.rand_like(like, dtype=torch.float32) >= p, 1.0 / max(1.0 - p, 1.0 / STEPS)
    dropped = min(round(p * STEPS), STEPS)
    words = torch.empty((like.numel() + 3) // 4, dtype=torch.int64, device=like.device)
    bits = words.random_(-(2**63), None).view(torch.int16)[: like.numel()].view(like.shape)
    kept = bits >= dropped - STEPS // 2 if dropped < STEPS else torch.zeros_like(bits).bool()
    return kept, STEPS / max(STEPS - dropped, 1)


class Dropout(nn.Module):
    """Drops each number with probability `p` in training, and scales the others by 1 / (1 - p).

    Args:
        p: The probability.
    """

    def __init__(self, p: float) -> None:
        super().__init__()
        self.p = p

    def forward(self, x: Tensor) -> Tensor:
        """x of any shape."""
        if not (self.training and self.p):
            return x
        if x.device.type != "cpu":
            return F.dropout(x, self.p)
        kept, factor = keep(x, self.p)
        return x * kept.to(x.dtype).mul_(factor)

    def extra_repr(self) -> str:
        """Shown in a printed model."""
        return f"p={self.p}"
