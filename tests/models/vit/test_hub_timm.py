"""Tests of timm checkpoints against a reference implementation, and against timm if installed."""

import json
import math
import random
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
import transformers as hf
from safetensors.torch import load_file, save_file
from torch import Tensor

import fourfold
from fourfold.checkpoints.init_from import initialize_from, read_source
from fourfold.cli import main
from fourfold.errors import InputError
from fourfold.models import ViT, ViTConfig
from fourfold.models.vit import hub_timm as timm_format
from fourfold.models.vit.hub_timm_options import check_supported, read_n_heads
from fourfold.tasks import load_task

WIDTH = 36
HEADS = 3
DEPTH = 2
PATCH = 4
SIDE = 12
CLASSES = 5
CONFIG = {
    "architecture": "some_vit",
    "num_classes": CLASSES,
    "model_args": {"num_heads": HEADS, "act_layer": "gelu"},
}
IMAGES = {
    "mean": [0.1, 0.2, 0.3],
    "std": [0.4, 0.5, 0.6],
    "crop_pct": 0.9,
    "interpolation": "bicubic",
    "crop_mode": "center",
}
VARIANTS = ("cls", "distilled", "mean", "representation")
# Arguments of timm. DeiT III has LayerScale, and no position of the tokens before the patches.
TIMM_VARIANTS: dict[str, dict[str, Any]] = {
    "deit3": {},
    "deit3-registers": {"reg_tokens": 3},
    "registers-with-positions": {"reg_tokens": 2, "init_values": 0.5},
    "no-qkv-bias": {"qkv_bias": False},
    "avg": {"global_pool": "avg"},
    "avg-registers": {"global_pool": "avg", "reg_tokens": 3, "fc_norm": False},
    "avg-registers-alone": {"global_pool": "avg", "reg_tokens": 2, "class_token": False},
    "token-fc-norm": {"fc_norm": True},
    "clip": {},
    "clip-quickgelu": {},
    "siglip-gap": {},
    "pre-norm": {"pre_norm": True},
    "qk-norm": {"qk_norm": True, "act_layer": "relu"},
    "rms": {"norm_layer": "rmsnorm", "qk_norm": True, "no_embed_class": True},
    "rpn": {},
    "swiglu-packed": {"init_values": 0.0},
    "swiglu": {"act_layer": "silu"},
}
ARCHITECTURES = {
    "distilled": "deit_base_distilled_patch16_224",
    "deit3": "deit3_base_patch16_224",
    "deit3-registers": "deit3_base_patch16_224",
    "clip": "vit_base_patch16_clip_224",
    "clip-quickgelu": "vit_base_patch16_clip_quickgelu_224",
    "siglip-gap": "vit_base_patch32_siglip_gap_256",
    "rpn": "vit_base_patch16_rpn_224",
    "swiglu-packed": "vit_giant_patch14_dinov2",
}
# Exported under other names of tensors: a class token that no head reads, and unpacked matrices.
RENAMED = ("avg", "avg-registers", "swiglu")
TOLERANCE = {torch.float32: 1e-5, torch.float64: 1e-10}


