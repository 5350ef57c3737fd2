"""ViT and DeiT as timm and DeiT's own releases write them, in both directions.

The names are one table; the config is in the shapes, but for the number of heads.
"""

import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fourfold.core.errors import InputError
from fourfold.hub import directory
from fourfold.hub.architecture import comparable, said_of
from fourfold.hub.keymap import FUSED, TOKENS, WITH_ONE, KeyMap, Rule
from fourfold.models import ViT, ViTConfig

Json = Mapping[str, Any]
_PATCHES, _POSITIONS = "patch_embed.proj.weight", "pos_embed"
_TOKENS = ("cls_token", "dist_token")
_HEADS = ("head", "head_dist")
_EPS = 1e-6
_SIZES = {"n_classes": "head.weight", "representation_size": "pre_logits.fc.weight"}
_ACTIVATION = "model_args.act_layer"
# What the names and shapes of tensors do not show.
_MUST: dict[str, tuple[Any, ...]] = {
    _ACTIVATION: (None, "gelu"),
    "model_args.norm_layer": (None, "layernorm"),
    "model_args.pool_include_prefix": (None, False),
}
_POOLS = {"cls": "token", "mean": "avg"}
# Of theirs, whose sizes are then said one by one.
_NAMES = ("vit_base_patch16_224", "deit_base_distilled_patch16_224")
# What timm takes where nothing is said: the colours of ImageNet.
_IMAGES: dict[str, Any] = {
    "mean": [0.485, 0.456, 0.406], "std": [0.229, 0.224, 0.225],
    "crop_pct": 0.875, "interpolation": "bicubic", "crop_mode": "center",
}  # fmt: skip
# How wide a head is, and how many there are at most, in all but two of timm's plain models.
_HEAD_WIDTH, _MOST_HEADS = 64, 16


def _keys(n_tokens: int) -> KeyMap:
    block, layer = "stack.blocks.{i}.", "blocks.{i}."
    heads = zip(range(len(_HEADS)), _HEADS, strict=True)
    return KeyMap(
        (
            Rule("embed.prefix", _TOKENS[:n_tokens], TOKENS),
            Rule("embed.positions.weight", _POSITIONS, WITH_ONE),
            Rule("embed.patches.{p}", "patch_embed.proj.{p}"),
            Rule(
                tuple(block + f"attn.{part}." + "{p}" for part in "qkv"),
                layer + "attn.qkv.{p}",
                FUSED,
            ),
            Rule(block + "attn.out.{p}", layer + "attn.proj.{p}"),
            Rule(block + "attn_norm.{p}", layer + "norm1.{p}"),
            Rule(block + "ff.up.{p}", layer + "mlp.fc1.{p}"),
            Rule(block + "ff.down.{p}", layer + "mlp.fc2.{p}"),
            Rule(block + "ff_norm.{p}", layer + "norm2.{p}"),
            Rule("stack.norm.{p}", "norm.{p}"),
            Rule("representation.{p}", "pre_logits.fc.{p}"),  # until timm 0.6
            *(Rule(f"heads.{n}." + "{p}", head + ".{p}") for n, head in heads),
        )
    )


def is_timm(tensors: Mapping[str, Any]) -> bool:
    """Whether tensors are named as timm names those of a ViT."""
    return _PATCHES in tensors


def read(tensors: Mapping[str, Tensor], said: Json, where: str) -> tuple[ViT, list[str]]:
    """The model of timm's tensors, in fp32 and eval mode, and what was assumed.

    A file without a head (num_classes 0) gives a model without heads, which encodes.

    Args:
        tensors: By timm's names.
        said: timm's config.json, empty if there was none.
        where: The file, for errors.

    Raises:
        InputError: They are not those of a ViT that a model of ours can be.
    """
    config, notes = _config(tensors, said, where)
    model = ViT(config)
    model.heads = model.heads[: sum(f"{head}.weight" in tensors for head in _HEADS)]
    ours, _ = _keys(model.n_prefix).read(tensors, model.state_dict(), where)
    with torch.no_grad():
        model.load_state_dict({name: x.float() for name, x in ours.items()})
    return model.eval(), notes


