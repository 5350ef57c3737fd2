import hashlib
import io
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import DataLoader

from fourfold.data.loading.batches import ImageBatch
from fourfold.data.loading.sampler import EpochSampler
from fourfold.data.vision.eval_transforms import TransformConfig, eval_transform
from fourfold.data.vision.image_classification import ImageData
from fourfold.data.vision.image_stores import ImageStore
from fourfold.errors import InputError
from tests.data.vision.stores import write_parquet, write_png

EVERYTHING = TransformConfig(
    size=12,
    train_crop="random_resized_crop",
    flip=True,
    aa="rand-m9-n2",
    color_jitter=0.3,
    reprob=0.5,
    mixup=0.8,
    cutmix=1.0,
)


def write_folder(root: Path, counts: dict[str, int], size: tuple[int, int] = (16, 16)) -> Path:
    rng = np.random.default_rng(0)
    for name, count in counts.items():
        (root / name).mkdir(parents=True)
        for k in range(count):
            pixels = rng.integers(0, 256, (*size, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(root / name / f"{k:02}.png")
    return root


def batches(loader: DataLoader, epoch: int = 0) -> list[ImageBatch]:
    loader.batch_sampler.set_epoch(epoch)
    return list(loader)


def same(a: list[ImageBatch], b: list[ImageBatch]) -> bool:
    def equal(x: object, y: object) -> bool:
        return torch.equal(x, y) if isinstance(x, torch.Tensor) else x == y

    assert len(a) == len(b)
    return all(equal(x, y) for p, q in zip(a, b, strict=True) for x, y in zip(p, q, strict=True))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_folder(tmp_path_factory.mktemp("images"), {"ant": 24, "bee": 12})


def test_missing_splits_are_held_out_from_training_images(folder: Path) -> None:
    data = ImageData(str(folder), batch_size=4, val_fraction=0.25, test_fraction=0.25)
    seen = {}
    for name in ("train", "val", "test"):
        images = data.split(name).images
        seen[name] = {images.location(row) for row in range(len(images))}
    assert [len(s) for s in seen.values()] == [18, 9, 9]
    assert len(set.union(*seen.values())) == 36
    assert data.class_names == ["ant", "bee"]
    again = (
        ImageData(str(folder), seed=5, val_fraction=0.25, test_fraction=0.25).split("val").images
    )
    assert {again.location(row) for row in range(len(again))} == seen["val"]
    other = ImageData(str(folder), split_seed=1, val_fraction=0.25, test_fraction=0.25).split("val")
    assert {other.images.location(row) for row in range(9)} != seen["val"]


def test_n_train_keeps_every_class_and_nested_subsets() -> None:
    def kept(n: int | None, seed: int = 0) -> ImageData:
        return ImageData("digits", n_train=n, split_seed=seed)

    def rows(data: ImageData) -> set[int]:
        images = data.split("train").images
        return {int(row) for row in images.rows}

    few, more = kept(100), kept(300)
    assert rows(few) < rows(more)
    assert rows(few) != rows(kept(100, seed=1))
    counts = torch.bincount(more.split("train").images.labels)
    assert len(more.split("train").images) == pytest.approx(300, abs=5)
    assert counts.min() >= 28
    everything = kept(None)
    n = len(everything.split("train").images)
    assert rows(kept(n)) == rows(everything)
    for name in ("val", "test"):
        assert len(few.split(name).images) == len(everything.split(name).images)


@pytest.mark.parametrize(
    ("n", "message"),
    [
        (0, "n_train must be .*, got 0"),
        (10**6, "n_train must be .*, got 1000000"),
        (1, "too few to hold out"),
        (20, "class rare has no training images"),
    ],
)
def test_n_train_out_of_range(n: int, message: str, tmp_path: Path) -> None:
    folder = write_folder(tmp_path, {"ant": 99, "bee": 99, "rare": 4})
    with pytest.raises(InputError, match=message):
        ImageData(str(folder), n_train=n).setup()


def test_val_is_tested_without_a_test_split(tmp_path: Path) -> None:
    for split in ("train", "val"):
        write_folder(tmp_path / split, {"a": 3, "b": 3})
    data = ImageData(str(tmp_path))
    assert data.split("test").images is data.split("val").images
    assert data.tests_on_val
    write_folder(tmp_path / "test", {"a": 2, "b": 2})
    other = ImageData(str(tmp_path))
    other.setup()
    assert not other.tests_on_val
    assert len(data.split("train")) == 6


def test_test_split_is_never_split(tmp_path: Path) -> None:
    for split in ("train", "test"):
        write_folder(tmp_path / split, {"a": 10, "b": 10})
    data = ImageData(str(tmp_path))
    assert [len(data.split(name)) for name in ("train", "val", "test")] == [18, 2, 20]
    assert all("/train/" in data.split("val").images.location(row) for row in range(2))


def test_relative_path_under_fourfold_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_folder(tmp_path / "some" / "set", {"a": 12, "b": 12})
    with pytest.raises(InputError, match="some/set"):
        ImageData("some/set").setup()
    monkeypatch.setenv("FOURFOLD_DATA", str(tmp_path))
    assert ImageData("some/set").n_classes == 2


def test_batches_of_digits() -> None:
    pytest.importorskip("sklearn")
    data = ImageData(batch_size=100, eval_batch_size=50)
    assert (data.n_classes, data.n_channels, data.image_size) == (10, 1, 8)
    loaded = batches(data.train_dataloader())
    assert len(loaded) == data.n_train_batches() == 13
    assert sorted(torch.cat([b.rows for b in loaded]).tolist()) == list(
        range(len(data.split("train")))
    )
    first = loaded[0]
    assert first.images.shape == (100, 1, 8, 8)
    assert first.images.dtype == torch.float32
    assert first.images.min() == -1
    assert first.images.max() == 1
    assert first.labels.dtype == torch.int64
    assert torch.equal(first.labels, data.split("train").images.labels[first.rows])
    assert [(b.epoch, b.position) for b in batches(data.train_dataloader(), 3)[:2]] == [
        (3, 1),
        (3, 2),
    ]
    for loader in (data.val_dataloader(), data.test_dataloader()):
        rows = torch.cat([b.rows for b in batches(loader)])
        assert rows.tolist() == list(range(len(loader.dataset)))


@pytest.mark.parametrize("cache", ["memory", "none"])
def test_batches_do_not_depend_on_workers_cache_and_random_state(folder: Path, cache: str) -> None:
    def loader(num_workers: int, cache: str) -> DataLoader:
        options = {"transform": EVERYTHING, "batch_size": 5, "seed": 3}
        data = ImageData(str(folder), num_workers=num_workers, cache=cache, **options)
        return data.train_dataloader()

    expected = batches(loader(0, "none"), epoch=2)
    assert expected[0].labels.shape == (5, 2)
    torch.manual_seed(99)
    assert same(batches(loader(2, cache), epoch=2), expected)
    assert same(batches(loader(0, "memory"), epoch=2), expected)
    assert not same(batches(loader(0, "memory"), epoch=1), expected)


def test_mixup_labels_are_those_of_the_rows(folder: Path) -> None:
    data = ImageData(str(folder), batch_size=6, transform=TransformConfig(mixup=1.0))
    labels = data.split("train").images.labels
    for batch in batches(data.train_dataloader()):
        torch.testing.assert_close(batch.labels.sum(1), torch.ones(len(batch.labels)))
        partners = data.split("train").order.mix_partners(batch.rows.numpy(), batch.epoch)
        own, partner = labels[batch.rows], labels[partners]
        assert (batch.labels[own == partner].max(1).values == 1).all()
        assert (batch.labels[own != partner].max(1).values < 1).all()
    assert next(iter(data.val_dataloader())).labels.dtype == torch.int64


def test_evaluation_is_deterministic(folder: Path) -> None:
    data = ImageData(str(folder), transform=EVERYTHING, batch_size=5)
    assert same(batches(data.val_dataloader(), 0), batches(data.val_dataloader(), 0))
    a, b = batches(data.val_dataloader(), 0), batches(data.val_dataloader(), 1)
    assert all(torch.equal(x.images, y.images) for x, y in zip(a, b, strict=True))


def test_resume_within_an_epoch_gives_the_same_batches(folder: Path) -> None:
    data = ImageData(str(folder), transform=EVERYTHING, batch_size=5)
    whole = batches(data.train_dataloader(), 1)
    split = data.split("train")
    rest = DataLoader(
        split,
        batch_sampler=EpochSampler(split.order, start=(1, 3)),
        collate_fn=data.train_dataloader().collate_fn,
    )
    assert same(list(rest), whole[3:])


def test_images_of_different_sizes_are_not_cached(tmp_path: Path) -> None:
    write_folder(tmp_path, {"a": 12})
    write_folder(tmp_path, {"b": 12}, size=(20, 10))
    config = TransformConfig(size=8)
    data = ImageData(str(tmp_path), transform=config, batch_size=20)
    assert next(iter(data.train_dataloader())).images.shape == (20, 3, 8, 8)
    assert data.split("train").decoded is None
    data = ImageData(str(tmp_path), transform=config, cache="memory")
    with pytest.raises(InputError, match=r"data.cache must not be memory, since .*b/00\.png"):
        data.train_dataloader()


def test_auto_cache_is_limited(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fourfold.data.vision.image_classification.AUTO_CACHE_BYTES", 1000)
    data = ImageData(str(folder), batch_size=4)
    data.train_dataloader()
    assert data.split("train").decoded is None
    data = ImageData(str(folder), batch_size=4, cache="memory")
    data.train_dataloader()
    assert data.split("train").decoded is not None


def test_class_without_training_images(tmp_path: Path) -> None:
    cells = [write_png(tmp_path / f"{k}.png", k) for k in range(4)]
    write_parquet(tmp_path / "train.parquet", cells, [0, 2, 0, 2], ["a", "b", "c"])
    with pytest.raises(InputError, match="the class b has no training images"):
        ImageData(str(tmp_path), val_fraction=0.5, test_fraction=0.5).setup()


def test_single_class_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="at least 2 classes, got only a"):
        ImageData(str(write_folder(tmp_path, {"a": 30}))).setup()


@pytest.mark.parametrize("num_workers", [0, 1])
def test_message_of_a_corrupted_image_is_the_same_with_workers(
    tmp_path: Path, num_workers: int
) -> None:
    write_folder(tmp_path, {"a": 20, "b": 20})
    data = ImageData(str(tmp_path), cache="none", num_workers=num_workers, batch_size=7)
    data.setup()
    broken = data.split("train").images.location(9)
    Path(broken).write_bytes(Path(broken).read_bytes()[:100])
    with pytest.raises(InputError) as caught:
        batches(data.train_dataloader())
    assert str(caught.value).startswith(f"{broken}: the image cannot be read: ")
    assert "\n" not in str(caught.value)
    with pytest.raises(InputError, match=broken):  # the cache finds it before the first batch
        ImageData(str(tmp_path)).train_dataloader()


def test_size_is_required_for_images_that_are_not_square(tmp_path: Path) -> None:
    write_folder(tmp_path, {"a": 12, "b": 12}, size=(8, 6))
    with pytest.raises(
        InputError, match=r"transform.size must be given, .*\.png is not square \(6x8\)"
    ):
        ImageData(str(tmp_path)).setup()


def test_images_in_color_become_gray(folder: Path) -> None:
    data = ImageData(str(folder), n_channels=1, batch_size=2)
    assert next(iter(data.train_dataloader())).images.shape == (2, 1, 16, 16)


def test_eval_transform_of_a_checkpoint_equals_validation(folder: Path, tmp_path: Path) -> None:
    """The checkpoint holds plain values only, and pixels are bitwise equal."""
    config = TransformConfig(
        size=10, train_crop="random_resized_crop", mean=(0.4, 0.5, 0.6), std=(0.2, 0.3, 0.4)
    )
    data = ImageData(str(folder), transform=config)
    torch.save(data.artifacts(), tmp_path / "a.ckpt")
    artifacts = torch.load(tmp_path / "a.ckpt", weights_only=True)
    assert artifacts["class_names"] == ["ant", "bee"]
    assert artifacts["crop_pct"] == 0.875
    prepare = eval_transform(artifacts)
    batch = next(iter(data.val_dataloader()))
    images = data.split("val").images
    for row, image in zip(batch.rows.tolist(), batch.images, strict=True):
        assert torch.equal(prepare(images.location(row)), image)


def test_options_from_yaml(folder: Path, tmp_path: Path) -> None:
    jsonargparse = pytest.importorskip("jsonargparse")
    parser = jsonargparse.ArgumentParser()
    parser.add_subclass_arguments(ImageData, "data")
    parser.add_argument("--config", action="config")
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(
        f"data:\n  class_path: {ImageData.__module__}.ImageData\n"
        f"  init_args:\n    source: {folder}\n"
        "    transform: {size: 12, train_crop: pad_crop, aa: rand-m9-n2, mean: [0.1, 0.2, 0.3]}\n"
    )
    options = ["--data.init_args.transform.flip=true"]
    data = parser.instantiate(parser.parse_args(["--config", str(recipe), *options])).data
    assert data.transform == TransformConfig(
        size=12, train_crop="pad_crop", flip=True, aa="rand-m9-n2", mean=(0.1, 0.2, 0.3)
    )


def test_cifar10(data_dir: Path) -> None:
    pytest.importorskip("pyarrow")
    recipe = TransformConfig(train_crop="pad_crop", flip=True)
    data = ImageData(str(data_dir / "images" / "cifar10_jpeg"), transform=recipe, cache="none")
    data.setup()
    assert {name: len(split) for name, split in data.splits.items()} == {
        "train": 45000,
        "val": 5000,
        "test": 10000,
    }
    assert torch.bincount(data.split("val").images.labels).tolist() == [500] * 10
    assert (data.n_classes, data.image_size, data.class_names[9]) == (10, 32, "truck")
    batch = next(iter(data.train_dataloader()))
    assert batch.images.shape == (128, 3, 32, 32)
    assert 0.3 < batch.images.std() < 0.7


def test_gray_images_among_color_images(data_dir: Path) -> None:
    pytest.importorskip("pyarrow")
    data = ImageData(str(data_dir / "images" / "tiny_imagenet25"), cache="none")
    images = data.split("val").images
    assert len(data.split("train")) == 12500
    assert data.n_classes == 25
    modes = {Image.open(io.BytesIO(images.encoded(row))).mode for row in range(len(images))}
    assert modes == {"L", "RGB"}
    assert {images.pixels(row, 3).shape for row in range(len(images))} == {(3, 64, 64)}


def test_split_membership_of_published_results(data_dir: Path) -> None:
    """Rows, their order and their splits are those of the published results."""

    def content(images: ImageStore) -> str:
        result = hashlib.sha256()
        for row in range(len(images)):
            encoded = images.encoded(row)
            assert not isinstance(encoded, Path)
            result.update(encoded if isinstance(encoded, bytes) else encoded.tobytes())
        result.update(images.labels.numpy().tobytes())
        return f"{len(images)}:{result.hexdigest()[:12]}"

    pytest.importorskip("datasets", reason="needs the package datasets")
    pytest.importorskip("sklearn", reason="needs the package scikit-learn")
    expected = {
        "digits": ["1259:ffadd813ccbc", "179:5b8cf3906fb3", "359:4f7031199de0"],
        "cifar10_jpeg": ["45000:f7d9989aadda", "5000:ddbd276902c7", "10000:60ced8d786f0"],
        "tiny_imagenet25": ["12500:a08ae5e8b3fd", "1250:eced8f5c59ea", "1250:eced8f5c59ea"],
        "flowers128": ["3015:19bee7303ddf", "648:cdc12e06d323", "648:cdc12e06d323"],
    }
    for name, contents in expected.items():
        source = name if name == "digits" else str(data_dir / "images" / name)
        data = ImageData(source, cache="none")
        splits = [data.split(split) for split in ("train", "val", "test")]
        assert [content(split.images) for split in splits] == contents, name  # type: ignore[attr-defined]
    source = str(data_dir / "images" / "cifar10_jpeg")
    few = ImageData(source, cache="none", n_train=500).split("train")
    assert content(few.images) == "500:7ff169929ec4"  # type: ignore[attr-defined]


def test_classes_select_and_number_the_images() -> None:
    every, some = ImageData("digits"), ImageData("digits", classes=["7", "2"])
    assert some.class_names == ["7", "2"]
    assert some.n_classes == 2
    for split in ("train", "val", "test"):
        images, kept = every.split(split).images, some.split(split).images
        rows = [row for row in range(len(images)) if images.labels[row] in (2, 7)]
        assert [kept.location(row) for row in range(len(kept))] == [*map(images.location, rows)]
        assert kept.labels.tolist() == [int(images.labels[row] == 2) for row in rows]
    with pytest.raises(InputError, match=r"data\.classes must be one of 0, 1, .* got 'seven'"):
        ImageData("digits", classes=["seven", "2"]).setup()
    with pytest.raises(InputError, match="the class 2 has no training images"):
        ImageData("digits", classes=["2", "2"]).setup()