def state(variant: str = "cls", width: int = WIDTH, hidden: int = 50) -> dict[str, Tensor]:
    """Create random weights with timm's names."""
    torch.manual_seed(0)
    tokens = {"cls": 1, "distilled": 2, "mean": 0, "representation": 1}[variant]
    last = 20 if variant == "representation" else width
    shapes: dict[str, tuple[int, ...]] = {
        **dict.fromkeys(("cls_token", "dist_token")[:tokens], (1, 1, width)),
        "pos_embed": (1, (SIDE // PATCH) ** 2 + tokens, width),
        "patch_embed.proj.weight": (width, 3, PATCH, PATCH),
        "patch_embed.proj.bias": (width,),
        **{f"norm.{p}": (width,) for p in ("weight", "bias")},
    }
    for i in range(DEPTH):
        for name, (after, before) in {
            "attn.qkv": (3 * width, width),
            "attn.proj": (width, width),
            "mlp.fc1": (hidden, width),
            "mlp.fc2": (width, hidden),
        }.items():
            shapes[f"blocks.{i}.{name}.weight"] = (after, before)
            shapes[f"blocks.{i}.{name}.bias"] = (after,)
        for name in ("norm1", "norm2"):
            shapes |= {f"blocks.{i}.{name}.{p}": (width,) for p in ("weight", "bias")}
    if variant == "representation":
        shapes |= {"pre_logits.fc.weight": (last, width), "pre_logits.fc.bias": (last,)}
    for head in ("head", "head_dist")[: 1 + (variant == "distilled")]:
        shapes |= {f"{head}.weight": (CLASSES, last), f"{head}.bias": (CLASSES,)}
    return {name: 0.3 * torch.randn(shape) for name, shape in shapes.items()}


def forward(w: dict[str, Tensor], images: Tensor, heads: int = HEADS) -> Tensor:
    """Compute the logits of timm's ViT from its tensors."""

    def norm(x: Tensor, name: str) -> Tensor:
        return F.layer_norm(x, x.shape[-1:], w[name + ".weight"], w[name + ".bias"], eps=1e-6)

    def linear(x: Tensor, name: str) -> Tensor:
        return F.linear(x, w[name + ".weight"], w[name + ".bias"])

    proj = "patch_embed.proj."
    x = F.conv2d(images, w[proj + "weight"], w[proj + "bias"], stride=PATCH).flatten(2).mT
    front = [w[name].expand(len(x), 1, -1) for name in ("cls_token", "dist_token") if name in w]
    x = torch.cat([*front, x], 1) + w["pos_embed"]
    for i in range(DEPTH):
        h = linear(norm(x, f"blocks.{i}.norm1"), f"blocks.{i}.attn.qkv")
        batch, length, width = x.shape
        q, k, v = h.view(batch, length, 3, heads, width // heads).permute(2, 0, 3, 1, 4)
        scores = q @ k.mT / math.sqrt(width // heads)
        mixed = (scores.softmax(-1) @ v).transpose(1, 2).reshape(batch, length, width)
        x = x + linear(mixed, f"blocks.{i}.attn.proj")
        h = F.gelu(linear(norm(x, f"blocks.{i}.norm2"), f"blocks.{i}.mlp.fc1"))
        x = x + linear(h, f"blocks.{i}.mlp.fc2")
    x = norm(x, "norm")
    if "dist_token" in w:
        return (linear(x[:, 0], "head") + linear(x[:, 1], "head_dist")) / 2
    pooled = x[:, 0] if "cls_token" in w else x.mean(1)
    if "pre_logits.fc.weight" in w:
        pooled = linear(pooled, "pre_logits.fc").tanh()
    return linear(pooled, "head")


def compare(model: Any, weights: dict[str, Tensor], reference: Callable[[Tensor], Tensor]) -> None:
    """Compare logits and all gradients; `reference` computes logits from the leaves `weights`."""
    dtype = next(model.parameters()).dtype
    images = torch.randn(3, 3, SIDE, SIDE, dtype=dtype)
    actual, expected = model(images), reference(images)
    tolerance = TOLERANCE[dtype]
    assert (actual - expected).abs().max() <= tolerance * expected.abs().max()
    labels = torch.arange(3)
    F.cross_entropy(actual, labels).backward()
    F.cross_entropy(expected, labels).backward()
    gradients = {name: x.grad for name, x in weights.items() if x.grad is not None}
    keys = timm_format._keymap(model.config, gradients)
    wanted, _ = keys.to_native(gradients, model.state_dict())
    largest = max(float(g.abs().max()) for g in wanted.values())
    found = {name: p.grad for name, p in model.named_parameters()}
    assert found.keys() == wanted.keys()
    for name, gradient in found.items():
        assert (gradient - wanted[name]).abs().max() <= 2 * tolerance * largest, name


def folder(path: Path, weights: dict[str, Tensor], **more: Any) -> Path:
    """Create a directory as `save_for_hf` of timm writes it."""
    path.mkdir()
    save_file(weights, path / "model.safetensors")
    (path / "config.json").write_text(json.dumps({**CONFIG, **more}))
    return path


@pytest.mark.parametrize("dtype", TOLERANCE, ids=["fp32", "fp64"])
@pytest.mark.parametrize("variant", VARIANTS)
def test_logits_and_all_gradients_match_the_reference(
    variant: str, dtype: torch.dtype, tmp_path: Path
) -> None:
    weights = state(variant)
    model = fourfold.load(folder(tmp_path / "vit", weights)).to(dtype)
    leaves = {name: x.to(dtype).requires_grad_() for name, x in weights.items()}
    compare(model, leaves, lambda images: forward(leaves, images))


@pytest.mark.parametrize("dtype", TOLERANCE, ids=["fp32", "fp64"])
@pytest.mark.parametrize("variant", [*VARIANTS[:3], *TIMM_VARIANTS])
def test_logits_and_all_gradients_match_timm(
    variant: str, dtype: torch.dtype, tmp_path: Path, capsys: Any
) -> None:
    timm = pytest.importorskip("timm")
    sizes: dict[str, Any] = {
        "img_size": SIDE,
        "patch_size": PATCH,
        "embed_dim": WIDTH,
        "depth": DEPTH,
        "num_heads": HEADS,
        "mlp_ratio": 50.5 / 36,
        "num_classes": CLASSES,
    }
    if variant == "mean":
        sizes |= {"class_token": False, "global_pool": "avg", "fc_norm": False}
    sizes |= TIMM_VARIANTS.get(variant, {})
    if variant == "swiglu":
        sizes["mlp_layer"] = timm.layers.SwiGLU
    name = ARCHITECTURES.get(variant, "vit_base_patch16_224")
    timm_model = timm.create_model(name, **sizes).eval().to(dtype)
    with torch.no_grad():
        for parameter in timm_model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    from timm.models import save_for_hf

    arguments = {"num_heads": HEADS, "mlp_layer": None}  # JSON has no class
    save_for_hf(timm_model.float(), str(tmp_path / "there"), model_args=arguments)
    model = fourfold.load(tmp_path / "there").to(dtype)
    timm_model = timm_model.to(dtype)
    compare(model, dict(timm_model.named_parameters()), timm_model)
    # The export has the same tensors, and timm builds the same model from it.
    assert main(["import", str(tmp_path / "there"), str(tmp_path / "x.ckpt")]) == 0
    export = ["export", str(tmp_path / "x.ckpt"), str(tmp_path / "back"), "--format=timm"]
    if variant == "rpn":
        assert main(export) == 2
        assert "does not support norm_placement=inside" in capsys.readouterr().err
        return
    assert main(export) == 0
    again = timm.create_model(f"local-dir:{tmp_path / 'back'}", pretrained=True).eval()
    images = torch.randn(2, 3, SIDE, SIDE, dtype=dtype)
    with torch.no_grad():
        actual, expected = again.to(dtype)(images), timm_model(images)
        assert (actual - expected).abs().max() <= TOLERANCE[dtype] * expected.abs().max()
    tensors = timm_model.float().state_dict()
    assert (tensors.keys() == again.state_dict().keys()) == (variant not in RENAMED)
    for name, tensor in again.float().state_dict().items():
        joined = name == "reg_token" and variant in RENAMED
        assert joined or name not in tensors or torch.equal(tensor, tensors[name]), name


@pytest.mark.parametrize("ending", [".safetensors", ".pth", ".bin"])
def test_assumptions_about_a_single_file_are_reported(
    ending: str, tmp_path: Path, capsys: Any
) -> None:
    """DeiT's releases nest the state dict in a pickle; the number of heads is assumed."""
    weights, file = state("distilled", width=128), tmp_path / f"deit{ending}"
    if ending == ".safetensors":
        save_file(weights, file)
    else:
        torch.save({"model": weights} if ending == ".pth" else weights, file)
    assert main(["import", str(file), str(tmp_path / "x.ckpt")]) == 0
    message = capsys.readouterr().out
    assert "timm, " in message
    assert "as ImageClassification" in message
    assert "assumed 2 heads, as in timm's models of width 128" in message
    assert "assumed the exact GELU" in message
    assert "assumed timm's default for images: crop_pct 0.875" in message
    images = torch.randn(2, 3, SIDE, SIDE)
    for path in (file, tmp_path / "x.ckpt"):
        model: Any = fourfold.load(path)
        assert model.config.image_size == SIDE
        with torch.no_grad():
            torch.testing.assert_close(model(images), forward(weights, images, 2))


@pytest.mark.parametrize(("width", "n_heads"), [(192, 3), (768, 12), (1280, 16), (1664, 16)])
def test_assumed_number_of_heads(width: int, n_heads: int) -> None:
    assert read_n_heads({}, width)[0] == n_heads


def test_preprocessing_and_class_names_survive_import_and_export(
    tmp_path: Path, capsys: Any
) -> None:
    names = ["a", "b", "c", "d", "e"]
    directory = folder(tmp_path / "vit", state(), pretrained_cfg=IMAGES, label_names=names)
    assert main(["import", str(directory), str(tmp_path / "x.ckpt")]) == 0
    assert "assumed" not in capsys.readouterr().out
    found = load_task(tmp_path / "x.ckpt").artifacts
    assert found == {
        "class_names": names,
        "image_size": SIDE,
        "n_channels": 3,
        "mean": [0.1, 0.2, 0.3],
        "std": [0.4, 0.5, 0.6],
        "crop_pct": 0.9,
        "crop_mode": "center",
        "interpolation": "bicubic",
    }
    assert main(["export", str(tmp_path / "x.ckpt"), str(tmp_path / "back"), "--format=timm"]) == 0
    assert main(["import", str(tmp_path / "back"), str(tmp_path / "y.ckpt")]) == 0
    assert "assumed" not in capsys.readouterr().out
    assert load_task(tmp_path / "y.ckpt").artifacts == found
    assert main(["export", str(tmp_path / "x.ckpt"), str(tmp_path / "hf")]) == 0
    timm_model = hf.AutoModelForImageClassification.from_pretrained(tmp_path / "hf").eval()
    images = torch.randn(2, 3, SIDE, SIDE)
    with torch.no_grad():
        expected = forward(state(), images)
        torch.testing.assert_close(
            timm_model(pixel_values=images).logits, expected, rtol=1e-4, atol=1e-5
        )
    assert timm_model.config.id2label[1] == "b"


@pytest.mark.parametrize("variant", VARIANTS[:3])
def test_export_restores_all_tensors(variant: str, tmp_path: Path) -> None:
    weights = state(variant)
    assert main(["import", str(folder(tmp_path / "a", weights)), str(tmp_path / "x.ckpt")]) == 0
    assert main(["export", str(tmp_path / "x.ckpt"), str(tmp_path / "b"), "--format=timm"]) == 0
    again = fourfold.load(tmp_path / "b")
    assert again.config == fourfold.load(tmp_path / "a").config
    back = load_file(tmp_path / "b" / "model.safetensors")
    assert back.keys() == weights.keys()
    assert all(torch.equal(back[name], weights[name]) for name in weights)


def test_class_token_without_a_position_is_found_by_the_shapes(tmp_path: Path) -> None:
    weights = state("distilled")
    weights["pos_embed"] = weights["pos_embed"][:, 2:].contiguous()
    model: Any = fourfold.load(folder(tmp_path / "vit", weights))
    assert model.config.prefix_positions == "none"
    moved = {**weights, "pos_embed": F.pad(weights["pos_embed"], (0, 0, 2, 0))}
    images = torch.randn(2, 3, SIDE, SIDE)
    torch.testing.assert_close(model(images), forward(moved, images), rtol=1e-5, atol=1e-5)


def test_checkpoint_without_a_head_initializes_training(tmp_path: Path) -> None:
    weights = {name: x for name, x in state().items() if not name.startswith("head.")}
    directory = folder(tmp_path / "vit", weights)
    read_source.cache_clear()
    config = read_source(str(directory)).config
    model = ViT(ViTConfig(**{**vars(config), "n_classes": 1}))
    before = model.heads[0].weight.clone()
    report = initialize_from(model, str(directory), None, "bicubic")
    assert "assumed timm's default for images: mean" in report
    assert "new       heads.0.weight (1, 36)" in report
    assert torch.equal(model.heads[0].weight, before)
    assert torch.equal(model.stack.norm.weight, weights["norm.weight"])
    # The model gives hidden states, and is written as timm's model without a head.
    headless: Any = fourfold.load(directory)
    images = torch.randn(2, 3, SIDE, SIDE)
    expected = forward(
        {**weights, "head.weight": torch.eye(WIDTH), "head.bias": torch.zeros(1)}, images
    )
    torch.testing.assert_close(headless.encode(images)[:, 0], expected, rtol=1e-4, atol=1e-5)
    timm_format.write_model(headless, tmp_path / "back", {})
    assert json.loads((tmp_path / "back" / "config.json").read_text())["num_classes"] == 0
    assert load_file(tmp_path / "back" / "model.safetensors").keys() == weights.keys()


def remove(name: str) -> Callable[..., Any]:
    return lambda weights, config: weights.pop(name)


def set_config(**more: Any) -> Callable[..., Any]:
    return lambda weights, config: config.update(more)


def remove_head_dist(weights: Any, config: Any) -> None:
    for part in ("weight", "bias"):
        del weights[f"head_dist.{part}"]


def add(name: str, *shape: int) -> Callable[..., Any]:
    return lambda weights, config: weights.update({name: torch.zeros(shape)})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (remove("pos_embed"), "no tensor pos_embed of 3 dimensions"),
        (remove("blocks.0.mlp.fc1.weight"), "no tensor blocks.0.mlp.fc1.weight"),
        (remove("blocks.1.attn.qkv.bias"), "no tensor for stack.blocks.1.attn.q.bias"),
        (remove("head_dist.weight"), "do not belong to this architecture: head_dist.bias"),
        (remove_head_dist, "1 of 2 classification heads are missing; use init_from"),
        (remove("patch_embed.proj.weight"), "no tensor patch_embed.proj.weight"),
        (add("pos_embed", 1, 10, 36), "pos_embed must have a row for each of 2"),
        (
            add("blocks.0.ls1.gamma", 36),
            "no tensor for stack.blocks.0.ff_gamma (36,), stack.blocks.1.attn_gamma (36,)",
        ),
        (add("fc_norm.weight", 36), "do not belong to this architecture: fc_norm.weight"),
        (remove("norm.weight"), "model_args.final_norm must be true"),
        (remove("blocks.0.attn.proj.bias"), "model_args.proj_bias must be true"),
        (add("attn_pool.latent", 1, 1, 36), "model_args.global_pool is not supported"),
        (add("patch_embed.norm.weight", 36), "model_args.embed_norm_layer is not supported"),
        (add("blocks.0.attn.norm.weight", 36), "model_args.scale_attn_norm is not supported"),
        (add("blocks.0.mlp.norm.weight", 50), "model_args.scale_mlp_norm is not supported"),
        (add("blocks.0.in_proj.weight", 9, 36), "model_args.block_fn is not supported"),
        (set_config(model_args={}), "weights of width 36 do not determine"),
        (set_config(model_args={"num_heads": 5}), "n_heads"),
        (
            set_config(model_args={"num_heads": 3, "act_layer": "mish"}),
            "act_layer must be relu or gelu or gelu_tanh or quick_gelu or silu, got mish",
        ),
        (set_config(global_pool="avg"), "global_pool must be token, got avg"),
        (
            set_config(pretrained_cfg={**IMAGES, "interpolation": "lanczos"}),
            "interpolation must be bilinear or bicubic, got lanczos",
        ),
        (set_config(architecture=None, model_type="mamba"), "got 'mamba'"),
    ],
)
def test_invalid_directory_is_rejected_with_one_line(
    change: Any, message: str, tmp_path: Path, capsys: Any
) -> None:
    weights, config = state("distilled"), dict(CONFIG)
    change(weights, config)
    directory = folder(tmp_path / "vit", weights)
    (directory / "config.json").write_text(json.dumps(config))
    assert main(["import", str(directory), str(tmp_path / "x.ckpt")]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
    assert not (tmp_path / "x.ckpt").exists()


def test_invalid_file_is_rejected_with_one_line(tmp_path: Path, capsys: Any) -> None:
    torch.save({**state(), "epoch": 3}, tmp_path / "a.pth")
    torch.save({"something": torch.zeros(2)}, tmp_path / "b.pth")
    (tmp_path / "c.safetensors").write_bytes(b"nothing")
    for name, message in {
        "a.pth": "epoch must be a tensor, got int",
        "b.pth": "not a checkpoint written by fourfold, transformers, timm, nanoGPT or llama2.c",
        "c.safetensors": "corrupted or incomplete",
    }.items():
        assert main(["import", str(tmp_path / name), str(tmp_path / "x.ckpt")]) == 2
        error = capsys.readouterr().err
        assert message in error
        assert error.count("\n") == 1


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"representation_size": 7}, "representation_size"),
        ({"norm_placement": "post"}, "norm_placement=post"),
        ({"pool": "cls_mean"}, "pool=cls_mean"),
        ({"norm_placement": "inside"}, "norm_placement=inside"),
        ({"positions": "sincos2d"}, "does not support|pos_embed"),
        ({"patch_embedding": "convolutional"}, "does not support|no tensor"),
        ({"bias": False}, "does not support|no tensor"),
    ],
)
def test_export_of_unsupported_settings_is_rejected(
    changes: dict[str, Any], message: str, tmp_path: Path
) -> None:
    small: dict[str, Any] = {"d_model": 12, "n_layers": 1, "n_heads": 3, "d_ff": 20}
    model = ViT(ViTConfig(**{**small, "image_size": 8, "patch_size": 4, **changes}))
    with pytest.raises(InputError, match=message):
        timm_format.write_model(model, tmp_path / "there", {})
    assert not (tmp_path / "there").exists()


