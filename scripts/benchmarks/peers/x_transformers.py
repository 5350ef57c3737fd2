"""x-transformers as its page shows it, with flash attention switched on.

Its matrices have no biases, its ViT has norms and no class token of its own, and the output matrix
of its encoder-decoder cannot be the embedding: parameters differ by that.
"""

from collections.abc import Callable
from typing import Any

import torch.nn.functional as F
from torch import Tensor

from fourfold.bench.shapes import Shape
from fourfold.bench.ways import Way
from fourfold.losses import IGNORED


def _layers(shape: Shape, dropout: float, prefix: str = "") -> dict[str, Any]:
    layers = {
        "depth": shape.n_layers, "heads": shape.n_heads, "attn_flash": True,
        "attn_dim_head": shape.d_model // shape.n_heads, "attn_dropout": dropout,
        "ff_dropout": dropout,
    }  # fmt: skip
    return {prefix + name: value for name, value in layers.items()}


def causal_lm(shape: Shape, dropout: float) -> Way:
    """A decoder in its AutoregressiveWrapper."""
    from x_transformers import AutoregressiveWrapper, Decoder, TransformerWrapper

    net = TransformerWrapper(
        num_tokens=shape.n_out, max_seq_len=shape.length, emb_dropout=dropout, tie_embedding=True,
        attn_layers=Decoder(dim=shape.d_model, **_layers(shape, dropout)),
    )  # fmt: skip
    return Way(AutoregressiveWrapper(net), _text_loss)


def masked_lm(shape: Shape, dropout: float) -> Way:
    """An encoder with logits at all places, and a plain cross-entropy."""
    from x_transformers import Encoder, TransformerWrapper

    net = TransformerWrapper(
        num_tokens=shape.n_out, max_seq_len=shape.length, emb_dropout=dropout, tie_embedding=True,
        attn_layers=Encoder(dim=shape.d_model, **_layers(shape, dropout)),
    )  # fmt: skip
    return Way(net, _hidden_loss)


def vit(shape: Shape, dropout: float) -> Way:
    """Its ViTransformerWrapper."""
    from x_transformers import Encoder, ViTransformerWrapper

    net = ViTransformerWrapper(
        image_size=shape.length, patch_size=shape.patch_size, num_classes=shape.n_out,
        emb_dropout=dropout, attn_layers=Encoder(dim=shape.d_model, **_layers(shape, dropout)),
    )  # fmt: skip
    return Way(net, _image_loss)


def encoder_decoder(shape: Shape, dropout: float) -> Way:
    """Its XTransformer."""
    from x_transformers import XTransformer

    sides = {
        side + name: value
        for side in ("enc_", "dec_")
        for name, value in (("num_tokens", shape.n_out), ("max_seq_len", shape.max_len))
    }
    net = XTransformer(
        dim=shape.d_model, tie_token_emb=True, **sides, **_layers(shape, dropout, "enc_"),
        **_layers(shape, dropout, "dec_"), enc_emb_dropout=dropout, dec_emb_dropout=dropout,
    )  # fmt: skip
    return Way(net, _pair_loss)


def _text_loss(model: Any, batch: Any) -> Tensor:
    return model(batch.ids)  # it looks one token ahead by itself


def _hidden_loss(model: Any, batch: Any) -> Tensor:
    logits = model(batch.ids)
    return F.cross_entropy(logits.flatten(0, 1), batch.targets.flatten(), ignore_index=IGNORED)


def _image_loss(model: Any, batch: Any) -> Tensor:
    return F.cross_entropy(model(batch.images), batch.labels)


def _pair_loss(model: Any, batch: Any) -> Tensor:
    tgt = batch.tgt.masked_fill(~batch.tgt_mask, IGNORED)
    return model(batch.src, tgt, mask=batch.src_mask)


FAMILIES: dict[str, Callable[[Shape, float], Way]] = {
    "causal_lm": causal_lm,
    "masked_lm": masked_lm,
    "vit": vit,
    "encoder_decoder": encoder_decoder,
}
