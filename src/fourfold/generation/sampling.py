"""One token after the other: greedy, or drawn from the model's distribution.

Shapes: B prompts, N prompts not yet ended, T prompt tokens, V vocabulary.
"""

import math
from collections import Counter
from dataclasses import dataclass
from hashlib import blake2b

import torch
from torch import Tensor

from fourfold.core.errors import InputError
from fourfold.generation.step import Step, refuse_nan
from fourfold.losses import exact

LEAST = 1e-30  # a temperature below leaves the likeliest token alone, too, but overflows fp32


@dataclass(frozen=True)
class Sampler:
    """How the next token is chosen.

    Args:
        temperature: Divides the logits; 0 takes the most probable token.
        top_k: Only the k most probable tokens may be drawn (Fan et al. 2018).
        top_p: Only the fewest most probable tokens whose probabilities reach p
            (Holtzman et al. 2020), counted among those that `top_k` leaves.

    Raises:
        InputError: A value outside its range.
    """

    temperature: float = 0.0
    top_k: int | None = None
    top_p: float | None = None

    def __post_init__(self) -> None:
        if not 0.0 <= self.temperature < math.inf:
            raise InputError(f"temperature is {self.temperature}, but must be 0 or more")
        if self.top_k is not None and self.top_k < 1:
            raise InputError(f"top_k is {self.top_k}, but must be at least 1")
        if self.top_p is not None and not 0.0 < self.top_p <= 1.0:
            raise InputError(f"top_p is {self.top_p}, but must lie in (0, 1]")

    def __call__(self, logits: Tensor, draws: Tensor) -> Tensor:
        """Tokens (N,) for logits (N, V), given one uniform number of [0, 1) a row (N,).

        Inverting the cumulative distribution needs one number a token where Gumbel noise needs V,
        so that a row can own its numbers.
        """
        if self.temperature == 0.0:
            return logits.max(dim=-1).indices  # of bf16 4 times as fast as argmax
        logits = exact(logits) / max(self.temperature, LEAST)
        reached = keep_top(logits, self.top_k, self.top_p).softmax(dim=-1).cumsum(dim=-1)
        total = reached[:, -1:].contiguous()
        drawn = torch.searchsorted(reached, draws[:, None].to(total) * total, right=True)
        # Rounding may lift a draw up to the total, beyond the last token that is possible at all.
        return torch.minimum(drawn, torch.searchsorted(reached, total)).squeeze(1)


def keep_top(logits: Tensor, top_k: int | None = None, top_p: float | None = None) -> Tensor:
    """Logits (..., V) with -inf for what may not be drawn; at least one token always stays.

    Of equal logits the lower id ranks first, so exactly `top_k` tokens stay. `top_p` is applied to
    the renormalised probabilities of those, and keeps the token that reaches p.
    """
    if top_k is None and (top_p is None or top_p == 1.0):
        return logits
    ranked, order = logits.sort(dim=-1, descending=True, stable=True)
    keep = torch.ones_like(ranked, dtype=torch.bool)
    if top_k is not None:
        keep[..., top_k:] = False
    if top_p is not None and top_p < 1.0:
        probabilities = ranked.masked_fill(~keep, -math.inf).softmax(dim=-1)
        keep &= probabilities.cumsum(dim=-1) - probabilities < top_p
    return logits.masked_fill(~keep.scatter(-1, order, keep), -math.inf)


def draw_numbers(
    ids: Tensor,
    mask: Tensor,
    n_draws: int,
    seed: int | None,
    copies: Counter[tuple[int, ...]] | None = None,
) -> Tensor:
    """Uniform numbers (B, n_draws) that belong to the prompt, not to its place in the batch.

    They depend on the seed, the prompt's real tokens and how many equal prompts stand before it:
    a prompt is continued in the same way whatever its neighbours are, and copies of a prompt are
    continued differently. They are made on the CPU, so that every device draws the same.

    Args:
        ids: (B, T) prompts or sources.
        mask: (B, T) bool, True = real token.
        n_draws: How many numbers a row.
        seed: None takes one from torch's global generator.
        copies: How often each prompt came in earlier batches; is counted on.
    """
    if seed is None:
        seed = int(torch.randint(2**62, ()))
    copies = Counter() if copies is None else copies
    rows = []
    for row, real in zip(ids.tolist(), mask.tolist(), strict=True):
        prompt = tuple(token for token, is_real in zip(row, real, strict=True) if is_real)
        key = blake2b(repr((seed, copies[prompt], prompt)).encode(), digest_size=8).digest()
        copies[prompt] += 1
        generator = torch.Generator().manual_seed(int.from_bytes(key))
        rows.append(torch.rand(n_draws, generator=generator, dtype=torch.float32))
    return torch.stack(rows).to(ids.device)


def sample(
    step: Step,
    prompt: Tensor,
    limit: Tensor,
    sampler: Sampler,
    draws: Tensor,
    *,
    eos_id: int | None,
    pad_id: int,
) -> Tensor:
    """Continue every prompt until it ends; rows that ended cost nothing more.

    Args:
        step: The model.
        prompt: (B, T) int64.
        limit: (B,) int64, most tokens to write in each row, at least 1.
        sampler: How to choose a token.
        draws: (B, limit.max()) of [0, 1).
        eos_id: The token that ends a row, and is part of it; None if there is none.
        pad_id: Fills the columns after the end of a row.

    Returns:
        (B, t) int64 new tokens, t those of the longest row.
    """
    most = int(limit.max())
    out = prompt.new_full((len(prompt), most), pad_id)
    rows, new = torch.arange(len(prompt), device=prompt.device), prompt
    for t in range(most):
        logits = step(new) if t else refuse_nan(step(new))
        token = sampler(logits, draws[rows, t])  # (N,)
        out[rows, t] = token
        going_on = limit[rows] > t + 1
        if eos_id is not None:
            going_on &= token != eos_id
        if not going_on.all():
            kept = going_on.nonzero().squeeze(1)
            if not len(kept):
                return out[:, : t + 1]
            rows, token = rows[kept], token[kept]
            step.reorder(kept)
        new = token[:, None]
    return out
