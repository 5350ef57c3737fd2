"""Statistics of attention heads, each beside its value under uniform attention with the same mask.

Shapes: B batch, H heads, T queries, S keys. A statistic of a head is a mean over queries, and the
functions return one number per head (B, H). Weights are those of `fourfold.models.analysis.
attention_maps`, in which `allowed` is True where a query may attend to a key.
"""

from typing import NamedTuple

import torch
from torch import Tensor

OFFSETS = {"previous": -1, "self": 0, "next": 1}


class Statistic(NamedTuple):
    """A statistic of each head, and its value under uniform attention.

    Args:
        value: Statistic (B, H) of the weights.
        uniform: The same statistic (B, H) of equal weights on all allowed keys.
    """

    value: Tensor
    uniform: Tensor


def uniform_attention(allowed: Tensor) -> Tensor:
    """Return equal weights on all allowed keys, in the shape (..., T, S) of `allowed`, in fp32."""
    return allowed / allowed.sum(-1, keepdim=True).clamp(min=1)


def row_entropy(weights: Tensor) -> Tensor:
    """Return the entropy (..., T) of each query's weights (..., T, S) in nats."""
    return torch.special.entr(weights).sum(-1)


def token_distances(n_queries: int, n_keys: int) -> Tensor:
    """Return the distance |i - j| (T, S) of query i and key j, in tokens."""
    return (torch.arange(n_queries)[:, None] - torch.arange(n_keys)).abs().float()


def patch_distances(n_rows: int, n_columns: int, n_prefix: int = 0) -> Tensor:
    """Return the distances of the patches of an image, in patches.

    Args:
        n_rows: Number of rows of patches.
        n_columns: Number of columns of patches.
        n_prefix: Number of tokens before the patches, whose distances are NaN.

    Returns:
        Euclidean distances (T, T), where T is `n_prefix` + `n_rows` * `n_columns`.
    """
    rows, columns = torch.arange(n_rows).float(), torch.arange(n_columns).float()
    places = torch.cartesian_prod(rows, columns)
    distances = torch.full((n_prefix + len(places),) * 2, torch.nan)
    distances[n_prefix:, n_prefix:] = torch.cdist(places, places)
    return distances


def mean_distance(weights: Tensor, distances: Tensor) -> Tensor:
    """Return the mean distance (...) of queries and keys, weighted by attention (..., T, S).

    Args:
        weights: Attention weights.
        distances: Distance (T, S) of each pair; pairs whose distance is NaN are left out.
    """
    known = ~distances.isnan()
    mass = (weights * known).sum((-1, -2))
    return (weights * distances.nan_to_num()).sum((-1, -2)) / mass.clamp(min=1e-12)


def offset_share(weights: Tensor, offset: int) -> Tensor:
    """Return the mean weight (...) of key i + `offset`, over the queries i that have this key."""
    return weights.diagonal(offset, -2, -1).mean(-1)


def induction_targets(ids: Tensor) -> Tensor:
    """Mark the tokens that follow an earlier occurrence of the current token (Olsson et al. 2022).

    Args:
        ids: Token ids (..., T).

    Returns:
        Bool (..., T, T), True at (i, j + 1) if j < i and token j equals token i.
    """
    same = (ids.unsqueeze(-1) == ids.unsqueeze(-2)).tril(-1)
    return torch.cat([torch.zeros_like(same[..., :1]), same[..., :-1]], -1)


def target_share(weights: Tensor, targets: Tensor) -> Tensor:
    """Return the mean weight (B, H) on marked keys, over the queries that have a marked key.

    Args:
        weights: Attention weights (B, H, T, S).
        targets: Bool (B, T, S), such as the result of `induction_targets`. The result for a
            sequence without a marked key is NaN.
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
    """Compute all statistics of the heads of a layer, for sequences without padding.

    Args:
        weights: Attention weights (B, H, T, S).
        allowed: Bool (B or 1, 1, T, S).
        ids: Token ids (B, S) of the keys, for the induction score; None leaves it out. It is also
            left out if no token of the batch occurs twice.
        distances: Distances (T, S), such as `patch_distances`; None means `token_distances`.
        separators: Bool (B, S), True at separators such as [SEP]; None leaves out their share.
        is_self: Queries and keys are the same tokens. If not, only `entropy`, `first` and
            `separator` are returned.

    Returns:
        `entropy` (nats), `first` (share of the first key, 1 for an attention sink of all queries),
        `separator` (share of the separators), `distance`, `previous`, `self` and `next` (shares of
        these keys) and `induction` (share of the tokens that followed the current token before).
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
    "separator": "[SEP]",
}
BROAD = 0.9  # entropy of a broad head, as a part of the entropy of uniform attention


def head_label(statistics: dict[str, tuple[float, float]]) -> str | None:
    """Return a label of a head: previous, self, next, first token, [SEP], broad or None.

    The label is that of the largest share of `LABELS` that covers at least half of the distance
    from uniform attention to 1. It is broad if the entropy is at least 90 % of that of uniform
    attention.

    Args:
        statistics: Value and value under uniform attention of each statistic of one head.

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
    """Return the part (B,) of the heads that use a key as an attention sink (Gu et al. 2025).

    A head uses a key as a sink if the mean weight of the key, over the queries that may attend to
    it, is above the threshold.

    Args:
        weights: Attention weights (B, H, T, S).
        allowed: Bool (B or 1, 1, T, S).
        key: Index of the key.
        threshold: Mean weight above which the key is a sink.
    """
    may_attend = allowed[..., key]
    means = (weights[..., key] * may_attend).sum(-1) / may_attend.sum(-1).clamp(min=1)
    return (means > threshold).float().mean(1)
