"""Alignment error rate (Och and Ney 2003) of word links, and links from attention weights.

A link is a pair (index of the source word, index of the target word), both from 0.
Shapes: T target tokens, S source tokens.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from fourfold.metrics.base import RowMetric

Link = tuple[int, int]


class ReferenceLinks(NamedTuple):
    """Links of human annotators: the sure (unambiguous) ones, and all possible ones."""

    sure: frozenset[Link]
    possible: frozenset[Link]


def links_from_weights(
    weights: Tensor, source_words: Sequence[int], target_words: Sequence[int]
) -> set[Link]:
    """Link each target word to the source word with the largest of the attention weights (T, S).

    The weights of the tokens of a word are summed, on both sides. A target word without a token, or
    with the weight 0 everywhere, gets no link. `source_words` and `target_words` are the index of
    the word of each token; -1 for a special token, whose weights are ignored.

    Example:
        >>> weights = torch.tensor([[0.4, 0.3, 0.3], [0.9, 0.1, 0.0]])
        >>> sorted(links_from_weights(weights, [0, 1, 1], [0, 1]))
        [(0, 1), (1, 0)]
    """
    words = weights.new_zeros(max(target_words) + 1, max(source_words) + 1)
    rows, columns = (torch.tensor(x, device=weights.device) for x in (target_words, source_words))
    pairs = torch.cartesian_prod(rows[rows >= 0], columns[columns >= 0])
    words.index_put_(tuple(pairs.T), weights[rows >= 0][:, columns >= 0].flatten(), accumulate=True)
    largest, source = words.max(dim=1)
    return {(s, t) for t, s in enumerate(source.tolist()) if largest[t] > 0}


def diagonal_links(n_source: int, n_target: int) -> set[Link]:
    """Link each target word to the source word at the same relative position, as a baseline."""
    return {((2 * t + 1) * n_source // (2 * n_target), t) for t in range(n_target)}


class AlignmentErrorRate(RowMetric):
    """Alignment error rate (Och and Ney 2003), precision and recall of links over sentence pairs.

    With the links A of an aligner and the reference links S (sure) and P (possible), the rate is
    1 - (|A and S| + |A and P|) / (|A| + |S|), for sums over all sentence pairs.
    """

    def update(self, row: int, links: Iterable[Link], reference: ReferenceLinks) -> None:
        """Add the links of an aligner in a sentence pair, and those of the annotators."""
        found, (sure, possible) = set(links), reference
        self.rows.append((row, (len(found & sure), len(found & possible), len(found), len(sure))))

    def compute(self) -> dict[str, float]:
        """Return aer, precision (share of possible among found links) and recall by name."""
        counts = self.gather().values()
        sure, possible, found, n_sure = map(sum, zip(*counts, strict=True))
        return {
            "aer": 1 - (sure + possible) / max(1, found + n_sure),
            "precision": possible / max(1, found),
            "recall": sure / max(1, n_sure),
        }
