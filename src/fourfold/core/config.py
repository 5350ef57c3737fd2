"""ModelConfig and TransformerConfig: base classes of model configs, which check their fields.

A family extends `TransformerConfig` with fields of its own (see ``models/``).
"""

import re
from dataclasses import dataclass
from typing import Any, Literal

from fourfold.core.validation import check_choice, check_fields, check_range, check_type, quote
from fourfold.errors import InputError

Activation = Literal["relu", "gelu", "gelu_tanh", "quick_gelu", "silu"]
TextPositions = Literal["none", "learned", "sinusoidal", "sinusoidal_halves"]
Init = Literal["vaswani", "bert", "gpt", "gpt2", "vit", "t5"]
NormPlacement = Literal["post", "pre", "sandwich", "inside"]
QKNorm = Literal["none", "head", "all"]
# Keys of `rope_scaling` that each `rope_type` needs, and those that it may have.
LENGTH = "original_max_position_embeddings"
ROPE_SCALING: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "linear": (("factor",), ()),
    "llama3": (("factor", "low_freq_factor", "high_freq_factor", LENGTH), ()),
    "yarn": (("factor", LENGTH), ("attention_factor", "beta_fast", "beta_slow", "truncate")),
}
# Fields of `TransformerConfig`, each with the fields that must also be given if it is given.
NEEDED = {
    "window_pattern": ("window",),
    "rope_local_theta": ("window", "rope_theta"),
    "rope_scaling": ("rope_theta",),
}


@dataclass(frozen=True)
class ModelConfig:
    """Base class of the configs of all models.

    The constructor raises InputError for a field outside its type or range, see `check_fields`. A
    subclass checks the ranges of its other fields.

    Example:
        >>> @dataclass(frozen=True)
        ... class TinyConfig(ModelConfig):
        ...     d_model: int = 8
        >>> TinyConfig(d_model=0)
        Traceback (most recent call last):
            ...
        fourfold.errors.InputError: d_model must be at least 1, got 0
    """

    def __post_init__(self) -> None:
        check_fields(self)


