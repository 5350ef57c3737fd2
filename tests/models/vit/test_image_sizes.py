"""Images that are not square: every family of image models, conversion, positions and pages."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import timm
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from torch import Tensor
from transformers import AutoImageProcessor, AutoModelForImageClassification

import fourfold
from fourfold.checkpoints.save import write_transformers
from fourfold.data.vision.augment import Augmentation
from fourfold.data.vision.eval_transforms import EvalTransform, TransformConfig, eval_transform
from fourfold.errors import InputError
from fourfold.finetuning.weight_transfer import transfer
from fourfold.hub.preprocessing import read_image_preprocessing, write_image_preprocessing
from fourfold.models import (
    CLIP,
    CLIPConfig,
    MaskedAutoencoder,
    MaskedAutoencoderConfig,
    ResNet,
    ResNetConfig,
    Segmenter,
    SegmenterConfig,
    ViT,
    ViTConfig,
)
from fourfold.models.vit import hub_timm

SHAPE: dict[str, Any] = {"d_model": 16, "n_layers": 1, "n_heads": 2, "d_ff": 24}
CLIP_SHAPE = {f"image_{name}": value for name, value in SHAPE.items()} | SHAPE
VARIANTS: list[dict[str, Any]] = [
    {"positions": "learned"},
    {"positions": "learned2d"},
    {"positions": "learned2d", "positions_at": "layers"},
    {"positions": "sincos2d", "pool": "mean"},
    {"positions": "sinusoidal"},
    {"positions": "relative"},
    {"positions": "rotary2d", "rope_theta": 100.0, "n_registers": 2, "pool": "cls_mean"},
    {"distillation": True},
]


def randomized(model: Any) -> Any:
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=0.3)
    return model.eval()


@settings(max_examples=12, deadline=None)
@given(
    st.tuples(st.integers(1, 4), st.integers(1, 4)),
    st.sampled_from([2, 4]),
    st.sampled_from(VARIANTS),
    st.sampled_from([ViT, Segmenter, MaskedAutoencoder, CLIP, ResNet]),
)
def test_any_size_trains_and_is_saved(
    tmp_path_factory: pytest.TempPathFactory,
    grid: tuple[int, int],
    patch_size: int,
    variant: dict[str, Any],
    model_class: Any,
) -> None:
    size = (grid[0] * patch_size, grid[1] * patch_size)
    sizes: dict[str, Any] = {"image_size": size, "patch_size": patch_size}
    images = torch.randn(2, 3, *size)
    inputs: tuple[Tensor, ...] = (images,)
    model: Any
    if model_class is MaskedAutoencoder:
        decoder = {"decoder_d_model": 8, "n_decoder_layers": 1, "decoder_n_heads": 2}
        model = MaskedAutoencoder(MaskedAutoencoderConfig(**SHAPE, **sizes, **decoder))
        assert torch.equal(model.unpatchify(model.patchify(images)), images)
    elif model_class is CLIP:
        model = CLIP(CLIPConfig(**CLIP_SHAPE, **sizes, d_embed=8, vocab_size=9, max_len=5))
        inputs = (images, torch.randint(0, 9, (2, 5)))
    elif model_class is ResNet:
        model = ResNet(ResNetConfig(depth=18, stem="cifar", image_size=size, n_classes=3))
    else:
        config = ViTConfig if model_class is ViT else SegmenterConfig
        model = model_class(config(**SHAPE, **sizes, **variant, n_classes=3))
    assert [tuple(x.shape[1:]) for x in model.example_inputs()[:1]] == [(3, *size)]
    with pytest.raises(InputError, match=r"must have the shape \(B, 3, "):
        model(torch.randn(2, 3, size[0] + 2, size[1]), *inputs[1:])
    if model_class is not ResNet:
        randomized(model)
    model.train()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    model(*inputs).square().mean().backward()
    assert any(p.grad is not None and p.grad.abs().sum() > 0 for p in model.parameters())
    optimizer.step()
    model.eval()
    folder = tmp_path_factory.mktemp("model")
    fourfold.save(model, folder)
    loaded = fourfold.load(folder)
    assert loaded.config.image_size == (size if size[0] != size[1] else size[0])
    with torch.no_grad():
        torch.testing.assert_close(loaded(*inputs), model(*inputs), rtol=1e-4, atol=1e-4)


def test_two_equal_numbers_are_a_square() -> None:
    assert ViTConfig(image_size=(32, 32)) == ViTConfig(image_size=32)
    assert ViTConfig(image_size=[32, 48]).image_size == (32, 48)  # type: ignore[arg-type]
    for size in ((32,), (32, 48, 3), (0, 32), (32, 2**20), (32, 1.5)):
        with pytest.raises(InputError, match="image_size must be"):
            ViTConfig(image_size=size)  # type: ignore[arg-type]
    with pytest.raises(InputError, match=r"divisible by patch_size \(16\), got \(32, 40\)"):
        ViT(ViTConfig(**SHAPE, image_size=(32, 40)))


@pytest.mark.parametrize("positions", ["sincos2d", "learned2d"])
def test_positions_of_rows_and_columns(positions: Any) -> None:
    """The vectors are those of a larger square, restricted to its first rows."""
    tables = []
    for size in ((4, 10), (10, 10)):
        config = ViTConfig(**SHAPE, image_size=size, patch_size=2, positions=positions, pool="mean")
        torch.manual_seed(0)
        tables.append(ViT(config).embed.positions)
    if positions == "learned2d":
        for name in ("x", "y"):
            rows = getattr(tables[0], name)
            rows.data.copy_(getattr(tables[1], name)[: len(rows)])
    torch.testing.assert_close(tables[0].weight, tables[1].weight[:10])  # type: ignore[union-attr]


@pytest.mark.parametrize(("old", "new"), [((4, 16), (8, 8)), ((8, 8), (6, 10)), ((6, 10), (12, 4))])
def test_positions_are_interpolated_between_grids(
    old: tuple[int, int], new: tuple[int, int]
) -> None:
    """Also between grids of the same number of patches, such as 2 x 8 and 4 x 4."""
    source, target = (
        randomized(ViT(ViTConfig(**SHAPE, image_size=size, patch_size=2))) for size in (old, new)
    )
    report = transfer(target, source)
    assert "embed.positions.weight" in [name for name, _, _ in report.resized]
    table = source.embed.positions.weight
    rows, columns = (n // 2 for n in old)
    grid = table[1:].T.reshape(1, 16, rows, columns)
    wanted = F.interpolate(grid, (new[0] // 2, new[1] // 2), mode="bicubic", antialias=True)
    found = target.embed.positions.weight
    torch.testing.assert_close(found[1:], wanted[0].flatten(1).T)
    assert torch.equal(found[0], table[0])


@pytest.mark.parametrize("variant", [VARIANTS[0], VARIANTS[-1]])
def test_export_to_transformers(tmp_path: Path, variant: dict[str, Any]) -> None:
    config = ViTConfig(**SHAPE, image_size=(8, 20), patch_size=4, n_classes=3, **variant)
    model = randomized(ViT(config))
    fourfold.save(model, tmp_path)
    theirs = AutoModelForImageClassification.from_pretrained(tmp_path).eval()
    assert list(theirs.config.image_size) == [8, 20]
    images = torch.randn(2, 3, 8, 20)
    with torch.no_grad():
        torch.testing.assert_close(theirs(images).logits, model(images), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("prefix_positions", ["all", "none"])
def test_export_to_timm(tmp_path: Path, prefix_positions: Any) -> None:
    sizes: dict[str, Any] = {"image_size": (8, 20), "patch_size": 4, "n_classes": 3}
    model = randomized(ViT(ViTConfig(**SHAPE, **sizes, prefix_positions=prefix_positions)))
    hub_timm.write_model(model, tmp_path, {})
    theirs = timm.create_model(f"local-dir:{tmp_path}", pretrained=True).eval()
    images = torch.randn(2, 3, 8, 20)
    loaded = fourfold.load(tmp_path)
    assert loaded.config.image_size == (8, 20)
    with torch.no_grad():
        torch.testing.assert_close(theirs(images), model(images), rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(loaded(images), model(images), rtol=1e-4, atol=1e-4)


def test_a_clip_is_not_exported_to_transformers(tmp_path: Path) -> None:
    config = CLIPConfig(**CLIP_SHAPE, image_size=(8, 20), patch_size=4, d_embed=8, vocab_size=9)
    with pytest.raises(InputError, match=r"clip does not support image_size=\(8, 20\)"):
        write_transformers(CLIP(config), tmp_path)


def test_preprocessing_of_transformers(tmp_path: Path) -> None:
    transform = EvalTransform(TransformConfig(crop_mode="squash", crop_pct=1.0), (8, 20), 3)
    write_image_preprocessing(tmp_path, transform.artifacts(), is_clip=False)
    config = ViTConfig(**SHAPE, image_size=(8, 20), patch_size=4)
    assert read_image_preprocessing(tmp_path, config) == transform.artifacts()
    image = Image.fromarray(np.random.default_rng(0).integers(0, 256, (30, 40, 3), dtype=np.uint8))
    theirs = AutoImageProcessor.from_pretrained(tmp_path)(image, return_tensors="pt")
    ours = eval_transform(transform.artifacts())(image)
    torch.testing.assert_close(ours, theirs["pixel_values"][0], rtol=0, atol=0.02)
    for options in ({"crop_mode": "center"}, {"crop_mode": "squash", "crop_pct": 0.9}):
        artifacts = EvalTransform(TransformConfig(**options), (8, 20), 3).artifacts()
        with pytest.raises(InputError, match="image_size must be a square"):
            write_image_preprocessing(tmp_path, artifacts, is_clip=False)


@pytest.mark.parametrize(("height", "width"), [(30, 40), (90, 20), (17, 51), (8, 20)])
def test_a_center_crop_covers_the_input_as_in_timm(height: int, width: int) -> None:
    rng = np.random.default_rng(0)
    image = Image.fromarray(rng.integers(0, 256, (height, width, 3), dtype=np.uint8))
    config = TransformConfig(crop_pct=0.8, interpolation="bilinear")
    found = EvalTransform(config, (8, 20), 3)([torch.from_numpy(np.array(image)).permute(2, 0, 1)])
    assert found.shape == (1, 3, 8, 20)
    resized = [math.floor(8 / 0.8), math.floor(20 / 0.8)]
    factor = max(resized[0] / height, resized[1] / width)  # the image covers 10 x 25
    size = (math.floor(width * factor + 1e-6), math.floor(height * factor + 1e-6))
    left, top = round((size[0] - 20) / 2), round((size[1] - 8) / 2)
    shown = image.resize(size, Image.Resampling.BILINEAR).crop((left, top, left + 20, top + 8))
    wanted = torch.from_numpy(np.array(shown)).permute(2, 0, 1) / 127.5 - 1
    assert (found[0] - wanted).abs().mean() < 0.02


@pytest.mark.parametrize("crop", ["none", "pad_crop", "random_resized_crop"])
def test_augmentation_has_height_and_width(crop: Any) -> None:
    config = TransformConfig(train_crop=crop, flip=True)
    pixels = torch.randint(0, 256, (3, 3, 30, 40), dtype=torch.uint8)
    assert Augmentation(config, (8, 20), 3, seed=0)(pixels, 0, np.arange(3)).shape == (3, 3, 8, 20)
