"""timm's ViT and DeiT: against its formulas written down here, and against timm where it is."""

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
import transformers as hf
from safetensors.torch import load_file, save_file
from torch import Tensor

import fourfold
from fourfold.cli import main
from fourfold.core.errors import InputError
from fourfold.hub import timm as ours_of_timm
from fourfold.models import ViT, ViTConfig
from fourfold.tasks import load_task
from fourfold.tasks.start import read_source, start_from

WIDTH, HEADS, DEPTH, PATCH, SIDE, CLASSES = 36, 3, 2, 4, 12, 5
CONFIG = {
    "architecture": "some_vit", "num_classes": CLASSES,
    "model_args": {"num_heads": HEADS, "act_layer": "gelu"},
}  # fmt: skip
IMAGES = {
    "mean": [0.1, 0.2, 0.3], "std": [0.4, 0.5, 0.6], "crop_pct": 0.9, "interpolation": "bicubic",
    "crop_mode": "center",
}  # fmt: skip
KINDS = ("cls", "distilled", "mean", "representation")
TOLERANCE = {torch.float32: 1e-5, torch.float64: 1e-10}


def state(kind: str = "cls", width: int = WIDTH, hidden: int = 50) -> dict[str, Tensor]:
    """Random weights by timm's names."""
    torch.manual_seed(0)
    tokens = {"cls": 1, "distilled": 2, "mean": 0, "representation": 1}[kind]
    last = 20 if kind == "representation" else width
    shapes: dict[str, tuple[int, ...]] = {
        **dict.fromkeys(("cls_token", "dist_token")[:tokens], (1, 1, width)),
        "pos_embed": (1, (SIDE // PATCH) ** 2 + tokens, width),
        "patch_embed.proj.weight": (width, 3, PATCH, PATCH), "patch_embed.proj.bias": (width,),
        **{f"norm.{p}": (width,) for p in ("weight", "bias")},
    }  # fmt: skip
    for i in range(DEPTH):
        for name, (after, before) in {
            "attn.qkv": (3 * width, width), "attn.proj": (width, width),
            "mlp.fc1": (hidden, width), "mlp.fc2": (width, hidden),
        }.items():  # fmt: skip
            shapes[f"blocks.{i}.{name}.weight"] = (after, before)
            shapes[f"blocks.{i}.{name}.bias"] = (after,)
        for name in ("norm1", "norm2"):
            shapes |= {f"blocks.{i}.{name}.{p}": (width,) for p in ("weight", "bias")}
    if kind == "representation":
        shapes |= {"pre_logits.fc.weight": (last, width), "pre_logits.fc.bias": (last,)}
    for head in ("head", "head_dist")[: 1 + (kind == "distilled")]:
        shapes |= {f"{head}.weight": (CLASSES, last), f"{head}.bias": (CLASSES,)}
    return {name: 0.3 * torch.randn(shape) for name, shape in shapes.items()}


def forward(w: dict[str, Tensor], images: Tensor, heads: int = HEADS) -> Tensor:
    """What timm computes from its tensors, formula by formula."""

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


def compare(model: Any, weights: dict[str, Tensor], their: Callable[[Tensor], Tensor]) -> None:
    """Logits and every gradient; `weights` are leaves that `their` computes from."""
    dtype = next(model.parameters()).dtype
    images = torch.randn(3, 3, SIDE, SIDE, dtype=dtype)
    mine, expected = model(images), their(images)
    tolerance = TOLERANCE[dtype]
    assert (mine - expected).abs().max() <= tolerance * expected.abs().max()
    labels = torch.arange(3)
    F.cross_entropy(mine, labels).backward()
    F.cross_entropy(expected, labels).backward()
    gradients = {name: x.grad for name, x in weights.items() if x.grad is not None}
    keys = ours_of_timm._keys(model.n_prefix)
    wanted, _ = keys.read(gradients, model.state_dict(), "")
    largest = max(float(g.abs().max()) for g in wanted.values())
    found = {name: p.grad for name, p in model.named_parameters()}
    assert found.keys() == wanted.keys()
    for name, gradient in found.items():
        assert (gradient - wanted[name]).abs().max() <= 2 * tolerance * largest, name


def folder(path: Path, weights: dict[str, Tensor], **more: Any) -> Path:
    """A directory as timm's hub has them."""
    path.mkdir()
    save_file(weights, path / "model.safetensors")
    (path / "config.json").write_text(json.dumps({**CONFIG, **more}))
    return path


@pytest.mark.parametrize("dtype", TOLERANCE, ids=["fp32", "fp64"])
@pytest.mark.parametrize("kind", KINDS)
def test_logits_and_every_gradient(kind: str, dtype: torch.dtype, tmp_path: Path) -> None:
    weights = state(kind)
    model = fourfold.load(folder(tmp_path / "vit", weights)).to(dtype)
    leaves = {name: x.to(dtype).requires_grad_() for name, x in weights.items()}
    compare(model, leaves, lambda images: forward(leaves, images))


@pytest.mark.parametrize("dtype", TOLERANCE, ids=["fp32", "fp64"])
@pytest.mark.parametrize("kind", KINDS[:3])
def test_against_timm_itself(kind: str, dtype: torch.dtype, tmp_path: Path) -> None:
    timm = pytest.importorskip("timm")
    sizes = {
        "img_size": SIDE, "patch_size": PATCH, "embed_dim": WIDTH, "depth": DEPTH,
        "num_heads": HEADS, "mlp_ratio": 50.5 / 36, "num_classes": CLASSES,
    }  # fmt: skip
    if kind == "mean":
        sizes |= {"class_token": False, "global_pool": "avg", "fc_norm": False}
    name = "deit_base_distilled_patch16_224" if kind == "distilled" else "vit_base_patch16_224"
    theirs = timm.create_model(name, **sizes).eval().to(dtype)
    with torch.no_grad():
        for parameter in theirs.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    from timm.models import save_for_hf

    save_for_hf(theirs.float(), str(tmp_path / "there"), model_args={"num_heads": HEADS})
    model = fourfold.load(tmp_path / "there").to(dtype)
    theirs = theirs.to(dtype)
    compare(model, dict(theirs.named_parameters()), theirs)
    # And back: the same bytes, in a directory from which timm builds the same model.
    assert main(["import", str(tmp_path / "there"), str(tmp_path / "x.ckpt")]) == 0
    assert main(["export", str(tmp_path / "x.ckpt"), f"timm:{tmp_path / 'back'}"]) == 0
    again = timm.create_model(f"local-dir:{tmp_path / 'back'}", pretrained=True).eval()
    images = torch.randn(2, 3, SIDE, SIDE)
    with torch.no_grad():
        torch.testing.assert_close(again(images), theirs.float()(images), rtol=1e-6, atol=1e-6)
    for name, tensor in theirs.float().state_dict().items():
        assert torch.equal(tensor, again.state_dict()[name]), name


@pytest.mark.parametrize("ending", [".safetensors", ".pth", ".bin"])
def test_one_file_with_what_was_assumed(ending: str, tmp_path: Path, capsys: Any) -> None:
    """DeiT's releases: a state dict, one level down in a pickle; heads by the rule."""
    weights, file = state("distilled", width=128), tmp_path / f"deit{ending}"
    if ending == ".safetensors":
        save_file(weights, file)
    else:
        torch.save({"model": weights} if ending == ".pth" else weights, file)
    assert main(["import", str(file), str(tmp_path / "x.ckpt")]) == 0
    said = capsys.readouterr().out
    assert "timm, " in said
    assert "as ImageClassification" in said
    assert "assumed 2 heads, as timm has in models of width 128" in said
    assert "assumed the exact GELU" in said
    assert "assumed timm's default for images: crop_pct 0.875" in said
    images = torch.randn(2, 3, SIDE, SIDE)
    for path in (file, tmp_path / "x.ckpt"):
        model: Any = fourfold.load(path)
        assert model.config.image_size == SIDE
        with torch.no_grad():
            torch.testing.assert_close(model(images), forward(weights, images, 2))


@pytest.mark.parametrize(("width", "n_heads"), [(192, 3), (768, 12), (1280, 16), (1664, 16)])
def test_how_many_heads(width: int, n_heads: int) -> None:
    assert ours_of_timm._heads({}, width, "")[0] == n_heads


def test_preprocessing_and_labels(tmp_path: Path, capsys: Any) -> None:
    names = ["a", "b", "c", "d", "e"]
    place = folder(tmp_path / "vit", state(), pretrained_cfg=IMAGES, label_names=names)
    assert main(["import", str(place), str(tmp_path / "x.ckpt")]) == 0
    assert "assumed" not in capsys.readouterr().out
    found = load_task(tmp_path / "x.ckpt").artifacts
    assert found == {
        "class_names": names, "image_size": SIDE, "n_channels": 3, "mean": [0.1, 0.2, 0.3],
        "std": [0.4, 0.5, 0.6], "eval_crop": 0.9, "squash": False,
        "interpolation": "bicubic",
    }  # fmt: skip
    # To timm and to transformers, with all that.
    assert main(["export", str(tmp_path / "x.ckpt"), f"timm:{tmp_path / 'back'}"]) == 0
    assert main(["import", str(tmp_path / "back"), str(tmp_path / "y.ckpt")]) == 0
    assert "assumed" not in capsys.readouterr().out
    assert load_task(tmp_path / "y.ckpt").artifacts == found
    assert main(["export", str(tmp_path / "x.ckpt"), str(tmp_path / "hf")]) == 0
    theirs = hf.AutoModelForImageClassification.from_pretrained(tmp_path / "hf").eval()
    images = torch.randn(2, 3, SIDE, SIDE)
    with torch.no_grad():
        expected = forward(state(), images)
        torch.testing.assert_close(
            theirs(pixel_values=images).logits, expected, rtol=1e-4, atol=1e-5
        )
    assert theirs.config.id2label[1] == "b"


@pytest.mark.parametrize("kind", KINDS[:3])
def test_back_with_the_same_tensors(kind: str, tmp_path: Path) -> None:
    weights = state(kind)
    assert main(["import", str(folder(tmp_path / "a", weights)), str(tmp_path / "x.ckpt")]) == 0
    assert main(["export", str(tmp_path / "x.ckpt"), f"timm:{tmp_path / 'b'}"]) == 0
    again = fourfold.load(tmp_path / "b")
    assert again.config == fourfold.load(tmp_path / "a").config
    back = load_file(tmp_path / "b" / "model.safetensors")
    assert back.keys() == weights.keys()
    assert all(torch.equal(back[name], weights[name]) for name in weights)


def test_a_training_begins_with_it(tmp_path: Path) -> None:
    weights = {name: x for name, x in state().items() if not name.startswith("head.")}
    place = folder(tmp_path / "vit", weights)
    read_source.cache_clear()
    config = read_source(str(place)).model.config
    model = ViT(ViTConfig(**{**vars(config), "n_classes": 1}))
    before = model.heads[0].weight.clone()
    report = start_from(model, str(place), None, "bicubic")
    assert "assumed timm's default for images: mean" in report
    assert "new       heads.0.weight (1, 36)" in report
    assert torch.equal(model.heads[0].weight, before)
    assert torch.equal(model.stack.norm.weight, weights["norm.weight"])
    with pytest.raises(InputError, match=r"lacks 1 of the 1 heads that classify: .* init_from"):
        fourfold.load(place)


def dropped(name: str) -> Callable[..., Any]:
    return lambda weights, config: weights.pop(name)


def told(**more: Any) -> Callable[..., Any]:
    return lambda weights, config: config.update(more)


def added(name: str, *shape: int) -> Callable[..., Any]:
    return lambda weights, config: weights.update({name: torch.zeros(shape)})


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (dropped("pos_embed"), "no tensor pos_embed of 3 dimensions"),
        (dropped("blocks.0.mlp.fc1.weight"), "no tensor blocks.0.mlp.fc1.weight"),
        (dropped("blocks.1.attn.qkv.bias"), "no tensor for stack.blocks.1.attn.q.bias"),
        (dropped("head_dist.weight"), "no place in this model, such as head_dist.bias"),
        (dropped("patch_embed.proj.weight"), "no tensor patch_embed.proj.weight"),
        (added("pos_embed", 1, 9, 36), "pos_embed has 9 rows, but must have one for each of 2"),
        (added("blocks.0.ls1.gamma", 36), "no place in this model, such as blocks.0.ls1.gamma"),
        (added("fc_norm.weight", 36), "fc_norm follows the mean of the patches"),
        (told(model_args={}), "the number of heads cannot be told from weights of width 36"),
        (told(model_args={"num_heads": 5}), "d_model 36 is not divisible by n_heads 5"),
        (
            told(model_args={"num_heads": 3, "act_layer": "quick_gelu"}),
            "act_layer is 'quick_gelu', but must be 'gelu'",
        ),
        (told(global_pool="avg"), "global_pool is 'avg', but must be 'token'"),
        (
            told(pretrained_cfg={**IMAGES, "interpolation": "lanczos"}),
            "images are prepared by lanczos and crop_mode center",
        ),
        (told(architecture=None, model_type="mamba"), "model_type is 'mamba'"),
    ],
)
def test_bad_directories_get_one_sentence(
    change: Any, said: str, tmp_path: Path, capsys: Any
) -> None:
    weights, config = state("distilled"), dict(CONFIG)
    change(weights, config)
    place = folder(tmp_path / "vit", weights)
    (place / "config.json").write_text(json.dumps(config))
    assert main(["import", str(place), str(tmp_path / "x.ckpt")]) == 2
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1
    assert not (tmp_path / "x.ckpt").exists()


