"""Attention weights of each layer in a forward pass, computed beside the fused kernels.

`visit_attention` computes the weights of one layer at a time, `attention` returns them in a compact
type, and `attention_maps` returns means over heads. Shapes: B batch, H heads, T queries, S keys.
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
from fourfold.models.recurrent.attention import RecurrentAttention
from fourfold.models.recurrent.hierarchical import Pooling

DTYPES = ("float16", "float32", "uint8")
Array = np.ndarray[Any, Any]


class LayerAttention(NamedTuple):
    """Attention weights of one layer.

    Args:
        path: Path of the attention module in the model, such as "stack.blocks.0.attn".
        name: Kind of attention, with which layers are counted: "self" in a model with one stack,
            "cross" from a decoder to its memory, otherwise the path of the stack, such as
            "encoder" and "decoder", or of the pooling, such as "words.pool".
        layer: Index of the layer among those of the same name, from 0.
        weights: Weights (B, H, T, S) in fp32 (fp64 for a model in fp64). Recurrent attention and
            pooling have one head, and pooling has one query.
        allowed: Bool (B or 1, 1, T, S), True where a query may attend to a key.
        centers: Predicted centre (B, T) of each query's window, in positions from 1; None unless
            the attention is local_p.
    """

    path: str
    name: str
    layer: int
    weights: Tensor
    allowed: Tensor
    centers: Tensor | None = None


def attention_layers(model: nn.Module) -> dict[str, tuple[str, int]]:
    """Return name and layer, as in `LayerAttention`, of each attention module by its path."""
    layers: dict[str, tuple[str, int]] = {}
    counts: dict[str, int] = {}
    for path, module in model.named_modules():
        if not isinstance(module, Attention | RecurrentAttention | Pooling):
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
    """Call a function with the attention weights of each layer while the model runs.

    The weights of a layer are computed when the layer runs, beside its fused kernel, and are not
    kept. Dropout is not applied to them. Weights of recurrent attention are visited at the end.

    Args:
        model: A model of any family. It is not changed.
        forward: A function that runs the model once on a batch, without a cache.
        visit: Function of a `LayerAttention`.
        paths: Paths of the modules to visit; None means all attention modules.
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
    """Return weights and allowed pairs of a call of `Attention` or `Pooling`."""
    if isinstance(module, Pooling):
        weights, allowed = module.weights(*args)[:, None, None], args[1][:, None, None]
        return weights, allowed
    assert isinstance(module, Attention)
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
    """Record weights (B, T, S), allowed pairs and centres (B, T) of each call of an attention."""
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

    with module.recording():  # else a fused kernel returns no weights
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

    The weights of one layer at a time are computed in fp32 and converted at once, so the maps of
    all layers stand in memory in `dtype` only. To collect the maps of generated tokens, give the
    model the prompt and the generated tokens together: the maps equal those of decoding with a
    cache.

    Args:
        model: A model of any family with attention, such as `fourfold.load` returns. It runs in
            eval mode.
        *inputs: Inputs of the model, such as token ids (B, T), images, or source and target.
        dtype: float16, float32, or uint8 for round(255 sqrt(a)), which `dequantize` converts back.
            For uint8, weights outside of [0, 1], which a custom `Attention.normalize` may give, are
            clipped.
        layers: Indices of the layers of each kind; a negative index counts from the last layer.
            None means all layers.
        **options: Options of the model's `forward`, such as `mask`.

    Returns:
        Weights (B, H, T, S) by kind and layer, such as "self.0"; "encoder.0", "decoder.0" and
        "cross.0" of an encoder-decoder; "cross.0" with one head of recurrent decoders and
        captioners; "words.pool.0" and "sentences.pool.0", with one head and one query, of a
        hierarchical model.

    Raises:
        InputError: The model has no attention, `dtype` is unknown, or there is no such layer.

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
    with decoding_mode(model):
        visit_attention(model, lambda: model(*inputs, **options), keep, paths)
    return found


def select_layers(
    model: nn.Module, layers: Sequence[int] | None, option: str = "layers"
) -> list[str]:
    """Return the paths of the attention modules of the given layers of each kind.

    Args:
        model: The model.
        layers: Indices of the layers; negative ones count from the last layer of each kind. None
            means all layers.
        option: Name of the option in error messages.

    Raises:
        InputError: The model has no attention, or no kind of attention has such a layer.
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
    """Convert weights in [0, 1] to an array of float16, float32 or uint8 (see `attention`)."""
    weights = weights.detach()
    if dtype == "uint8":
        return quantize(weights.float().cpu().numpy())
    return weights.to(getattr(torch, dtype)).cpu().numpy()


def quantize(weights: Array) -> Array:
    """Quantize weights a in [0, 1] to round(255 sqrt(a)) in uint8, at most 0.004 from a."""
    return np.round(255 * np.sqrt(np.clip(weights, 0, 1))).astype(np.uint8)


def dequantize(quantized: Array) -> Array:
    """Convert the result of `quantize` back to weights in float32."""
    return np.square(quantized.astype(np.float32) / 255)


@torch.no_grad()
def attention_maps(
    model: nn.Module, module_name: Literal["attn", "cross_attn"], forward: Callable[[], object]
) -> list[Tensor]:
    """Record the attention weights of each layer, averaged over heads, for the first sample.

    Args:
        model: A model of any family. It is not changed.
        module_name: attn for self-attention, cross_attn for the attention of a decoder to the
            output of the encoder.
        forward: A function that runs the model once on a batch.

    Returns:
        A matrix (T, S) in fp32 on the CPU for each layer, in the order in which the layers run. For
        an encoder-decoder, attn gives the layers of the encoder and then those of the decoder.

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
