import io
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import DataLoader

from fourfold.core.errors import InputError
from fourfold.data.batch import ImageBatch
from fourfold.data.images import ImageData
from fourfold.data.sampler import EpochSampler
from fourfold.data.transforms import TransformConfig, eval_transform

EVERYTHING = TransformConfig(
    size=12,
    crop="resized",
    flip=True,
    rand_augment=(2, 9),
    color_jitter=0.3,
    erase=0.5,
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


# ------------------------------------------------------------------------------------------- splits
def test_missing_splits_are_cut_from_the_training_images(folder) -> None:
    data = ImageData(str(folder), batch_size=4, val_fraction=0.25, test_fraction=0.25)
    seen = {}
    for name in ("train", "val", "test"):
        images = data.split(name).images
        seen[name] = {images.name(row) for row in range(len(images))}
    assert [len(s) for s in seen.values()] == [18, 9, 9]
    assert len(set.union(*seen.values())) == 36
    assert data.class_names == ["ant", "bee"]
    again = (
        ImageData(str(folder), seed=5, val_fraction=0.25, test_fraction=0.25).split("val").images
    )
    assert {again.name(row) for row in range(len(again))} == seen["val"]
    other = ImageData(str(folder), split_seed=1, val_fraction=0.25, test_fraction=0.25).split("val")
    assert {other.images.name(row) for row in range(9)} != seen["val"]


def test_few_training_images_are_of_every_class_and_among_the_more() -> None:
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
    ("n", "says"),
    [
        (0, "n_train is 0, but"),
        (10**6, "n_train is 1000000, but"),
        (1, "too small to cut"),
        (20, "class 'rare' has no training images"),
    ],
)
def test_too_few_or_too_many_training_images(n: int, says: str, tmp_path) -> None:
    folder = write_folder(tmp_path, {"ant": 99, "bee": 99, "rare": 4})
    with pytest.raises(InputError, match=says):
        ImageData(str(folder), n_train=n).setup()


def test_a_given_val_is_also_the_test(tmp_path) -> None:
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


def test_a_given_test_is_never_cut(tmp_path) -> None:
    for split in ("train", "test"):
        write_folder(tmp_path / split, {"a": 10, "b": 10})
    data = ImageData(str(tmp_path))
    assert [len(data.split(name)) for name in ("train", "val", "test")] == [18, 2, 20]
    assert all("/train/" in data.split("val").images.name(row) for row in range(2))


def test_data_are_looked_up_under_fourfold_data(tmp_path, monkeypatch) -> None:
    write_folder(tmp_path / "some" / "set", {"a": 12, "b": 12})
    with pytest.raises(InputError, match="some/set"):
        ImageData("some/set").setup()
    monkeypatch.setenv("FOURFOLD_DATA", str(tmp_path))
    assert ImageData("some/set").n_classes == 2


# ------------------------------------------------------------------------------------------ batches
def test_digits_make_batches() -> None:
    pytest.importorskip("sklearn")
    data = ImageData(batch_size=100, eval_batch_size=50)
    assert (data.n_classes, data.n_channels, data.image_size) == (10, 1, 8)
    loaded = batches(data.train_dataloader())
    assert len(loaded) == data.n_train_batches() == 13
    assert sorted(torch.cat([b.index for b in loaded]).tolist()) == list(
        range(len(data.split("train")))
    )
    first = loaded[0]
    assert first.images.shape == (100, 1, 8, 8)
    assert first.images.dtype == torch.float32
    assert first.images.min() == -1
    assert first.images.max() == 1
    assert first.labels.dtype == torch.int64
    assert torch.equal(first.labels, data.split("train").images.labels[first.index])
    assert [(b.epoch, b.position) for b in batches(data.train_dataloader(), 3)[:2]] == [
        (3, 1),
        (3, 2),
    ]
    for loader in (data.val_dataloader(), data.test_dataloader()):
        rows = torch.cat([b.index for b in batches(loader)])
        assert rows.tolist() == list(range(len(loader.dataset)))


