"""torch's own nn.Transformer and nn.TransformerEncoder, with what its tutorials put around them.

Embeddings are tied as in ours. Its encoder and decoder end with a norm that ours have not.
Shapes: B rows, T tokens, D width, V words.
"""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fourfold.bench.shapes import Shape
from fourfold.bench.ways import Way
from fourfold.losses import IGNORED


class Encoder(nn.Module):
    """A masked LM around nn.TransformerEncoder, with BERT's embeddings and head."""

    def __init__(self, shape: Shape, dropout: float) -> None:
        super().__init__()
        width = shape.d_model
        self.words = nn.Embedding(shape.n_out, width)
        self.places = nn.Embedding(shape.length, width)
        nn.init.normal_(self.words.weight, std=0.02)
        self.norm, self.dropout = nn.LayerNorm(width), nn.Dropout(dropout)
        layer = nn.TransformerEncoderLayer(
            width, shape.n_heads, shape.d_ff, dropout, activation="gelu", batch_first=True
        )
        self.encoder = nn.TransformerEncoder(layer, shape.n_layers)
        self.head = nn.Sequential(nn.Linear(width, width), nn.GELU(), nn.LayerNorm(width))
        self.bias = nn.Parameter(torch.zeros(shape.n_out))

    def forward(self, ids: Tensor) -> Tensor:
        """Logits (B, T, V)."""
        places = torch.arange(ids.shape[1], device=ids.device)
        x = self.dropout(self.norm(self.words(ids) + self.places(places)))
        return F.linear(self.head(self.encoder(x)), self.words.weight, self.bias)


class EncoderDecoder(nn.Module):
    """A translator around nn.Transformer, with sinusoidal positions."""

    waves: Tensor

    def __init__(self, shape: Shape, dropout: float) -> None:
        super().__init__()
        width = shape.d_model
        self.words, self.dropout = nn.Embedding(shape.n_out, width), nn.Dropout(dropout)
        nn.init.normal_(self.words.weight, std=width**-0.5)
        self.transformer = nn.Transformer(
            width, shape.n_heads, shape.n_layers, shape.n_layers, shape.d_ff, dropout,
            batch_first=True,
        )  # fmt: skip
        places = torch.arange(shape.max_len)[:, None]
        angles = places * 10000 ** (-torch.arange(0, width, 2) / width)  # (T, D / 2)
        self.register_buffer("waves", torch.cat([angles.sin(), angles.cos()], dim=1))

    def embed(self, ids: Tensor) -> Tensor:
        """(B, T) to (B, T, D)."""
        x = self.words(ids) * self.words.embedding_dim**0.5
        return self.dropout(x + self.waves[: ids.shape[1]])

    def forward(self, src: Tensor, tgt: Tensor, src_mask: Tensor) -> Tensor:
        """Logits (B, T, V)."""
        causal = nn.Transformer.generate_square_subsequent_mask(tgt.shape[1], device=tgt.device)
        h = self.transformer(
            self.embed(src), self.embed(tgt), tgt_mask=causal, tgt_is_causal=True,
            src_key_padding_mask=~src_mask, memory_key_padding_mask=~src_mask,
        )  # fmt: skip
        return F.linear(h, self.words.weight)


def masked_lm(shape: Shape, dropout: float) -> Way:
    """Logits at all places, and a plain cross-entropy."""
    return Way(Encoder(shape, dropout), _hidden_loss)


def encoder_decoder(shape: Shape, dropout: float) -> Way:
    """A plain cross-entropy that leaves padding out."""
    return Way(EncoderDecoder(shape, dropout), _pair_loss)


def _choose_path(x: Tensor) -> None:
    """Its fast path of evaluation fails under autocast on a CPU: it is taken where it works."""
    torch.backends.mha.set_fastpath_enabled(not torch.is_autocast_enabled(x.device.type))


def _hidden_loss(model: Any, batch: Any) -> Tensor:
    _choose_path(batch.ids)
    logits = model(batch.ids)
    return F.cross_entropy(logits.flatten(0, 1), batch.targets.flatten(), ignore_index=IGNORED)


def _pair_loss(model: Any, batch: Any) -> Tensor:
    _choose_path(batch.src)
    labels = batch.tgt[:, 1:].masked_fill(~batch.tgt_mask[:, 1:], IGNORED)
    logits = model(batch.src, batch.tgt[:, :-1], batch.src_mask)
    return F.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=IGNORED)


FAMILIES: dict[str, Callable[[Shape, float], Way]] = {
    "masked_lm": masked_lm,
    "encoder_decoder": encoder_decoder,
}
