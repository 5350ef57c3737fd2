"""torch as a benchmark peer: nn.Transformer and nn.TransformerEncoder as in torch's tutorials.

Embeddings are tied. Encoder and decoder end with a norm that fourfold's post-norm stacks lack.
Shapes: B rows, T tokens, D width, V vocabulary.
"""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fourfold.losses import IGNORE_INDEX
from scripts.benchmarks.contenders import Contender
from scripts.benchmarks.workloads import Shape


class Encoder(nn.Module):
    """Masked LM around nn.TransformerEncoder, with BERT's embeddings and head."""

    def __init__(self, shape: Shape, dropout: float) -> None:
        super().__init__()
        width = shape.d_model
        self.tokens = nn.Embedding(shape.n_out, width)
        self.positions = nn.Embedding(shape.length, width)
        nn.init.normal_(self.tokens.weight, std=0.02)
        self.norm = nn.LayerNorm(width)
        self.dropout = nn.Dropout(dropout)
        layer = nn.TransformerEncoderLayer(
            width, shape.n_heads, shape.d_ff, dropout, activation="gelu", batch_first=True
        )
        self.encoder = nn.TransformerEncoder(layer, shape.n_layers)
        self.head = nn.Sequential(nn.Linear(width, width), nn.GELU(), nn.LayerNorm(width))
        self.bias = nn.Parameter(torch.zeros(shape.n_out))

    def forward(self, ids: Tensor) -> Tensor:
        """Return logits (B, T, V)."""
        positions = torch.arange(ids.shape[1], device=ids.device)
        x = self.dropout(self.norm(self.tokens(ids) + self.positions(positions)))
        return F.linear(self.head(self.encoder(x)), self.tokens.weight, self.bias)


class EncoderDecoder(nn.Module):
    """Translation model around nn.Transformer, with sinusoidal positions."""

    sinusoids: Tensor

    def __init__(self, shape: Shape, dropout: float) -> None:
        super().__init__()
        width = shape.d_model
        self.tokens = nn.Embedding(shape.n_out, width)
        self.dropout = nn.Dropout(dropout)
        nn.init.normal_(self.tokens.weight, std=width**-0.5)
        self.transformer = nn.Transformer(
            width,
            shape.n_heads,
            shape.n_layers,
            shape.n_layers,
            shape.d_ff,
            dropout,
            batch_first=True,
        )
        positions = torch.arange(shape.max_len)[:, None]
        angles = positions * 10000 ** (-torch.arange(0, width, 2) / width)  # (T, D / 2)
        self.register_buffer("sinusoids", torch.cat([angles.sin(), angles.cos()], dim=1))

    def embed(self, ids: Tensor) -> Tensor:
        """Embed tokens (B, T) as (B, T, D)."""
        x = self.tokens(ids) * self.tokens.embedding_dim**0.5
        return self.dropout(x + self.sinusoids[: ids.shape[1]])

    def forward(self, src: Tensor, tgt: Tensor, src_mask: Tensor) -> Tensor:
        """Return logits (B, T, V)."""
        causal = nn.Transformer.generate_square_subsequent_mask(tgt.shape[1], device=tgt.device)
        h = self.transformer(
            self.embed(src),
            self.embed(tgt),
            tgt_mask=causal,
            tgt_is_causal=True,
            src_key_padding_mask=~src_mask,
            memory_key_padding_mask=~src_mask,
        )
        return F.linear(h, self.tokens.weight)


def masked_lm(shape: Shape, dropout: float) -> Contender:
    """Build an encoder with logits at all positions."""
    return Contender(Encoder(shape, dropout), _masked_loss)


def encoder_decoder(shape: Shape, dropout: float) -> Contender:
    """Build an encoder-decoder; the loss ignores padding."""
    return Contender(EncoderDecoder(shape, dropout), _pair_loss)


def _set_fast_path(x: Tensor) -> None:
    """Disable the fast path of evaluation under autocast, where it fails on a CPU."""
    torch.backends.mha.set_fastpath_enabled(not torch.is_autocast_enabled(x.device.type))


def _masked_loss(model: Any, batch: Any) -> Tensor:
    _set_fast_path(batch.ids)
    logits = model(batch.ids)
    return F.cross_entropy(logits.flatten(0, 1), batch.targets.flatten(), ignore_index=IGNORE_INDEX)


def _pair_loss(model: Any, batch: Any) -> Tensor:
    _set_fast_path(batch.src)
    labels = batch.tgt[:, 1:].masked_fill(~batch.tgt_mask[:, 1:], IGNORE_INDEX)
    logits = model(batch.src, batch.tgt[:, :-1], batch.src_mask)
    return F.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=IGNORE_INDEX)


FAMILIES: dict[str, Callable[[Shape, float], Contender]] = {
    "masked_lm": masked_lm,
    "encoder_decoder": encoder_decoder,
}
