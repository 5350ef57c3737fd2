"""Ablations of the transformer: a language model and a classifier with a part of its components.

The ladder is a list of models. A rung is a model of this list, selected by the field `rung` of the
config. From the rung none to the rung full, each rung adds one component to the layers of the rung
before it. The order of the components is that of Bishop and Bishop 2024, section 12.1:

    rung             map of a layer, for an input x (B, T, D)
    none             x
    parameter_free   softmax(x x^T) x
    projections      softmax(q k^T) v, with q = W_q x, k = W_k x, v = W_v x
    scaled           softmax(q k^T / sqrt(Dk)) v
    heads            `Attention`: several heads and an output matrix
    residual         x + attention(x)
    norm             x + attention(norm(x)), or norm(x + attention(x))
    full             `Block`: the MLP follows in the same form
    mlp              `Block` without attention, which processes each token separately

The models of the rung full are `CausalLM` and `SequenceClassifier`. Attention uses the mask of the
model on all rungs. Shapes: B batch, T tokens, D model width, Dk width of a query and key.
"""

from dataclasses import dataclass
from typing import Any, Literal

from torch import Tensor, nn

from fourfold.core.attention import Attention, attend, attention_weights, dense_mask
from fourfold.core.block import Block, Stack
from fourfold.core.feed_forward import Linear
from fourfold.core.kv_cache import LayerCache
from fourfold.core.masks import LoweredMask
from fourfold.models.causal_lm.model import CausalLM, CausalLMConfig
from fourfold.models.masked_lm.classifiers import SequenceClassifier, SequenceClassifierConfig

Rung = Literal[
    "none", "parameter_free", "projections", "scaled", "heads", "residual", "norm", "full", "mlp"
]
SINGLE_HEAD = ("parameter_free", "projections", "scaled")
WITHOUT_RESIDUAL = (*SINGLE_HEAD, "heads")
WITHOUT_NORM = ("none", *WITHOUT_RESIDUAL, "residual")


@dataclass(frozen=True)
class LadderLMConfig(CausalLMConfig):
    """Config of a causal LM whose layers have only some components of a transformer block.

    Source: the order of the components in Bishop and Bishop 2024, chapter 12.

    Args:
        rung: Name of the set of components, as listed in `fourfold.models.baselines.ladder`. The
            rungs parameter_free, projections and scaled have one attention head. Its queries and
            keys have the width `d_head`, or D if `d_head` is None. Its values have the width D.
    """

    rung: Rung = "full"


@dataclass(frozen=True)
class LadderClassifierConfig(SequenceClassifierConfig):
    """Config of a sequence classifier whose layers have only some components of a block.

    Source: the order of the components in Bishop and Bishop 2024, chapter 12.

    Args:
        rung: Name of the set of components, as listed in `fourfold.models.baselines.ladder`.
    """

    rung: Rung = "full"


LadderConfig = LadderLMConfig | LadderClassifierConfig


class SingleHead(nn.Module):
    """Attention head without output matrix, for the rungs parameter_free, projections and scaled.

    It has no rotary positions.
    """

    def __init__(self, config: LadderConfig) -> None:
        super().__init__()
        width = config.d_model
        self.scale = config.attn_scale if config.rung == "scaled" else 1.0
        self.dropout = config.attn_dropout
        is_free = config.rung == "parameter_free"

        def projection(d_out: int) -> nn.Module:
            return nn.Identity() if is_free else Linear(width, d_out, bias=config.bias)

        self.q = projection(config.d_head or width)
        self.k = projection(config.d_head or width)
        self.v = projection(width)

    def forward(self, x: Tensor, mask: LoweredMask, cache: LayerCache | None = None) -> Tensor:
        """Compute self-attention of x (B, T, D) with a lowered mask (see `lower_mask`)."""
        q, k, v = (part(x).unsqueeze(1) for part in (self.q, self.k, self.v))  # (B, 1, T, Dk or D)
        if cache is not None:
            k, v = cache.extend(k, v)
        dropout_p = self.dropout if self.training else 0.0
        return attend(
            q, k, v, mask=mask.mask, causal=mask.causal, scale=self.scale, dropout_p=dropout_p
        ).squeeze(1)

    def weights(self, x: Tensor, *, mask: LoweredMask) -> Tensor:
        """Compute the attention weights (B, 1, T, T), in fp32 or fp64, for an input (B, T, D)."""
        q, k = self.q(x).unsqueeze(1), self.k(x).unsqueeze(1)  # (B, 1, T, Dk or D)
        allowed = dense_mask(mask.mask, mask.causal, mask.window, q, k)
        return attention_weights(q, k, mask=allowed, scale=self.scale)


class LadderBlock(Block):
    """Transformer block with the components that `config.rung`, which is not full, selects."""

    def __init__(self, config: LadderConfig, drop_path: float) -> None:
        super().__init__(config, drop_path=drop_path)
        self.rung = config.rung
        if self.rung == "mlp":
            del self.attn_norm, self.attn
        else:
            del self.ff_norm, self.ff
        if self.rung in WITHOUT_NORM:
            self.attn_norm = nn.Identity()
        if self.rung == "none" or self.rung in SINGLE_HEAD:
            del self.attn
        if self.rung in SINGLE_HEAD:
            self.head = SingleHead(config)

    def forward(self, x: Tensor, mask: LoweredMask, **options: Any) -> Tensor:
        """Compute the output (B, T, D) of the block from the arguments of `Block.forward`.

        A memory is ignored, and by a single head also `bias` and `rotation`.
        """
        own = {"mask": mask, **{name: options.get(name) for name in ("bias", "cache", "rotation")}}
        if self.rung == "none":
            return x
        if self.rung == "mlp":
            return self._residual(x, "ff")
        if self.rung in SINGLE_HEAD:
            return self.dropout(self.head(x, mask=mask, cache=own["cache"]))
        if self.rung in WITHOUT_RESIDUAL:
            return self.dropout(self.attn(x, **own))
        return self._residual(x, "attn", **own)


class LadderStack(Stack):
    """Stack whose blocks have only the components that `config.rung` selects."""

    def __init__(self, config: LadderConfig) -> None:
        super().__init__(config)
        last = max(config.n_layers - 1, 1)
        if config.rung != "full":
            rates = [config.drop_path * i / last for i in range(config.n_layers)]
            self.blocks = nn.ModuleList(LadderBlock(config, rate) for rate in rates)
        if config.rung in WITHOUT_NORM:
            self.norm = nn.Identity()


class LadderLM(CausalLM):
    """Causal language model whose layers have only some components of a transformer block.

    Source: the order of the components in Bishop and Bishop 2024, chapter 12.
    """

    attention_classes = (Attention, SingleHead)
    stack_class = LadderStack


class LadderClassifier(SequenceClassifier):
    """Sequence classifier whose layers have only some components of a transformer block.

    Source: the order of the components in Bishop and Bishop 2024, chapter 12. With ``rung="none"``,
    ``positions="none"`` and ``pool="mean"``, the input of the classifier is the mean of the token
    embeddings. With post-norm, the embeddings are normalized on every rung.
    """

    attention_classes = (Attention, SingleHead)
    stack_class = LadderStack
