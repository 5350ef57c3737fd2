"""Graphs of models for torch.export and ONNX, which run without fourfold.

A graph takes and returns tensors only. The names of inputs and outputs are those of the ONNX
exporter of transformers (optimum). Shapes: B batch, T tokens, P earlier tokens, S source tokens, H
heads, Dh head width, Dv value width, C channels, D model width, V vocabulary.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from fourfold.core.attention import Attention, split_heads
from fourfold.core.kv_cache import KVCache, LayerCache
from fourfold.core.validation import height_width
from fourfold.errors import InputError
from fourfold.families import families, lookup


class Input(NamedTuple):
    """Description of an input tensor of an exported graph.

    Args:
        name: Name in an ONNX file.
        shape: Size of each dimension. A dynamic dimension has a name, such as "batch", instead.
        n_values: For an int64 input, the number n of its possible values 0 to n - 1; None for a
            floating-point input.
        pads_left: True for an attention mask whose padding precedes the tokens.
    """

    name: str
    shape: tuple[int | str, ...]
    n_values: int | None = None
    pads_left: bool = False

    @property
    def dtype(self) -> str:
        """Name of the data type."""
        return "float32" if self.n_values is None else "int64"

    def sample(self, sizes: Mapping[str, int]) -> Tensor:
        """Return a random tensor of the given dynamic sizes.

        Of several sequences of at least three tokens, the last one has one token of padding.
        """
        shape = [sizes[size] if isinstance(size, str) else size for size in self.shape]
        if not self.name.endswith("attention_mask"):
            n = self.n_values
            return torch.randn(shape) if n is None else torch.randint(n, shape)
        mask = torch.ones(shape, dtype=torch.int64)
        if len(mask) > 1 and mask.shape[1] > 2:
            mask[-1, 0 if self.pads_left else -1] = 0
        return mask


Function = Callable[..., tuple[Tensor, ...]]


class Graph(nn.Module):
    """Module that is exported as one graph, such as the encoder of an encoder-decoder.

    Args:
        model: The model, whose parameters the graph uses.
        inputs: Inputs in the order of the arguments of `forward`.
        outputs: Names of the outputs, in the order in which `forward` returns them.
        function: Function from the input tensors to a tuple of the output tensors.
    """

    def __init__(
        self, model: nn.Module, inputs: list[Input], outputs: list[str], function: Function
    ) -> None:
        super().__init__()
        self.model = model
        self.inputs = inputs
        self.outputs = outputs
        self.function = function

    def forward(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        """Compute the outputs from one tensor for each entry of `inputs`, in this order."""
        return self.function(*inputs)


def make_graphs(model: Any) -> dict[str, Graph]:
    """Build the graphs of a model in eval mode, by name.

    Raises:
        InputError: The model has a recurrent layer, lacks the attention layers that a cache needs,
            or belongs to a class that cannot be exported as graphs.
    """
    make = None if model.is_recurrent else lookup("graphs", model)
    if make is None:
        known = ", ".join(sorted(name for family in families() for name in family.graphs))
        message = f"must be transformers for a {type(model).__name__}, since graphs exist for"
        raise InputError(f"{message} {known} and their subclasses", option="--format")
    return make(model)


def _text_inputs(vocab_size: int) -> list[Input]:
    shape = ("batch", "length")
    return [Input("input_ids", shape, vocab_size), Input("attention_mask", shape, 2)]


def _image_input(config: Any) -> Input:
    return Input("pixel_values", ("batch", config.n_channels, *height_width(config.image_size)))


def encoder_graphs(model: Any) -> dict[str, Graph]:
    """Build the graph "model" of an encoder with its heads, or of a classifier on a causal LM.

    A `MaskedLM` without a head returns hidden states (B, T, D).
    """
    inputs, outputs = _text_inputs(model.config.vocab_size), ["logits"]
    if getattr(model.config, "n_segments", 0) > 1:
        inputs.append(Input("token_type_ids", ("batch", "length"), model.config.n_segments))
    next_sentence = getattr(model, "next_sentence", None)
    if next_sentence is not None:
        outputs.append("next_sentence_logits")
    is_classifier = hasattr(model, "lstm")  # an encoder with features and a head of its own
    if is_classifier and model.lstm is not None:
        message = "must be 0 for a graph, which cannot skip padding in an LSTM, got"
        raise InputError(f"{message} {model.config.lstm_width}", option="lstm_width")
    if not is_classifier and not getattr(model.config, "head", True):
        outputs[0] = "last_hidden_state"

    def run(ids: Tensor, mask: Tensor, segments: Tensor | None = None) -> tuple[Tensor, ...]:
        real = mask.bool()
        if hasattr(model, "classify"):  # on a causal LM
            return (model.classify(model.hidden(ids, mask=real), real),)
        h = model.hidden(ids, segments=segments, mask=real)
        if is_classifier:
            return (model.logits(h, real),)
        first = model.logits(h) if model.config.head else h
        return (first,) if next_sentence is None else (first, next_sentence(h))

    return {"model": Graph(model, inputs, outputs, run)}


def image_graphs(model: Any) -> dict[str, Graph]:
    """Build the only graph of an image classifier, "model", from images to logits.

    A `ViT` without a head returns hidden states (B, prefix + N, D).
    """
    has_head = len(getattr(model, "heads", "-")) > 0
    output, run = ("logits", model) if has_head else ("last_hidden_state", model.encode)
    return {"model": Graph(model, [_image_input(model.config)], [output], lambda x: (run(x),))}


def clip_graphs(model: Any) -> dict[str, Graph]:
    """Build the two graphs "image_encoder" and "text_encoder", which return embeddings."""
    images, texts = [_image_input(model.config)], _text_inputs(model.config.vocab_size or 0)

    def encode_text(ids: Tensor, mask: Tensor) -> tuple[Tensor, ...]:
        return (model.encode_text(ids, mask.bool()),)

    return {
        "image_encoder": Graph(model, images, ["image_embeds"], lambda x: (model.encode_image(x),)),
        "text_encoder": Graph(model, texts, ["text_embeds"], encode_text),
    }


class _ConcatenatedLayer(LayerCache):
    """Key-value cache of one layer that concatenates tensors and preallocates no memory.

    The cached tensors are inputs of a graph, and the extended tensors are outputs.
    """

    def extend(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Append keys (B, H, T, Dh) and values (B, H, T, Dv); return those of all P + T tokens."""
        if self.buffers is not None:
            k, v = torch.cat([self.buffers[0], k], 2), torch.cat([self.buffers[1], v], 2)
        self.buffers = k, v
        return k, v


