"""Import and export of ViT, DeiT and DeiT III in the format of timm and of DeiT's releases.

The shapes of the tensors imply the config, except for the number of heads.
"""

import math
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fourfold.core.validation import ImageSize, height_width
from fourfold.errors import InputError
from fourfold.hub.architecture import Json, check_allowed, differing_fields, get_key, norm_eps_note
from fourfold.hub.directory import CONFIG_FILE, tensor_shape, write_directory
from fourfold.hub.keymap import (
    CLASS_AND_REGISTERS,
    PREFIX_TOKENS,
    QKV,
    SPLIT_QKV,
    SQUEEZE_0,
    KeyMap,
    Rule,
)
from fourfold.layers.image_positions import square_grid
from fourfold.layers.patch_embedding import patch_grid
from fourfold.models import ViT, ViTConfig

_PATCHES = "patch_embed.proj.weight"
_PREFIX_TOKENS = ("cls_token", "dist_token")
_REGISTERS = "reg_token"
_HEADS = ("head", "head_dist")
_LAYER_SCALE = 1e-6  # initial value in DeiT III, assumed if config.json does not give it
_NORM_EPS = 1e-6
_ACT_LAYER = "model_args.act_layer"
# Allowed values of settings that tensor names and shapes do not show.
_ALLOWED: dict[str, tuple[Any, ...]] = {
    _ACT_LAYER: (None, "gelu"),
    "model_args.norm_layer": (None, "layernorm"),
    "model_args.pool_include_prefix": (None, False),
    **dict.fromkeys(
        ("model_args.mlp_layer", "model_args.attn_layer", "model_args.block_fn"), (None,)
    ),
}
_POOLS = {"cls": "token", "mean": "avg"}
# timm architectures that are exported, without and with a distillation token. `model_args` in
# config.json overrides their sizes.
_ARCHITECTURES = {False: "vit_base_patch16_224", True: "deit_base_distilled_patch16_224"}
# Defaults of timm: mean and standard deviation of ImageNet.
_IMAGE_DEFAULTS: dict[str, Any] = {
    "mean": [0.485, 0.456, 0.406],
    "std": [0.229, 0.224, 0.225],
    "crop_pct": 0.875,
    "interpolation": "bicubic",
    "crop_mode": "center",
}
# Width of a head, and largest number of heads, in all but two of timm's plain ViTs.
_HEAD_WIDTH = 64
_MAX_HEADS = 16