def images(said: Json, config: ViTConfig, where: str) -> tuple[dict[str, Any], list[str]]:
    """What `eval_transform` and a classifier's output need, and what was assumed.

    Raises:
        InputError: The images are resized in a way that we do not have.
    """
    told = said.get("pretrained_cfg") or {}
    found = {key: told.get(key) or default for key, default in _IMAGES.items()}
    ways, modes = ("bilinear", "bicubic"), ("center", "squash")
    if found["interpolation"] not in ways or found["crop_mode"] not in modes:
        raise InputError(
            f"{where}: images are prepared by {found['interpolation']} and crop_mode"
            f" {found['crop_mode']}, but must be by bilinear or bicubic and center or squash"
        )
    missing = [key for key in ("mean", "std", "crop_pct", "interpolation") if not told.get(key)]
    names = said.get("label_names") or told.get("label_names") or []
    artifacts = {
        "class_names": list(names),
        "image_size": config.image_size,
        "n_channels": config.n_channels,
        "mean": list(found["mean"]),
        "std": list(found["std"]),
        "eval_crop": found["crop_pct"],
        "squash": found["crop_mode"] == "squash",
        "interpolation": found["interpolation"],
    }
    notes = [f"assumed timm's default for images: {k} {found[k]}" for k in missing]
    return artifacts, notes


def write(model: Any, path: Path, artifacts: Json) -> str:
    """Write a model as a directory for timm's `create_model("local-dir:...")`.

    Args:
        model: A ViT.
        path: The directory, made if it does not exist.
        artifacts: Of its data, for the preprocessing; may be empty.

    Returns:
        The name of timm's model.

    Raises:
        InputError: timm has no such model.
    """
    if not isinstance(model, ViT):
        raise InputError(f"timm is for models of images, but this is a {type(model).__name__}")
    theirs, left = _keys(model.n_prefix).write(model.state_dict(), {})
    said = _written(model.config, artifacts)
    wrong = left or ["representation_size"] * (model.representation is not None)
    if not wrong:
        before = comparable(replace(model.config, norm_eps=_EPS))
        after = comparable(_config(theirs, said, "timm")[0])
        wrong = [f"{key}={value}" for key, value in before.items() if value != after[key]]
    if wrong:
        raise InputError(f"timm's ViT cannot have {', '.join(wrong)}")
    directory.write(path, said, theirs)
    named, eps = str(said["architecture"]), model.config.norm_eps
    note = "" if eps == _EPS else f" (its norms add {_EPS:g} where these add {eps:g})"
    return f"{named} of timm, of these sizes{note}"


def _written(config: ViTConfig, artifacts: Json) -> dict[str, Any]:
    width, ratio = config.d_model, config.d_ff / config.d_model
    if int(width * ratio) != config.d_ff:  # which is how timm comes back from it
        ratio = (config.d_ff + 0.5) / width
    images = {
        "input_size": [config.n_channels, config.image_size, config.image_size],
        "fixed_input_size": True,
        "num_classes": config.n_classes,
        "first_conv": "patch_embed.proj",
        "classifier": list(_HEADS) if config.distillation else _HEADS[0],
    }
    if "eval_crop" in artifacts:
        images |= {key: artifacts[key] for key in ("mean", "std", "interpolation")}
        images["crop_pct"] = artifacts["eval_crop"]
        images["crop_mode"] = "squash" if artifacts.get("squash") else "center"
    names = {"label_names": artifacts["class_names"]} if artifacts.get("class_names") else {}
    pool = _POOLS[config.pool]
    front = {} if config.distillation else {"class_token": pool == "token", "fc_norm": False}
    return {
        "architecture": _NAMES[config.distillation],
        "num_classes": config.n_classes,
        "num_features": width,
        "global_pool": pool,
        "model_args": {
            "img_size": config.image_size,
            "patch_size": config.patch_size,
            "in_chans": config.n_channels,
            "embed_dim": width,
            "depth": config.n_layers,
            "num_heads": config.n_heads,
            "mlp_ratio": ratio,
            "act_layer": "gelu",
            "global_pool": pool,
            **front,
        },
        "pretrained_cfg": images,
        **names,
    }