def random_vit(rng: random.Random) -> dict[str, Any]:
    """Draw arguments of a small ViT of timm; some of them no config of fourfold represents."""
    side = rng.choice((8, 12, 16, 20, 13))
    arguments: dict[str, Any] = {
        "img_size": rng.choice((side, (side, side), (side, 12), (24, 16))),
        "patch_size": rng.choice((4, 4, 4, (4, 2))),
        "embed_dim": WIDTH,
        "depth": rng.choice((1, 2)),
        "num_heads": HEADS,
        "num_classes": CLASSES,
        "class_token": rng.random() < 0.7,
        "reg_tokens": rng.choice((0, 0, 1, 3, 5)),
    }
    arguments["global_pool"] = rng.choice(("token" if arguments["class_token"] else "avg", "avg"))
    choices: dict[str, tuple[Any, ...]] = {
        "no_embed_class": (True, False),
        "qkv_bias": (True, False),
        "init_values": (None, 0.1),
        "fc_norm": (False, None),
        "in_chans": (3, 1),
        "act_layer": ("gelu", "relu"),
        "pre_norm": (False, True),
        "qk_norm": (False, True),
        "final_norm": (True, False),
        "pool_include_prefix": (False, True),
        "norm_layer": ("layernorm", "rmsnorm"),
    }
    common, *rare = (list(choices)[:5], list(choices)[5:])
    named = {key: rng.choice(choices[key]) for key in common if rng.random() < 0.7}
    return (
        arguments | named | {key: rng.choice(choices[key]) for key in rare[0] if rng.random() < 0.1}
    )