class _GraphCache(KVCache):
    """Key-value cache of a graph, for P earlier tokens and T new tokens."""

    # `keys` is the padding mask (B, P + T) of both, `past` has keys (B, H, P, Dh) and values.
    layer_class = _ConcatenatedLayer

    def __init__(self, keys: Tensor, n_new: int, past: list[tuple[Tensor, Tensor]]) -> None:
        super().__init__()
        self.keys = keys
        self.length = past[0][0].shape[2] + n_new
        for i, buffers in enumerate(past):
            self.layer(i).buffers = buffers

    def advance(self, ids: Tensor, keys: Tensor | None, documents: Tensor | None) -> None:
        """Do nothing, because the constructor has counted the new tokens."""

    def outputs(self) -> list[Tensor]:
        """Return the keys and values of all layers in a list: keys, values, keys, values, ..."""
        return [x for layer in self.layers for x in layer.buffers or ()]


def _cache_names(n_layers: int, kind: str) -> list[str]:
    return [f"{i}.{kind}{part}" for i in range(n_layers) for part in ("key", "value")]


def _cache_inputs(config: Any, n_layers: int, kind: str, length: str) -> list[Input]:
    widths = (config.head_width, config.value_width) * n_layers
    names = _cache_names(n_layers, kind)
    return [
        Input(f"past_key_values.{name}", ("batch", config.kv_heads, length, width))
        for name, width in zip(names, widths, strict=True)
    ]


