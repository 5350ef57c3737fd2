"""CompositeEncoderDecoder: a text or image encoder of one family with a text decoder of another.

Encoder and decoder may start from trained weights, as in Rothe, Narayan and Severyn 2020. The
cross-attention, and the linear map from the width of the encoder to that of the decoder, start from
random weights. Shapes: B batch, S source tokens or patches, T target tokens, C channels, D model
width, V vocabulary.
"""

from dataclasses import dataclass, replace

from torch import Tensor, nn

from fourfold.core.block import Stack
from fourfold.core.masks import Mask
from fourfold.layers.base_model import embedding_from_config
from fourfold.layers.heads import VocabularyHead
from fourfold.layers.init import initialize
from fourfold.models.causal_lm.model import CausalLMConfig
from fourfold.models.encoder_decoder.model import Seq2Seq
from fourfold.models.masked_lm.model import MaskedLM, MaskedLMConfig
from fourfold.models.vit.model import ViT, ViTConfig


@dataclass(frozen=True)
class TextToTextConfig(CausalLMConfig):
    """Config of BERT base with GPT-2 small as decoder (Rothe et al. 2020).

    The inherited fields describe the decoder.

    Args:
        encoder: Config of the encoder, which is built without heads. If its `vocab_size` is None,
            the encoder has the vocabulary of the decoder.
    """

    encoder: MaskedLMConfig = MaskedLMConfig(vocab_size=None)


@dataclass(frozen=True)
class ImageToTextConfig(CausalLMConfig):
    """Config of ViT-B/16 (Dosovitskiy et al. 2020) with GPT-2 small as decoder.

    The inherited fields describe the decoder.

    Args:
        encoder: Config of the encoder, which is built without a classifier. The decoder attends to
            all its tokens, including the class token.
    """

    encoder: ViTConfig = ViTConfig()


class CompositeEncoderDecoder(Seq2Seq):
    """Encoder of one family and decoder of another, for text-to-text and image-to-text tasks.

    Source: Rothe et al. 2020, for texts. A call of the model takes the arguments of
    `Seq2Seq.hidden`. For images, `src` is a batch (B, C, height, width), and `src_mask` and
    `src_documents` are ignored.
    """

    def __init__(self, config: TextToTextConfig | ImageToTextConfig) -> None:
        super().__init__()
        self.config = config
        self.accepts_images = isinstance(config, ImageToTextConfig)
        encoder = _build_encoder(config)
        self.src_embed = encoder.embed
        self.encoder = encoder.stack
        width = config.encoder.d_model
        self.memory_map: nn.Module = nn.Identity()
        if width != config.d_model:
            self.memory_map = nn.Linear(width, config.d_model, bias=config.bias)
        self.tgt_embed = embedding_from_config(config, has_norm=config.embed_norm)
        self.decoder = Stack(config, cross_attention=True)
        self.head = VocabularyHead(self.tgt_embed.tokens, tied=config.tie_embeddings)
        # The encoder has its own initialization.
        rest = [self.memory_map, self.tgt_embed, self.decoder, self.head]
        initialize(nn.ModuleList(rest), config.init)

    def encode(
        self, src: Tensor, *, src_mask: Tensor | None = None, src_documents: Tensor | None = None
    ) -> Tensor:
        """Compute the encoder output (B, S, D), mapped to the width D of the decoder."""
        if self.accepts_images:
            memory = self.encoder(self.src_embed(src), Mask(n_global=self.config.encoder.n_prefix))
        else:
            memory = super().encode(src, src_mask=src_mask, src_documents=src_documents)
        return self.memory_map(memory)


def _build_encoder(config: TextToTextConfig | ImageToTextConfig) -> MaskedLM | ViT:
    """Build the encoder of a composite model: a `MaskedLM` for text, or a `ViT` for images."""
    if isinstance(config, ImageToTextConfig):
        return ViT(replace(config.encoder, n_classes=1, representation_size=None))
    vocab_size = config.encoder.vocab_size or config.vocab_size
    return MaskedLM(replace(config.encoder, vocab_size=vocab_size, head=False, next_sentence=False))
