"""`beam_search`: batched beam search with length normalization.

A sequence is one element of the input batch: a prompt of a causal LM, or a source of an
encoder-decoder. A hypothesis is the beginning of a continuation or target of a sequence.

Each step extends all active hypotheses by one token, and ranks the extensions of each sequence by
log-probability. An extension that ends with EOS and is among the K most probable extensions is
finished. The score of a finished hypothesis is its log-probability divided by a length penalty. The
K most probable extensions that do not end with EOS are the next active hypotheses. A sequence
therefore starts with one active hypothesis (the empty one). After the first step it has K active
hypotheses, or fewer while it has fewer than K such extensions. The decoder state has one row per
active hypothesis. After each step the rows are reordered, so that each new hypothesis has the
key-value cache of the hypothesis that it extends.

The search of a sequence stops when no active hypothesis can exceed the score of the worst of its N
best finished hypotheses, or when the maximum number of new tokens is reached. A beam of one is
greedy search, which stops at the first EOS.

Shapes: B sequences, R sequences whose search has not stopped, K beam width, k active hypotheses of
a sequence (1 at first, then up to K), n extensions of a sequence, N results of a sequence, T prompt
tokens, t new tokens, L maximum of t, V vocabulary.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fourfold.core.validation import check_choice
from fourfold.errors import InputError
from fourfold.generation.caches import beam_cache
from fourfold.generation.inputs import GenerationInputs, require
from fourfold.generation.step import Step, check_logits, decoding_mode
from fourfold.losses import upcast_fp32

# Divisors of the log-probability of n tokens, EOS included. The same alpha has different effects:
# from n = 10 to n = 20, alpha 0.6 multiplies the divisor by 1.36 for gnmt, but by 1.52 for power.
LENGTH_PENALTIES: dict[str, Callable[[Tensor, float], Tensor]] = {
    "gnmt": lambda n, alpha: ((5 + n) / 6) ** alpha,  # Wu et al. 2016, eq. 14; Vaswani et al. 2017
    "power": lambda n, alpha: n**alpha,  # the mean at alpha 1; fairseq and transformers
    "none": lambda n, alpha: torch.ones_like(n),
}

CACHED_LOGITS = 2**18  # number of logits that fit in the cache of a CPU


class ActiveBeams(NamedTuple):
    """The k active hypotheses of each of R sequences in beam search, the most probable first.

    Attributes:
        ids: New tokens (R, k, t).
        scores: Log-probabilities (R, k); -inf marks a column without a hypothesis.
        parents: (R, k) int64. Hypothesis i of sequence r extends hypothesis `parents[r, i]` of the
            previous step.
    """

    ids: Tensor
    scores: Tensor
    parents: Tensor

    def select(self, sequences: Tensor) -> "ActiveBeams":
        """Return the hypotheses of the sequences where the mask `sequences`, (R,) bool, is True."""
        return ActiveBeams(*(x[sequences] for x in self))


class FinishedBeams:
    """Finished hypotheses of beam search: the N best of each of B sequences.

    Hypotheses with EOS precede hypotheses without EOS. Each of the two groups is sorted by
    decreasing score. If a sequence has fewer than N hypotheses, the remaining elements hold padding
    and the score -inf.

    Args:
        n_sequences: Number B of sequences.
        n_best: Number N of hypotheses to keep for each sequence.
        longest: Maximum number L of new tokens of a hypothesis.
        pad_id: Token that fills the positions after EOS.
        like: Tensor that gives the scores their data type and device; its values are not used.

    Attributes:
        ids: New tokens (B, N, L).
        scores: Scores (B, N).
        lengths: Number of new tokens (B, N).
    """

    def __init__(self, n_sequences: int, n_best: int, longest: int, pad_id: int, like: Tensor):
        shape = (n_sequences, n_best)
        self.scores = like.new_full(shape, -math.inf)
        self.lengths = torch.zeros(shape, dtype=torch.long, device=like.device)
        self.ids = torch.full((*shape, longest), pad_id, device=like.device)
        self._pad_id = pad_id

    def add(self, rows: Tensor, ids: Tensor, scores: Tensor, *, ended: bool) -> None:
        """Add n hypotheses of each of R sequences in place, and keep the N best of each sequence.

        Args:
            rows: Indices of the R sequences among the B sequences, (R,) int64.
            ids: New tokens (R, n, t).
            scores: Scores (R, n); -inf marks a column without a hypothesis.
            ended: True if the hypotheses end with EOS. Hypotheses without EOS must be sorted by
                score, and must be added after all hypotheses with EOS.
        """
        n_tokens, longest = ids.shape[2], self.ids.shape[2]
        ids = F.pad(ids, (0, longest - n_tokens), value=self._pad_id)
        lengths = torch.full_like(ids[:, :, 0], n_tokens)
        scores = torch.cat([self.scores[rows], scores], dim=1)
        rank = scores if ended else scores.isfinite().byte()  # without EOS: fill empty places
        order = rank.argsort(dim=1, descending=True, stable=True)
        best = order[:, : self.scores.shape[1]]
        self.scores[rows] = scores.gather(1, best)
        self.lengths[rows] = torch.cat([self.lengths[rows], lengths], dim=1).gather(1, best)
        self.ids[rows] = gather_rows(torch.cat([self.ids[rows], ids], dim=1), best)


def gather_rows(x: Tensor, index: Tensor) -> Tensor:
    """Select rows of each matrix in a batch: result[i, j] is x[i, index[i, j]].

    Args:
        x: Matrices (R, n, t).
        index: Indices (R, m) int64 of rows, from 0 to n - 1.

    Returns:
        Selected rows (R, m, t).
    """
    return x.gather(1, index[..., None].expand(-1, -1, x.shape[2]))


def extend(
    hypotheses: ActiveBeams, logits: Tensor, n: int, suppressed: Tensor | None = None
) -> ActiveBeams:
    """Extend hypotheses by one token, and return the most probable extensions of each sequence.

    Args:
        hypotheses: k active hypotheses of each of R sequences.
        logits: Logits (R * k, V) of the next token of each hypothesis.
        n: Number of extensions to return for each sequence, or k * V if that is less.
        suppressed: Ids (m,) of tokens whose extensions have the score -inf. The probabilities of
            the other tokens are not renormalized, as in transformers. None means no tokens.

    Returns:
        The n extensions of each sequence, the most probable first.
    """
    ids, scores, _ = hypotheses
    k = scores.shape[1]
    vocab_size = logits.shape[-1]
    # Only the n best tokens of a hypothesis can be among the n best extensions.
    allowed = logits if suppressed is None else logits.index_fill(-1, suppressed, -math.inf)
    top, tokens = allowed.topk(min(n, vocab_size))  # (R * k, n')
    log_p = (top.to(scores.dtype) - row_logsumexp(logits, scores.dtype)).unflatten(0, (-1, k))
    scores, flat = (scores[..., None] + log_p).flatten(1).topk(min(n, k * vocab_size))
    tokens = tokens.unflatten(0, (-1, k)).flatten(1).gather(1, flat)
    parents = flat // log_p.shape[2]
    ids = torch.cat([gather_rows(ids, parents), tokens[..., None]], dim=2)
    return ActiveBeams(ids, scores, parents)


def row_logsumexp(logits: Tensor, dtype: torch.dtype) -> Tensor:
    """Compute log(sum(exp(logits))) over the vocabulary for each row.

    On a CPU, the rows are processed in slices that fit in the cache of the CPU.

    Args:
        logits: Logits (R * k, V).
        dtype: Data type of the computation and of the result.

    Returns:
        A column (R * k, 1).
    """
    rows = max(1, CACHED_LOGITS // logits.shape[1]) if logits.device.type == "cpu" else len(logits)
    parts = [part.to(dtype).logsumexp(-1, keepdim=True) for part in logits.split(rows)]
    return torch.cat(parts)


def drop_ended(candidates: ActiveBeams, ended: Tensor, width: int) -> ActiveBeams:
    """Return the most probable hypotheses of each sequence that do not end with EOS.

    Args:
        candidates: Hypotheses of R sequences.
        ended: (R, n) bool, True = the hypothesis ends with EOS.
        width: Number of hypotheses to return for each sequence. If a sequence has fewer hypotheses
            without EOS, the remaining hypotheses have the score -inf.
    """
    ids, scores, parents = candidates
    scores, index = scores.masked_fill(ended, -math.inf).topk(width)
    return ActiveBeams(gather_rows(ids, index), scores, parents.gather(1, index))


def search(
    step: Step,
    prompt: Tensor,
    limit: Tensor,
    *,
    beam: int,
    length_penalty_type: str,
    alpha: float,
    eos_ids: Sequence[int],
    pad_id: int,
    n_best: int = 1,
    suppressed: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Search for the `n_best` continuations of each prompt with the highest scores.

    Log-probabilities only decrease, which bounds the final score of an active hypothesis. At the
    limit, active hypotheses fill the places of missing finished ones, but never replace a finished
    one, because a repetition loop may have a better score than any complete target.

    Args:
        step: Decoding step of the model, whose decoder state the search reorders.
        prompt: Token ids (B, T) int64.
        limit: Maximum number of new tokens of each sequence, EOS included, (B,) int64; at least 1.
        beam: Number K of active hypotheses of each sequence.
        length_penalty_type: Length penalty, a key of `LENGTH_PENALTIES`.
        alpha: Exponent of the length penalty.
        eos_ids: Tokens that end a hypothesis, which are called EOS.
        pad_id: Token that fills the positions after EOS.
        n_best: Number N of results for each prompt.
        suppressed: Ids (m,) of tokens that are never generated; None means no tokens.

    Returns:
        New tokens (B, N, t), best first, and their scores (B, N).
    """
    logits = check_logits(step(prompt))
    longest = int(limit.max())
    start = torch.zeros_like(prompt[:, :1], dtype=upcast_fp32(logits[:0]).dtype)  # (B, 1)
    lengths = torch.arange(1, longest + 1, device=start.device)
    divisor = LENGTH_PENALTIES[length_penalty_type](lengths.to(start.dtype), alpha)  # (L,)
    finished = FinishedBeams(len(prompt), n_best, longest, pad_id, start)
    rows = torch.arange(len(prompt), device=prompt.device)
    hypotheses = ActiveBeams(prompt.new_empty(len(prompt), 1, 0), start, start.long())
    for t in range(longest):
        k = hypotheses.scores.shape[1]
        # At most one extension of each hypothesis ends with each end token, so K remain.
        spare = k * len(set(eos_ids)) if beam > 1 else 0
        candidates = extend(hypotheses, logits, beam + spare, suppressed)
        last = candidates.ids[:, :, -1]
        ended = sum((last == eos_id for eos_id in eos_ids), torch.zeros_like(last)).bool()
        ids, scores = candidates.ids[:, :beam], candidates.scores[:, :beam]
        finishes = ended[:, :beam] & scores.isfinite()
        finished.add(rows, ids, (scores / divisor[t]).where(finishes, -math.inf), ended=True)

        hypotheses = drop_ended(candidates, ended, max(1, candidates.scores.shape[1] - spare))
        parents = hypotheses.parents + k * torch.arange(len(rows), device=rows.device)[:, None]
        largest = torch.maximum(divisor[min(t + 1, longest - 1)], divisor[limit[rows] - 1])
        done = hypotheses.scores[:, 0] / largest <= finished.scores[rows, -1]
        done |= limit[rows] == t + 1
        if done.any():
            # No effect on a sequence that stopped before its limit, because it has N results.
            active = hypotheses.select(done)
            finished.add(rows[done], active.ids, active.scores / divisor[t], ended=False)
            hypotheses = hypotheses.select(~done)
            parents = parents[~done]
            rows = rows[~done]
            if not len(rows):
                break
        step.reorder(parents.flatten())  # the decoder state follows the parents
        logits = step(hypotheses.ids[:, :, -1].flatten()[:, None])
    return finished.ids[:, :, : int(finished.lengths.max())], finished.scores