def _keymap(config: ViTConfig) -> KeyMap:
    """Return the key map of a ViT with a certain config."""
    tokens: tuple[str, ...] = _PREFIX_TOKENS[: config.n_prefix - config.n_registers]
    prefix = Rule("embed.prefix", tokens, PREFIX_TOKENS)
    if config.n_registers:
        prefix = Rule("embed.prefix", (*tokens, _REGISTERS), CLASS_AND_REGISTERS)
    block = "stack.blocks.{i}."
    layer = "blocks.{i}."
    return KeyMap(
        prefix,
        Rule("embed.positions.weight", "pos_embed", SQUEEZE_0),
        Rule("embed.patches.{p}", "patch_embed.proj.{p}"),
        Rule(QKV, layer + "attn.qkv.{p}", SPLIT_QKV),
        Rule(block + "attn.out.{p}", layer + "attn.proj.{p}"),
        Rule(block + "attn_gamma", layer + "ls1.gamma"),
        Rule(block + "ff_gamma", layer + "ls2.gamma"),
        Rule(block + "attn_norm.{p}", layer + "norm1.{p}"),
        Rule(block + "ff.up.{p}", layer + "mlp.fc1.{p}"),
        Rule(block + "ff.down.{p}", layer + "mlp.fc2.{p}"),
        Rule(block + "ff_norm.{p}", layer + "norm2.{p}"),
        Rule("stack.norm.{p}", "norm.{p}"),
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
    config, notes = _read_config(tensors, settings)
    # A checkpoint without a classifier (`num_classes: 0`) gives a model without heads.
    build = partial(ViT, config, n_heads=sum(f"{head}.weight" in tensors for head in _HEADS))
    model = _keymap(config).build_model(build, config, tensors, dtype)
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
    if model.representation is not None:
        problems.append("representation_size")
    if not problems:
        imported, _ = _read_config(tensors, settings)
        problems = differing_fields(replace(model.config, norm_eps=_NORM_EPS), imported)
    if problems:
        message = f"cannot be exported, since timm's ViT does not support {', '.join(problems)}"
        raise InputError(message, option="model")
    write_directory(path, settings, tensors)
    note = norm_eps_note(model.config.norm_eps, _NORM_EPS)
    return f"timm's {settings['architecture']} with the sizes of this model{note}"


def _write_config(config: ViTConfig, artifacts: Json) -> dict[str, Any]:
    """Return the content of timm's config.json."""
    d_model = config.d_model
    mlp_ratio = config.d_ff / d_model
    if int(d_model * mlp_ratio) != config.d_ff:  # the formula of timm
        mlp_ratio = (config.d_ff + 0.5) / d_model
    pretrained = {
        "input_size": [config.n_channels, *height_width(config.image_size)],
        "fixed_input_size": True,
        "first_conv": "patch_embed.proj",
        "classifier": list(_HEADS) if config.distillation else _HEADS[0],
        **{key: artifacts[key] for key in _IMAGE_DEFAULTS if "crop_pct" in artifacts},
    }
    pool = _POOLS[config.pool]
    model_args: dict[str, Any] = {
        "img_size": config.image_size,
        "patch_size": config.patch_size,
        "in_chans": config.n_channels,
        "embed_dim": d_model,
        "depth": config.n_layers,
        "num_heads": config.n_heads,
        "mlp_ratio": mlp_ratio,
        "act_layer": "gelu",
        "global_pool": pool,
        # None leaves the default of timm.
        "init_values": config.layer_scale,
        "no_embed_class": config.prefix_positions == "none" or None,
        "reg_tokens": config.n_registers or None,
        "qkv_bias": False if config.qkv_bias is False else None,
        "class_token": None if config.distillation else pool == "token",
        "fc_norm": None if config.distillation else False,
    }
    names = artifacts.get("class_names")
    return {
        "architecture": _ARCHITECTURES[config.distillation],
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
    n_layers = len({name.split(".")[1] for name in tensors if name.startswith("blocks.")})
    pool = "cls" if _PREFIX_TOKENS[0] in tensors else "mean"
    stated = {
        "depth": n_layers,
        "class_token": pool == "cls",
        "reg_tokens": n_registers,
        "qkv_bias": "blocks.0.attn.qkv.bias" in tensors,
    }
    allowed = _ALLOWED | {f"model_args.{key}": (None, value) for key, value in stated.items()}
    # Without a head, the pooling and the number of classes have no effect.
    options: dict[str, Any] = {"n_classes": 1, "pool": pool}
    if "head.weight" in tensors:
        options["n_classes"] = len(tensors["head.weight"])
        allowed |= dict.fromkeys(("global_pool", "model_args.global_pool"), (_POOLS[pool],))
    if "blocks.0.ls1.gamma" in tensors:
        options["layer_scale"] = get_key(settings, "model_args.init_values", _LAYER_SCALE)
    if not stated["qkv_bias"]:
        options["qkv_bias"] = False
    if "pre_logits.fc.weight" in tensors:
        options["representation_size"] = len(tensors["pre_logits.fc.weight"])
    check_allowed(settings, allowed)
    n_heads, notes = _read_n_heads(settings, d_model)
    if get_key(settings, _ACT_LAYER, ...) is ...:
        notes.append("assumed the exact GELU, as in all but a few of timm's models")
    config = ViTConfig(
        d_model=d_model,
        n_layers=n_layers,
        n_heads=n_heads,
        d_ff=tensor_shape(tensors, "blocks.0.mlp.fc1.weight", 2)[0],
        norm_eps=_NORM_EPS,
        image_size=image_size,
        patch_size=patch_size,
        n_channels=n_channels,
        distillation=_PREFIX_TOKENS[1] in tensors,
        n_registers=n_registers,
        prefix_positions="all" if placed else "none",
        **options,
    )
    return config, notes


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


def _read_n_heads(settings: Json, d_model: int) -> tuple[int, list[str]]:
    """Read the number of heads from config.json, or assume it with a sentence for the user."""
    if (n_heads := get_key(settings, "model_args.num_heads")) is not None:
        return n_heads, []
    if d_model % _HEAD_WIDTH:
        message = f"must be in {CONFIG_FILE}, since weights of width {d_model} do not determine"
        raise InputError(f"{message} the number of heads", option="model_args.num_heads")
    n_heads = min(d_model // _HEAD_WIDTH, _MAX_HEADS)
    return n_heads, [f"assumed {n_heads} heads, as in timm's models of width {d_model}"]