def is_representable(arguments: dict[str, Any], size: Any) -> bool:
    """Return True if a config of fourfold describes the ViT of timm with these arguments."""
    expected = {"patch_size": 4, "final_norm": True, "pool_include_prefix": False}
    return size[0] % 4 == size[1] % 4 == 0 and all(
        arguments.get(key, value) == value for key, value in expected.items()
    )


ACTIVATIONS = {"GELU": "gelu", "GELUTanh": "gelu_tanh", "QuickGELU": "quick_gelu", "SiLU": "silu"}


@pytest.mark.slow
def test_names_of_architectures_imply_what_timm_builds() -> None:
    timm = pytest.importorskip("timm")
    refused = []
    for name in timm.list_models(module="vision_transformer"):
        model = timm.create_model(name, device="meta", depth=1)
        settings = {"architecture": name, "global_pool": model.global_pool}
        try:
            check_supported(model.state_dict())
            config, _ = timm_format._read_config(model.state_dict(), settings)
        except InputError as error:
            refused.append((name, error.option))
            continue
        block = model.blocks[0]
        assert (config.n_heads, config.norm_eps) == (block.attn.num_heads, block.norm1.eps), name
        assert config.activation == ACTIVATIONS[type(block.mlp.act).__name__], name
        inside = type(block).__name__ == "ResPostBlock"
        assert config.norm_placement == ("inside" if inside else "pre"), name
    options = {option for _, option in refused}
    assert options == {
        f"model_args.{key}"
        for key in ("block_fn", "attn_layer", "final_norm", "global_pool", "embed_norm_layer")
    } | {"model_args.scale_attn_norm"}
    families = ("aimv2", "beit3", "radio", "intern", "xp_", "18x2", "siglip", "_map", "pwee")
    assert all(
        any(part in name for part in (*families, "test_vit3", "dlittle", "dwee"))
        for name, _ in refused
    ), refused


