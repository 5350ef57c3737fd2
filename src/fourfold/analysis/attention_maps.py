"""Attention weights of each layer in a forward pass.

The model runs with its fused kernels, which return no weights. The weights of a layer are computed
a second time from the queries and keys of the layer. `visit_attention` passes the weights of one
layer at a time to a function. `attention_maps` returns the weights of all layers, and `mean_maps`
those of the first sample, averaged over heads.
Shapes: B batch, H heads, T queries, S keys.
"""

import re
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.utils.hooks import RemovableHandle

from fourfold.core.attention import dense_mask
from fourfold.core.masks import LoweredMask
from fourfold.errors import InputError
from fourfold.generation.step import decoding_mode
from fourfold.layers.base_model import Model

Array = np.ndarray[Any, Any]


class LayerAttention(NamedTuple):
    """Attention weights of one layer.

    Args:
        path: Path of the attention module in the model, such as "stack.blocks.0.attn".
        name: Kind of attention: "self" in a model with one stack, "cross" from a decoder to the
            output of an encoder, otherwise the path of the stack or of the pooling, such as
            "encoder" and "words.pool".
        layer: Index of the layer among the layers with the same name, from 0.
        weights: Attention weights (B, H, T, S) in fp32, or in fp64 if the model is in fp64.
            Recurrent attention, pooling and a `SingleHead` have one head, and pooling has one
            query.
        allowed: Bool (B or 1, 1, T, S), True where a query may attend to a key.
        centers: Centre (B, T) of each query's window, in source positions from 1, for recurrent
            attention with `attn_weights` local_p (Luong et al. 2015); None for all other attention.
    """

    path: str
    name: str
    layer: int
    weights: Tensor
    allowed: Tensor
    centers: Tensor | None = None


def attention_layers(model: Model) -> dict[str, tuple[str, int]]:
    """Return the fields `name` and `layer` of `LayerAttention` by the path of each attention."""
    layers: dict[str, tuple[str, int]] = {}
    counts: dict[str, int] = {}
    for path in model.attention_modules():
        name = path
        if path.endswith("cross_attn"):
            name = "cross"
        elif "blocks." in path or path.endswith("attn"):  # the path of the stack
            stack = re.split(r"\.?\bblocks\.", path)[0] if "blocks." in path else ""
            name = re.sub(r"\.?\bstack$", "", stack) or "self"
        layers[path] = name, counts.setdefault(name, 0)
        counts[name] += 1
    return layers


def visit_attention(
    model: Model,
    forward: Callable[[], object],
    visit: Callable[[LayerAttention], None],
    paths: Sequence[str] | None = None,
) -> None:
    """Run a model, and call a function with the attention weights of each layer.

    The function `visit` is called when a layer runs, before its output is computed. For recurrent
    attention, it is called after the run, with the weights of all steps. The weights of a layer are
    dropped after the call, unless `visit` keeps them. No dropout is applied to the weights.

    Args:
        forward: Function without arguments that runs `model` once on a batch, without a cache.
        paths: Paths of the attention modules whose weights are computed; None means all.
    """
    with ExitStack() as watches:
        for path, place in attention_layers(model).items():
            if paths is not None and path not in paths:
                continue
            module = model.get_submodule(path)
            watch = getattr(module, "watch_weights", partial(_watch_weights, module))

            def keep(*weights: Any, place: tuple[Any, ...] = (path, *place)) -> None:
                visit(LayerAttention(*place, *weights))

            watches.enter_context(watch(keep))
        forward()


