"""Masked LM and next-sentence head: BERT, RoBERTa and ModernBERT.

The papers are Devlin et al. 2018, Liu et al. 2019 and Warner et al. 2024.

Shapes: B batch, T tokens, D model width, V vocabulary.
"""

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor, nn

from fourfold.core.block import Stack, norm_from_config
from fourfold.core.config import Activation, Init, TextPositions
from fourfold.core.masks import mask_and_positions
from fourfold.errors import InputError
from fourfold.layers.base_model import BaseSizeConfig, Model, embedding_from_config
from fourfold.layers.heads import PooledClassifier, VocabularyHead
from fourfold.layers.init import initialize


@dataclass(frozen=True)
class MaskedLMConfig(BaseSizeConfig):
    """Config of a masked LM; the defaults are BERT base, uncased (109,514,298 parameters).

    Source: Devlin et al. 2018, section 3; Liu et al. 2019.

    Args:
        vocab_size: Size V of the vocabulary. None takes that of the tokenizer.
        max_len: Longest sequence in tokens.
        positions: none, learned, sinusoidal (sines and cosines alternate) or sinusoidal_halves (all
            sines before all cosines).
        embed_norm: Normalize the embeddings. The first block of a pre-norm model then attends to
            them without a further norm, and the head has biases only where the blocks have them
            (ModernBERT). A post-norm model normalizes the embeddings in any case (BERT).
        n_segments: Number of segment embeddings: 2 in BERT, 1 in RoBERTa, 0 for none.
        head: Build the vocabulary head. Without this head, `encode` is available but a call of the
            model raises an error.
        next_sentence: Build BERT's next-sentence head.
        init: Weight initialization, a name in `fourfold.layers.init.INITS`.
    """

    activation: Activation = "gelu"
    norm_eps: float = 1e-12
    attn_dropout: float = 0.1
    vocab_size: int | None = 30522
    max_len: int = 512
    positions: TextPositions = "learned"
    embed_norm: bool = False
    n_segments: int = 2
    head: bool = True
    next_sentence: bool = False
    init: Init = "bert"
    ranges: ClassVar = {"n_segments": {"minimum": 0, "maximum": 2**16}}


class MaskedLM(Model):
    """Masked language model, which predicts masked tokens from the tokens on both sides.

    Source: Devlin et al. 2018, section 3.1; Liu et al. 2019. A call of the model takes the
    arguments of `encode` and returns the logits (B, T, V) of the token at each position.
    """

    causal = False
    stack_class: ClassVar[type[Stack]] = Stack
    head: VocabularyHead

    def __init__(self, config: MaskedLMConfig) -> None:
        super().__init__()
        self.config = config
        # BERT normalizes the embeddings; the blocks of a pre-norm stack do so themselves.
        has_norm = config.embed_norm or config.norm_placement == "post"
        self.embed = embedding_from_config(config, has_norm=has_norm)
        self.stack = self.stack_class(config)
        if config.embed_norm and config.norm_placement == "pre":
            self.stack.blocks[0].attn_norm = nn.Identity()
        if config.head:
            self.head = VocabularyHead(
                self.embed.tokens,
                bias=True,
                activation=config.activation,
                transform_norm=norm_from_config(config),
                transform_bias=config.bias or not config.embed_norm,
            )
        self.next_sentence = PooledClassifier(config.d_model, 2) if config.next_sentence else None
        initialize(self, config.init)

    def encode(
        self,
        ids: Tensor,
        *,
        segments: Tensor | None = None,
        mask: Tensor | None = None,
        documents: Tensor | None = None,
    ) -> Tensor:
        """Compute the final hidden states (B, T, D)."""
        attn_mask, positions = mask_and_positions(ids, mask, documents, None, causal=self.causal)
        return self.stack(self.embed(ids, positions, segments), attn_mask)

    def logits(self, h: Tensor) -> Tensor:
        """Map hidden states (..., D) to logits (..., V); InputError without a vocabulary head."""
        if not self.config.head:
            raise InputError("must be true to compute logits of a masked LM", option="head")
        return super().logits(h)

    def next_sentence_logits(self, h: Tensor) -> Tensor:
        """Map hidden states (B, T, D) to next-sentence logits (B, 2).

        Column 1 is the class of pairs whose second sentence follows the first one.

        Raises:
            InputError: The model was built without a next-sentence head.
        """
        if self.next_sentence is None:
            raise InputError("must be true to predict the next sentence", option="next_sentence")
        return self.next_sentence(h)
