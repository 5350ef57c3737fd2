"""What a model costs, from its config alone: multiply-adds of a forward pass, part by part.

One multiply-add is two FLOPs; matrix products are counted, norms, activations, softmax and biases
are not (ViT's Table 6 counts so). Attention counts as the full square, also where it is causal.
Beside a vocabulary, a head that looks at one place of a row (BERT's next sentences) is left out.
Shapes: B batch, T tokens, S source tokens, D model width, V vocabulary, N patches, K classes.
"""

from dataclasses import dataclass, replace
from functools import singledispatch

from torch import nn

from fourfold.core.config import TransformerConfig
from fourfold.core.embeddings import PatchEmbedding, TokenEmbedding
from fourfold.core.errors import InputError
from fourfold.core.stack import Stack
from fourfold.models.causal_lm import CausalLMConfig
from fourfold.models.classifiers import SequenceClassifierConfig, TokenClassifierConfig
from fourfold.models.clip import CLIPConfig
from fourfold.models.encoder_decoder import EncoderDecoderConfig
from fourfold.models.joined import CaptionerConfig, JoinedConfig
from fourfold.models.masked_lm import MaskedLMConfig
from fourfold.models.reader import ReaderConfig
from fourfold.models.recurrent import LSTMStack, RecurrentLMConfig
from fourfold.models.vit import ViTConfig

BACKWARD = 3  # a step costs one forward pass and, for activations and weights, two backward ones


@dataclass(frozen=True)
class Parts:
    """A quantity of every family's three parts: what enters, the blocks, what stands on top."""

    embeddings: int
    blocks: int
    head: int

    @property
    def total(self) -> int:
        """Of the whole model."""
        return self.embeddings + self.blocks + self.head


def parameters(model: nn.Module) -> Parts:
    """Parameters of a built model, for which the meta device will do.

    A shared matrix counts once, where it enters.
    """
    counts = {"embeddings": 0, "blocks": 0, "head": 0}
    seen: set[int] = set()
    for child in model.children():
        part = "head"
        if isinstance(child, TokenEmbedding | PatchEmbedding):
            part = "embeddings"
        elif isinstance(child, Stack | LSTMStack):
            part = "blocks"
        for parameter in child.parameters():
            if id(parameter) not in seen:
                seen.add(id(parameter))
                counts[part] += parameter.numel()
    counts["head"] += sum(p.numel() for p in model.parameters(recurse=False))  # of no module
    return Parts(**counts)


def attention_macs(config: TransformerConfig, queries: int, keys: int) -> int:
    """Multiply-adds of one attention layer: four projections, scores and weighted sum."""
    inner = config.n_heads * (config.head_width + config.value_width)
    return config.d_model * inner * (queries + keys) + inner * queries * keys


def block_macs(config: TransformerConfig, length: int, memory: int | None = None) -> int:
    """Multiply-adds of one block over `length` tokens, which may read a `memory` of others."""
    matrices = 3 if config.feed_forward == "glu" else 2
    macs = attention_macs(config, length, length)
    if memory is not None:
        macs += attention_macs(config, length, memory)
    return macs + matrices * length * config.d_model * config.d_ff


def forward_flops(
    config: TransformerConfig,
    length: int | None = None,
    *,
    source: int | None = None,
    scored: float = 1.0,
) -> Parts:
    """FLOPs of one forward pass of one sequence, sentence pair, image, or image with its text.

    Args:
        config: One of the families'.
        length: Tokens T (of the target for an encoder-decoder); None means `max_len`. An image's
            follows from its config.
        source: Source tokens S of an encoder-decoder; None means as many as `length`.
        scored: Share of the places that the vocabulary head looks at: a masked LM is trained on
            the hidden tokens only.

    Raises:
        InputError: Vocabulary or classes are not known yet, or `max_len` is exceeded.
    """
    limit = getattr(config, "max_len", None)
    for tokens in (length, source):
        if limit is not None and tokens is not None and not 1 <= tokens <= limit:
            raise InputError(f"a sequence of {tokens} tokens does not fit max_len {limit}")
    macs = _family_macs(config, length or limit or 0, source)
    return Parts(2 * macs.embeddings, 2 * macs.blocks, round(2 * macs.head * scored))


def image_tokens(config: ViTConfig | CLIPConfig | CaptionerConfig) -> int:
    """What an image becomes in the blocks: patches N, class token, distillation token."""
    if isinstance(config, CLIPConfig):
        return _patches(config) + 1
    if isinstance(config, CaptionerConfig):
        config = config.encoder
    return _patches(config) + (config.pool == "cls") + config.distillation