def _config(tensors: Mapping[str, Tensor], said: Json, where: str) -> tuple[ViTConfig, list[str]]:
    """Our config for the shapes, and what was assumed because they do not show it."""
    width, n_channels, patch, _ = _shape(tensors, _PATCHES, 4, where)
    pool = "cls" if _TOKENS[0] in tensors else "mean"
    _check_settings(tensors, said, pool, where)
    n_heads, notes = _heads(said, width, where)
    if not any(said_of(said, _ACTIVATION)):
        notes.append("assumed the exact GELU, as timm has in all but a few models")
    sizes: dict[str, Any] = {
        name: len(tensors[key]) for name, key in _SIZES.items() if key in tensors
    }
    try:
        config = ViTConfig(
            d_model=width,
            n_layers=len({name.split(".")[1] for name in tensors if name.startswith("blocks.")}),
            n_heads=n_heads,
            d_ff=_shape(tensors, "blocks.0.mlp.fc1.weight", 2, where)[0],
            norm_eps=_EPS,
            image_size=patch * _side(tensors, where),
            patch_size=patch,
            n_channels=n_channels,
            pool=pool,
            distillation=_TOKENS[1] in tensors,
            **({"n_classes": 1} | sizes),  # without a head no number of classes means anything
        )
    except InputError as error:
        raise InputError(f"{where}: {error}") from error
    return config, notes


def _shape(
    tensors: Mapping[str, Tensor], name: str, n_dimensions: int, where: str
) -> tuple[int, ...]:
    if name not in tensors or tensors[name].ndim != n_dimensions:
        raise InputError(f"{where}: no tensor {name} of {n_dimensions} dimensions")
    return tuple(tensors[name].shape)


def _check_settings(tensors: Mapping[str, Tensor], said: Json, pool: str, where: str) -> None:
    """What would be another function under the same names."""
    if "fc_norm.weight" in tensors:
        raise InputError(
            f"{where}: fc_norm follows the mean of the patches, but here norm is first"
        )
    must = dict(_MUST)
    if "head.weight" in tensors:
        must |= dict.fromkeys(("global_pool", "model_args.global_pool"), (_POOLS[pool],))
    for key, allowed in must.items():
        for value in said_of(said, key):
            if value not in allowed:
                raise InputError(f"{where}: {key} is {value!r}, but must be {allowed[-1]!r}")


def _heads(said: Json, width: int, where: str) -> tuple[int, list[str]]:
    """The number of heads, which no shape shows."""
    for told in said_of(said, "model_args.num_heads"):
        return told, []
    if width % _HEAD_WIDTH:
        raise InputError(
            f"{where}: the number of heads cannot be told from weights of width {width}:"
            f" a {directory.CONFIG} beside them must say it as num_heads in model_args"
        )
    n_heads = min(width // _HEAD_WIDTH, _MOST_HEADS)
    return n_heads, [f"assumed {n_heads} heads, as timm has in models of width {width}"]


def _side(tensors: Mapping[str, Tensor], where: str) -> int:
    """Patches along one side of the image."""
    rows = _shape(tensors, _POSITIONS, 3, where)[1]
    n_tokens = sum(token in tensors for token in _TOKENS)
    side = math.isqrt(max(rows - n_tokens, 0))
    if side**2 + n_tokens != rows:
        raise InputError(
            f"{where}: {_POSITIONS} has {rows} rows, but must have one for each of {n_tokens}"
            " tokens in front and of a square of patches"
        )
    return side
