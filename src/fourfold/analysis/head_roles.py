"""Heads with a known role: induction heads, and heads of cross-attention that align words.

Shapes: N sequences, B batch, H heads, T tokens, S source tokens.
"""

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from fourfold.analysis.attention_maps import LayerAttention, attention_maps, visit_attention
from fourfold.analysis.attention_statistics import head_statistics
from fourfold.core.validation import check_range
from fourfold.edits.contexts import edit_targets
from fourfold.generation.step import decoding_mode
from fourfold.losses import upcast_fp32
from fourfold.metrics.alignment import AlignmentErrorRate, ReferenceLinks, links_from_weights


class Induction(NamedTuple):
    """Induction of a causal LM on sequences of random tokens that occur twice.

    Args:
        weights: Weight of each head, by name, on the tokens after the earlier occurrence of the
            query's token, and that of uniform attention.
        change: Loss of the second copy minus that of the first, in nats per token.
        control: The same difference if other tokens replace the second copy.
    """

    weights: dict[str, tuple[float, float]]
    change: float
    control: float


def induction(
    model: Any, n: int, length: int, *, tokens: Tensor | None = None, seed: int = 0
) -> Induction:
    """Measure whether a causal LM completes repeated random tokens, and which heads look for them.

    Source: Olsson et al. 2022.

    Args:
        n: Number N of sequences.
        length: Number of tokens of each of the two copies.
        tokens: Ids from which the tokens are drawn, without repetition. None means all ids.

    Raises:
        InputError: `length` is less than 2, or there are fewer than 2 `length` tokens to draw
            from.
    """
    tokens = torch.arange(model.config.vocab_size) if tokens is None else tokens.unique().cpu()
    check_range("length", length, minimum=2, maximum=len(tokens) // 2)
    generator = torch.Generator().manual_seed(seed)
    order = torch.rand(n, len(tokens), generator=generator).argsort(1)[:, : 2 * length]
    control = tokens[order].to(next(model.parameters()).device)
    repeated = control[:, :length].repeat(1, 2)
    weights: dict[str, tuple[float, float]] = {}

    def keep(layer: LayerAttention) -> None:
        value, uniform = head_statistics(layer.weights, layer.allowed, ids=repeated)["induction"]
        pairs = zip(value.mean(0).tolist(), uniform.mean(0).tolist(), strict=True)
        weights.update({f"{layer.layer}.self.head.{i}": pair for i, pair in enumerate(pairs)})

    changes = []
    with decoding_mode(model) as quiet:
        visit_attention(quiet, lambda: quiet(repeated), keep)
        for ids in (repeated, control):
            logits = upcast_fp32(quiet(ids)).mT[..., :-1]
            losses = F.cross_entropy(logits, ids[:, 1:], reduction="none")
            # Nothing announces the first token of a copy.
            changes.append(float(losses[:, length:].mean() - losses[:, : length - 1].mean()))
    return Induction(weights, *changes)


class AlignedPair(NamedTuple):
    """Sentence pair with the links of its words.

    Args:
        src: Source ids (S,).
        tgt: Target ids (T,), with the start token.
        source_words: Index of the word of each source token, or -1 for a special token.
        target_words: Index of the word of each target token after the start token, or -1.
        links: Reference links of the words.
    """

    src: Tensor
    tgt: Tensor
    source_words: Sequence[int]
    target_words: Sequence[int]
    links: ReferenceLinks


def alignment_heads(model: Any, pairs: Iterable[AlignedPair]) -> dict[str, dict[str, float]]:
    """Return the scores of `AlignmentErrorRate` of each head of cross-attention, by its name.

    The links of a target word are those of the step that predicts it. A low error rate does not
    mean that the translation needs the head: compare the effect of its `ablation`.
    """
    names = [name for name in edit_targets(model) if name.endswith(".cross.head")]
    rates: dict[str, AlignmentErrorRate] = {}
    for row, pair in enumerate(pairs):
        maps = attention_maps(model, pair.src[None], pair.tgt[None, :-1])
        for layer, name in enumerate(names):
            for i, weights in enumerate(maps[f"cross.{layer}"][0]):
                found = links_from_weights(weights, pair.source_words, pair.target_words)
                rate = rates.setdefault(f"{name}.{i}", AlignmentErrorRate())
                rate.update(row, found, pair.links)
    return {name: rate.compute() for name, rate in rates.items()}
