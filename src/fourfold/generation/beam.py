"""Beam search with length normalisation, for a whole batch at once.

At every step the extensions of all open hypotheses are ranked by log-probability. One that ends
with EOS and ranks among the first K is finished: its score is its log-probability divided by a
length penalty. The K best others stay open, so that the beam never narrows. A beam of one is
greedy search: it stops at its first EOS instead of trying the runner-up.

Shapes: B sentences, R sentences still searched, K beam, k open hypotheses (1 at first, then up to
K), n candidates, N best to return, T prompt tokens, t new tokens, L most new tokens, V vocabulary.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from fourfold.generation.step import Step, refuse_nan
from fourfold.losses import exact

# What the log-probability of n tokens, EOS among them, is divided by. One alpha means different
# things: from n = 10 to n = 20, alpha 0.6 is a factor of 1.36 for gnmt but of 1.52 for power.
PENALTIES: dict[str, Callable[[Tensor, float], Tensor]] = {
    "gnmt": lambda n, alpha: ((5 + n) / 6) ** alpha,  # Wu et al. 2016, eq. 14; Vaswani et al. 2017
    "power": lambda n, alpha: n**alpha,  # at alpha 1 the mean; fairseq and transformers
    "none": lambda n, alpha: torch.ones_like(n),
}

CACHED = 2**18  # numbers that a CPU has at hand


class Open(NamedTuple):
    """Unfinished hypotheses of each sentence, best first.

    Attributes:
        ids: (R, k, t) new tokens.
        scores: (R, k) log-probabilities; -inf marks a place without a hypothesis.
        parents: (R, k) which of the hypotheses of the step before each one extends.
    """

    ids: Tensor
    scores: Tensor
    parents: Tensor

    def of(self, sentences: Tensor) -> "Open":
        """Those of some sentences, a bool mask (R,)."""
        return Open(*(x[sentences] for x in self))


class Kept:
    """The N best hypotheses (B, N) of each sentence: first those that ended, each by score.

    A place that no hypothesis has taken holds padding and the score -inf.
    """

    def __init__(self, n_sentences: int, n_best: int, longest: int, pad_id: int, like: Tensor):
        shape = (n_sentences, n_best)
        self.scores = like.new_full(shape, -math.inf)
        self.ended = torch.zeros(shape, dtype=torch.bool, device=like.device)
        self.lengths = torch.zeros(shape, dtype=torch.long, device=like.device)
        self.ids = torch.full((*shape, longest), pad_id, device=like.device)
        self._pad_id = pad_id

    def offer(self, rows: Tensor, ids: Tensor, scores: Tensor, ended: Tensor) -> None:
        """Let hypotheses ids (R, n, t), scores and ended (R, n), of sentences `rows` compete."""
        n_tokens, longest = ids.shape[2], self.ids.shape[2]
        ids = F.pad(ids, (0, longest - n_tokens), value=self._pad_id)
        lengths = torch.full_like(ids[:, :, 0], n_tokens)
        scores = torch.cat([self.scores[rows], scores], dim=1)
        ended = torch.cat([self.ended[rows], ended], dim=1)
        order = scores.argsort(dim=1, descending=True, stable=True)
        ended_first = ended.gather(1, order).byte().argsort(dim=1, descending=True, stable=True)
        best = order.gather(1, ended_first)[:, : self.scores.shape[1]]
        self.scores[rows], self.ended[rows] = scores.gather(1, best), ended.gather(1, best)
        self.lengths[rows] = torch.cat([self.lengths[rows], lengths], dim=1).gather(1, best)
        self.ids[rows] = take(torch.cat([self.ids[rows], ids], dim=1), best)


def take(x: Tensor, index: Tensor) -> Tensor:
    """x (R, n, t) at index (R, m) of its second dimension, (R, m, t)."""
    return x.gather(1, index[..., None].expand(-1, -1, x.shape[2]))


def extend(hypotheses: Open, logits: Tensor, n: int) -> Open:
    """The n best one-token extensions, or all of them, given logits (R * k, V) of that token."""
    ids, scores, _ = hypotheses
    k, n_words = scores.shape[1], logits.shape[-1]
    # No other token of a hypothesis can be among the n best: most log-probabilities are not needed.
    top, tokens = logits.topk(min(n, n_words))  # (R * k, n')
    log_p = (top.to(scores.dtype) - log_mass(logits, scores.dtype)).unflatten(0, (-1, k))
    scores, flat = (scores[..., None] + log_p).flatten(1).topk(min(n, k * n_words))
    tokens = tokens.unflatten(0, (-1, k)).flatten(1).gather(1, flat)
    parents = flat // log_p.shape[2]
    return Open(torch.cat([take(ids, parents), tokens[..., None]], dim=2), scores, parents)


def log_mass(logits: Tensor, dtype: torch.dtype) -> Tensor:
    """log(sum(exp(logits))) of each row of (N, V), (N, 1), some rows at a time: in the cache."""
    rows = max(1, CACHED // logits.shape[1]) if logits.device.type == "cpu" else len(logits)
    parts = [part.to(dtype).logsumexp(-1, keepdim=True) for part in logits.split(rows)]
    return torch.cat(parts)


def survivors(candidates: Open, eos_id: int, width: int) -> Open:
    """The `width` best candidates that do not end."""
    ids, scores, parents = candidates
    scores, index = scores.masked_fill(ids[:, :, -1] == eos_id, -math.inf).topk(width)
    return Open(take(ids, index), scores, parents.gather(1, index))


def search(
    step: Step,
    prompt: Tensor,
    limit: Tensor,
    *,
    beam: int,
    penalty: str,
    alpha: float,
    eos_id: int,
    pad_id: int,
    n_best: int = 1,
) -> tuple[Tensor, Tensor]:
    """The `n_best` continuations of every prompt that score best among those found.

    A sentence is done as soon as no open hypothesis can beat its worst kept one: log-probability
    only falls, so the score of an open one is at most what it is now, divided by the largest
    penalty it can still reach. At the limit, open hypotheses fill the places that none that ended
    has taken; they never displace one that did, because a loop the model cannot leave may score
    better than any sentence.

    Args:
        step: The model.
        prompt: (B, T) int64.
        limit: (B,) int64, most new tokens of each sentence, EOS among them; at least 1.
        beam: K, how many hypotheses stay open.
        penalty: A row of PENALTIES.
        alpha: Its exponent.
        eos_id: The token that ends a hypothesis.
        pad_id: Fills up the shorter hypotheses.
        n_best: N.

    Returns:
        New tokens (B, N, t), best first, and their scores (B, N).
    """
    logits, longest = refuse_nan(step(prompt)), int(limit.max())
    start = torch.zeros_like(prompt[:, :1], dtype=exact(logits[:0]).dtype)  # (B, 1)
    lengths = torch.arange(1, longest + 1, device=start.device)
    divisor = PENALTIES[penalty](lengths.to(start.dtype), alpha)  # (L,)
    kept = Kept(len(prompt), n_best, longest, pad_id, start)
    rows = torch.arange(len(prompt), device=prompt.device)
    hypotheses = Open(prompt.new_empty(len(prompt), 1, 0), start, start.long())
    for t in range(longest):
        k = hypotheses.scores.shape[1]
        spare = k if beam > 1 else 0  # at most one extension of each ends: K are left to go on
        candidates = extend(hypotheses, logits, beam + spare)
        ids, scores = candidates.ids[:, :beam], candidates.scores[:, :beam]
        ends = (ids[:, :, -1] == eos_id) & scores.isfinite()
        kept.offer(rows, ids, (scores / divisor[t]).where(ends, -math.inf), ends)

        hypotheses = survivors(candidates, eos_id, candidates.scores.shape[1] - spare)
        parents = hypotheses.parents + k * torch.arange(len(rows), device=rows.device)[:, None]
        largest = torch.maximum(divisor[min(t + 1, longest - 1)], divisor[limit[rows] - 1])
        done = hypotheses.scores[:, 0] / largest <= kept.scores[rows, -1]
        done |= limit[rows] == t + 1
        if done.any():
            # Of no effect where the search ended early: what ended has taken every place.
            open_ = hypotheses.of(done)
            unended = torch.zeros_like(open_.parents, dtype=torch.bool)
            kept.offer(rows[done], open_.ids, open_.scores / divisor[t], unended)
            hypotheses, parents, rows = hypotheses.of(~done), parents[~done], rows[~done]
            if not len(rows):
                break
        step.reorder(parents.flatten())
        logits = step(hypotheses.ids[:, :, -1].flatten()[:, None])
    return kept.ids[:, :, : int(kept.lengths.max())], kept.scores
