"""T5: an encoder-decoder with relative position biases (Raffel et al. 2019, section 2.1).

RMSNorm, linear layers without biases, unscaled attention scores and the gated feed-forward layer of
v1.1 are options of the transformer block of all families. The relative position bias is passed to
attention as the argument `bias`.
Shapes: B batch, T tokens, S memory tokens, Tq queries, Tk keys, H heads, D model width.
"""

import math
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from fourfold.core.attention import Attention
from fourfold.core.block import Stack
from fourfold.core.config import Init, NormPlacement, TextPositions
from fourfold.core.kv_cache import KVCache
from fourfold.core.masks import Mask
from fourfold.errors import InputError
from fourfold.kernels.dropout import Dropout
from fourfold.layers.init import INITS
from fourfold.models.encoder_decoder.model import EncoderDecoder, EncoderDecoderConfig


@dataclass(frozen=True)
class T5Config(EncoderDecoderConfig):
    """Config of a T5; the defaults are T5-small, v1.0 (60,506,624 parameters).

    Source: Raffel et al. 2019. T5 v1.1 has feed_forward="glu", activation="gelu_tanh",
    tie_embeddings="embeddings" and scale_output=False.

    Args:
        n_buckets: Number of buckets of distances between query and key. In the encoder, half of the
            buckets are for keys after the query. In the decoder, all buckets are for keys at or
            before the query.
        max_distance: Distance from which on all distances are in the last bucket.
        scale_output: Divide hidden states by sqrt(d_model) before the output matrix (v1.0, whose
            tied token embedding has entries of variance 1).
    """

    d_head: int | None = 64
    norm: Literal["layer", "rms"] = "rms"
    norm_placement: NormPlacement = "pre"
    bias: bool = False
    attn_scale: float | None = 1.0  # the initial query weights are scaled instead
    attn_dropout: float = 0.1
    ff_dropout: float = 0.1
    vocab_size: int | None = 32128
    max_len: int | None = None
    positions: TextPositions = "none"
    embed_scale: bool = False
    init: Init = "t5"
    n_buckets: int = 32
    max_distance: int = 128
    scale_output: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 4 <= self.n_buckets < 2 * self.max_distance:
            message = f"must be at least 4 and less than twice max_distance ({self.max_distance})"
            raise InputError(f"{message}, got {self.n_buckets}", option="n_buckets")


class RelativeBias(nn.Module):
    """Learned bias for each head and bucket of relative positions (Raffel et al. 2019, 2.1).

    A bucket is a range of distances between query and key. In each direction, the first half of the
    buckets hold one distance each. The widths of the other buckets grow geometrically. All
    distances from `max_distance` on are in the last bucket. If keys may come after the query
    (`bidirectional`, in an encoder), half of the buckets are for such keys.
    """

    def __init__(
        self, n_heads: int, n_buckets: int, max_distance: int, *, bidirectional: bool
    ) -> None:
        super().__init__()
        self.table = nn.Embedding(n_buckets, n_heads)
        self.max_distance = max_distance
        self.bidirectional = bidirectional

    def forward(self, q_len: int, k_len: int) -> Tensor:
        """Return the bias (1, H, Tq, Tk) for the last `q_len` tokens as queries, all as keys."""
        k = torch.arange(k_len, device=self.table.weight.device)
        values = self.table(self.buckets(k - k[k_len - q_len :, None]))  # (Tq, Tk, H)
        return values.permute(2, 0, 1)[None]

    def buckets(self, relative_positions: Tensor) -> Tensor:
        """Return the row of `table` for each position of a key relative to a query."""
        n = self.table.num_embeddings // (2 if self.bidirectional else 1)
        if not self.bidirectional:
            relative_positions = relative_positions.clamp(max=0)
        distance = relative_positions.abs()
        exact = n // 2  # number of buckets with one distance each
        # In fp32 and in this order, as in the authors' code: another rounding would move a distance
        # at a boundary to another bucket than the one that the weights were trained with.
        ratio = distance.clamp(min=exact).float() / exact
        growth = ratio.log() / math.log(self.max_distance / exact)
        large = (exact + (growth * (n - exact)).long()).clamp(max=n - 1)
        return n * (relative_positions > 0) + torch.where(distance < exact, distance, large)


class BiasedStack(Stack):
    """Encoder or decoder of T5: a stack whose blocks share one learned relative position bias.

    A dropout layer follows the last block. torch's fused attention kernel for CPUs computes no
    gradient of a bias. Training on a CPU therefore stores the attention weights of all pairs.
    """

    def __init__(self, config: T5Config, *, cross_attention: bool = False) -> None:
        super().__init__(config, cross_attention=cross_attention)
        self.bias = RelativeBias(
            config.n_heads, config.n_buckets, config.max_distance, bidirectional=not cross_attention
        )
        self.dropout = Dropout(config.dropout)
        self.width = config.d_model

    def forward(
        self, x: Tensor, mask: Mask = Mask(), *, cache: KVCache | None = None, **memory: Any
    ) -> Tensor:
        """Run `Stack.forward` with the relative bias on the scores of self-attention."""
        bias = self.bias(x.shape[1], x.shape[1] if cache is None else cache.length)
        return self.dropout(super().forward(x, mask, bias=bias, cache=cache, **memory))


def init_t5(model: nn.Module) -> None:
    """Initialize the weights of a T5 in place, with the distributions of the authors' code.

    The standard deviation is 1 for embeddings, 1 / sqrt(input width) for matrices, 1 / sqrt(D) for
    relative biases, and 1 / sqrt(input width * head width) for query projections, because attention
    scores are not scaled. Biases of linear layers are 0.
    """
    for module in model.modules():
        if isinstance(module, nn.Linear):
            nn.init.normal_(module.weight, std=module.in_features**-0.5)
            if module.bias is not None:
                nn.init.zeros_(module.bias)
        elif isinstance(module, nn.Embedding):
            nn.init.normal_(module.weight)
    for module in model.modules():
        if isinstance(module, Attention):
            module.q.weight.data.mul_((module.q.out_features // module.n_heads) ** -0.5)
        elif isinstance(module, BiasedStack):
            nn.init.normal_(module.bias.table.weight, std=module.width**-0.5)


class T5(EncoderDecoder):
    """T5: an encoder-decoder with relative position biases (Raffel et al. 2019, section 2.1).

    With the released weights, decoding starts with the padding token: `bos_id=0, eos_id=1`. Padding
    may be on either side of a text, because only the distances between its tokens matter.
    """

    stack_class = BiasedStack
    inits: ClassVar = {**INITS, "t5": init_t5}
    has_relative_positions = True

    def __init__(self, config: T5Config) -> None:
        super().__init__(config)
        self.head.scale = config.d_model**-0.5 if config.scale_output else 1.0
