"""Statistics of attention heads, compared with uniform attention under the same mask.

A statistic of a head is one number, the mean over the queries of a sequence. Attention weights and
the mask `allowed`, which is True where a query may attend to a key, are those of
`fourfold.analysis.attention_maps.LayerAttention`.
Shapes: B batch, H heads, T queries, S keys.
"""

from typing import NamedTuple

import torch
from torch import Tensor

OFFSETS = {"previous": -1, "self": 0, "next": 1}


class Statistic(NamedTuple):
    """Statistic of each head of a layer, and its value under uniform attention.

    Args:
        value: Statistic (B, H) of the attention weights.
        uniform: Statistic (B, H) of equal weights on all keys that the mask allows.
    """

    value: Tensor
    uniform: Tensor


def uniform_attention(allowed: Tensor) -> Tensor:
    """Return attention weights (..., T, S) that are equal for all allowed keys of a query, in fp32.

    Args:
        allowed: Bool (..., T, S), True where a query may attend to a key.
    """
    return allowed / allowed.sum(-1, keepdim=True).clamp(min=1)


def row_entropy(weights: Tensor) -> Tensor:
    """Compute the entropy (..., T) in nats of the attention weights (..., T, S) of each query."""
    return torch.special.entr(weights).sum(-1)


def token_distances(n_queries: int, n_keys: int) -> Tensor:
    """Return the distances |i - j| of query i and key j in tokens, (T, S) in fp32."""
    return (torch.arange(n_queries)[:, None] - torch.arange(n_keys)).abs().float()


def patch_distances(n_rows: int, n_columns: int, n_prefix: int = 0) -> Tensor:
    """Return the distances of the patches of an image, in patches.

    Args:
        n_rows: Number of rows of patches.
        n_columns: Number of columns of patches.
        n_prefix: Number of tokens before the patches, such as the class token. Distances from and
            to these tokens are NaN.

    Returns:
        Euclidean distances (T, T), where T is `n_prefix` + `n_rows` * `n_columns`.
    """
    rows, columns = torch.arange(n_rows).float(), torch.arange(n_columns).float()
    places = torch.cartesian_prod(rows, columns)
    distances = torch.full((n_prefix + len(places),) * 2, torch.nan)
    distances[n_prefix:, n_prefix:] = torch.cdist(places, places)
    return distances


def mean_distance(weights: Tensor, distances: Tensor) -> Tensor:
    """Compute the mean distance between query and key, weighted by the attention weights.

    Args:
        weights: Attention weights (..., T, S).
        distances: Distance (T, S) of each pair of query and key. Pairs whose distance is NaN are
            left out of the mean.

    Returns:
        Mean distances (...), such as (B, H), in the unit of `distances`.
    """
    known = ~distances.isnan()
    mass = (weights * known).sum((-1, -2))
    return (weights * distances.nan_to_num()).sum((-1, -2)) / mass.clamp(min=1e-12)


def offset_share(weights: Tensor, offset: int) -> Tensor:
    """Compute the mean attention weight of the key at a fixed offset from the query.

    Args:
        weights: Self-attention weights (..., T, T).
        offset: Position of the key minus position of the query. Queries at whose offset there is no
            key are left out of the mean.

    Returns:
        Mean weights (...), such as (B, H).
    """
    return weights.diagonal(offset, -2, -1).mean(-1)


def induction_targets(ids: Tensor) -> Tensor:
    """Mark the keys that an induction head attends to (Olsson et al. 2022).

    For a query at token i, these keys are the tokens after earlier occurrences of token i.

    Returns:
        Bool (..., T, T) for queries and keys, True at (i, j + 1) if j < i and token j equals token
        i.
    """
    same = (ids.unsqueeze(-1) == ids.unsqueeze(-2)).tril(-1)
    return torch.cat([torch.zeros_like(same[..., :1]), same[..., :-1]], -1)


def target_share(weights: Tensor, targets: Tensor) -> Tensor:
    """Compute the mean attention weight of marked keys.

    For each query, the weights of its marked keys are added. The mean is over the queries that have
    a marked key.

    Args:
        weights: Attention weights (B, H, T, S).
        targets: Bool (B, T, S), True for a marked key of a query, such as the result of
            `induction_targets`.

    Returns:
        Mean weights (B, H). The mean of a sequence without a marked key is NaN.
    """
    has_target = targets.any(-1)[:, None]  # (B, 1, T)
    shares = (weights * targets[:, None]).sum(-1) * has_target
    return shares.sum(-1) / has_target.sum(-1)