def _watch_weights(module: Any, visit: Callable[[Tensor, Tensor], None]) -> RemovableHandle:
    """Pass the weights, and the pairs that the mask allows, of each call to a function.

    The module has the method `weights` with the arguments of `forward`.
    """

    def hook(module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        names = ("mask", "bias", "rotation")
        options = {name: kwargs[name] for name in names if kwargs.get(name) is not None}
        weights = module.weights(*args, **options)
        mask = options.get("mask", LoweredMask())
        found = dense_mask(mask.mask, mask.causal, mask.window, weights, weights.mT)
        if found is None:
            found = torch.ones_like(weights[:1, :1], dtype=torch.bool)
        found = found[(None,) * (4 - found.ndim)].expand(-1, -1, weights.shape[2], -1)
        visit(weights, found)

    return module.register_forward_pre_hook(hook, with_kwargs=True)


def attention_maps(
    model: Model, *inputs: Any, layers: Sequence[int] | None = None, **options: Any
) -> dict[str, Tensor]:
    """Run a model once in eval mode, and return the attention weights (B, H, T, S) of all layers.

    The weights are in fp32, or in fp64 for a model in fp64. The weights of generated tokens,
    computed from the prompt and these tokens together, equal those during decoding with a cache.

    Args:
        *inputs: Positional arguments of the model, such as token ids.
        layers: Indices of the layers to return, counted for each kind of attention separately. A
            negative index counts from the last layer. None means all layers.
        **options: Keyword arguments of the model, such as `mask`.

    Raises:
        InputError: The model has no attention, or no kind of attention has a layer in `layers`.

    Example:
        >>> import fourfold, torch
        >>> model = fourfold.create("gpt2", n_layers=2, vocab_size=100)
        >>> maps = fourfold.attention_maps(model, torch.tensor([[1, 2, 3]]))
        >>> {name: tuple(weights.shape) for name, weights in maps.items()}
        {'self.0': (1, 12, 3, 3), 'self.1': (1, 12, 3, 3)}
    """
    found: dict[str, Tensor] = {}

    def keep(record: LayerAttention) -> None:
        found[f"{record.name}.{record.layer}"] = record.weights.detach()

    paths = select_layers(model, layers)
    with decoding_mode(model) as quiet:
        visit_attention(quiet, lambda: quiet(*inputs, **options), keep, paths)
    return found


def select_layers(model: Model, layers: Sequence[int] | None, option: str = "layers") -> list[str]:
    """Return the paths of the attention modules with the layer indices of `attention_maps`.

    Args:
        option: Name of the option that has the value `layers`, for error messages.

    Raises:
        InputError: The model has no attention, or no kind of attention has a layer in `layers`.
    """
    places = attention_layers(model)
    if not places:
        problem = f"must have attention, got {type(model).__name__} without it"
        raise InputError(problem, option="the model")
    depth = {name: layer + 1 for name, layer in places.values()}  # of the last layer of each kind
    deepest = max(depth.values())
    for layer in layers or ():
        if not -deepest <= layer < deepest:
            raise InputError(f"must be from 0 to {deepest - 1}, got {layer}", option=option)
    if layers is None:
        return list(places)
    return [path for path, (name, i) in places.items() if {i, i - depth[name]} & {*layers}]


def quantize(weights: Array) -> Array:
    """Quantize each attention weight a in [0, 1] to round(255 sqrt(a)) in uint8.

    The square of the result / 255 differs from a by at most 0.004.
    """
    return np.round(255 * np.sqrt(np.clip(weights, 0, 1))).astype(np.uint8)


@torch.no_grad()
def mean_maps(
    model: Model, module_name: Literal["attn", "cross_attn"], forward: Callable[[], object]
) -> list[Tensor]:
    """Compute the weights (T, S) of each layer for the first sample, averaged over heads.

    Args:
        module_name: attn for self-attention (of an encoder and then of a decoder), cross_attn for
            the attention of a decoder to the output of the encoder.
        forward: Function without arguments that runs `model` once on a batch.
    """
    maps: list[Tensor] = []
    paths = [path for path in attention_layers(model) if path.rpartition(".")[2] == module_name]
    visit_attention(
        model, forward, lambda found: maps.append(found.weights[0].mean(0).float().cpu()), paths
    )
    return maps
