"""x-transformers as a benchmark peer, as its README shows it, with flash attention.

Numbers of parameters differ: its linear layers have no biases, its ViT has more norms and no class
token, and its encoder-decoder cannot tie the output matrix to the embedding.
"""

from collections.abc import Callable
from typing import Any

import torch.nn.functional as F
from torch import Tensor

from fourfold.losses import IGNORE_INDEX
from scripts.benchmarks.contenders import Contender
from scripts.benchmarks.workloads import Shape


def _layers(shape: Shape, dropout: float, prefix: str = "") -> dict[str, Any]:
    layers = {
        "depth": shape.n_layers,
        "heads": shape.n_heads,
        "attn_flash": True,
        "attn_dim_head": shape.d_model // shape.n_heads,
        "attn_dropout": dropout,
        "ff_dropout": dropout,
    }
    return {prefix + name: value for name, value in layers.items()}


def causal_lm(shape: Shape, dropout: float) -> Contender:
    """Build a decoder in AutoregressiveWrapper."""
    from x_transformers import AutoregressiveWrapper, Decoder, TransformerWrapper

    net = TransformerWrapper(
        num_tokens=shape.n_out,
        max_seq_len=shape.length,
        emb_dropout=dropout,
        tie_embedding=True,
        attn_layers=Decoder(dim=shape.d_model, **_layers(shape, dropout)),
    )
    return Contender(AutoregressiveWrapper(net), _causal_loss)


def masked_lm(shape: Shape, dropout: float) -> Contender:
    """Build an encoder with logits at all positions."""
    from x_transformers import Encoder, TransformerWrapper

    net = TransformerWrapper(
        num_tokens=shape.n_out,
        max_seq_len=shape.length,
        emb_dropout=dropout,
        tie_embedding=True,
        attn_layers=Encoder(dim=shape.d_model, **_layers(shape, dropout)),
    )
    return Contender(net, _masked_loss)


def vit(shape: Shape, dropout: float) -> Contender:
    """Build ViTransformerWrapper."""
    from x_transformers import Encoder, ViTransformerWrapper

    net = ViTransformerWrapper(
        image_size=shape.length,
        patch_size=shape.patch_size,
        num_classes=shape.n_out,
        emb_dropout=dropout,
        attn_layers=Encoder(dim=shape.d_model, **_layers(shape, dropout)),
    )
    return Contender(net, _image_loss)


def encoder_decoder(shape: Shape, dropout: float) -> Contender:
    """Build XTransformer."""
    from x_transformers import XTransformer

    sides = {
        side + name: value
        for side in ("enc_", "dec_")
        for name, value in (("num_tokens", shape.n_out), ("max_seq_len", shape.max_len))
    }
    net = XTransformer(
        dim=shape.d_model,
        tie_token_emb=True,
        **sides,
        **_layers(shape, dropout, "enc_"),
        **_layers(shape, dropout, "dec_"),
        enc_emb_dropout=dropout,
        dec_emb_dropout=dropout,
    )
    return Contender(net, _pair_loss)


def _causal_loss(model: Any, batch: Any) -> Tensor:
    return model(batch.ids)  # the wrapper shifts the labels


def _masked_loss(model: Any, batch: Any) -> Tensor:
    logits = model(batch.ids)
    return F.cross_entropy(logits.flatten(0, 1), batch.targets.flatten(), ignore_index=IGNORE_INDEX)


def _image_loss(model: Any, batch: Any) -> Tensor:
    return F.cross_entropy(model(batch.images), batch.labels)


def _pair_loss(model: Any, batch: Any) -> Tensor:
    tgt = batch.tgt.masked_fill(~batch.tgt_mask, IGNORE_INDEX)
    return model(batch.src, tgt, mask=batch.src_mask)


FAMILIES: dict[str, Callable[[Shape, float], Contender]] = {
    "causal_lm": causal_lm,
    "masked_lm": masked_lm,
    "vit": vit,
    "encoder_decoder": encoder_decoder,
}
