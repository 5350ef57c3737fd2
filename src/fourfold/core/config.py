"""ModelConfig and TransformerConfig: base classes of model configs, which check their fields.

`ModelConfig` checks its fields. `TransformerConfig` is the config of a stack of blocks, with the
base model of Vaswani et al. 2017, Table 3, as defaults. A family extends `TransformerConfig` with
fields of its own (see ``models/``).
"""

from dataclasses import dataclass
from typing import Any, Literal

from fourfold.core.validation import check_positive, check_range, check_types
from fourfold.errors import InputError

Activation = Literal["relu", "gelu", "gelu_tanh", "quick_gelu", "silu"]
TextPositions = Literal["none", "learned", "sinusoidal", "sinusoidal_halves"]
Init = Literal["vaswani", "bert", "gpt", "gpt2", "vit", "t5"]
# Fields of model configs, by the range of their values. Each config has only some of the fields.
# The largest values are far above those of published models. They reject numbers whose layers or
# tables no machine can build, before anything is allocated.
_WIDTHS = ("d_model", "d_head", "d_value", "d_embed", "hidden_size", "representation_size")
POSITIVE: dict[str, int] = {  # largest value by name
    **dict.fromkeys(("n_layers", "n_decoder_layers", "lstm_layers", "image_n_layers"), 1024),
    **dict.fromkeys(("n_heads", "image_n_heads", "decoder_n_heads", "n_channels"), 4096),
    **dict.fromkeys((*_WIDTHS, "image_d_model", "decoder_d_model"), 2**20),
    **dict.fromkeys(("n_buckets", "max_distance"), 2**20),
    **dict.fromkeys(("d_ff", "image_d_ff", "decoder_d_ff", "max_len", "window"), 2**22),
    **dict.fromkeys(("vocab_size", "n_classes"), 2**24),
    **dict.fromkeys(("image_size", "patch_size"), 2**14),
}
NOT_NEGATIVE = {
    "n_segments": 2**16,
    "lstm_width": 2**20,
    **dict.fromkeys(("eos_id", "decoder_start_token_id"), 2**24),
}
FRACTIONS = ("norm_eps", "dropout", "attn_dropout", "ff_dropout", "drop_path", "head_dropout")


@dataclass(frozen=True)
class ModelConfig:
    """Base class of the configs of all models, whose constructor checks the fields.

    The constructor checks the type of every field. It also checks the range of each field whose
    name is in one of the constants `POSITIVE` (from 1), `NOT_NEGATIVE` (from 0), both with their
    largest values, and `FRACTIONS` (from 0, below 1) of this module. A subclass checks the ranges
    of its other fields.

    Raises:
        InputError: A field has a value outside its type or range.
    """

    def __post_init__(self) -> None:
        check_types(self)
        values = vars(self)
        for name, maximum in POSITIVE.items():
            check_positive(name, values.get(name), maximum)
        for name, maximum in NOT_NEGATIVE.items():
            check_range(name, values.get(name, 0) or 0, minimum=0, maximum=maximum)
        for name in FRACTIONS:
            check_range(name, values.get(name, 0.0), minimum=0.0, below=1.0)


@dataclass(frozen=True)
class TransformerConfig(ModelConfig):
    """Shape and components of a stack of transformer blocks.

    Args:
        d_model: Width D of the residual stream.
        n_layers: Number of blocks N.
        n_heads: Number of attention heads H.
        d_head: Width of a query and key per head; None means d_model / n_heads.
        d_value: Width of a value per head; None means d_head (the two widths differ in Table 3,
            rows B, of Vaswani et al. 2017).
        d_ff: Hidden width of the feed-forward layer.
        activation: relu, gelu (exact), gelu_tanh (approximation in GPT-2 and the original BERT),
            quick_gelu (approximation in CLIP) or silu.
        feed_forward: mlp (two matrices) or glu (gated, three matrices; Shazeer 2020).
        norm: layer (LayerNorm) or rms (RMSNorm).
        norm_placement: post (Vaswani, BERT, GPT-1) or pre (GPT-2, ViT).
        norm_eps: Number that a norm adds to the variance: 1e-12 in BERT, 1e-5 in GPT-2, 1e-6 in
            tensor2tensor and ViT.
        bias: Learn a bias in matrices and norms.
        attn_scale: Factor on the attention scores; None means 1 / sqrt(d_head).
        window: Self-attention of each token is restricted to the tokens that are less than `window`
            positions away: `window` tokens in a decoder, 2 * window - 1 in an encoder, including
            the token itself. Class and distillation tokens of an image see all tokens, and all
            tokens see them. None means full attention.
        dropout: Dropout probability of embeddings and of the output of each sub-layer (Vaswani et
            al. 2017, section 5.4).
        attn_dropout: Dropout probability of attention weights (BERT, GPT).
        ff_dropout: Dropout probability inside the feed-forward layer (tensor2tensor, ViT).
        drop_path: Probability of skipping a sub-layer of the last block in training. The
            probability grows linearly over the blocks, from 0 in the first one (Huang et al. 2016;
            DeiT).

    Raises:
        InputError: A field has a value outside its choices or its range.
    """

    d_model: int = 512
    n_layers: int = 6
    n_heads: int = 8
    d_head: int | None = None
    d_value: int | None = None
    d_ff: int = 2048
    activation: Activation = "relu"
    feed_forward: Literal["mlp", "glu"] = "mlp"
    norm: Literal["layer", "rms"] = "layer"
    norm_placement: Literal["post", "pre"] = "post"
    norm_eps: float = 1e-6
    bias: bool = True
    attn_scale: float | None = None
    window: int | None = None
    dropout: float = 0.1
    attn_dropout: float = 0.0
    ff_dropout: float = 0.0
    drop_path: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        head_width(self.d_model, self.n_heads, self.d_head)

    @property
    def head_width(self) -> int:
        """Width of a query and key per head."""
        return head_width(self.d_model, self.n_heads, self.d_head)

    @property
    def value_width(self) -> int:
        """Width of a value per head."""
        return self.d_value or self.head_width


def head_width(d_model: int, n_heads: int, d_head: int | None) -> int:
    """Return the width of an attention head: `d_head`, or d_model / n_heads if `d_head` is None.

    Raises:
        InputError: `d_head` is None, and `d_model` is not divisible by `n_heads`.
    """
    if d_head is None and d_model % n_heads:
        message = f"must be divisible by n_heads ({n_heads}) unless d_head is given, got {d_model}"
        raise InputError(message, option="d_model")
    return d_head or d_model // n_heads


def require_sizes(config: Any) -> None:
    """Raise InputError if the config of a model has a field vocab_size or n_classes that is None.

    A config file may omit these fields. Commands with a dataset then set the fields before they
    call this function.
    """
    for name in ("vocab_size", "n_classes"):
        if getattr(config, name, 0) is None:
            raise InputError("must be given: no dataset can fill it in", option=name)
