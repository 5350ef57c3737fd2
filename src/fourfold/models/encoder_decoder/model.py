"""Encoder-decoder transformer (Vaswani et al. 2017), and the base class of encoder-decoders.

Shapes: B batch, S source tokens, T target tokens, D model width, V vocabulary.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal, Self

from torch import Tensor, nn

from fourfold.core.block import Stack
from fourfold.core.config import Init, TextPositions, TransformerConfig
from fourfold.core.kv_cache import KVCache
from fourfold.core.masks import Mask, mask_and_positions
from fourfold.core.validation import MAX_VOCABULARY
from fourfold.errors import InputError
from fourfold.layers.base_model import Model, embedding_from_config
from fourfold.layers.heads import VocabularyHead
from fourfold.layers.init import INITS, initialize
from fourfold.layers.token_embedding import TokenEmbedding


@dataclass(frozen=True)
class EncoderDecoderConfig(TransformerConfig):
    """Config of an encoder-decoder; the defaults are the base model (63,082,496 parameters).

    Args:
        vocab_size: Size V of the vocabulary, shared by source and target. None in a config file is
            replaced by the size of the tokenizer. The constructor of the model needs a number.
        max_len: Longest source and longest target in tokens. None means no limit, and is allowed
            with positions="none" only.
        positions: none (also for rotary positions alone, see `rope_theta`), learned, sinusoidal
            (sines and cosines alternate) or sinusoidal_halves (all sines before all cosines).
        n_decoder_layers: Number of layers of the decoder; None means n_layers.
        n_decoder_heads: Number of attention heads of the decoder; None means n_heads.
        decoder_d_ff: Hidden width of the decoder's feed-forward layers; None means d_ff.
        tie_embeddings: Layers that share one matrix: all (source embedding, target embedding and
            output, as in the paper), decoder (target embedding and output), embeddings (source and
            target embedding, T5 v1.1) or none.
        embed_scale: Multiply token embeddings by sqrt(d_model) (Vaswani et al. 2017, section 3.4).
        embed_norm: Normalize the sum of token and position embedding (BART).
        output_bias: Learn a bias for each token of the vocabulary (Marian, BART).
        decoder_start_token_id: Token that is put before a target text as input of the decoder
            (BART); None if target texts already begin with the start token.
        init: Weight initialization, a name in `fourfold.layers.init.INITS`.

    Example:
        >>> from fourfold.layers.base_model import on_meta
        >>> with on_meta():  # without memory for the weights
        ...     model = EncoderDecoder(EncoderDecoderConfig())
        >>> sum(weight.numel() for weight in model.parameters())
        63082496
    """

    vocab_size: int | None = 37000
    max_len: int | None = 1024
    positions: TextPositions = "sinusoidal"
    n_decoder_layers: int | None = None
    n_decoder_heads: int | None = None
    decoder_d_ff: int | None = None
    tie_embeddings: Literal["all", "decoder", "embeddings", "none"] = "all"
    embed_scale: bool = True
    embed_norm: bool = False
    output_bias: bool = False
    decoder_start_token_id: int | None = None
    init: Init = "vaswani"
    ranges: ClassVar = {"decoder_start_token_id": {"minimum": 0, "maximum": MAX_VOCABULARY}}

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.max_len is None and self.positions != "none":
            message = f"must be given for positions {self.positions}, got None"
            raise InputError(message, option="max_len")
        if self.n_decoder_heads is not None:
            assert self.decoder  # the constructor checks the divisibility of d_model

    @property
    def decoder(self) -> Self:
        """Config whose fields `n_layers`, `n_heads` and `d_ff` are those of the decoder."""
        n_layers = self.n_layers if self.n_decoder_layers is None else self.n_decoder_layers
        n_heads = self.n_heads if self.n_decoder_heads is None else self.n_decoder_heads
        d_ff = self.d_ff if self.decoder_d_ff is None else self.decoder_d_ff
        own: Any = {"n_decoder_layers": None, "n_decoder_heads": None, "decoder_d_ff": None}
        return replace(self, n_layers=n_layers, n_heads=n_heads, d_ff=d_ff, **own)


class Seq2Seq(Model):
    """Base class of encoder-decoders.

    A subclass builds the modules `src_embed`, `tgt_embed`, `encoder`, `decoder` and `head`. Source
    ids `src` are (B, S) int64, and target ids `tgt` (B, T), which begin with the start token.
    `src_mask` and `tgt_mask` are padding masks of these shapes, True = real token; None means that
    all tokens are real. `src_documents` and `tgt_documents` are the index of the pair that each
    token belongs to, if several pairs are packed into one element of the batch. A sequence that is
    longer than `max_len` raises InputError.
    """

    can_generate = True
    src_embed: nn.Module
    tgt_embed: TokenEmbedding
    encoder: Stack
    decoder: Stack
    head: VocabularyHead

    def hidden(
        self,
        src: Tensor,
        tgt: Tensor,
        *,
        src_mask: Tensor | None = None,
        tgt_mask: Tensor | None = None,
        src_documents: Tensor | None = None,
        tgt_documents: Tensor | None = None,
    ) -> Tensor:
        """Compute the final hidden states (B, T, D) of the decoder, the input of the head."""
        source: dict[str, Any] = {"src_mask": src_mask, "src_documents": src_documents}
        target: dict[str, Any] = {"tgt_mask": tgt_mask, "tgt_documents": tgt_documents}
        return self.decode(tgt, self.encode(src, **source), **source, **target)

    def encode(
        self, src: Tensor, *, src_mask: Tensor | None = None, src_documents: Tensor | None = None
    ) -> Tensor:
        """Compute the final hidden states (B, S, D) of the encoder."""
        mask, positions = mask_and_positions(src, src_mask, src_documents, None, causal=False)
        return self.encoder(self.src_embed(src, positions), mask)

    def decode(
        self,
        tgt: Tensor,
        memory: Tensor,
        *,
        src_mask: Tensor | None = None,
        tgt_mask: Tensor | None = None,
        cache: KVCache | None = None,
        src_documents: Tensor | None = None,
        tgt_documents: Tensor | None = None,
    ) -> Tensor:
        """Compute the final hidden states (B, T, D) of the decoder.

        `memory` (B, S, D) is the result of `encode`. A cache holds keys and values of earlier
        target tokens and of the memory, and is extended in place; `tgt`, `tgt_mask` and
        `tgt_documents` are then those of the new tokens only.
        """
        mask, positions = mask_and_positions(tgt, tgt_mask, tgt_documents, cache, causal=True)
        memory_mask = Mask(keys=src_mask)
        if src_documents is not None and mask.documents is not None:
            new = mask.documents[:, -tgt.shape[1] :]
            memory_mask = Mask(keys=src_mask, documents=src_documents, query_documents=new)
        x = self.tgt_embed(tgt, positions)
        return self.decoder(x, mask, memory=memory, memory_mask=memory_mask, cache=cache)


class EncoderDecoder(Seq2Seq):
    """Encoder-decoder transformer: predicts a target sequence from a source sequence.

    Source: Vaswani et al. 2017, section 3.1 and Figure 1.

    Example:
        >>> import fourfold, torch
        >>> model = EncoderDecoder(EncoderDecoderConfig(n_layers=1, vocab_size=100)).eval()
        >>> source = torch.tensor([[5, 6, 2]])
        >>> ids, scores = fourfold.beam_search(model, source, bos_id=1, eos_id=2, max_new_tokens=4)
        >>> ids[0, 0]  # a target begins with the start token
        tensor(1)
    """

    stack_class: ClassVar[type[Stack]] = Stack  # of encoder and decoder
    inits: ClassVar[Mapping[str, Callable[[nn.Module], None]]] = INITS  # by `config.init`

    def __init__(self, config: EncoderDecoderConfig) -> None:
        super().__init__()
        self.config = config
        self.src_embed = embedding_from_config(config, has_norm=config.embed_norm)
        self.tgt_embed = embedding_from_config(config, has_norm=config.embed_norm)
        if config.tie_embeddings in ("all", "embeddings"):
            self.tgt_embed.share_tokens(self.src_embed)
        self.encoder = self.stack_class(config)
        self.decoder = self.stack_class(config.decoder, cross_attention=True)
        tied = config.tie_embeddings in ("all", "decoder")
        self.head = VocabularyHead(self.tgt_embed.tokens, tied=tied, bias=config.output_bias)
        initialize(self, config.init, self.inits)
