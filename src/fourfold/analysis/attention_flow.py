"""Attention through several layers: rollout, and gradient-weighted relevance.

Shapes: L layers, B batch, H heads, T tokens.
"""

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from itertools import accumulate
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fourfold.analysis.attention_maps import Array, attention_layers
from fourfold.layers.base_model import Model


def with_residual(weights: Array) -> Array:
    """Return (A + I) / 2, divided by the sum of each row, for attention weights A (..., T, T).

    The identity I represents the residual connection (Abnar and Zuidema 2020, section 3).
    """
    mixed = weights + np.eye(weights.shape[-1], dtype=weights.dtype)
    return mixed / mixed.sum(-1, keepdims=True)


def rollout(weights: Array) -> Array:
    """Compute attention rollout (L, ..., T, T) (Abnar and Zuidema 2020).

    Row i of layer l holds the contribution of each input token to token i after layer l, and sums
    to 1. It is the matrix product of the weights of this layer and all layers before it, each
    averaged with the identity (see `with_residual`).

    Args:
        weights: Self-attention weights (L, ..., T, T) of all layers from the first layer on,
            usually averaged over heads.
    """
    return np.stack(list(accumulate(with_residual(weights), lambda below, layer: layer @ below)))


def relevance(
    model: Model, forward: Callable[[], Tensor], paths: Sequence[str] | None = None
) -> Tensor:
    """Compute gradient-weighted attention (Chefer et al. 2021) of self-attention.

    The relevance R (B, T, T) starts as the identity. Each layer adds M R to R, where M is the mean
    over heads of max(0, A * dy/dA), A are the attention weights of the layer, and y is an output of
    the model. Row i is the relevance of each input token for token i. The model runs without fused
    kernels.

    Args:
        forward: Function that runs the model and returns the output y (B,) of each sequence, such
            as the logit of one class.
        paths: Paths of the attention modules in order; None means all modules named attn. The last
            module may be attention pooling by one learned query, as in SigLIP; the result is then
            (B, 1, T).
    """
    if paths is None:
        paths = [path for path in attention_layers(model) if path.endswith("attn")]
        paths = [path for path in paths if not path.endswith("cross_attn")]
    weights: dict[str, Tensor] = {}
    with ExitStack() as stack, torch.enable_grad():
        for path in paths:
            module: Any = model.get_submodule(path)

            def keep(scores: Tensor, path: str = path, normalize: Any = module.normalize) -> Tensor:
                weights[path] = normalize(scores)
                return weights[path]

            # The module may have a function of its own, which comes back last.
            own = {name: x for name, x in vars(module).items() if name == "normalize"}
            stack.callback(vars(module).update, own)
            stack.callback(vars(module).pop, "normalize")
            module.normalize = keep
        output = forward().sum()
    gradients = torch.autograd.grad(output, [weights[path] for path in paths], allow_unused=True)
    total = None
    for path, gradient in zip(paths, gradients, strict=True):
        a = weights[path].detach()
        if total is None:
            total = torch.eye(a.shape[-1], dtype=a.dtype, device=a.device).expand(len(a), -1, -1)
        if gradient is not None:  # None after the last layer that the output depends on
            positive = (gradient.nan_to_num() * a.nan_to_num()).clamp(min=0).mean(1)
            # A learned query has no relevance of its own, to which that of the tokens is added.
            before = total if positive.shape[-2] > 1 or total.shape[-1] == 1 else 0.0
            total = positive @ total + before
    assert total is not None, "the model has no self-attention"
    return total