def test_bad_files_get_one_sentence(tmp_path: Path, capsys: Any) -> None:
    torch.save({**state(), "epoch": 3}, tmp_path / "a.pth")
    torch.save({"something": torch.zeros(2)}, tmp_path / "b.pth")
    (tmp_path / "c.safetensors").write_bytes(b"nothing")
    for name, said in {
        "a.pth": "epoch is no tensor, but a int",
        "b.pth": "neither a transformers directory nor a checkpoint of nanoGPT, minGPT or timm",
        "c.safetensors": "broken or cut off",
    }.items():
        assert main(["import", str(tmp_path / name), str(tmp_path / "x.ckpt")]) == 2
        error = capsys.readouterr().err
        assert said in error
        assert error.count("\n") == 1


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"representation_size": 7}, "representation_size"),
        ({"norm_placement": "post"}, "norm_placement=post"),
        ({"activation": "relu"}, "activation=relu"),
        ({"positions": "sincos2d"}, "cannot have|pos_embed"),
        ({"bias": False}, "cannot have|no tensor"),
    ],
)
def test_what_timm_does_not_have_is_said(changes: dict[str, Any], why: str, tmp_path: Path) -> None:
    small: dict[str, Any] = {"d_model": 12, "n_layers": 1, "n_heads": 3, "d_ff": 20}
    model = ViT(ViTConfig(**{**small, "image_size": 8, "patch_size": 4, **changes}))
    with pytest.raises(InputError, match=why):
        ours_of_timm.write(model, tmp_path / "there", {})
    assert not (tmp_path / "there").exists()
