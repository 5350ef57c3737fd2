"""What a stack of blocks is made of, as one flat description.

Defaults are the base model of Vaswani et al. 2017, Table 3. A family adds its own few fields by
extending this class (see ``models/``); `Block` and `Stack` read only what stands here.
"""

from dataclasses import dataclass, fields
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin

from fourfold.core.errors import InputError

LARGEST = 2**31 - 1  # no size of a model is greater, and torch counts no further than its square
WORDS = {
    "activation": ("relu", "gelu", "gelu_tanh", "quick_gelu", "silu"),
    "feed_forward": ("mlp", "glu"),
    "norm": ("layer", "rms"),
    "norm_placement": ("post", "pre"),
}


@dataclass(frozen=True)
class ModelConfig:
    """What a model is made from."""


@dataclass(frozen=True)
class TransformerConfig(ModelConfig):
    """Shape and parts of a stack of transformer blocks.

    Args:
        d_model: Width D of the residual stream.
        n_layers: Number of blocks N.
        n_heads: Number of attention heads H.
        d_head: Width of a query and key per head; None means d_model / n_heads.
        d_value: Width of a value per head; None means d_head (differs in Vaswani Table 3 B).
        d_ff: Hidden width of the feed-forward layer.
        activation: relu, gelu (exact), gelu_tanh (approximate: GPT-2, original BERT), quick_gelu
            (cruder: CLIP), silu.
        feed_forward: mlp (two matrices) or glu (gated, three matrices; Shazeer 2020).
        norm: layer (LayerNorm) or rms (RMSNorm).
        norm_placement: post (Vaswani, BERT, GPT-1) or pre (GPT-2, ViT).
        norm_eps: Added to the variance: 1e-12 BERT, 1e-5 GPT-2, 1e-6 tensor2tensor and ViT.
        bias: Whether matrices and norms carry a bias.
        attn_scale: Factor on the scores; None means 1 / sqrt(d_head).
        dropout: On the output of each sub-layer and on embeddings (Vaswani 5.4).
        attn_dropout: On attention weights (BERT, GPT; not in Vaswani).
        ff_dropout: Inside the feed-forward layer, after the activation (tensor2tensor, ViT).
        drop_path: Probability to skip the last block's sub-layers; grows linearly from 0
            over the depth (Huang et al. 2016; DeiT).

    Raises:
        InputError: A word, size or probability that no model can have.
    """

    d_model: int = 512
    n_layers: int = 6
    n_heads: int = 8
    d_head: int | None = None
    d_value: int | None = None
    d_ff: int = 2048
    activation: str = "relu"
    feed_forward: str = "mlp"
    norm: str = "layer"
    norm_placement: str = "post"
    norm_eps: float = 1e-6
    bias: bool = True
    attn_scale: float | None = None
    dropout: float = 0.1
    attn_dropout: float = 0.0
    ff_dropout: float = 0.0
    drop_path: float = 0.0

    def __post_init__(self) -> None:
        check_types(self)
        for field, words in WORDS.items():
            check_word(field, getattr(self, field), words)
        for field in ("d_model", "n_layers", "n_heads", "d_ff", "d_head", "d_value"):
            check_positive(field, getattr(self, field))
        for field in ("norm_eps", "dropout", "attn_dropout", "ff_dropout", "drop_path"):
            if not 0.0 <= getattr(self, field) < 1.0:
                raise InputError(f"{field} is {getattr(self, field)}, but must lie in [0, 1)")
        if self.d_head is None and self.d_model % self.n_heads:
            raise InputError(
                f"d_model {self.d_model} is not divisible by n_heads {self.n_heads}; "
                "change one of them or give d_head"
            )

    @property
    def head_width(self) -> int:
        """Width of a query and key per head."""
        return self.d_head or self.d_model // self.n_heads

    @property
    def value_width(self) -> int:
        """Width of a value per head."""
        return self.d_value or self.head_width


def check_types(config: Any) -> None:
    """Raise InputError where a field holds another kind of value than it is declared to.

    What is typed has been looked at by then; what a checkpoint or a config.json says has not.
    """
    for field in fields(config):
        check_type(field.name, getattr(config, field.name), field.type)


def check_type(name: str, value: object, declared: Any) -> None:
    """Raise InputError unless `value` is of a declared type, such as `int | None`."""
    several = get_args(declared) if get_origin(declared) in (Union, UnionType) else (declared,)
    kinds = [get_origin(kind) or kind for kind in several if get_origin(kind) is not Literal]
    kinds += [int] * (float in kinds) + [list] * (tuple in kinds)
    wrong = isinstance(value, bool) and bool not in kinds
    words = [word for kind in several if get_origin(kind) is Literal for word in get_args(kind)]
    if value not in words and (wrong or not isinstance(value, tuple(kinds))):
        names = [*words, *(kind.__name__ for kind in kinds if kind is not type(None))]
        raise InputError(
            f"{name} is {str(value)[:80]!r}, but must be of the kind {' or '.join(names)}"
        )


def refuse_open(config: Any) -> None:
    """Raise InputError where a config leaves to data what there are no data to tell."""
    for name in ("vocab_size", "n_classes"):
        if getattr(config, name, 0) is None:
            raise InputError(f"{name} is missing")


def check_word(field: str, value: object, words: tuple[str, ...]) -> None:
    """Raise InputError unless `value` is one of `words`."""
    if value not in words:
        raise InputError(f"{field} is {value!r}, but must be one of {', '.join(words)}")


def check_positive(field: str, value: int | None) -> None:
    """Raise InputError unless `value` is None (left to a default) or a number that can be built."""
    if value is not None and value < 1:
        raise InputError(f"{field} is {value}, but must be at least 1")
    if value is not None and value > LARGEST:
        raise InputError(f"{field} is {value}, but must be at most {LARGEST}")