def _pairs(tensors: tuple[Tensor, ...] | list[Tensor]) -> list[tuple[Tensor, Tensor]]:
    return list(zip(tensors[::2], tensors[1::2], strict=True))


def causal_graphs(model: Any) -> dict[str, Graph]:
    """Build the graph "decoder" of a causal LM with a key-value cache.

    Its inputs are ids (B, T), a mask (B, P + T) and the keys and values of P earlier tokens of each
    layer, where P may be 0; its outputs are logits (B, T, V) and those of P + T tokens.
    """
    if not any(isinstance(module, Attention) for module in model.modules()):
        message = "must be one of the rungs with attention for a graph with a cache, got"
        raise InputError(f"{message} {model.config.rung}", option="rung")
    config, n_layers = model.config, model.config.n_layers
    ids, mask = _text_inputs(config.vocab_size or 0)
    mask = mask._replace(shape=("batch", "past + length"), pads_left=True)
    inputs = [ids, mask, *_cache_inputs(config, n_layers, "", "past")]

    def run(ids: Tensor, mask: Tensor, *past: Tensor) -> tuple[Tensor, ...]:
        cache = _GraphCache(mask.bool(), ids.shape[1], _pairs(past))
        return (model(ids, cache=cache), *cache.outputs())

    outputs = ["logits", *(f"present.{name}" for name in _cache_names(n_layers, ""))]
    return {"decoder": Graph(model, inputs, outputs, run)}


def seq2seq_graphs(model: Any) -> dict[str, Graph]:
    """Build the two graphs "encoder" and "decoder" (one decoding step) of an encoder-decoder.

    The encoder returns the keys and values of cross-attention, which are inputs of every step.
    """
    config, n_layers = model.config, len(model.decoder.blocks)
    config = getattr(config, "decoder", config)
    source = [_image_input(model.config.encoder)] if model.accepts_images else []
    source_mask: list[Input] = []
    if not source:
        texts = _text_inputs(model.src_embed.tokens.num_embeddings)
        source = [x._replace(shape=("batch", "source")) for x in texts]
        source_mask = [source[1]._replace(name="encoder_attention_mask")]

    def encode(src: Tensor, mask: Tensor | None = None) -> tuple[Tensor, ...]:
        memory = model.encode(src, src_mask=None if mask is None else mask.bool())
        pairs = ((block.cross_attn.k, block.cross_attn.v) for block in model.decoder.blocks)
        return tuple(
            split_heads(project(memory), config.kv_heads) for pair in pairs for project in pair
        )

    def decode(ids: Tensor, *more: Tensor) -> tuple[Tensor, ...]:
        mask = more[0].bool() if source_mask else None
        tensors = more[len(source_mask) :]
        memories, past = _pairs(tensors[: 2 * n_layers]), _pairs(tensors[2 * n_layers :])
        keys = memories[0][0]
        real = ids.new_ones(ids.shape[0], past[0][0].shape[2] + ids.shape[1], dtype=torch.bool)
        cache = _GraphCache(real, ids.shape[1], past)
        for i, memory in enumerate(memories):
            cache.layer(i).memory = memory
        # Only the number of source tokens is read, because the cache has the keys and values.
        placeholder = keys.new_zeros(keys.shape[0], keys.shape[2], 1)
        h = model.decode(ids, placeholder, src_mask=mask, cache=cache)
        return (model.logits(h), *cache.outputs())

    targets = Input("input_ids", ("batch", "length"), config.vocab_size)
    inputs = [targets, *source_mask, *_cache_inputs(config, n_layers, "encoder.", "source")]
    inputs += _cache_inputs(config, n_layers, "decoder.", "past")
    outputs = [f"present.{name}" for name in _cache_names(n_layers, "decoder.")]
    memories = [f"present.{name}" for name in _cache_names(n_layers, "encoder.")]
    return {
        "encoder": Graph(model, source, memories, encode),
        "decoder": Graph(model, inputs, ["logits", *outputs], decode),
    }