@pytest.mark.parametrize("seed", range(60))
def test_random_vits_of_timm_have_equal_logits_or_are_refused(seed: int, tmp_path: Path) -> None:
    timm = pytest.importorskip("timm")
    from timm.models import save_for_hf

    rng = random.Random(seed)
    arguments = random_vit(rng)
    torch.manual_seed(seed)
    reference = timm.create_model("vit_base_patch16_224", **arguments).eval()
    with torch.no_grad():
        for parameter in reference.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    save_for_hf(reference, str(tmp_path / "vit"), model_args=arguments)
    file = tmp_path / "vit" / "config.json"
    content = json.loads(file.read_text())
    for key in ("img_size", "no_embed_class"):  # earlier versions write fewer arguments
        if rng.random() < 0.3:
            content["model_args"].pop(key, None)
    file.write_text(json.dumps(content))
    height, width = reference.patch_embed.img_size
    images = torch.randn(2, reference.patch_embed.proj.in_channels, height, width)
    refused = not is_representable(arguments, (height, width))
    with pytest.raises(InputError) if refused else nullcontext():
        model = fourfold.load(tmp_path / "vit")
    if refused:
        return
    with torch.no_grad():
        torch.testing.assert_close(model(images), reference(images), rtol=1e-4, atol=1e-5)


def test_number_that_is_zero_is_not_a_missing_number(tmp_path: Path) -> None:
    images = {**IMAGES, "mean": [0.0, 0.0, 0.0], "crop_pct": 0}
    model = fourfold.load(folder(tmp_path / "vit", state(), pretrained_cfg=images))
    assert (model.artifacts["mean"], model.artifacts["crop_pct"]) == ([0.0, 0.0, 0.0], 0)
