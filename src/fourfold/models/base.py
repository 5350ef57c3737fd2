"""Base class of all models (hidden states, logits, capability flags), and their token embedding."""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from fourfold.core.block import norm_from_config
from fourfold.core.token_embedding import TokenEmbedding

if TYPE_CHECKING:
    from fourfold.tokenization.tokenizer import Tokenizer


class Model(nn.Module):
    """Base class of all models of this package.

    A subclass sets `config` in its constructor and implements `encode` or `hidden`; a subclass
    without a `head` also implements `logits`. `fourfold.load` sets the attributes that come from a
    checkpoint. In a model that is built from a config alone, they are None or empty.

    Attributes:
        config: The frozen dataclass that the model is built from.
        tokenizer: The tokenizer stored with the weights, or None.
        generation_defaults: Special tokens that `generate` and `beam_search` use where their caller
            gives none, and options of beam search that the commands use; or None.
        artifacts: Plain values of the training data that are stored with the weights, such as
            `class_names` and the mean and standard deviation of images.
        source: The checkpoint of another library that the weights were imported from, or None. An
            export to that library restores the architecture and the data type of the checkpoint,
            and its tensors that have no counterpart in the model.
        can_generate: `generate` or `beam_search` can decode from the model.
        accepts_images: The first input of `forward` is a batch of images (B, C, side, side).
        is_recurrent: The model has a recurrent state instead of keys and values, so it is decoded
            without a key-value cache and supports padding on the right only.
        has_relative_positions: Attention scores depend on the distance between cache entries, so
            the entries of a key-value cache must stay in the order of their positions.
    """

    config: Any
    tokenizer: "Tokenizer | None" = None
    generation_defaults: Any = None
    artifacts: Mapping[str, Any] = MappingProxyType({})
    source: Any = None
    can_generate: bool = False
    accepts_images: bool = False
    is_recurrent: bool = False
    has_relative_positions: bool = False
    encode: Callable[..., Tensor]
    head: nn.Module

    def forward(self, *inputs: Any, **options: Any) -> Tensor:
        """Compute the logits; the arguments are those of `hidden`."""
        return self.logits(self.hidden(*inputs, **options))

    def hidden(self, *inputs: Any, **options: Any) -> Tensor:
        """Compute the input of the output head, by default the output of `encode`."""
        return self.encode(*inputs, **options)

    def logits(self, h: Tensor) -> Tensor:
        """Map hidden states (..., D) to logits (..., V) of the vocabulary."""
        return self.head(h)


def embedding_from_config(
    config: Any, *, has_norm: bool = False, scale: bool = False
) -> TokenEmbedding:
    """Build the token, position and segment embedding of a config of a text model.

    Args:
        config: Config of a text model. Positions are learned if the config has no field
            `positions`.
        has_norm: Normalise the sum of the embeddings.
        scale: Multiply token vectors by sqrt(d_model).
    """
    assert config.vocab_size is not None, "vocab_size must be known when a model is built"
    return TokenEmbedding(
        config.vocab_size,
        config.d_model,
        max_len=config.max_len or 0,
        positions=getattr(config, "positions", "learned"),
        n_segments=getattr(config, "n_segments", 0),
        scale=scale,
        norm=norm_from_config(config) if has_norm else None,
        dropout=config.dropout,
    )
