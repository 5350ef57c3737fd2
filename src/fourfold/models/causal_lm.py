"""The causal language model: GPT (Radford et al. 2018) and GPT-2 (Radford et al. 2019).

Shapes: B batch, T tokens, D model width, V vocabulary.
"""

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor, nn

from fourfold.core.cache import KVCache, look_back
from fourfold.core.config import TransformerConfig, check_positive
from fourfold.core.embeddings import TokenEmbedding
from fourfold.core.init import initialise
from fourfold.core.stack import Stack
from fourfold.models.heads import VocabularyHead


@dataclass(frozen=True)
class CausalLMConfig(TransformerConfig):
    """A causal LM; the defaults are GPT-2 small (124,439,808 parameters).

    Args:
        vocab_size: V; None in a run's config means: the tokenizer's.
        max_len: Longest sequence in tokens.
        positions: none, learned, sinusoidal or sinusoidal_halves.
        embed_norm: Whether the sum of token and position is normalised (a BERT that writes).
        tie: Whether the output matrix is the token embedding.
        init: A row of INITS.
    """

    d_model: int = 768
    n_layers: int = 12
    n_heads: int = 12
    d_ff: int = 3072
    activation: str = "gelu_tanh"
    norm_placement: str = "pre"
    norm_eps: float = 1e-5
    attn_dropout: float = 0.1
    vocab_size: int | None = 50257
    max_len: int = 1024
    positions: str = "learned"
    embed_norm: bool = False
    tie: bool = True
    init: str = "gpt2"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive("vocab_size", self.vocab_size)
        check_positive("max_len", self.max_len)


class CausalLM(nn.Module):
    """Predicts each token from those before it."""

    stack_class: ClassVar[type[nn.Module]] = Stack
    is_recurrent: ClassVar[bool] = False  # has a state, and no keys and values to be kept

    def __init__(self, config: CausalLMConfig) -> None:
        super().__init__()
        assert config.vocab_size is not None, "the vocabulary is known once a model is built"
        self.config = config
        self.embed = TokenEmbedding(
            config, config.vocab_size, config.max_len, config.positions, norm=config.embed_norm
        )
        self.stack = self.stack_class(config)
        shared = self.embed.tokens if config.tie else None
        self.head = VocabularyHead(config, config.vocab_size, shared)
        initialise(self, config.init)

    def forward(
        self,
        ids: Tensor,
        mask: Tensor | None = None,
        cache: KVCache | None = None,
        documents: Tensor | None = None,
    ) -> Tensor:
        """Logits (B, T, V) of the next token at each place of `ids`; arguments as `hidden`."""
        return self.logits(self.hidden(ids, mask, cache, documents))

    def hidden(
        self,
        ids: Tensor,
        mask: Tensor | None = None,
        cache: KVCache | None = None,
        documents: Tensor | None = None,
    ) -> Tensor:
        """Final hidden states (B, T, D).

        Args:
            ids: (B, T) int64; with a cache, only the tokens it has not seen.
            mask: (B, T) bool, True = real token; padding may stand on either side.
            cache: What was seen before; is extended.
            documents: (B, T) number of the packed document each token belongs to.

        Raises:
            InputError: More tokens than `max_len`.
        """
        seen, positions = look_back(ids, mask, documents, cache, causal=True)
        return self.stack(self.embed(ids, positions), seen, cache=cache)

    def logits(self, h: Tensor) -> Tensor:
        """(..., D) to (..., V)."""
        return self.head(h)
