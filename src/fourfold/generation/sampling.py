"""`sample` and `TokenSampler`: greedy search and sampling with temperature, top-k and top-p.

Shapes: B prompts, N prompts whose continuation has not ended, T prompt tokens, t new tokens, V
vocabulary.
"""

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from hashlib import blake2b

import torch
from torch import Tensor

from fourfold.core.validation import check_positive, check_range
from fourfold.errors import InputError
from fourfold.generation.logits_processors import LogitsProcessors
from fourfold.generation.step import Step, check_logits
from fourfold.losses import upcast_fp32

# Function that is called after each step with the batch indices (N,) of the sequences that have not
# ended and their new tokens (N,). It returns a bool tensor (N,), True = the sequence ends here.
OnTokens = Callable[[Tensor, Tensor], Tensor]
Copies = Counter[tuple[int, ...]]  # number of earlier occurrences of each prompt
# A smaller temperature selects the most probable token, too, but logits divided by it overflow.
MIN_TEMPERATURE = 1e-30


@dataclass(frozen=True)
class TokenSampler:
    """Function that chooses the next token of each sequence from the logits of the vocabulary.

    Args:
        temperature: Divisor of the logits; 0 takes the most probable token.
        top_k: Sample from the k most probable tokens only (Fan et al. 2018); None means all tokens.
        top_p: Sample only from the smallest set of most probable tokens whose probabilities sum to
            at least p (Holtzman et al. 2020); None means all tokens. With `top_k`, the
            probabilities of the k tokens are renormalized first.
        min_p: Sample only from the tokens that have at least this fraction of the probability of
            the most probable token (Nguyen et al. 2024); None means all tokens.

    Raises:
        InputError: A value is outside its range.
    """

    temperature: float = 0.0
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None

    def __post_init__(self) -> None:
        check_range("temperature", self.temperature, minimum=0.0)
        check_positive("top_k", self.top_k)
        check_range("top_p", 1.0 if self.top_p is None else self.top_p, above=0.0, maximum=1.0)
        check_range("min_p", self.min_p or 0.0, minimum=0.0, maximum=1.0)

    def __call__(self, logits: Tensor, draws: Tensor) -> Tensor:
        """Choose tokens (N,) for logits (N, V) by inverting the cumulative distribution at `draws`.

        `draws` (N,) are uniform in [0, 1). Inversion needs one number per token, so those of all
        steps can be drawn in advance; Gumbel noise would need V numbers per token.
        """
        if self.temperature == 0.0:
            return logits.max(dim=-1).indices  # 4 times as fast as argmax in bf16
        logits = upcast_fp32(logits) / max(self.temperature, MIN_TEMPERATURE)
        kept = keep_top(logits, self.top_k, self.top_p)
        if self.min_p:
            lowest = logits.amax(dim=-1, keepdim=True) + math.log(self.min_p)
            kept = kept.masked_fill(logits < lowest, -math.inf)
        cumulative = kept.softmax(dim=-1).cumsum(dim=-1)
        total = cumulative[:, -1:].contiguous()
        tokens = torch.searchsorted(cumulative, draws[:, None].to(total) * total, right=True)
        # Rounding may raise a draw to the total, which is beyond the last possible token.
        return torch.minimum(tokens, torch.searchsorted(cumulative, total)).squeeze(1)


def keep_top(logits: Tensor, top_k: int | None = None, top_p: float | None = None) -> Tensor:
    """Replace the logits of all but the most probable tokens by -inf, in a copy of the logits.

    `top_k` and `top_p` are those of `TokenSampler`. Of equal logits, the lower token id ranks
    first, so exactly `top_k` logits are kept.

    Example:
        >>> keep_top(torch.tensor([0.1, 3.0, 2.0]), top_k=2)
        tensor([-inf, 3., 2.])
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


def uniform_per_prompt(
    ids: Tensor, mask: Tensor, n_draws: int, seed: int | None, copies: Copies | None = None
) -> Tensor:
    """Draw uniform numbers (B, n_draws) for prompts, independently of their rows in the batch.

    The numbers are a function of the seed, the real tokens of the prompt, and the number of equal
    prompts before this prompt. Samples therefore do not depend on the other prompts of the batch,
    and equal prompts get different samples. The numbers are computed on the CPU, so they are equal
    on all devices. `seed` and `copies` are those of `generate`.
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
    sampler: TokenSampler,
    draws: Tensor,
    eos_ids: Sequence[int],
    pad_id: int,
    on_tokens: OnTokens | None = None,
    processors: LogitsProcessors | None = None,
) -> Tensor:
    """Generate tokens until each sequence of the batch has ended or reached its limit.

    Returns new tokens (B, t) for prompts (B, T), at most `limit` (B,) of each, at least 1. `step`
    has not been called yet, and no longer runs on sequences that have ended. `draws`
    (B, limit.max()) are uniform in [0, 1).
    """
    most = int(limit.max())
    out = prompt.new_full((len(prompt), most), pad_id)
    rows = torch.arange(len(prompt), device=prompt.device)
    new = prompt
    for t in range(most):
        logits = step(new) if t else check_logits(step(new))
        if processors and processors.are_used:
            logits = processors(rows, out[rows, :t], logits)
            if bool((logits == -math.inf).all(dim=1).any()):
                raise InputError("leave no token to choose", option="the options of the logits")
        token = sampler(logits, draws[rows, t])  # (N,)
        out[rows, t] = token
        unfinished = limit[rows] > t + 1
        for eos_id in eos_ids:
            unfinished &= token != eos_id
        if on_tokens is not None:
            unfinished &= ~on_tokens(rows, token).to(unfinished.device)
        if not unfinished.all():
            remaining = unfinished.nonzero().squeeze(1)
            if not len(remaining):
                return out[:, : t + 1]
            rows = rows[remaining]
            token = token[remaining]
            step.reorder(remaining)
        new = token[:, None]
    return out
