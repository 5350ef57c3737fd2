"""Import and export of ViT, DeiT and DeiT III in the format of timm and of DeiT's releases.

Names and shapes of the tensors imply most of the config.
"""

import math
from collections.abc import Collection, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fourfold.core.validation import ImageSize, height_width
from fourfold.errors import InputError
from fourfold.hub import keymap
from fourfold.hub.architecture import Json, check_allowed, differing_fields, get_key, norm_eps_note
from fourfold.hub.directory import tensor_shape, write_directory
from fourfold.hub.keymap import KeyMap, Rule
from fourfold.layers.image_positions import square_grid
from fourfold.layers.patch_embedding import patch_grid
from fourfold.models import ViT, ViTConfig
from fourfold.models.vit import hub_timm_options as timm

_PATCHES = "patch_embed.proj.weight"
_PREFIX_TOKENS = ("cls_token", "dist_token")
_REGISTERS = "reg_token"
_HEADS = ("head", "head_dist")
_FF = "blocks.0.mlp.fc"
_LAYER_SCALE = 1e-6  # initial value in DeiT III, assumed if config.json does not give it
_POOLS: dict[str, Any] = {"token": "cls", "avg": "mean"}
# Defaults of timm: mean and standard deviation of ImageNet.
_IMAGE_DEFAULTS: dict[str, Any] = {
    "mean": [0.485, 0.456, 0.406],
    "std": [0.229, 0.224, 0.225],
    "crop_pct": 0.875,
    "interpolation": "bicubic",
    "crop_mode": "center",
}


def _keymap(config: ViTConfig, names: Collection[str] = ()) -> KeyMap:
    """Return the key map of a ViT with a certain config; `names` are those of a file, if any."""
    # A class token that no head reads is a register.
    tokens = tuple(name for name in (*_PREFIX_TOKENS, _REGISTERS) if name in names)
    if not tokens:
        tokens = _PREFIX_TOKENS[: config.n_prefix - config.n_registers]
        tokens += (_REGISTERS,) if config.n_registers else ()
    op = keymap.CLASS_AND_REGISTERS if _REGISTERS in tokens else keymap.PREFIX_TOKENS
    block = "stack.blocks.{i}."
    up, gate = block + "ff.up.{p}", block + "ff.gate.{p}"
    layer = "blocks.{i}."
    return KeyMap(
        Rule("embed.prefix", tokens, keymap.SQUEEZE_0 if tokens == (_REGISTERS,) else op),
        Rule("embed.positions.weight", "pos_embed", keymap.SQUEEZE_0),
        Rule("embed.patches.{p}", "patch_embed.proj.{p}"),
        Rule("embed.norm.{p}", "norm_pre.{p}"),
        Rule(keymap.QKV, layer + "attn.qkv.{p}", keymap.SPLIT_QKV),
        *(Rule(block + f"attn.{m}_norm.{{p}}", layer + f"attn.{m}_norm.{{p}}") for m in "qk"),
        Rule(block + "attn.out.{p}", layer + "attn.proj.{p}"),
        Rule(block + "attn_gamma", layer + "ls1.gamma"),
        Rule(block + "ff_gamma", layer + "ls2.gamma"),
        Rule(block + "attn_norm.{p}", layer + "norm1.{p}"),
        # timm packs both matrices (SwiGLUPacked) or does not (SwiGLU).
        Rule((up, gate), layer + "mlp.fc1.{p}", keymap.SPLIT_GATED),
        Rule((up, gate), (layer + "mlp.fc1_g.{p}", layer + "mlp.fc1_x.{p}")),
        Rule(up, layer + "mlp.fc1.{p}"),
        Rule(block + "ff.down.{p}", layer + "mlp.fc2.{p}"),
        Rule(block + "ff_norm.{p}", layer + "norm2.{p}"),
        Rule("stack.norm.{p}", "norm.{p}"),
        Rule("pool_norm.{p}", "fc_norm.{p}"),
        Rule("representation.{p}", "pre_logits.fc.{p}"),  # timm before version 0.6
        *(Rule(f"heads.{n}." + "{p}", head + ".{p}") for n, head in enumerate(_HEADS)),
    )


def read_checkpoint(
    content: Mapping[str, Any], settings: Json, dtype: torch.dtype | None
) -> ViT | None:
    """Build a ViT in eval mode from the content of a file with timm's names; None for others.

    DeiT's releases have the state dict in the entry `model`. `settings` is timm's config.json.

    Raises:
        InputError: Settings or weights are not those of a ViT of timm.
    """
    nested = content.get("model")
    states = (content, nested if isinstance(nested, dict) else {})
    state = next((state for state in states if _PATCHES in state), None)
    if state is None and "architecture" not in settings:
        return None
    tensors = content if state is None else state
    for name, value in tensors.items():
        if not isinstance(value, Tensor):
            raise InputError(f"must be a tensor, got {type(value).__name__}", option=name)
    timm.check_supported(tensors)
    config, notes = _read_config(tensors, settings)
    # A checkpoint without a classifier (`num_classes: 0`) gives a model without heads.
    build = partial(ViT, config, n_heads=sum(f"{head}.weight" in tensors for head in _HEADS))
    model = _keymap(config, tensors).build_model(build, config, tensors, dtype)
    model.artifacts, image_notes = read_image_preprocessing(settings, config)
    model.format_name, model.notes = "timm", notes + image_notes
    return model


