"""The masked-LM encoder: BERT (Devlin et al. 2018) and RoBERTa (Liu et al. 2019).

Shapes: B batch, T tokens, D model width, V vocabulary.
"""

from dataclasses import dataclass

from torch import Tensor, nn

from fourfold.core.cache import look_back
from fourfold.core.config import TransformerConfig, check_positive
from fourfold.core.embeddings import TokenEmbedding
from fourfold.core.errors import InputError
from fourfold.core.init import initialise
from fourfold.core.stack import Stack
from fourfold.models.heads import PooledClassifier, VocabularyHead


@dataclass(frozen=True)
class MaskedLMConfig(TransformerConfig):
    """A masked LM; the defaults are BERT base, uncased (109,514,298 parameters).

    Args:
        vocab_size: V; None in a run's config means: the tokenizer's.
        max_len: Longest sequence in tokens.
        positions: none, learned, sinusoidal or sinusoidal_halves.
        n_segments: Number of segment vectors: 2 in BERT, 1 in RoBERTa, 0 for none.
        head: Whether to build the head that predicts words; without it, an encoder alone.
        next_sentence: Whether to build BERT's next-sentence head.
        init: A row of INITS.
    """

    d_model: int = 768
    n_layers: int = 12
    n_heads: int = 12
    d_ff: int = 3072
    activation: str = "gelu"
    norm_eps: float = 1e-12
    attn_dropout: float = 0.1
    vocab_size: int | None = 30522
    max_len: int = 512
    positions: str = "learned"
    n_segments: int = 2
    head: bool = True
    next_sentence: bool = False
    init: str = "bert"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive("vocab_size", self.vocab_size)
        check_positive("max_len", self.max_len)
        if self.n_segments < 0:
            raise InputError(f"n_segments is {self.n_segments}, but must not be negative")


class MaskedLM(nn.Module):
    """Predicts hidden tokens from both sides."""

    causal = False  # each token sees all others

    def __init__(self, config: MaskedLMConfig) -> None:
        super().__init__()
        assert config.vocab_size is not None, "the vocabulary is known once a model is built"
        self.config = config
        # After a post-norm stack's embedding a norm is BERT's; a pre-norm stack brings its own.
        self.embed = TokenEmbedding(
            config,
            config.vocab_size,
            config.max_len,
            config.positions,
            n_segments=config.n_segments,
            norm=config.norm_placement == "post",
        )
        self.stack = Stack(config)
        if config.head:
            self.head = VocabularyHead(
                config, config.vocab_size, self.embed.tokens, bias=True, transform=True
            )
        self.next_sentence = PooledClassifier(config.d_model, 2) if config.next_sentence else None
        initialise(self, config.init)

    def forward(
        self,
        ids: Tensor,
        segments: Tensor | None = None,
        mask: Tensor | None = None,
        documents: Tensor | None = None,
    ) -> Tensor:
        """Logits (B, T, V) of the token at each place of `ids`; arguments as `encode`."""
        return self.logits(self.encode(ids, segments, mask, documents))

    def encode(
        self,
        ids: Tensor,
        segments: Tensor | None = None,
        mask: Tensor | None = None,
        documents: Tensor | None = None,
    ) -> Tensor:
        """Final hidden states (B, T, D).

        Args:
            ids: (B, T) int64.
            segments: (B, T) int64, 0 = first sentence, 1 = second; None means all 0.
            mask: (B, T) bool, True = real token.
            documents: (B, T) number of the packed document each token belongs to.

        Raises:
            InputError: More tokens than `max_len`.
        """
        seen, positions = look_back(ids, mask, documents, None, causal=self.causal)
        return self.stack(self.embed(ids, positions, segments), seen)

    def logits(self, h: Tensor) -> Tensor:
        """(..., D) to (..., V).

        Raises:
            InputError: The model was built without that head.
        """
        if not self.config.head:
            raise InputError("this model is an encoder alone; set head to true")
        return self.head(h)

    def next_sentence_logits(self, h: Tensor) -> Tensor:
        """Hidden states (B, T, D) to (B, 2): column 1 says that the second sentence follows.

        Raises:
            InputError: The model was built without that head.
        """
        if self.next_sentence is None:
            raise InputError("this model has no next-sentence head; set next_sentence to true")
        return self.next_sentence(h)
