"""Attention weights of each layer in a forward pass.

The model runs with its fused kernels, which return no weights. The weights of a layer are computed
a second time from the queries and keys of the layer. `visit_attention` passes the weights of one
layer at a time to a function. `attention` returns the weights of all layers as arrays.
`attention_maps` returns the weights averaged over heads.
Shapes: B batch, H heads, T queries, S keys.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from fourfold.core.attention import Attention, dense_mask
from fourfold.core.masks import LoweredMask
from fourfold.core.validation import check_choice
from fourfold.errors import InputError
from fourfold.generation.step import decoding_mode
from fourfold.models.baselines.ladder import SingleHead
from fourfold.models.recurrent.attention import RecurrentAttention
from fourfold.models.recurrent.hierarchical import Pooling

DTYPES = ("float16", "float32", "uint8")
Array = np.ndarray[Any, Any]


class LayerAttention(NamedTuple):
    """Attention weights of one layer.

    Args:
        path: Path of the attention module in the model, such as "stack.blocks.0.attn".
        name: Kind of attention. "self" is the self-attention of a model with one stack. "cross" is
            the attention of a decoder to the output of an encoder. The self-attention of other
            models has the path of the stack, such as "encoder" and "decoder". Attention pooling has
            the path of the pooling module, such as "words.pool".
        layer: Index of the layer among the layers with the same name, from 0.
        weights: Attention weights (B, H, T, S) in fp32, or in fp64 if the model is in fp64.
            Recurrent attention, pooling and a `SingleHead` have one head, and pooling has one
            query.
        allowed: Bool (B or 1, 1, T, S), True where a query may attend to a key.
        centers: Predicted centre (B, T) of each query's window, in source positions from 1, for
            recurrent attention with `attn_weights` local_p (Luong et al. 2015). None for all other
            attention.
    """

    path: str
    name: str
    layer: int
    weights: Tensor
    allowed: Tensor
    centers: Tensor | None = None


def attention_layers(model: nn.Module) -> dict[str, tuple[str, int]]:
    """Return the kind and the layer index of each attention module of a model.

    Returns:
        Dictionary from the path of a module, such as "stack.blocks.0.attn", to a pair (name,
        layer), such as ("self", 0). `LayerAttention` describes these two fields.
    """
    layers: dict[str, tuple[str, int]] = {}
    counts: dict[str, int] = {}
    for path, module in model.named_modules():
        if not isinstance(module, Attention | SingleHead | RecurrentAttention | Pooling):
            continue
        name = path
        if not isinstance(module, Pooling):  # the path of the stack
            name = re.split(r"\.?\bblocks\.", path)[0] if "blocks." in path else ""
            name = re.sub(r"\.?\bstack$", "", name) or "self"
        if path.endswith("cross_attn"):
            name = "cross"
        layers[path] = name, counts.setdefault(name, 0)
        counts[name] += 1
    return layers


def visit_attention(
    model: nn.Module,
    forward: Callable[[], object],
    visit: Callable[[LayerAttention], None],
    paths: Sequence[str] | None = None,
) -> None:
    """Run a model, and call a function with the attention weights of each layer.

    The function `visit` is called when a layer runs, before its output is computed. For recurrent
    attention, it is called after the run, once per layer with the weights of all steps. The weights
    of a transformer layer are dropped after the call, unless `visit` keeps them. No dropout is
    applied to the weights.

    Args:
        forward: Function without arguments that runs `model` once on a batch, without a cache.
        visit: Function that gets a `LayerAttention`. The result of the function is ignored.
        paths: Paths of the attention modules whose weights are computed, as returned by
            `attention_layers`. None means all attention modules.
    """
    with ExitStack() as hooks:
        recorded = []
        for path, (name, layer) in attention_layers(model).items():
            if paths is not None and path not in paths:
                continue
            module = model.get_submodule(path)
            if isinstance(module, RecurrentAttention):
                recorded.append((path, name, layer, hooks.enter_context(_recording(module))))
                continue

            def hook(
                module: nn.Module,
                args: tuple[Any, ...],
                kwargs: dict[str, Any],
                place: tuple[str, str, int] = (path, name, layer),
            ) -> None:
                visit(LayerAttention(*place, *_weights(module, args, kwargs)))

            hooks.enter_context(module.register_forward_pre_hook(hook, with_kwargs=True))
        forward()
        for path, name, layer, calls in recorded:
            if calls:
                columns = zip(*calls, strict=True)
                weights, allowed, centers = (
                    None if parts[0] is None else torch.cat(parts, 1) for parts in columns
                )
                assert weights is not None
                assert allowed is not None
                pair = weights[:, None], allowed[:, None]
                visit(LayerAttention(path, name, layer, *pair, centers))


def _weights(
    module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[Tensor, Tensor]:
    """Compute the attention weights of one call of an attention module."""
    if isinstance(module, Pooling):
        weights, allowed = module.weights(*args)[:, None, None], args[1][:, None, None]
        return weights, allowed
    assert isinstance(module, Attention | SingleHead)
    options = {
        name: kwargs[name] for name in ("mask", "bias", "rotation") if kwargs.get(name) is not None
    }
    weights = module.weights(*args, **options)
    mask = options.get("mask", LoweredMask())
    found = dense_mask(mask.mask, mask.causal, mask.window, weights, weights.mT)
    if found is None:
        found = torch.ones_like(weights[:1, :1], dtype=torch.bool)
    return weights, found[(None,) * (4 - found.ndim)].expand(-1, -1, weights.shape[2], -1)


@contextmanager
def _recording(module: RecurrentAttention) -> Iterator[list[tuple[Tensor, Tensor, Tensor | None]]]:
    """Record the attention weights of each call of a recurrent attention module."""
    calls: list[tuple[Tensor, Tensor, Tensor | None]] = []

    def hook(attn: RecurrentAttention, args: Any, kwargs: dict[str, Any], output: Any) -> None:
        query, memory, mask = args
        weights = output[1]
        centers = None
        allowed = weights > 0
        if not attn.weighting.startswith("local"):
            real = torch.ones_like(memory[..., 0], dtype=torch.bool) if mask is None else mask
            allowed = real[:, None].expand_as(weights)
        if attn.weighting == "local_p":
            n_real = memory.shape[1] if mask is None else mask.sum(1)[:, None, None]
            centers = attn.centers(query, n_real).squeeze(-1)
        calls.append((weights, allowed, centers))

    with module.recording():  # in this context, the module does not use its fused kernel
        handle = module.register_forward_hook(hook, with_kwargs=True)
        try:
            yield calls
        finally:
            handle.remove()


def attention(
    model: nn.Module,
    *inputs: Any,
    dtype: Literal["float16", "float32", "uint8"] = "float16",
    layers: Sequence[int] | None = None,
    **options: Any,
) -> dict[str, Array]:
    """Run a model once, and return the attention weights of all heads and layers.

    The weights of a layer are computed in fp32 and converted to `dtype` before the next layer runs.
    The weights of generated tokens are computed from the prompt and the generated tokens together.
    They equal the weights during decoding with a cache.

    Args:
        *inputs: Positional arguments of the model, such as token ids (B, T) int64, images (B, C,
            side, side), or source ids and target ids.
        dtype: Data type of the arrays: float16, float32 or uint8. With uint8, a weight a is stored
            as round(255 sqrt(a)), which `dequantize` converts back. Weights outside of [0, 1],
            which a custom `Attention.normalize` may return, are clipped with uint8.
        layers: Indices of the layers to return, counted for each kind of attention separately. A
            negative index counts from the last layer. None means all layers.
        **options: Keyword arguments of the model, such as `mask`.

    Returns:
        Dictionary from names to NumPy arrays (B, H, T, S) of attention weights, for T queries and S
        keys. A name is the kind of attention and the index of the layer:

        - "self.0" for causal LMs, masked LMs and ViTs.
        - "encoder.0", "decoder.0" and "cross.0" for encoder-decoders.
        - "text_stack.0" and "image_stack.0" for CLIP.
        - "cross.0" for recurrent decoders and captioners, with one head.
        - "words.pool.0" and "sentences.pool.0" for hierarchical models, with one head and one
          query.

    Raises:
        InputError: The model has no attention, `dtype` is unknown, or no kind of attention has a
            layer in `layers`.

    Example:
        >>> import fourfold, torch
        >>> model = fourfold.create("gpt2", n_layers=2, vocab_size=100)
        >>> maps = fourfold.attention(model, torch.tensor([[1, 2, 3]]))
        >>> {name: weights.shape for name, weights in maps.items()}
        {'self.0': (1, 12, 3, 3), 'self.1': (1, 12, 3, 3)}
    """
    check_choice("dtype", dtype, DTYPES)
    found: dict[str, Array] = {}

    def keep(record: LayerAttention) -> None:
        found[f"{record.name}.{record.layer}"] = compact(record.weights, dtype)

    paths = select_layers(model, layers)
    with decoding_mode(model) as quiet:
        visit_attention(quiet, lambda: quiet(*inputs, **options), keep, paths)
    return found


def select_layers(
    model: nn.Module, layers: Sequence[int] | None, option: str = "layers"
) -> list[str]:
    """Return the paths of the attention modules with the given layer indices.

    Layers are counted for each kind of attention separately (see `LayerAttention.name`).

    Args:
        layers: Indices of the layers. A negative index counts from the last layer of each kind.
            None means all layers.
        option: Name of the option that has the value `layers`, for error messages.

    Returns:
        Paths such as "stack.blocks.0.attn", in the order of the modules of the model.

    Raises:
        InputError: The model has no attention, or no kind of attention has a layer in `layers`.
    """
    places = attention_layers(model)
    if not places:
        raise InputError(
            f"must have attention, got {type(model).__name__} without it", option="the model"
        )
    depth: dict[str, int] = {}
    for name, layer in places.values():
        depth[name] = max(depth.get(name, 0), layer + 1)
    deepest = max(depth.values())
    for layer in layers or ():
        if not -deepest <= layer < deepest:
            raise InputError(f"must be from 0 to {deepest - 1}, got {layer}", option=option)
    return [
        path
        for path, (name, layer) in places.items()
        if layers is None or layer in layers or layer - depth[name] in layers
    ]


def compact(weights: Tensor, dtype: str) -> Array:
    """Convert attention weights to a NumPy array of the same shape.

    Args:
        weights: Attention weights in [0, 1], of any shape.
        dtype: float16, float32, or uint8 for the result of `quantize`.
    """
    weights = weights.detach()
    if dtype == "uint8":
        return quantize(weights.float().cpu().numpy())
    return weights.to(getattr(torch, dtype)).cpu().numpy()


def quantize(weights: Array) -> Array:
    """Quantize each attention weight a in [0, 1] to round(255 sqrt(a)) in uint8.

    The result of `dequantize` differs from a by at most 0.004.
    """
    return np.round(255 * np.sqrt(np.clip(weights, 0, 1))).astype(np.uint8)


def dequantize(quantized: Array) -> Array:
    """Convert the result of `quantize` back to attention weights in float32, (q / 255)^2."""
    return np.square(quantized.astype(np.float32) / 255)


@torch.no_grad()
def attention_maps(
    model: nn.Module, module_name: Literal["attn", "cross_attn"], forward: Callable[[], object]
) -> list[Tensor]:
    """Compute the attention weights of each layer, averaged over heads, for the first sample.

    Args:
        module_name: attn for self-attention, cross_attn for the attention of a decoder to the
            output of the encoder.
        forward: Function without arguments that runs `model` once on a batch.

    Returns:
        List of one matrix (T, S) in fp32 on the CPU for each layer, in the order in which the
        layers run. For an encoder-decoder, attn gives the layers of the encoder and then those of
        the decoder.

    Example:
        >>> from fourfold.models import create
        >>> model = create("gpt2", n_layers=2, vocab_size=100).eval()
        >>> maps = attention_maps(model, "attn", lambda: model(torch.tensor([[1, 2, 3]])))
        >>> [tuple(weights.shape) for weights in maps]
        [(3, 3), (3, 3)]
    """
    maps: list[Tensor] = []
    paths = [path for path in attention_layers(model) if path.rpartition(".")[2] == module_name]
    visit_attention(
        model, forward, lambda found: maps.append(found.weights[0].mean(0).float().cpu()), paths
    )
    return maps
