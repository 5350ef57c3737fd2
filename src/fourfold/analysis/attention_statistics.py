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
    """Statistic (B, H) of each head of a layer, and its value under uniform attention."""

    value: Tensor
    uniform: Tensor


def row_entropy(weights: Tensor) -> Tensor:
    """Compute the entropy (..., T) in nats of the attention weights (..., T, S) of each query."""
    return torch.special.entr(weights).sum(-1)


def token_distances(n_queries: int, n_keys: int) -> Tensor:
    """Return the distances |i - j| of query i and key j in tokens, (T, S) in fp32."""
    return (torch.arange(n_queries)[:, None] - torch.arange(n_keys)).abs().float()


def patch_distances(n_rows: int, n_columns: int, n_prefix: int = 0) -> Tensor:
    """Return the Euclidean distances (T, T) of the patches of an image, in patches.

    The distances from and to the `n_prefix` tokens before the patches, such as the class token, are
    NaN.
    """
    rows, columns = torch.arange(n_rows).float(), torch.arange(n_columns).float()
    places = torch.cartesian_prod(rows, columns)
    distances = torch.full((n_prefix + len(places),) * 2, torch.nan)
    distances[n_prefix:, n_prefix:] = torch.cdist(places, places)
    return distances


def mean_distance(weights: Tensor, distances: Tensor) -> Tensor:
    """Return the mean distance (...) of query and key, weighted by attention weights (..., T, S).

    Pairs whose distance (T, S) is NaN are left out of the mean.
    """
    mass = (weights * ~distances.isnan()).sum((-1, -2))
    return (weights * distances.nan_to_num()).sum((-1, -2)) / mass.clamp(min=1e-12)


def induction_targets(ids: Tensor) -> Tensor:
    """Mark the keys (..., T, T) that an induction head attends to (Olsson et al. 2022).

    For a query at token i, these keys are the tokens after earlier occurrences of token i.
    """
    same = (ids.unsqueeze(-1) == ids.unsqueeze(-2)).tril(-1)
    return torch.cat([torch.zeros_like(same[..., :1]), same[..., :-1]], -1)


def target_share(weights: Tensor, targets: Tensor) -> Tensor:
    """Return the mean weight (B, H) of the marked keys (B, T, S) of a query; NaN without any."""
    has_target = targets.any(-1)[:, None]  # (B, 1, T)
    return ((weights * targets[:, None]).sum(-1) * has_target).sum(-1) / has_target.sum(-1)


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
        ids: Token ids (B, S) int64 of the keys. None leaves out the statistic induction.
        distances: Distances (T, S) of queries and keys; None means `token_distances`.
        separators: Bool (B, S), True at separators such as [SEP]. None leaves out separator.
        is_self: True for self-attention. False computes only entropy, first and separator.

    Returns:
        Dictionary from names to `Statistic`:

        - entropy: Mean entropy of the weights of a query, in nats.
        - first: Share of the first key. It is 1 if all queries attend to this key only.
        - separator: Share of all separators.
        - distance: Mean distance of query and key, weighted by attention.
        - previous, self, next: Share of the key one token before the query, at the query, and one
          token after the query. Left out for a sequence of one token.
        - induction: Share of the keys of `induction_targets`. Left out if no token has such a key.
    """
    # Equal weights of all keys that a query may attend to.
    pairs = weights, allowed / allowed.sum(-1, keepdim=True).clamp(min=1)
    found = {
        "entropy": [row_entropy(x).mean(-1) for x in pairs],
        "first": [x[..., 0].mean(-1) for x in pairs],
    }
    if separators is not None and bool(separators.any()):
        found["separator"] = [(x * separators[:, None, None]).sum(-1).mean(-1) for x in pairs]
    if is_self:
        if distances is None:
            distances = token_distances(*weights.shape[-2:])
        distances = distances.to(weights.device)
        found["distance"] = [mean_distance(x, distances) for x in pairs]
        if weights.shape[-1] > 1:
            for name, offset in OFFSETS.items():
                # Queries without such a key have no place on the diagonal.
                found[name] = [x.diagonal(offset, -2, -1).mean(-1) for x in pairs]
        if ids is not None and bool((targets := induction_targets(ids)).any()):
            found["induction"] = [target_share(x, targets) for x in pairs]
    shape = weights.shape[:2]
    return {name: Statistic(*(x.expand(shape) for x in both)) for name, both in found.items()}


SHARES = ("previous", "self", "next", "first", "separator", "induction")
LABELS = {name: name for name in SHARES} | {"first": "first token"}
BROAD = 0.9  # least entropy of a broad head, as a fraction of the entropy of uniform attention


def head_label(statistics: dict[str, tuple[float, float]]) -> str | None:
    """Choose a label for the keys that one attention head attends to, or None.

    A share of `head_statistics` qualifies for a label if its value is at least (1 + u) / 2, where u
    is its value under uniform attention. If several qualify, the largest value gives the label. If
    none qualifies, the label is broad if the entropy is at least 90 % of that of uniform attention.

    Args:
        statistics: Dictionary from names of statistics of one head to pairs of the value and the
            value under uniform attention. The name entropy is required.

    Example:
        >>> head_label({"entropy": (0.7, 2.3), "previous": (0.8, 0.1), "self": (0.1, 0.1)})
        'previous'
    """
    pairs = {name: statistics[name] for name in LABELS if name in statistics}
    shares = {name: x for name, (x, u) in pairs.items() if u < 1 and x >= (1 + u) / 2}
    if shares:
        return LABELS[max(shares, key=shares.__getitem__)]
    value, uniform = statistics["entropy"]
    return "broad" if value >= BROAD * uniform > 0 else None
