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
from functools import partial
from typing import Any, NamedTuple, Unpack

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fourfold.core.validation import MAX_BEAMS, check_choice, check_range
from fourfold.errors import InputError
from fourfold.generation.caches import beam_cache
from fourfold.generation.inputs import GenerationInputs, require
from fourfold.generation.logits_processors import LogitsProcessors
from fourfold.generation.renamed import renamed
from fourfold.generation.step import Step, check_logits, decoding_mode
from fourfold.layers.generation_defaults import DecodingOptions, first_known
from fourfold.losses import upcast_fp32

# Divisors of the log-probability of n tokens, EOS included. The same alpha has different effects:
# from n = 10 to n = 20, alpha 0.6 multiplies the divisor by 1.36 for gnmt, but by 1.52 for power.
LENGTH_PENALTIES: dict[str, Callable[[Tensor, float], Tensor]] = {
    "gnmt": lambda n, alpha: ((5 + n) / 6) ** alpha,  # Wu et al. 2016, eq. 14; Vaswani et al. 2017
    "power": lambda n, alpha: n**alpha,  # the mean at alpha 1; fairseq and transformers
    "none": lambda n, alpha: torch.ones_like(n),
}

# Vaswani et al. 2017, section 6.1, for models that store no options.
DEFAULT_BEAMS, DEFAULT_LENGTH_PENALTY, DEFAULT_LENGTH_PENALTY_TYPE = 4, 0.6, "gnmt"
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
    and the score -inf. The scores have the data type and device of the tensor `like`.
    """

    def __init__(self, n_sequences: int, n_best: int, longest: int, pad_id: int, like: Tensor):
        shape = (n_sequences, n_best)
        self.scores = like.new_full(shape, -math.inf)  # (B, N)
        self.lengths = torch.zeros(shape, dtype=torch.long, device=like.device)  # (B, N)
        self.ids = torch.full((*shape, longest), pad_id, device=like.device)  # (B, N, L)
        self._pad_id = pad_id

    def add(self, rows: Tensor, ids: Tensor, scores: Tensor, *, ended: bool) -> None:
        """Add n hypotheses (R, n, t) of the sequences `rows` (R,), and keep the N best of each.

        Hypotheses that have not ended must be sorted by score, and must be added after all
        hypotheses that end with EOS.
        """
        n_tokens, longest = ids.shape[2], self.ids.shape[2]
        ids = F.pad(ids, (0, longest - n_tokens), value=self._pad_id)
        lengths = torch.full_like(ids[:, :, 0], n_tokens)
        scores = torch.cat([self.scores[rows], scores], dim=1)
        rank = scores if ended else scores.isfinite().byte()  # without EOS: fill empty places
        best = rank.argsort(dim=1, descending=True, stable=True)[:, : self.scores.shape[1]]
        self.scores[rows] = scores.gather(1, best)
        self.lengths[rows] = torch.cat([self.lengths[rows], lengths], dim=1).gather(1, best)
        self.ids[rows] = gather_rows(torch.cat([self.ids[rows], ids], dim=1), best)


def gather_rows(x: Tensor, index: Tensor) -> Tensor:
    """Select rows (R, m, t) of matrices (R, n, t): result[i, j] is x[i, index[i, j]]."""
    return x.gather(1, index[..., None].expand(-1, -1, x.shape[2]))


def extend(
    hypotheses: ActiveBeams, logits: Tensor, n: int, process: Callable[..., Tensor] | None = None
) -> ActiveBeams:
    """Extend hypotheses by one token: the min(n, k * V) most probable extensions of each sequence.

    The logits (R * k, V) are those of the next token of each hypothesis. `process` changes them.
    """
    ids, scores, _ = hypotheses
    k = scores.shape[1]
    vocab_size = logits.shape[-1]
    # Only the n best tokens of a hypothesis can be among the n best extensions.
    if process is None:
        top, tokens = logits.topk(min(n, vocab_size))  # (R * k, n')
        top = top.to(scores.dtype) - row_logsumexp(logits, scores.dtype)
    else:
        # As in transformers, the probabilities that remain are not renormalized, and greedy search,
        # which is a beam of one, compares processed logits instead of processed log-probabilities.
        log_p = process(logits.to(scores.dtype) - row_logsumexp(logits, scores.dtype))
        tokens = (process(logits) if n == 1 else log_p).topk(min(n, vocab_size)).indices
        top = log_p.gather(1, tokens)
    log_p = top.unflatten(0, (-1, k))
    scores, flat = (scores[..., None] + log_p).flatten(1).topk(min(n, k * vocab_size))
    tokens = tokens.unflatten(0, (-1, k)).flatten(1).gather(1, flat)
    parents = flat // log_p.shape[2]
    ids = torch.cat([gather_rows(ids, parents), tokens[..., None]], dim=2)
    return ActiveBeams(ids, scores, parents)


def row_logsumexp(logits: Tensor, dtype: torch.dtype) -> Tensor:
    """Compute log(sum(exp(logits))) of each row of logits (R * k, V), as a column (R * k, 1)."""
    # On a CPU in slices that fit in its cache.
    rows = max(1, CACHED_LOGITS // logits.shape[1]) if logits.device.type == "cpu" else len(logits)
    return torch.cat([part.to(dtype).logsumexp(-1, keepdim=True) for part in logits.split(rows)])


def drop_ended(candidates: ActiveBeams, ended: Tensor, width: int) -> ActiveBeams:
    """Return the `width` most probable hypotheses of each sequence that have not ended.

    If a sequence has fewer, the remaining hypotheses have the score -inf.
    """
    ids, scores, parents = candidates
    scores, index = scores.masked_fill(ended, -math.inf).topk(width)
    return ActiveBeams(gather_rows(ids, index), scores, parents.gather(1, index))


def search(
    step: Step,
    prompt: Tensor,
    limit: Tensor,
    *,
    num_beams: int,
    length_penalty_type: str,
    alpha: float,
    eos_ids: Sequence[int],
    pad_id: int,
    n_best: int = 1,
    processors: LogitsProcessors | None = None,
) -> tuple[Tensor, Tensor]:
    """Search for the `n_best` continuations of each prompt with the highest scores.

    Returns new tokens (B, N, t), best first, and their scores (B, N). `limit` (B,) is the maximum
    number of new tokens, EOS included. Log-probabilities only decrease, which bounds the final
    score of an active hypothesis. At the limit, active hypotheses fill the places of missing
    finished ones, but never replace a finished one, because a repetition loop may have a better
    score than any complete target.
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
        spare = k * len(set(eos_ids)) if num_beams > 1 else 0
        process = None
        if processors and processors.are_used:
            new = hypotheses.ids.flatten(0, 1)  # (R * k, t)
            process = partial(processors, rows.repeat_interleave(k), new)
        candidates = extend(hypotheses, logits, num_beams + spare, process)
        last = candidates.ids[:, :, -1]
        ended = sum((last == eos_id for eos_id in eos_ids), torch.zeros_like(last)).bool()
        ids, scores = candidates.ids[:, :num_beams], candidates.scores[:, :num_beams]
        finishes = ended[:, :num_beams] & scores.isfinite()
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


