"""Options of timm's ViTs that the tensors do not show, and options that fourfold does not have."""

import re
from collections.abc import Collection
from typing import Any

from fourfold.core.feed_forward import ACTIVATIONS
from fourfold.errors import InputError
from fourfold.hub.architecture import Json, get_key
from fourfold.hub.directory import CONFIG_FILE

_NORM_EPS = 1e-6
_ACT_LAYER = "model_args.act_layer"
_GELU = "the exact GELU, as in all but a few of timm's models"
# Settings of timm's architectures that neither the tensors nor config.json show, by regular
# expressions of their names. A setting in `model_args` has precedence.
_BY_NAME: dict[str, dict[str, Any]] = {
    "_clip_": {"norm_eps": 1e-5},
    "_quickgelu_": {"activation": "quick_gelu"},
    "_(base_patch32|giantopt_patch16|so400m_patch16)_siglip_|_large_patch16_siglip_(gap_)?512": {
        "activation": "gelu_tanh"
    },
    "_giant_patch14_(reg._)?(dinov2|tipsv2)": {"activation": "silu", "n_heads": 24},
    "_rpn_": {"norm_placement": "inside"},
    "_base_patch16_gap_": {"n_heads": 16},
    "^test_vit": {"n_heads": 2},
    "^test_vit4": {"n_heads": 3},
}
# Options without a counterpart in fourfold, by the beginnings of the names of their tensors.
_UNSUPPORTED = {
    "attn_pool.": "global_pool",
    "patch_embed.norm.": "embed_norm_layer",
    "blocks.0.attn.norm.": "scale_attn_norm",
    "blocks.0.mlp.norm.": "scale_mlp_norm",
    "blocks.0.attn.lambda_": "attn_layer",
    "blocks.0.in_": "block_fn",
    "blocks.0.attns.": "block_fn",
}
# Allowed values of settings that tensor names and shapes do not show.
ALLOWED: dict[str, tuple[Any, ...]] = {
    _ACT_LAYER: (None, *ACTIVATIONS),
    "model_args.pool_include_prefix": (None, False),
    **dict.fromkeys(
        ("model_args.mlp_layer", "model_args.attn_layer", "model_args.block_fn"), (None,)
    ),
}
# Width of a head, and largest number of heads, in all but two of timm's plain ViTs.
_HEAD_WIDTH = 64
_MAX_HEADS = 16


def check_supported(names: Collection[str]) -> None:
    """Raise InputError if the names of tensors show an option that fourfold does not have."""
    for prefix, option in _UNSUPPORTED.items():
        if any(name.startswith(prefix) for name in names):
            message = f"is not supported if it has tensors {prefix}*"
            raise InputError(message, option=f"model_args.{option}")
    if "blocks.0.attn.proj.bias" not in names:
        raise InputError("must be true", option="model_args.proj_bias")
    if "norm.weight" not in names and "fc_norm.weight" not in names:
        raise InputError("must be true", option="model_args.final_norm")


def by_name(settings: Json) -> dict[str, Any]:
    """Return the values of the native config that the name of timm's architecture implies."""
    name, found = str(settings.get("architecture")), dict[str, Any](norm_eps=_NORM_EPS)
    for pattern, values in _BY_NAME.items():
        found |= values if re.search(pattern, name) else {}
    return found


def read_assumed(settings: Json, gated: bool, pre_norm: bool) -> tuple[dict[str, Any], list[str]]:
    """Return native values that tensors do not show, and sentences about those assumed."""
    found, notes = by_name(settings), []
    if get_key(settings, "model_args.norm_layer"):
        found["norm_eps"] = _NORM_EPS
    elif pre_norm and "architecture" not in settings:
        found["norm_eps"] = 1e-5
        notes.append("assumed norm_eps 1e-05, as in timm's models with pre_norm")
    if name := get_key(settings, _ACT_LAYER):
        found["activation"] = name
    elif "activation" not in found:
        found["activation"] = "silu" if gated else "gelu"
        name = "SiLU, as in timm's models with SwiGLU" if gated else _GELU
        notes.append(f"assumed {name}")
    return found, notes


def read_n_heads(settings: Json, d_model: int) -> tuple[int, list[str]]:
    """Read the number of heads from config.json, or assume it with a sentence for the user."""
    n_heads = get_key(settings, "model_args.num_heads", by_name(settings).get("n_heads"))
    if n_heads is not None:
        return n_heads, []
    if d_model % _HEAD_WIDTH:
        message = f"must be in {CONFIG_FILE}, since weights of width {d_model} do not determine"
        raise InputError(f"{message} the number of heads", option="model_args.num_heads")
    n_heads = min(d_model // _HEAD_WIDTH, _MAX_HEADS)
    return n_heads, [f"assumed {n_heads} heads, as in timm's models of width {d_model}"]
