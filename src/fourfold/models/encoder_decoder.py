"""The encoder-decoder of "Attention Is All You Need" (Vaswani et al. 2017).

Shapes: B batch, S source tokens, T target tokens, D model width, V vocabulary.
"""

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor, nn

from fourfold.core.cache import KVCache, look_back
from fourfold.core.config import TransformerConfig, check_positive, check_word
from fourfold.core.embeddings import TokenEmbedding
from fourfold.core.errors import InputError
from fourfold.core.init import initialise
from fourfold.core.masks import Mask
from fourfold.core.stack import Stack
from fourfold.models.heads import VocabularyHead


@dataclass(frozen=True)
class EncoderDecoderConfig(TransformerConfig):
    """An encoder-decoder; the defaults are the base model (63,082,496 parameters).

    Args:
        vocab_size: V, shared by both languages; None in a run's config means: the tokenizer's.
        max_len: Longest sequence in tokens, on either side; None means that there is no limit, for
            which positions must be none.
        positions: none, learned, sinusoidal or sinusoidal_halves.
        n_decoder_layers: Depth of the decoder; None means n_layers.
        tie: Which of the three matrices are one: all (the paper), decoder (target embedding
            and output), embeddings (source and target, T5 v1.1) or none.
        embed_scale: Whether token vectors are multiplied by sqrt(d_model) (the paper, 3.4).
        embed_norm: Whether the sum of token and position is normalised (BART).
        output_bias: Whether each word has a free number of its own (Marian, BART).
        start_id: What a decoder reads before the begin of a text (BART); None for nothing.
        init: A row of INITS.
    """

    vocab_size: int | None = 37000
    max_len: int | None = 1024
    positions: str = "sinusoidal"
    n_decoder_layers: int | None = None
    tie: str = "all"
    embed_scale: bool = True
    embed_norm: bool = False
    output_bias: bool = False
    start_id: int | None = None
    init: str = "vaswani"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_word("tie", self.tie, ("all", "decoder", "embeddings", "none"))
        for field in ("vocab_size", "max_len", "n_decoder_layers"):
            check_positive(field, getattr(self, field))
        if self.max_len is None and self.positions != "none":
            raise InputError(f"max_len is missing: {self.positions} positions need a number")


class Seq2Seq(nn.Module):
    """What an encoder-decoder does with its parts, which a subclass makes."""

    src_embed: nn.Module
    tgt_embed: TokenEmbedding
    encoder: Stack
    decoder: Stack
    head: VocabularyHead

    def forward(
        self,
        src: Tensor,
        tgt: Tensor,
        src_mask: Tensor | None = None,
        tgt_mask: Tensor | None = None,
        src_documents: Tensor | None = None,
        tgt_documents: Tensor | None = None,
    ) -> Tensor:
        """Logits (B, T, V) of the next target token at each place of `tgt`.

        Args:
            src: (B, S) int64.
            tgt: (B, T) int64, starting with the token that opens a sentence.
            src_mask: (B, S) bool, True = real token.
            tgt_mask: (B, T) bool.
            src_documents: (B, S) number of the packed pair each source token belongs to.
            tgt_documents: (B, T) the same for the target.

        Raises:
            InputError: More tokens than `max_len`.
        """
        memory = self.encode(src, src_mask, src_documents)
        h = self.decode(
            tgt, memory, src_mask, tgt_mask,
            src_documents=src_documents, tgt_documents=tgt_documents,
        )  # fmt: skip
        return self.logits(h)

    def encode(
        self, src: Tensor, src_mask: Tensor | None = None, src_documents: Tensor | None = None
    ) -> Tensor:
        """The memory (B, S, D) of a source (B, S)."""
        mask, positions = look_back(src, src_mask, src_documents, None, causal=False)
        return self.encoder(self.src_embed(src, positions), mask)

    def decode(
        self,
        tgt: Tensor,
        memory: Tensor,
        src_mask: Tensor | None = None,
        tgt_mask: Tensor | None = None,
        cache: KVCache | None = None,
        *,
        src_documents: Tensor | None = None,
        tgt_documents: Tensor | None = None,
    ) -> Tensor:
        """Hidden states (B, T, D) of `tgt`; with a cache, only the tokens it has not seen."""
        mask, positions = look_back(tgt, tgt_mask, tgt_documents, cache, causal=True)
        across = Mask(keys=src_mask)
        if src_documents is not None and mask.documents is not None:
            own = mask.documents[:, -tgt.shape[1] :]
            across = Mask(keys=src_mask, documents=src_documents, query_documents=own)
        x = self.tgt_embed(tgt, positions)
        return self.decoder(x, mask, memory=memory, memory_mask=across, cache=cache)

    def logits(self, h: Tensor) -> Tensor:
        """(..., D) to (..., V)."""
        return self.head(h)


class EncoderDecoder(Seq2Seq):
    """Predicts a target sentence from a source sentence."""

    stack: ClassVar[type[Stack]] = Stack  # what encoder and decoder are

    def __init__(self, config: EncoderDecoderConfig) -> None:
        super().__init__()
        assert config.vocab_size is not None, "the vocabulary is known once a model is built"
        self.config = config
        self.src_embed = self._embedding(config, config.vocab_size)
        self.tgt_embed = self._embedding(config, config.vocab_size)
        if config.tie in ("all", "embeddings"):
            self.tgt_embed.share_tokens(self.src_embed)
        self.encoder = self.stack(config)
        self.decoder = self.stack(config, cross_attention=True, n_layers=config.n_decoder_layers)
        shared = self.tgt_embed.tokens if config.tie in ("all", "decoder") else None
        self.head = VocabularyHead(config, config.vocab_size, shared, bias=config.output_bias)
        initialise(self, config.init)

    @staticmethod
    def _embedding(config: EncoderDecoderConfig, vocab_size: int) -> TokenEmbedding:
        return TokenEmbedding(
            config,
            vocab_size,
            config.max_len or 0,
            config.positions,
            scale=config.embed_scale,
            norm=config.embed_norm,
        )