@dataclass(frozen=True)
class TransformerConfig(ModelConfig):
    """Shape and components of a stack of blocks; the defaults are the base model of Vaswani et al.

    Source: Vaswani et al. 2017, Table 3.

    Args:
        d_model: Width D of the residual stream.
        n_layers: Number of blocks N.
        n_heads: Number of attention heads H.
        n_kv_heads: Number of heads of keys and values, a divisor of H (grouped-query attention,
            Ainslie et al. 2023; 1 is multi-query attention, Shazeer 2019). None means H.
        d_head: Width of a query and key per head; None means d_model / n_heads.
        d_value: Width of a value per head; None means d_head.
        d_ff: Hidden width of the feed-forward layer.
        activation: relu, gelu, gelu_tanh (GPT-2, the original BERT), quick_gelu (CLIP) or silu.
        feed_forward: mlp (two matrices) or glu (gated, three matrices; Shazeer 2020).
        norm: layer (LayerNorm) or rms (RMSNorm).
        norm_placement: post (Vaswani, BERT, GPT-1), pre (GPT-2, ViT, Llama), sandwich (before and
            after each sub-layer, inside the residual connection; Gemma 2) or inside (only after
            each sub-layer, inside the residual connection; OLMo 2).
        norm_eps: Number that a norm adds to the variance (1e-12 in BERT, 1e-5 in GPT-2).
        bias: Learn a bias in matrices and norms.
        qkv_bias: Learn a bias in the projections to queries, keys and values. None means `bias`.
        out_bias: Learn a bias in the output projection of attention. None means `bias`.
        qk_norm: Normalize queries and keys before rotary positions: none, head (each head by
            itself; Qwen3, Gemma 3) or all (all heads together; OLMo 2). The norm is that of `norm`.
        attn_scale: Factor on the attention scores; None means 1 / sqrt(d_head).
        window: Self-attention of each token is restricted to the tokens that are less than `window`
            positions away. Class and distillation tokens of an image see all tokens, and all tokens
            see them. None means full attention.
        window_pattern: Letters that are repeated over the layers: S for a layer with the window, L
            for a layer with full attention. None means S.
        rope_theta: Base of the wavelengths of rotary positions in self-attention (Su et al. 2021),
            10000 in the paper. None means no rotary positions.
        rope_local_theta: Base in layers with a window, where `rope_scaling` then does not apply.
            None means that all layers have the same rotary positions.
        rope_scaling: Change of the wavelengths for longer texts, a dictionary with the key names of
            transformers. Its `rope_type` is linear, llama3 or yarn. None means no change.
        partial_rotary_factor: Share of the channels of a head, the first ones, that are rotated
            (GPT-NeoX, Phi).
        parallel: All sub-layers of a block read the block's input (GPT-J, PaLM).
        layer_scale: Initial value of a learned factor on each channel of the output of each
            sub-layer (Touvron et al. 2021, CaiT). None means no factor.
        dropout: Dropout probability of embeddings and of the output of each sub-layer.
        attn_dropout: Dropout probability of attention weights (BERT, GPT).
        ff_dropout: Dropout probability inside the feed-forward layer (tensor2tensor, ViT).
        drop_path: Probability of skipping a sub-layer in training. It grows linearly from 0 in the
            first block to this value in the last one (Huang et al. 2016; DeiT).

    Example:
        >>> config = TransformerConfig(n_heads=8, n_kv_heads=2, window=128, window_pattern="SSL")
        >>> config.head_width, config.kv_heads
        (64, 2)
        >>> config.windows()
        [128, 128, None, 128, 128, None]
    """

    d_model: int = 512
    n_layers: int = 6
    n_heads: int = 8
    n_kv_heads: int | None = None
    d_head: int | None = None
    d_value: int | None = None
    d_ff: int = 2048
    activation: Activation = "relu"
    feed_forward: Literal["mlp", "glu"] = "mlp"
    norm: Literal["layer", "rms"] = "layer"
    norm_placement: NormPlacement = "post"
    norm_eps: float = 1e-6
    bias: bool = True
    qkv_bias: bool | None = None
    out_bias: bool | None = None
    qk_norm: QKNorm = "none"
    attn_scale: float | None = None
    window: int | None = None
    window_pattern: str | None = None
    rope_theta: float | None = None
    rope_local_theta: float | None = None
    rope_scaling: dict[str, Any] | None = None
    partial_rotary_factor: float = 1.0
    parallel: bool = False
    layer_scale: float | None = None
    dropout: float = 0.1
    attn_dropout: float = 0.0
    ff_dropout: float = 0.0
    drop_path: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        head_width(self.d_model, self.n_heads, self.d_head)
        if self.n_heads % self.kv_heads:
            message = f"must divide n_heads ({self.n_heads}), got {self.n_kv_heads}"
            raise InputError(message, option="n_kv_heads")
        if self.parallel and self.norm_placement == "post":
            raise InputError("must not be post if parallel is true", option="norm_placement")
        if self.window_pattern is not None and not re.fullmatch("[SL]+", self.window_pattern):
            message = f"must consist of the letters S and L, got {quote(self.window_pattern)!r}"
            raise InputError(message, option="window_pattern")
        for name, needed in NEEDED.items():
            for other in needed if getattr(self, name) is not None else ():
                if getattr(self, other) is None:
                    raise InputError(f"must be given with {name}, got None", option=other)
        _check_rotary(self)

    @property
    def head_width(self) -> int:
        """Width of a query and key per head."""
        return head_width(self.d_model, self.n_heads, self.d_head)

    @property
    def rotary_width(self) -> int:
        """Number of channels of a head that rotary positions rotate."""
        return int(self.head_width * self.partial_rotary_factor)

    @property
    def value_width(self) -> int:
        """Width of a value per head."""
        return self.d_value or self.head_width

    @property
    def kv_heads(self) -> int:
        """Number of heads of keys and values."""
        return self.n_kv_heads or self.n_heads

    def windows(self) -> list[int | None]:
        """Return the window of each layer, None for a layer with full attention."""
        pattern = self.window_pattern or "S"
        letters = (pattern[i % len(pattern)] for i in range(self.n_layers))
        return [self.window if letter == "S" else None for letter in letters]


def head_width(d_model: int, n_heads: int, d_head: int | None) -> int:
    """Return `d_head`, or if it is None d_model / n_heads (InputError unless this is an integer).

    Example:
        >>> head_width(512, 8, None), head_width(512, 8, 128)
        (64, 128)
    """
    if d_head is None and d_model % n_heads:
        message = f"must be divisible by n_heads ({n_heads}) unless d_head is given, got {d_model}"
        raise InputError(message, option="d_model")
    return d_head or d_model // n_heads


def _check_rotary(config: TransformerConfig) -> None:
    """Raise InputError if a config has impossible rotary positions."""
    part = config.partial_rotary_factor
    check_range("partial_rotary_factor", part, above=0.0, maximum=1.0)
    if config.rope_theta is not None and (config.rotary_width % 2 or not config.rotary_width):
        message = f"must give an even number of rotated channels, got {config.rotary_width}"
        raise InputError(message, option="d_head" if part == 1 else "partial_rotary_factor")
    if config.rope_scaling is None:
        return
    kind = config.rope_scaling.get("rope_type")
    check_choice("rope_scaling.rope_type", kind, tuple(ROPE_SCALING))
    needed, others = ROPE_SCALING[str(kind)]
    values = {key: value for key, value in config.rope_scaling.items() if key != "rope_type"}
    for key in (*values, *needed):
        check_choice("rope_scaling", key, (*needed, *others))
        check_type(f"rope_scaling.{key}", values.get(key), bool if key == "truncate" else float)
