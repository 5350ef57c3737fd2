"""Base class of all models, their token embedding, and models without memory for weights."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from fourfold.core.block import norm_from_config
from fourfold.core.kv_cache import KVCache
from fourfold.layers.token_embedding import TokenEmbedding

if TYPE_CHECKING:
    from fourfold.tokenization.tokenizer import Tokenizer


class Model(nn.Module):
    """Base class of all models of this package.

    A subclass sets `config` in its constructor. `forward` applies `hidden` and then `logits`.
    `hidden` computes the input of the output head. By default it calls `encode`, so a model with an
    encoder only implements `encode`. A decoder, an encoder-decoder or a classifier implements
    `hidden`. A subclass without a `head` also implements `logits`. A model with other steps, such
    as `CLIP`, implements `forward`. `fourfold.load` sets the attributes `tokenizer`,
    `generation_defaults`, `artifacts` and `source` from a checkpoint. They are None or empty in a
    model that is built from a config alone.

    Attributes:
        config: The frozen dataclass that the model is built from.
        head: Output head, a module that maps the result of `hidden` to logits. A model without
            this attribute implements `logits` itself.
        tokenizer: The tokenizer stored with the weights, or None.
        generation_defaults: `fourfold.generation.GenerationDefaults` or None. `generate`,
            `beam_search` and the command line take special tokens and options from it that the
            caller does not give.
        artifacts: Dictionary of facts about the training data that are stored with the weights,
            such as `class_names` and the mean and standard deviation of images.
        source: `SourceCheckpoint` of `fourfold.hub` for weights from a checkpoint of transformers,
            otherwise None. An export to transformers takes the architecture and the data type from
            it, and the tensors that this model does not have.
        format_name: Name of the format of another library that the weights were read from: timm,
            nanoGPT, or the `model_type` of transformers. "" for a checkpoint of fourfold.
        notes: Sentences about assumptions of such an import and about ignored files.
        can_generate: `generate` or `beam_search` can decode from the model.
        accepts_images: The first input of `forward` is a batch of images (B, C, side, side).
        is_recurrent: The model has a recurrent state or convolutions instead of keys and values. A
            causal LM of this kind supports padding on the right only, and prompts of equal lengths.
        has_relative_positions: Attention scores depend on the distance between cache entries, so
            the entries of a key-value cache must stay in the order of their positions.
    """

    config: Any
    tokenizer: "Tokenizer | None" = None
    generation_defaults: Any = None
    artifacts: Mapping[str, Any] = MappingProxyType({})
    source: Any = None
    format_name: str = ""
    notes: Sequence[str] = ()
    can_generate: bool = False
    accepts_images: bool = False
    is_recurrent: bool = False
    has_relative_positions: bool = False
    encode: Callable[..., Tensor]
    head: nn.Module

    def new_cache(self) -> KVCache:
        """Build an empty cache of the decoder: keys and values, a recurrent state, or None."""
        return KVCache()

    def forward(self, *inputs: Any, **options: Any) -> Tensor:
        """Compute the logits. The arguments are those of `hidden`."""
        return self.logits(self.hidden(*inputs, **options))

    def hidden(self, *inputs: Any, **options: Any) -> Tensor:
        """Compute the input of the output head, by default the output of `encode`."""
        return self.encode(*inputs, **options)

    def logits(self, h: Tensor) -> Tensor:
        """Map hidden states (..., model width D) to logits (..., vocabulary size V)."""
        return self.head(h)


def embedding_from_config(config: Any, *, has_norm: bool = False) -> TokenEmbedding:
    """Build the token embedding of a text model, with positions and segments.

    Args:
        has_norm: Normalize the sum of the embeddings.
    """
    assert config.vocab_size is not None, "vocab_size must be known when a model is built"
    return TokenEmbedding(
        config.vocab_size,
        config.d_model,
        max_len=config.max_len or 0,
        positions=getattr(config, "positions", "learned"),
        n_segments=getattr(config, "n_segments", 0),
        scale=getattr(config, "embed_scale", False),
        norm=norm_from_config(config) if has_norm else None,
        dropout=config.dropout,
    )


class SkipRandomFills(TorchFunctionMode):
    """Mode in which `normal_` and `uniform_` leave their tensor unchanged."""

    def __torch_function__(
        self,
        func: Any,
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        if func.__name__.endswith(("normal_", "uniform_")):  # of Tensor and of torch.nn.init
            return args[0] if args else kwargs["tensor"]
        return func(*args, **kwargs)


@contextmanager
def on_meta() -> Iterator[None]:
    """Build the models of the block on the device "meta", without memory for their weights.

    Random fills are skipped: on this device they change nothing, but torch imports its compiler for
    them, and needs milliseconds for each.
    """
    with torch.device("meta"), SkipRandomFills():
        yield
