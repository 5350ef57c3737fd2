"""SigLIP: config fields and tensor names of transformers.

The files of SigLIP 2 for images of one size have the same `model_type`.
"""

from collections.abc import Collection
from typing import Any

from fourfold.errors import InputError
from fourfold.hub.architecture import Architecture, Json, activation_field, field, get_key
from fourfold.hub.keymap import SPLIT_QKV, SQUEEZE_0, Extra, KeyMap, Rule
from fourfold.models import SigLIP, SigLIPConfig
from fourfold.models.contrastive.hub import TEXT, VISION, tower_fields, tower_rules

_HEAD = "vision_model.head."


def _read_width(names: Collection[str], config: Json) -> dict[str, Any]:
    """Return `d_embed`, which is by default the width of the text encoder.

    Raises:
        InputError: The two encoders have embeddings of different widths.
    """
    width = get_key(config, TEXT + "projection_size") or get_key(config, TEXT + "hidden_size", 768)
    image_width = get_key(config, VISION + "hidden_size", 768)
    if width != image_width:
        message = f"must equal vision_config.hidden_size ({image_width}), got {width}"
        raise InputError(message, option=TEXT + "projection_size")
    return {"d_embed": width}


SIGLIP = Architecture(
    model_type="siglip",
    hf_class="SiglipModel",
    model_class=SigLIP,
    config_class=SigLIPConfig,
    fields=(
        *tower_fields("", TEXT, d_model=768, n_heads=12),
        *tower_fields("image_", VISION, d_model=768, n_heads=12),
        field("vocab_size", TEXT + "vocab_size", default=32000),
        field("max_len", TEXT + "max_position_embeddings", default=64),
        field("pad_id", TEXT + "pad_token_id", default=1),
        field("image_size", VISION + "image_size", default=224),
        field("patch_size", VISION + "patch_size", default=16),
        field("n_channels", VISION + "num_channels", default=3),
        activation_field(TEXT + "hidden_act", VISION + "hidden_act", default="gelu_pytorch_tanh"),
        field("norm_eps", TEXT + "layer_norm_eps", VISION + "layer_norm_eps", default=1e-6),
        field(
            "attn_dropout", TEXT + "attention_dropout", VISION + "attention_dropout", default=0.0
        ),
    ),
    implied={"norm_placement": "pre", "dropout": 0.0},
    required={
        TEXT + "model_type": "siglip_text_model",
        VISION + "model_type": "siglip_vision_model",
        VISION + "vision_use_head": True,
    },
    infer=_read_width,
    extra_config=lambda config: {TEXT + "projection_size": config.d_embed},
    keymap=KeyMap(
        Rule("log_scale", "logit_scale", SQUEEZE_0),
        Rule("logit_bias", "logit_bias", SQUEEZE_0),
        Rule("text_embed.tokens.weight", "text_model.embeddings.token_embedding.weight"),
        Rule("text_embed.positions.weight", "text_model.embeddings.position_embedding.weight"),
        *tower_rules("text", "text"),
        Rule("text_stack.norm.{p}", "text_model.final_layer_norm.{p}"),
        Rule("text_projection.{p}", "text_model.head.{p}"),
        Rule("image_embed.patches.{p}", "vision_model.embeddings.patch_embedding.{p}"),
        Rule("image_embed.positions.weight", "vision_model.embeddings.position_embedding.weight"),
        *tower_rules("image", "vision"),
        Rule("image_stack.norm.{p}", "vision_model.post_layernorm.{p}"),
        Rule("image_pool.probe", _HEAD + "probe", SQUEEZE_0),
        *(
            Rule(
                tuple(f"image_pool.attn.{m}.{p}" for m in "qkv"),
                _HEAD + f"attention.in_proj_{p}",
                SPLIT_QKV,
            )
            for p in ("weight", "bias")
        ),
        Rule("image_pool.attn.out.{p}", _HEAD + "attention.out_proj.{p}"),
        Rule("image_pool.norm.{p}", _HEAD + "layernorm.{p}"),
        Rule("image_pool.ff.up.{p}", _HEAD + "mlp.fc1.{p}"),
        Rule("image_pool.ff.down.{p}", _HEAD + "mlp.fc2.{p}"),
        Extra("{tower}.embeddings.position_ids"),
    ),
)