@pytest.mark.parametrize("cache", ["memory", "none"])
def test_workers_caches_and_the_random_state_change_nothing(folder, cache) -> None:
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


def test_mixed_labels_are_the_labels_of_the_rows(folder) -> None:
    data = ImageData(str(folder), batch_size=6, transform=TransformConfig(mixup=1.0))
    labels = data.split("train").images.labels
    for batch in batches(data.train_dataloader()):
        torch.testing.assert_close(batch.labels.sum(1), torch.ones(len(batch.labels)))
        partners = data.split("train").plan.partners(batch.index.numpy(), batch.epoch)
        own, partner = labels[batch.index], labels[partners]
        assert (batch.labels[own == partner].max(1).values == 1).all()
        assert (batch.labels[own != partner].max(1).values < 1).all()
    assert next(iter(data.val_dataloader())).labels.dtype == torch.int64


def test_evaluation_knows_no_randomness(folder) -> None:
    data = ImageData(str(folder), transform=EVERYTHING, batch_size=5)
    assert same(batches(data.val_dataloader(), 0), batches(data.val_dataloader(), 0))
    a, b = batches(data.val_dataloader(), 0), batches(data.val_dataloader(), 1)
    assert all(torch.equal(x.images, y.images) for x, y in zip(a, b, strict=True))


def test_an_epoch_taken_up_in_the_middle_goes_on_as_it_was(folder) -> None:
    data = ImageData(str(folder), transform=EVERYTHING, batch_size=5)
    whole = batches(data.train_dataloader(), 1)
    split = data.split("train")
    rest = DataLoader(
        split,
        batch_sampler=EpochSampler(split.plan, start=(1, 3)),
        collate_fn=data.train_dataloader().collate_fn,
    )
    assert same(list(rest), whole[3:])


# ------------------------------------------------------------------------------------------ caching
def test_images_of_several_sizes_are_cached_only_if_told_to(tmp_path) -> None:
    write_folder(tmp_path, {"a": 12})
    write_folder(tmp_path, {"b": 12}, size=(20, 10))
    config = TransformConfig(size=8)
    data = ImageData(str(tmp_path), transform=config, batch_size=20)
    assert next(iter(data.train_dataloader())).images.shape == (20, 3, 8, 8)
    assert data.split("train").decoded is None
    data = ImageData(str(tmp_path), transform=config, cache="memory")
    with pytest.raises(InputError, match=r"cannot be cached: .*16x16 and 10x20 .*b/00\.png"):
        data.train_dataloader()


def test_too_many_images_stay_encoded(folder, monkeypatch) -> None:
    monkeypatch.setattr("fourfold.data.image_split.IN_MEMORY", 1000)
    data = ImageData(str(folder), batch_size=4)
    data.train_dataloader()
    assert data.split("train").decoded is None
    data.cache = "memory"
    data.train_dataloader()
    assert data.split("train").decoded is not None


# -------------------------------------------------------------------------------------- wrong input
def test_a_class_without_training_images_is_named(tmp_path) -> None:
    pa = pytest.importorskip("pyarrow")
    from pyarrow.parquet import write_table

    cells = []
    for value in range(4):
        buffer = io.BytesIO()
        Image.new("L", (4, 4), value).save(buffer, "PNG")
        cells.append({"bytes": buffer.getvalue(), "path": None})
    notes = {"info": {"features": {"label": {"names": ["a", "b", "c"]}}}}
    table = pa.table({"image": cells, "label": [0, 2, 0, 2]})
    table = table.replace_schema_metadata({"huggingface": json.dumps(notes)})
    write_table(table, tmp_path / "train.parquet")
    with pytest.raises(InputError, match=r"class 'b' has no training images in .*train\.parquet"):
        ImageData(str(tmp_path), val_fraction=0.5, test_fraction=0.5).setup()


def test_one_class_is_nothing_to_learn(tmp_path) -> None:
    with pytest.raises(InputError, match="single class: 'a'"):
        ImageData(str(write_folder(tmp_path, {"a": 30}))).setup()


