"""Rotary positions: queries and keys are rotated by angles that grow with the position.

After the rotation, the score of a query and a key depends on the difference of their positions only
(Su et al. 2021, "RoFormer"). Channels i and i + Dh/2 of a head form a pair that is rotated (the
"half" layout of Hugging Face's transformers library). In checkpoints with the pairs 2i and 2i + 1,
the rows of the query and key matrices are in another order.

Shapes: B batch, H heads, T tokens, Dh head width, P rotated pairs of channels of a head (Dh/2, or
fewer if only the first 2P channels are rotated).
"""

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

# Cosines and sines of the angles, (T, P) or (B, 1, T, P) each.
Rotation = tuple[Tensor, Tensor]


def rotate(x: Tensor, rotation: Rotation) -> Tensor:
    """Rotate each pair of channels of queries or keys x (B, H, T, Dh) by the angle of its position.

    Example:
        >>> x = torch.tensor([[[[1.0, 0.0]]]])  # one pair of channels, at position pi
        >>> rotate(x, rotation(torch.tensor([[math.pi]]), x, width=2, theta=1e4)).round()
        tensor([[[[-1., -0.]]]])
    """
    cos, sin = rotation
    n_pairs = cos.shape[-1]
    first, second, rest = x.split([n_pairs, n_pairs, x.shape[-1] - 2 * n_pairs], dim=-1)
    turned = first * cos - second * sin, second * cos + first * sin
    return torch.cat([*turned, rest], dim=-1).to(x.dtype)


def rotation(
    positions: Tensor | slice,
    like: Tensor,
    *,
    width: int,
    theta: float,
    scaling: Mapping[str, Any] | None = None,
) -> Rotation:
    """Compute the cosines and sines at given positions, a slice of length T or a tensor (B, T).

    They are (T, P) for a slice and (B, 1, T, P) for a tensor, with the device and data type of
    `like`. `width` is 2P. `theta` and `scaling` are `rope_theta` and `rope_scaling` of
    `TransformerConfig`.

    Example:
        >>> q, k = torch.randn(2, 1, 1, 6, 8)
        >>> shifted = (rotation(slice(n, n + 6), q, width=8, theta=1e4) for n in (0, 100))
        >>> first, second = (rotate(q, turns) @ rotate(k, turns).mT for turns in shifted)
        >>> torch.allclose(first, second, atol=1e-3)  # scores depend on differences of positions
        True
    """
    # Nothing is stored in the model, because a conversion of the model to bf16 would round the
    # frequencies. The angles are in fp32: in bf16, most positions above 256 are not exact.
    if isinstance(positions, slice):
        rows = torch.arange(positions.start, positions.stop, device=like.device)
    else:
        rows = positions.unsqueeze(1)  # (B, 1, T)
    rates, factor = frequencies(width, theta, scaling, like.device)
    angles = rows.unsqueeze(-1).float() * rates  # (T, P) or (B, 1, T, P)
    return (angles.cos() * factor).to(like.dtype), (angles.sin() * factor).to(like.dtype)


def frequencies(
    width: int, theta: float, scaling: Mapping[str, Any] | None, device: torch.device | None = None
) -> tuple[Tensor, float]:
    """Return the angle per position of each pair, (P,) in fp32, and a factor on cos and sin.

    The wavelengths grow geometrically from 2 pi to almost 2 pi `theta`.

    Example:
        >>> rates, _ = frequencies(4, 10_000.0, None)
        >>> rates
        tensor([1.0000, 0.0100])
    """
    # The operations are those of transformers, in the same order, so that the results are equal.
    # The unit of the wavelengths is tokens per radian.
    wavelengths = theta ** (torch.arange(0, width, 2, dtype=torch.float32, device=device) / width)
    rates = 1.0 / wavelengths
    if scaling is None:
        return rates, 1.0
    factor = scaling["factor"]
    if scaling["rope_type"] == "linear":  # Chen et al. 2023
        return rates / factor, 1.0
    length = scaling["original_max_position_embeddings"]
    if scaling["rope_type"] == "llama3":
        low, high = scaling["low_freq_factor"], scaling["high_freq_factor"]
        kept = ((length / (2 * math.pi / rates) - low) / (high - low)).clamp(0.0, 1.0)
        return (1 - kept) * rates / factor + kept * rates, 1.0
    # YaRN (Peng et al. 2023): pairs that make many turns within `length` keep their rate.
    turns = scaling.get("beta_fast", 32), scaling.get("beta_slow", 1)
    low, high = (
        width * math.log(length / (n * 2 * math.pi)) / (2 * math.log(theta)) for n in turns
    )
    if scaling.get("truncate", True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, width - 1)
    steps = torch.arange(width // 2, dtype=torch.float32, device=device) - low
    kept = 1 - (steps / (high - low or 0.001)).clamp(0.0, 1.0)
    attention_factor = scaling.get("attention_factor")
    if attention_factor is None:
        attention_factor = 0.1 * math.log(max(factor, 1.0)) + 1.0
    return 1.0 / (factor * wavelengths) * (1 - kept) + rates * kept, attention_factor
