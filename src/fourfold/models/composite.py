"""An encoder of one family and a decoder of another, joined by cross-attention.

Both may be pre-trained: a BERT reads and a GPT-2 or another BERT writes (Rothe, Narayan and Severyn
2020, "Leveraging Pre-trained Checkpoints for Sequence Generation Tasks"), or a Vision Transformer
sees and a GPT-2 says what. Only what joins them has to be learned from nothing.
Shapes: B batch, S source tokens or patches, T target tokens, C channels, D model width, V
vocabulary.
"""

from dataclasses import dataclass, replace

from torch import Tensor, nn

from fourfold.core.embeddings import PatchEmbedding, TokenEmbedding
from fourfold.core.init import initialise
from fourfold.core.stack import Stack
from fourfold.models.causal_lm import CausalLMConfig
from fourfold.models.encoder_decoder import Seq2Seq
from fourfold.models.heads import VocabularyHead
from fourfold.models.masked_lm import MaskedLM, MaskedLMConfig
from fourfold.models.vit import ViT, ViTConfig


@dataclass(frozen=True)
class JoinedConfig(CausalLMConfig):
    """A text for a text; the defaults are BERT base and GPT-2 small.

    The inherited fields describe the decoder.

    Args:
        encoder: The encoder; its heads are not built. Without a `vocab_size` it has the decoder's.
    """

    encoder: MaskedLMConfig = MaskedLMConfig(vocab_size=None)  # noqa: RUF009  (frozen)


@dataclass(frozen=True)
class CaptionerConfig(CausalLMConfig):
    """A text for an image; the defaults are ViT-B/16 and GPT-2 small.

    The inherited fields describe the decoder.

    Args:
        encoder: The encoder; its classifier is not built. Every place of it is looked at, those of
            tokens in front of the patches among them.
    """

    encoder: ViTConfig = ViTConfig()  # noqa: RUF009  (frozen)


class Joined(Seq2Seq):
    """Predicts a target text from a source text or an image.

    It reads as an `EncoderDecoder` does. Of images, `src` is (B, C, side, side) and has no mask.
    """

    def __init__(self, config: JoinedConfig | CaptionerConfig) -> None:
        super().__init__()
        assert config.vocab_size is not None, "the vocabulary is known once a model is built"
        self.config = config
        reader = _reader(config)
        self.src_embed, self.encoder = reader.embed, reader.stack
        width = config.encoder.d_model
        self.memory_map: nn.Module = nn.Identity()
        if width != config.d_model:
            self.memory_map = nn.Linear(width, config.d_model, bias=config.bias)
        self.tgt_embed = TokenEmbedding(
            config, config.vocab_size, config.max_len, config.positions, norm=config.embed_norm
        )
        self.decoder = Stack(config, cross_attention=True)
        shared = self.tgt_embed.tokens if config.tie else None
        self.head = VocabularyHead(config, config.vocab_size, shared)
        written = [self.memory_map, self.tgt_embed, self.decoder, self.head]
        initialise(nn.ModuleList(written), config.init)  # the encoder has its own

    @property
    def reads_images(self) -> bool:
        """Whether a source is an image, and not a text."""
        return isinstance(self.src_embed, PatchEmbedding)

    def encode(
        self, src: Tensor, src_mask: Tensor | None = None, src_documents: Tensor | None = None
    ) -> Tensor:
        """The memory (B, S, D), D being the decoder's width, of texts (B, S) or of images.

        Raises:
            InputError: Images of another size than the encoder's, or more tokens than it has
                positions for.
        """
        if self.reads_images:
            memory = self.encoder(self.src_embed(src))
        else:
            memory = super().encode(src, src_mask, src_documents)
        return self.memory_map(memory)


def _reader(config: JoinedConfig | CaptionerConfig) -> MaskedLM | ViT:
    """A model of the encoder's family with first weights, and no head that can be spared."""
    if isinstance(config, CaptionerConfig):
        return ViT(replace(config.encoder, n_classes=1, representation_size=None))
    n_words = config.encoder.vocab_size or config.vocab_size
    return MaskedLM(replace(config.encoder, vocab_size=n_words, head=False, next_sentence=False))