@pytest.mark.parametrize("num_workers", [0, 1])
def test_a_corrupt_image_is_one_sentence_from_any_process(tmp_path, num_workers: int) -> None:
    write_folder(tmp_path, {"a": 20, "b": 20})
    data = ImageData(str(tmp_path), cache="none", num_workers=num_workers, batch_size=7)
    data.setup()
    broken = data.split("train").images.name(9)
    Path(broken).write_bytes(Path(broken).read_bytes()[:100])
    with pytest.raises(InputError) as caught:
        batches(data.train_dataloader())
    assert str(caught.value).startswith(f"The image {broken} cannot be read: ")
    assert "\n" not in str(caught.value)
    with pytest.raises(InputError, match=broken):  # the cache finds it before the first batch
        ImageData(str(tmp_path)).train_dataloader()


def test_the_size_must_be_given_for_oblong_images(tmp_path) -> None:
    write_folder(tmp_path, {"a": 12, "b": 12}, size=(8, 6))
    with pytest.raises(InputError, match=r"\.png is not square \(6x8\): set transform.size"):
        ImageData(str(tmp_path)).setup()


def test_channels_are_one_or_three(folder) -> None:
    with pytest.raises(InputError, match="n_channels must be 1 or 3, not 4"):
        ImageData(str(folder), n_channels=4)
    data = ImageData(str(folder), n_channels=1, batch_size=2)
    assert next(iter(data.train_dataloader())).images.shape == (2, 1, 16, 16)


# ---------------------------------------------------------------------------------------- artifacts
def test_classify_sees_what_validation_saw(folder, tmp_path) -> None:
    """Through a checkpoint file: plain values only, and the same pixels bit by bit."""
    config = TransformConfig(size=10, crop="resized", mean=(0.4, 0.5, 0.6), std=(0.2, 0.3, 0.4))
    data = ImageData(str(folder), transform=config)
    torch.save(data.artifacts(), tmp_path / "a.ckpt")
    artifacts = torch.load(tmp_path / "a.ckpt", weights_only=True)
    assert artifacts["class_names"] == ["ant", "bee"]
    assert artifacts["eval_crop"] == 0.875
    prepare = eval_transform(artifacts)
    batch = next(iter(data.val_dataloader()))
    images = data.split("val").images
    for row, image in zip(batch.index.tolist(), batch.images, strict=True):
        assert torch.equal(prepare(images.name(row)), image)


def test_the_config_comes_from_yaml(folder, tmp_path) -> None:
    jsonargparse = pytest.importorskip("jsonargparse")
    parser = jsonargparse.ArgumentParser()
    parser.add_subclass_arguments(ImageData, "data")
    parser.add_argument("--config", action="config")
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(
        f"data:\n  class_path: {ImageData.__module__}.ImageData\n"
        f"  init_args:\n    source: {folder}\n"
        "    transform: {size: 12, crop: padded, rand_augment: [2, 9], mean: [0.1, 0.2, 0.3]}\n"
    )
    options = ["--data.init_args.transform.flip=true"]
    data = parser.instantiate(parser.parse_args(["--config", str(recipe), *options])).data
    assert data.transform == TransformConfig(
        size=12, crop="padded", flip=True, rand_augment=(2, 9), mean=(0.1, 0.2, 0.3)
    )


# ---------------------------------------------------------------------------------------- real data
def test_cifar10(data_dir) -> None:
    pytest.importorskip("pyarrow")
    recipe = TransformConfig(crop="padded", flip=True)
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


def test_greyscale_photographs_among_coloured_ones(data_dir) -> None:
    pytest.importorskip("pyarrow")
    data = ImageData(str(data_dir / "images" / "tiny_imagenet25"), cache="none")
    images = data.split("val").images
    assert len(data.split("train")) == 12500
    assert data.n_classes == 25
    modes = {Image.open(io.BytesIO(images.encoded(row))).mode for row in range(len(images))}
    assert modes == {"L", "RGB"}
    assert {images.pixels(row, 3).shape for row in range(len(images))} == {(3, 64, 64)}