@renamed(beam="num_beams", max_len="max_new_tokens", n_best="num_return_sequences")
def beam_search(
    model: nn.Module,
    src: Tensor,
    num_beams: int | None = None,
    length_penalty: float | None = None,
    length_penalty_type: str | None = None,
    *,
    src_mask: Tensor | None = None,
    bos_id: int | None = None,
    eos_id: int | Sequence[int] | None = None,
    pad_id: int | None = None,
    max_new_tokens: int | None = None,
    suppress_tokens: Sequence[int] | None = None,
    use_cache: bool = True,
    **decoding: Unpack[DecodingOptions],
) -> tuple[Tensor, Tensor]:
    """Search for the targets with the highest log-probability divided by a length penalty.

    An argument that is None has the stored value, otherwise 4 beams, penalty gnmt and alpha 0.6.

    Args:
        model: An encoder-decoder, or a causal LM whose prompts are `src`.
        src: Token ids (B, T) int64 of sources or prompts, or source images (B, C, height, width).
        num_beams: Number of active hypotheses of each source; 1 is greedy search.
        length_penalty: Exponent alpha of the length penalty.
        length_penalty_type: Penalty of n tokens: gnmt ((5 + n)/6)**alpha, power n**alpha, or none.
        src_mask: (B, T) bool, True = real token, padding on either side; None means no padding.
        bos_id: First token of the targets of an encoder-decoder.
        eos_id: Token or tokens that end a target; [] means that no token does.
        pad_id: Token after EOS; EOS if no padding token is known.
        max_new_tokens: Maximum number of new tokens with EOS; None as in `generate`.
        suppress_tokens: Ids of tokens that are never generated, such as that of `<unk>`.
        use_cache: Use a key-value cache; False is slow and serves to verify the cache.
        **decoding: `DecodingOptions`, such as `num_return_sequences` (N) and `min_length`.

    Returns:
        Token ids int64, and scores (B,). The ids are `bos_id` and t new tokens (B, 1 + t), or for a
        causal LM `src` and t new tokens (B, T + t). N > 1 adds a second dimension: results with EOS
        by decreasing score, then results without EOS, then padding with the score -inf.

    Raises InputError if an argument is invalid or too large for the model.
    """
    special: Any = {"bos_id": bos_id, "eos_id": eos_id, "pad_id": pad_id}
    inputs = GenerationInputs(model, src, src_mask, **special, ids_name="src")
    stored = inputs.defaults
    num_beams, n_best = _widths(num_beams, stored, decoding)
    alpha = first_known(length_penalty, stored.length_penalty, DEFAULT_LENGTH_PENALTY)
    kind = first_known(length_penalty_type, stored.length_penalty_type, DEFAULT_LENGTH_PENALTY_TYPE)
    _check_options(inputs.vocab_size, num_beams, alpha, kind)
    require("eos_id", eos_id is not None or bool(inputs.eos_ids), "token that ends a target")
    limit = inputs.limit(max_new_tokens, minimum=1)  # (B,)
    with decoding_mode(model) as inputs.model:
        step, start = inputs.start(beam_cache(model) if use_cache else None)
        new, scores = search(
            step,
            start,
            limit,
            num_beams=num_beams,
            length_penalty_type=kind,
            alpha=alpha,
            eos_ids=inputs.eos_ids,
            pad_id=inputs.pad_id,
            n_best=n_best,
            processors=LogitsProcessors(inputs, start, suppress_tokens or (), decoding),
        )
    if scores[:, 0].isneginf().any():
        raise InputError("leave no token to choose", option="the options of the logits")
    # Copied outside of inference mode, so that both can take part in training.
    ids = torch.cat([start[:, None].expand(-1, n_best, -1), new], dim=2)
    return (ids[:, 0], scores[:, 0].clone()) if n_best == 1 else (ids, scores.clone())


def _widths(width: int | None, stored: Any, decoding: Any) -> tuple[int, int]:
    """Return the width of the beam and the number of results, which is at most a given width."""
    is_given = decoding.get("num_return_sequences") is not None
    most = MAX_BEAMS if is_given else stored.num_beams or DEFAULT_BEAMS
    n = stored.n_results(decoding, width or most)
    return (max(stored.num_beams or DEFAULT_BEAMS, n) if width is None else width), n


def _check_options(vocab_size: int, num_beams: int, alpha: float, kind: str) -> None:
    """Raise InputError if an option of beam search is unknown or outside its range."""
    check_choice("length_penalty_type", kind, tuple(LENGTH_PENALTIES))
    check_range("length_penalty", alpha)  # finite
    # A stranger's file may store the number of beams.
    check_range("num_beams", num_beams, minimum=1, maximum=min(MAX_BEAMS, vocab_size))