def read_image_preprocessing(settings: Json, config: ViTConfig) -> tuple[dict[str, Any], list[str]]:
    """Read the class names and the settings of the evaluation transform from timm's config.json.

    Returns:
        The names and settings, such as `crop_pct`, by key; and a list with a sentence for the user
        for each default that replaces a missing setting.
    """
    pretrained = settings.get("pretrained_cfg") or {}
    given = {key: pretrained[key] for key in _IMAGE_DEFAULTS if pretrained.get(key) is not None}
    values = _IMAGE_DEFAULTS | given
    allowed = {"interpolation": ("bilinear", "bicubic"), "crop_mode": ("center", "squash")}
    check_allowed(values, allowed)
    artifacts = {
        "class_names": settings.get("label_names") or pretrained.get("label_names") or [],
        "image_size": config.image_size,
        "n_channels": config.n_channels,
        **values,
        **({"multi_label": True} if settings.get("multi_label") else {}),
    }
    assumed = [key for key in _IMAGE_DEFAULTS if key not in ("crop_mode", *given)]
    notes = [f"assumed timm's default for images: {key} {values[key]}" for key in assumed]
    return artifacts, notes


def write_model(model: Any, path: Path, artifacts: Json) -> str:
    """Write a directory for `timm.create_model("local-dir:...", pretrained=True)`.

    Args:
        model: Model to export, which must be a ViT.
        path: Directory, which is created if it does not exist.
        artifacts: Class names and settings of the evaluation transform, as
            `read_image_preprocessing` returns them; may be empty.

    Returns:
        A description of the timm model for the user.

    Raises:
        InputError: timm has no such model.
    """
    if not isinstance(model, ViT):
        message = f"must be a ViT to be exported to timm, got {type(model).__name__}"
        raise InputError(message, option="model")
    tensors, problems = _keymap(model.config).to_external(model.state_dict(), {})
    settings = _write_config(model.config, artifacts)
    settings["num_classes"] *= len(model.heads) > 0
    if model.representation is not None:
        problems.append("representation_size")
    norm_eps = timm.by_name(settings)["norm_eps"]
    if not problems:
        imported, _ = _read_config(tensors, settings)
        problems = differing_fields(replace(model.config, norm_eps=norm_eps), imported)
    if problems:
        message = f"cannot be exported, since timm's ViT does not support {', '.join(problems)}"
        raise InputError(message, option="model")
    write_directory(path, settings, tensors)
    note = norm_eps_note(model.config.norm_eps, norm_eps)
    return f"timm's {settings['architecture']} with the sizes of this model{note}"


def _write_config(config: ViTConfig, artifacts: Json) -> dict[str, Any]:
    """Return the content of timm's config.json."""
    d_model = config.d_model
    gated, is_rms = config.feed_forward == "glu", config.norm == "rms"
    width = (1 + gated) * config.d_ff
    mlp_ratio = width / d_model
    if int(d_model * mlp_ratio) != width:  # the formula of timm
        mlp_ratio = (width + 0.5) / d_model
    # `model_args` overrides all of an architecture except the classes of its layers.
    architecture = "vit_base_patch16_224"
    if config.distillation:
        architecture = "deit_base_distilled_patch16_224"
    elif gated:
        architecture = "vit_giant_patch14_dinov2"
    elif config.norm_eps == 1e-5 and not is_rms:
        architecture = "vit_base_patch16_clip_224"
    pretrained = {
        "input_size": [config.n_channels, *height_width(config.image_size)],
        "fixed_input_size": True,
        "first_conv": "patch_embed.proj",
        "classifier": list(_HEADS) if config.distillation else _HEADS[0],
        **{key: artifacts[key] for key in _IMAGE_DEFAULTS if "crop_pct" in artifacts},
    }
    pool = next((name for name, native in _POOLS.items() if native == config.pool), None)
    model_args: dict[str, Any] = {
        "img_size": config.image_size,
        "patch_size": config.patch_size,
        "in_chans": config.n_channels,
        "embed_dim": d_model,
        "depth": config.n_layers,
        "num_heads": config.n_heads,
        "mlp_ratio": mlp_ratio,
        "act_layer": config.activation,
        "global_pool": pool,
        "pre_norm": config.embed_norm,
        "qk_norm": config.qk_norm != "none",
        # None leaves the default of timm.
        "norm_layer": "rmsnorm" if is_rms else None,
        "init_values": config.layer_scale or 0.0,
        "no_embed_class": config.prefix_positions == "none" or None,
        "reg_tokens": config.n_registers or None,
        "qkv_bias": False if config.qkv_bias is False else None,
        "class_token": None if config.distillation else config.n_prefix > config.n_registers,
        "fc_norm": None if config.distillation else config.pool_norm,
    }
    names = artifacts.get("class_names")
    return {
        "architecture": architecture,
        "num_classes": config.n_classes,
        "model_args": {key: value for key, value in model_args.items() if value is not None},
        "pretrained_cfg": pretrained,
        **({"label_names": names} if names else {}),
        **({"multi_label": True} if artifacts.get("multi_label") else {}),  # timm ignores it
    }