def beam_search(
    model: nn.Module,
    src: Tensor,
    beam: int = 4,
    length_penalty: float = 0.6,
    length_penalty_type: str = "gnmt",
    *,
    src_mask: Tensor | None = None,
    bos_id: int | None = None,
    eos_id: int | Sequence[int] | None = None,
    pad_id: int | None = None,
    max_len: int | None = None,
    n_best: int = 1,
    suppress_tokens: Sequence[int] | None = None,
    use_cache: bool = True,
) -> tuple[Tensor, Tensor]:
    """Search for the targets with the highest log-probability divided by a length penalty.

    Special tokens that are None are taken from `model.generation_defaults`, but no other options.

    Args:
        model: An encoder-decoder, or a causal LM whose prompts are `src`.
        src: Token ids (B, T) int64 of sources or prompts, or source images (B, C, side, side).
        beam: Number of active hypotheses of each source; 1 is greedy search.
        length_penalty: Exponent alpha of the length penalty (0.6 in Vaswani et al. 2017).
        length_penalty_type: Penalty of n tokens: gnmt ((5 + n)/6)**alpha, power n**alpha, or none.
        src_mask: (B, T) bool, True = real token, padding on either side; None means no padding.
        bos_id: First token of the targets of an encoder-decoder.
        eos_id: Token or tokens that end a target; [] means that no token does.
        pad_id: Token that fills the columns after EOS; EOS if no padding token is known.
        max_len: Maximum number of new tokens with EOS; None means the default of `generate`.
        n_best: Number N of targets to return for each source, at most `beam`.
        suppress_tokens: Ids of tokens that are never generated, such as that of `<unk>`.
        use_cache: Use a key-value cache; False is slow and serves to verify the cache.

    Returns:
        Token ids int64, and scores (B,). The ids are `bos_id` and t new tokens (B, 1 + t), or for a
        causal LM `src` and t new tokens (B, T + t). `n_best` > 1 adds a second dimension N: targets
        with EOS by decreasing score, then targets without EOS, then padding with the score -inf.

    Raises:
        InputError: An argument is invalid or too large for the model, or a token is unknown.

    Example:
        >>> from fourfold.models import EncoderDecoder, EncoderDecoderConfig
        >>> model = EncoderDecoder(EncoderDecoderConfig(d_model=8, n_heads=2, vocab_size=50))
        >>> ids, scores = beam_search(model, torch.tensor([[3, 1, 4]]), 4, bos_id=1, eos_id=2)
    """
    special: Any = {"bos_id": bos_id, "eos_id": eos_id, "pad_id": pad_id}
    inputs = GenerationInputs(model, src, src_mask, **special, ids_name="src")
    _check_options(inputs.vocab_size, beam, n_best, length_penalty, length_penalty_type)
    require("eos_id", eos_id is not None or bool(inputs.eos_ids), "token that ends a target")
    limit = inputs.limit("max_len", max_len, minimum=1)  # (B,)
    with decoding_mode(model) as inputs.model:
        step, start = inputs.start(beam_cache(model) if use_cache else None)
        new, scores = search(
            step,
            start,
            limit,
            beam=beam,
            length_penalty_type=length_penalty_type,
            alpha=length_penalty,
            eos_ids=inputs.eos_ids,
            pad_id=inputs.pad_id,
            n_best=n_best,
            suppressed=inputs.suppressed(suppress_tokens),
        )
    # Copied outside of inference mode, so that both can take part in training.
    ids = torch.cat([start[:, None].expand(-1, n_best, -1), new], dim=2)
    return (ids[:, 0], scores[:, 0].clone()) if n_best == 1 else (ids, scores.clone())


def _check_options(vocab_size: int, beam: int, n_best: int, alpha: float, penalty: str) -> None:
    """Raise InputError if an option of beam search is unknown or outside its range."""
    check_choice("length_penalty_type", penalty, tuple(LENGTH_PENALTIES))
    if not math.isfinite(alpha):
        raise InputError(f"must be finite, got {alpha}", option="length_penalty")
    limits = [("beam", beam, "the vocabulary size", vocab_size), ("n_best", n_best, "beam =", beam)]
    for name, value, meaning, largest in limits:
        if not 1 <= value <= largest:
            message = f"must lie between 1 and {meaning} {largest}, got {value}"
            raise InputError(message, option=name)
