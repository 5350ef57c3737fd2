"""ELECTRA: generator, discriminator, and both together for pre-training (Clark et al. 2020).

The generator, a small masked LM, predicts masked tokens. The discriminator reads the text with
tokens that were sampled from the generator, and decides for each token whether it was replaced.
Shapes: B batch, T tokens, E width of the embeddings, D model width, V vocabulary.
"""

from dataclasses import dataclass, fields
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from fourfold.core.block import Stack, norm_from_config
from fourfold.core.config import Activation, Init, TransformerConfig
from fourfold.core.feed_forward import ACTIVATIONS
from fourfold.core.masks import mask_and_positions
from fourfold.layers.base_model import Model, embedding_from_config
from fourfold.layers.heads import VocabularyHead
from fourfold.layers.init import initialize
from fourfold.layers.token_embedding import TokenEmbedding


@dataclass(frozen=True)
class ElectraBlocksConfig(TransformerConfig):
    """Config of the blocks of an ELECTRA; the defaults are those of the small generator."""

    d_model: int = 64
    n_layers: int = 12
    n_heads: int = 1
    d_ff: int = 256
    activation: Activation = "gelu"
    norm_eps: float = 1e-12
    attn_dropout: float = 0.1


@dataclass(frozen=True)
class ElectraEncoderConfig(ElectraBlocksConfig):
    """Config of an ELECTRA encoder; the defaults are those of ELECTRA-Small.

    Source: Clark et al. 2020, Table 6.

    Args:
        vocab_size: Size V of the vocabulary. None takes that of the tokenizer.
        embedding_size: Width E of the embeddings, which a linear layer maps to `d_model`.
        max_len: Longest sequence in tokens.
        n_segments: Number of segment embeddings; 0 for none.
        init: Weight initialization, a name in `fourfold.layers.init.INITS`.
    """

    d_model: int = 256
    n_heads: int = 4
    d_ff: int = 1024
    vocab_size: int | None = 30522
    embedding_size: int = 128
    max_len: int = 512
    n_segments: int = 2
    init: Init = "bert"
    ranges: ClassVar = {"n_segments": {"minimum": 0, "maximum": 2**16}}


@dataclass(frozen=True)
class ElectraGeneratorConfig(ElectraEncoderConfig):
    """Config of a generator by itself (Clark et al. 2020)."""


@dataclass(frozen=True)
class ElectraDiscriminatorConfig(ElectraEncoderConfig):
    """Config of a discriminator by itself (Clark et al. 2020)."""


@dataclass(frozen=True)
class ElectraConfig(ElectraDiscriminatorConfig):
    """Config of ELECTRA (Clark et al. 2020); the defaults are those of ELECTRA-Small.

    The inherited fields describe the discriminator and the embeddings, which both share.

    Args:
        generator: Config of the blocks of the generator.
    """

    generator: ElectraBlocksConfig = ElectraBlocksConfig()

    def alone(self, part: type[ElectraEncoderConfig]) -> Any:
        """Return the config of the generator or of the discriminator by itself, of class `part`."""
        values = {field.name: getattr(self, field.name) for field in fields(part)}
        if part is ElectraGeneratorConfig:
            values |= vars(self.generator)
        return part(**values)


class EncoderWithProjection(Model):
    """Base class of generator and discriminator: embeddings of width E, projection and blocks.

    Parameters have the same names as in `MaskedLM`, so that classifiers can start from them if E is
    the model width. Without an `embed` of another model, the encoder has its own embeddings.
    """

    def __init__(self, config: ElectraEncoderConfig, embed: TokenEmbedding | None = None) -> None:
        super().__init__()
        self.config = config
        width = config.embedding_size
        if embed is None:
            self.embed = embedding_from_config(config, has_norm=True, width=width)
        else:
            # Assigning a module the usual way would register it here, too.
            object.__setattr__(self, "embed", embed)
        has_projection = width != config.d_model
        self.project = nn.Linear(width, config.d_model) if has_projection else nn.Identity()
        self.stack = Stack(config)

    def encode(
        self,
        ids: Tensor,
        *,
        segments: Tensor | None = None,
        mask: Tensor | None = None,
        documents: Tensor | None = None,
    ) -> Tensor:
        """Compute the final hidden states (B, T, D)."""
        attn_mask, positions = mask_and_positions(ids, mask, documents, None, causal=False)
        return self.stack(self.project(self.embed(ids, positions, segments)), attn_mask)

    def embeddings(self) -> list[nn.Module]:
        return [*super().embeddings(), self.project]


class ElectraGenerator(EncoderWithProjection):
    """Generator: a masked LM whose output matrix is the token embedding of width E.

    Source: Clark et al. 2020, section 2. A call of the model takes the arguments of `encode` and
    returns the logits (B, T, V) of the token at each position.
    """

    head: VocabularyHead

    def __init__(self, config: ElectraGeneratorConfig, embed: TokenEmbedding | None = None) -> None:
        super().__init__(config, embed)
        norm = norm_from_config(config, config.embedding_size)
        options: dict[str, Any] = {"activation": config.activation, "transform_norm": norm}
        self.head = VocabularyHead(self.embed.tokens, bias=True, **options)
        self.head.transform = nn.Linear(config.d_model, config.embedding_size)
        initialize(self, config.init)


class DetectionHead(nn.Module):
    """Dense layer (D, D), activation, and a linear layer to one logit per token."""

    def __init__(self, config: ElectraDiscriminatorConfig) -> None:
        super().__init__()
        self.dense = nn.Linear(config.d_model, config.d_model)
        self.activation = ACTIVATIONS[config.activation]
        self.classify = nn.Linear(config.d_model, 1)

    def forward(self, h: Tensor) -> Tensor:
        """Map hidden states (B, T, D) to logits (B, T)."""
        return self.classify(self.activation(self.dense(h))).squeeze(-1)


class ElectraDiscriminator(EncoderWithProjection):
    """Discriminator: decides for each token whether it was replaced, the part that is fine-tuned.

    Source: Clark et al. 2020, section 2. A call of the model takes the arguments of `encode` and
    returns the logits (B, T) of the probability that a token was replaced.
    """

    def __init__(self, config: ElectraDiscriminatorConfig) -> None:
        super().__init__(config)
        self.head = DetectionHead(config)
        initialize(self, config.init)


class Electra(ElectraDiscriminator):
    """Discriminator with its generator, which shares the embeddings with it, for pre-training.

    Source: Clark et al. 2020, sections 2 and 3.2. A call of the model returns the logits (B, T) of
    the discriminator, whose parameters have the same names as in `ElectraDiscriminator`.
    """

    config: ElectraConfig

    def __init__(self, config: ElectraConfig) -> None:
        super().__init__(config)
        self.generator = ElectraGenerator(config.alone(ElectraGeneratorConfig), self.embed)

    @torch.no_grad()
    def separate(self) -> tuple[ElectraGenerator, ElectraDiscriminator]:
        """Return copies of generator and discriminator, each with its own embeddings."""
        generator = ElectraGenerator(self.config.alone(ElectraGeneratorConfig))
        discriminator = ElectraDiscriminator(self.config.alone(ElectraDiscriminatorConfig))
        state, prefix = self.state_dict(), "generator."
        own = {name: x for name, x in state.items() if not name.startswith(prefix)}
        discriminator.load_state_dict(own)
        shared = {name: x for name, x in own.items() if name.startswith("embed.")}
        generator.load_state_dict({**shared, **self.generator.state_dict()})
        return generator, discriminator