def head_statistics(
    weights: Tensor,
    allowed: Tensor,
    *,
    ids: Tensor | None = None,
    distances: Tensor | None = None,
    separators: Tensor | None = None,
    is_self: bool = True,
) -> dict[str, Statistic]:
    """Compute the statistics of each attention head of a layer, for sequences without padding.

    The share of a set of keys is the sum of their attention weights, averaged over the queries.

    Args:
        weights: Attention weights (B, H, T, S).
        allowed: Bool (B or 1, 1, T, S), True where a query may attend to a key.
        distances: Distances (T, S) of queries and keys, such as those of `patch_distances`. None
            means `token_distances`.
        separators: Bool (B, S), True at separators such as [SEP]. None leaves out the statistic
            separator.
        is_self: True for self-attention. False computes only entropy, first and separator.

    Returns:
        Dictionary from names to `Statistic`, each with tensors (B, H):

        - entropy: Mean entropy of the weights of a query, in nats.
        - first: Share of the first key. It is 1 if all queries attend to this key only.
        - separator: Share of all separators. Left out if there is none.
        - distance: Mean distance of query and key, weighted by attention, in the unit of
          `distances`.
        - previous, self, next: Share of the key one token before the query, at the query, and one
          token after the query. Left out for a sequence of one token.
        - induction: Share of the keys of `induction_targets`. Left out if no token of the batch
          has such a key.
    """
    pairs = weights, uniform_attention(allowed)
    found = {
        "entropy": [row_entropy(x).mean(-1) for x in pairs],
        "first": [x[..., 0].mean(-1) for x in pairs],
    }
    if separators is not None and bool(separators.any()):
        places = separators[:, None, None]
        found["separator"] = [(x * places).sum(-1).mean(-1) for x in pairs]
    if is_self:
        if distances is None:
            distances = token_distances(*weights.shape[-2:])
        distances = distances.to(weights.device)
        found["distance"] = [mean_distance(x, distances) for x in pairs]
        if weights.shape[-1] > 1:
            for name, offset in OFFSETS.items():
                found[name] = [offset_share(x, offset) for x in pairs]
        if ids is not None and bool((targets := induction_targets(ids)).any()):
            found["induction"] = [target_share(x, targets) for x in pairs]
    shape = weights.shape[:2]
    return {name: Statistic(*(x.expand(shape) for x in both)) for name, both in found.items()}


LABELS = {
    "previous": "previous",
    "self": "self",
    "next": "next",
    "first": "first token",
    "separator": "separator",
    "induction": "induction",
}
BROAD = 0.9  # least entropy of a broad head, as a fraction of the entropy of uniform attention


def head_label(statistics: dict[str, tuple[float, float]]) -> str | None:
    """Choose a label that describes the keys that one attention head attends to.

    A statistic of `head_statistics` that is a share of the attention weights qualifies for a label
    if its value is at least (1 + u) / 2, where u is its value under uniform attention. These
    statistics are previous, self, next, first, separator and induction. If several qualify, the
    statistic with the largest value gives the label. If none qualifies, the label is broad if the
    entropy is at least 90 % of the entropy of uniform attention.

    Args:
        statistics: Dictionary from names of statistics of one head to pairs of the value and the
            value under uniform attention. The name entropy is required.

    Returns:
        "previous", "self", "next", "first token", "separator", "induction", "broad", or None for no
        label.

    Example:
        >>> head_label({"entropy": (0.7, 2.3), "previous": (0.8, 0.1), "self": (0.1, 0.1)})
        'previous'
    """
    shares = {
        name: value
        for name in LABELS
        if name in statistics
        for value, uniform in [statistics[name]]
        if uniform < 1 and value >= (1 + uniform) / 2
    }
    if shares:
        return LABELS[max(shares, key=lambda name: shares[name])]
    value, uniform = statistics["entropy"]
    return "broad" if value >= BROAD * uniform > 0 else None


def sink_rate(weights: Tensor, allowed: Tensor, key: int = 0, threshold: float = 0.3) -> Tensor:
    """Compute the fraction of the heads that use a key as an attention sink (Gu et al. 2025).

    A head uses a key as a sink if the mean weight of the key, over the queries that may attend to
    this key, is above the threshold.

    Args:
        weights: Attention weights (B, H, T, S).
        allowed: Bool (B or 1, 1, T, S), True where a query may attend to a key.
        key: Index of the key.
        threshold: Mean weight above which the key is a sink.

    Returns:
        Fraction of the H heads, from 0 to 1, for each sequence, (B,).
    """
    may_attend = allowed[..., key]
    means = (weights[..., key] * may_attend).sum(-1) / may_attend.sum(-1).clamp(min=1)
    return (means > threshold).float().mean(1)