def _patches(config: ViTConfig | CLIPConfig) -> int:
    return (config.image_size // config.patch_size) ** 2


def _known(field: str, value: int | None) -> int:
    if value is None:
        raise InputError(f"{field} is left to the data, so the cost is not known: give {field}")
    return value


@singledispatch
def _family_macs(config: TransformerConfig, length: int, source: int | None) -> Parts:
    raise InputError(f"no cost is known for a {type(config).__name__}")


@_family_macs.register
def _(config: CausalLMConfig, length: int, source: int | None) -> Parts:
    blocks = config.n_layers * block_macs(config, length)
    return Parts(0, blocks, length * config.d_model * _known("vocab_size", config.vocab_size))


@_family_macs.register
def _(config: RecurrentLMConfig, length: int, source: int | None) -> Parts:
    width, depth = config.d_ff, config.n_layers
    read = config.d_model + (depth - 1) * width + depth * width  # inputs and states of the layers
    macs = length * (4 * width * read + width * config.d_model)
    return Parts(0, macs, length * config.d_model * _known("vocab_size", config.vocab_size))


@_family_macs.register
def _(config: MaskedLMConfig, length: int, source: int | None) -> Parts:
    blocks = config.n_layers * block_macs(config, length)
    rows = _known("vocab_size", config.vocab_size) if config.head else 0
    head = length * config.d_model * (config.d_model + rows) if config.head else 0
    return Parts(0, blocks, head)


@_family_macs.register
def _(config: ReaderConfig, length: int, source: int | None) -> Parts:
    blocks = config.n_layers * block_macs(config, length)
    width = config.d_model * (len(config.layers) if config.mix == "concat" else 1)
    head = 0
    for _ in range(config.lstm_layers if config.lstm else 0):
        head += length * 2 * 4 * config.lstm * (width + config.lstm)  # both ways, four gates
        width = 2 * config.lstm
    if isinstance(config, SequenceClassifierConfig):
        head += width * (width + _known("n_classes", config.n_classes))
    elif isinstance(config, TokenClassifierConfig):
        head += length * width * _known("n_classes", config.n_classes)
    else:
        head += length * width * 2  # SpanExtractor: where an answer begins and ends
    return Parts(0, blocks, head)


@_family_macs.register
def _(config: EncoderDecoderConfig, length: int, source: int | None) -> Parts:
    if not length:
        raise InputError("without a max_len the model has no length of its own: give one")
    source = source or length
    encoder = config.n_layers * block_macs(config, source)
    depth = config.n_decoder_layers or config.n_layers
    decoder = depth * block_macs(config, length, source)
    return Parts(
        0, encoder + decoder, length * config.d_model * _known("vocab_size", config.vocab_size)
    )


@_family_macs.register
def _(config: JoinedConfig, length: int, source: int | None) -> Parts:
    source = source or length
    encoder = config.encoder.n_layers * block_macs(config.encoder, source)
    return _writing(config, length, source, Parts(0, encoder, 0))


@_family_macs.register
def _(config: CaptionerConfig, length: int, source: int | None) -> Parts:
    seen = _family_macs(replace(config.encoder, n_classes=1), 0, None)
    return _writing(config, length, image_tokens(config), Parts(seen.embeddings, seen.blocks, 0))


def _writing(
    config: JoinedConfig | CaptionerConfig, length: int, source: int, read: Parts
) -> Parts:
    """What a decoder costs on top of the encoder, with the map where the memory is not as wide."""
    width = config.encoder.d_model
    joint = 0 if width == config.d_model else source * width * config.d_model
    decoder = config.n_layers * block_macs(config, length, source)
    head = length * config.d_model * _known("vocab_size", config.vocab_size)
    return Parts(read.embeddings, read.blocks + decoder, head + joint)


@_family_macs.register
def _(config: ViTConfig, length: int, source: int | None) -> Parts:
    entry = _patches(config) * config.patch_size**2 * config.n_channels * config.d_model
    width = config.representation_size or config.d_model
    hidden = config.d_model * width if config.representation_size else 0
    head = (1 + config.distillation) * (hidden + width * _known("n_classes", config.n_classes))
    return Parts(entry, config.n_layers * block_macs(config, image_tokens(config)), head)


@_family_macs.register
def _(config: CLIPConfig, length: int, source: int | None) -> Parts:
    tower = config.image_tower
    entry = _patches(config) * config.patch_size**2 * config.n_channels * tower.d_model
    texts = config.n_layers * block_macs(config, length)
    images = tower.n_layers * block_macs(tower, image_tokens(config))
    # One vector each; how it compares with others depends on how many they are.
    return Parts(entry, texts + images, config.d_embed * (config.d_model + tower.d_model))
