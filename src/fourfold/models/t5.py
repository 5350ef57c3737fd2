"""T5: an encoder-decoder that knows distances instead of positions (Raffel et al. 2019, 2.1).

RMSNorm, no biases, unscaled scores and v1.1's gated layer are settings of the block. New is a
learned number for each head and distance, which enters as the `bias` of the attention scores.
Shapes: B batch, T tokens, S memory tokens, Tq queries, Tk keys, H heads, D model width.
"""

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from fourfold.core.attention import Attention
from fourfold.core.cache import KVCache
from fourfold.core.errors import InputError
from fourfold.core.init import INITS
from fourfold.core.masks import Mask
from fourfold.core.stack import Stack
from fourfold.kernels.dropout import Dropout
from fourfold.models.encoder_decoder import EncoderDecoder, EncoderDecoderConfig


@dataclass(frozen=True)
class T5Config(EncoderDecoderConfig):
    """A T5; the defaults are T5-small, v1.0 (60,506,624 parameters).

    v1.1 has feed_forward glu, activation gelu_tanh, tie embeddings and no scale_output.

    Args:
        n_buckets: Distances that are told apart, in both directions together.
        max_distance: From here on all distances are one.
        scale_output: Whether hidden states are divided by sqrt(d_model) before the output matrix
            (v1.0, where that is the token embedding with its large numbers).
    """

    d_head: int | None = 64
    norm: str = "rms"
    norm_placement: str = "pre"
    bias: bool = False
    attn_scale: float | None = 1.0  # the first weights of the queries have it in them
    attn_dropout: float = 0.1
    ff_dropout: float = 0.1
    vocab_size: int | None = 32128
    max_len: int | None = None
    positions: str = "none"
    embed_scale: bool = False
    init: str = "t5"
    n_buckets: int = 32
    max_distance: int = 128
    scale_output: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 4 <= self.n_buckets < 2 * self.max_distance:
            raise InputError(
                f"n_buckets is {self.n_buckets}, but must be at least 4 and less than twice the"
                f" max_distance {self.max_distance}"
            )


class RelativeBias(nn.Module):
    """One number for each head and bucket of distances (section 2.1).

    Half of a direction's buckets hold one distance each; the others grow in geometric progression
    up to `max_distance`, and the last holds all beyond. With `both_ways` keys may lie ahead, for
    which half of the `n_buckets` are kept.
    """

    def __init__(self, n_heads: int, n_buckets: int, max_distance: int, both_ways: bool) -> None:
        super().__init__()
        self.table = nn.Embedding(n_buckets, n_heads)
        self.max_distance, self.both_ways = max_distance, both_ways

    def forward(self, q_len: int, k_len: int) -> Tensor:
        """(1, H, Tq, Tk); the queries are the last Tq of the Tk places, as masks have it."""
        k = torch.arange(k_len, device=self.table.weight.device)
        values = self.table(self.buckets(k - k[k_len - q_len :, None]))  # (Tq, Tk, H)
        return values.permute(2, 0, 1)[None]

    def buckets(self, ahead: Tensor) -> Tensor:
        """Rows of the table for distances key - query, in the same shape."""
        n = self.table.num_embeddings // (2 if self.both_ways else 1)
        ahead = ahead if self.both_ways else ahead.clamp(max=0)
        away, exact = ahead.abs(), n // 2
        # In fp32 and in this order, as in the authors' code: another rounding would put a distance
        # on a border into another bucket than the one the weights were trained with.
        growth = (away.clamp(min=exact).float() / exact).log() / math.log(self.max_distance / exact)
        far = (exact + (growth * (n - exact)).long()).clamp(max=n - 1)
        return n * (ahead > 0) + torch.where(away < exact, away, far)


class BiasedStack(Stack):
    """A stack whose blocks share one `RelativeBias`, with dropout at its end, as T5 has it.

    On a CPU no fused kernel gives a bias its gradient, so training holds (Tq, Tk) weights there.
    """

    def __init__(
        self, config: T5Config, *, cross_attention: bool = False, n_layers: int | None = None
    ) -> None:
        super().__init__(config, cross_attention=cross_attention, n_layers=n_layers)
        both_ways = not cross_attention  # a decoder looks back only
        self.bias = RelativeBias(config.n_heads, config.n_buckets, config.max_distance, both_ways)
        self.dropout, self.width = Dropout(config.dropout), config.d_model

    def forward(
        self, x: Tensor, mask: Mask = Mask(), *, cache: KVCache | None = None, **memory: Any
    ) -> Tensor:
        """As `Stack.forward`, with a bias of its own, which reaches self-attention only."""
        bias = self.bias(x.shape[1], x.shape[1] if cache is None else cache.length)
        return self.dropout(super().forward(x, mask, bias=bias, cache=cache, **memory))


class T5(EncoderDecoder):
    """Writes a text for a text. The released weights begin one with padding: `bos_id=0, eos_id=1`.

    Padding may stand on either side: it moves all of a row alike, and distances stay.
    """

    stack = BiasedStack
    counts_places = True  # its bias is of how far apart a cache holds two tokens

    def __init__(self, config: T5Config) -> None:
        super().__init__(config)
        self.head.scale = config.d_model**-0.5 if config.scale_output else 1.0


def first_weights(model: nn.Module) -> None:
    """N(0, 1) embeddings; matrices N(0, 1/sqrt(inputs)), queries smaller by sqrt(Dh) (T5's code).

    Scores and logits are then about 1 at the first step, though neither is scaled.
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


INITS["t5"] = first_weights  # the row of a paper stands where its model does