def _read_config(tensors: Mapping[str, Tensor], settings: Json) -> tuple[ViTConfig, list[str]]:
    """Infer the config from the names and shapes of the tensors, and from timm's config.json.

    The second result is a list of sentences for the user, one for each assumption.
    """
    d_model, n_channels, patch_size, _ = tensor_shape(tensors, _PATCHES, 4)
    n_prefix = sum(token in tensors for token in _PREFIX_TOKENS)
    n_registers = tensor_shape(tensors, _REGISTERS, 3)[1] if _REGISTERS in tensors else 0
    image_size, placed = _read_size(tensors, settings, patch_size, n_prefix + n_registers)
    distilled, has_class = n_prefix > 1, _PREFIX_TOKENS[0] in tensors
    d_ff = tensor_shape(tensors, _FF + "2.weight", 2)[1]
    gated = _FF + "1_g.weight" in tensors or tensor_shape(tensors, _FF + "1.weight", 2)[0] != d_ff
    stated: dict[str, Any] = {
        "depth": len({name.split(".")[1] for name in tensors if name.startswith("blocks.")}),
        "class_token": has_class,
        "reg_tokens": n_registers,
        "qkv_bias": "blocks.0.attn.qkv.bias" in tensors,
        "qk_norm": "blocks.0.attn.q_norm.weight" in tensors,
        "pre_norm": "norm_pre.weight" in tensors,
        "fc_norm": "fc_norm.weight" in tensors,
        "norm_layer": "layernorm" if "blocks.0.norm1.bias" in tensors else "rmsnorm",
    }
    allowed = timm.ALLOWED | {f"model_args.{key}": (None, value) for key, value in stated.items()}
    default = "token" if has_class and (distilled or not stated["fc_norm"]) else "avg"
    keys = ("model_args.global_pool", "global_pool")
    pool = next((x for x in (get_key(settings, key) for key in keys) if x in _POOLS), default)
    options: dict[str, Any] = {"n_classes": 1}
    if "head.weight" in tensors:  # otherwise, the pooling has no effect
        options["n_classes"] = len(tensors["head.weight"])
        pools = ("token", "avg")[not has_class : 1 if distilled else 2]
        allowed |= dict.fromkeys(keys, (None, *pools))
    if "blocks.0.ls1.gamma" in tensors:
        options["layer_scale"] = get_key(settings, "model_args.init_values", _LAYER_SCALE)
    if not stated["qkv_bias"]:
        options["qkv_bias"] = False
    if "pre_logits.fc.weight" in tensors:
        options["representation_size"] = len(tensors["pre_logits.fc.weight"])
    check_allowed(settings, allowed)
    n_heads, notes = timm.read_n_heads(settings, d_model)
    assumed, noted = timm.read_assumed(settings, gated, stated["pre_norm"])
    config = ViTConfig(
        d_model=d_model,
        n_layers=stated["depth"],
        d_ff=d_ff,
        feed_forward="glu" if gated else "mlp",
        norm="layer" if stated["norm_layer"] == "layernorm" else "rms",
        qk_norm="head" if stated["qk_norm"] else "none",
        image_size=image_size,
        patch_size=patch_size,
        n_channels=n_channels,
        pool=_POOLS[pool],
        pool_norm=stated["fc_norm"] and not distilled,
        embed_norm=stated["pre_norm"],
        distillation=distilled,
        n_registers=n_registers + (has_class and pool == "avg"),
        prefix_positions="all" if placed else "none",
        **{**assumed, "n_heads": n_heads},
        **options,
    )
    return config, notes + noted


def _read_size(
    tensors: Mapping[str, Tensor], settings: Json, patch_size: int, n_prefix: int
) -> tuple[ImageSize, bool]:
    """Return the image size, and whether prefix tokens have positions.

    `img_size`, `input_size` and `no_embed_class` in config.json have precedence over the number of
    positions, which can mean both (DeiT III has no positions of prefix tokens).
    """
    n_rows = tensor_shape(tensors, "pos_embed", 3)[1]
    input_size = get_key(settings, "pretrained_cfg.input_size") or [0]
    image: Any = get_key(settings, "model_args.img_size") or input_size[1:]
    grid = patch_grid(image, patch_size) if image else square_grid(n_rows)  # a guess
    unplaced = get_key(settings, "model_args.no_embed_class")
    if unplaced is None:
        unplaced = n_prefix > 0 and n_rows == math.prod(grid)
    n_prefix *= not unplaced
    if not image:
        grid = square_grid(max(n_rows - n_prefix, 0))
    if math.prod(grid) + n_prefix != n_rows:
        shape = f"{grid[0]} x {grid[1]}" if image else "a square of"
        rows = f"a row for each of {n_prefix} prefix tokens and of {shape} patches"
        raise InputError(f"must have {rows}, got {n_rows} rows", option="pos_embed")
    return (grid[0] * patch_size, grid[1] * patch_size), not unplaced
