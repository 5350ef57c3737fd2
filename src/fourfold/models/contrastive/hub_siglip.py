"""SigLIP: config fields and tensor names of transformers.

The files of SigLIP 2 for images of one size have the same `model_type`.
"""

from collections.abc import Collection
from typing import Any

from fourfold.errors import InputError
from fourfold.hub.architecture import Architecture, Json, field, get_key, size_fields
from fourfold.hub.keymap import SPLIT_QKV, SQUEEZE_0, KeyMap, Rule
from fourfold.models import SigLIP, SigLIPConfig
from fourfold.models.contrastive.hub import TEXT, VISION, two_tower_fields, two_tower_rules

_HEAD = "vision_model.head."
_IN_PROJ = _HEAD + "attention.in_proj_"


def _read_width(names: Collection[str], config: Json) -> dict[str, Any]:
    """Return `d_embed`, which is by default the width of the text encoder."""
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
        *size_fields(768, 12, 12, 3072, "", TEXT),
        *size_fields(768, 12, 12, 3072, "image_", VISION),
        *two_tower_fields(32000, 64, patch_size=16, activation="gelu_pytorch_tanh", norm_eps=1e-6),
        field("pad_id", TEXT + "pad_token_id", default=1),
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
        *two_tower_rules(),
        Rule("text_projection.{p}", "text_model.head.{p}"),
        Rule("image_pool.probe", _HEAD + "probe", SQUEEZE_0),
        Rule(tuple(f"image_pool.attn.{m}.weight" for m in "qkv"), _IN_PROJ + "weight", SPLIT_QKV),
        Rule(tuple(f"image_pool.attn.{m}.bias" for m in "qkv"), _IN_PROJ + "bias", SPLIT_QKV),
        Rule("image_pool.attn.out.{p}", _HEAD + "attention.out_proj.{p}"),
        Rule("image_pool.norm.{p}", _HEAD + "layernorm.{p}"),
        Rule("image_pool.ff.up.{p}", _HEAD + "mlp.fc1.{p}"),
        Rule("image_pool.ff.down.{p}", _HEAD + "mlp.fc2.{p}"),
    ),
)
ARCHITECTURES = (SIGLIP,)
