import gzip
import json
import struct
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from fourfold.core.errors import InputError
from fourfold.data.image_files import image_folder, parquet, read_idx
from fourfold.data.image_sets import ArrayImages, FileImages, Images, cut
from fourfold.data.image_sources import digits, open_source


def arrays(labels: list[int], n_classes: int, size: int = 4) -> ArrayImages:
    pixels = np.random.default_rng(0).integers(0, 256, (len(labels), size, size), dtype=np.uint8)
    return ArrayImages(pixels, labels, [f"c{k}" for k in range(n_classes)], "made")


def digests(images: Images) -> set[bytes]:
    return {images.digest(row) for row in range(len(images))}


def png(path: Path, value: int, mode: str = "RGB", size: int = 4) -> bytes:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new(mode, (size, size), value if mode == "L" else (value, value, value)).save(path)
    return path.read_bytes()


def write_parquet(path: Path, images: list, labels: list, names: list[str] | None = None) -> Path:
    pa = pytest.importorskip("pyarrow")
    from pyarrow.parquet import write_table

    kind = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    cells = [image if isinstance(image, dict | None) else {"bytes": image} for image in images]
    table = pa.table({"image": pa.array(cells, kind), "label": labels})
    if names:
        notes = {"info": {"features": {"label": {"names": names, "_type": "ClassLabel"}}}}
        table = table.replace_schema_metadata({"huggingface": json.dumps(notes)})
    path.parent.mkdir(parents=True, exist_ok=True)
    write_table(table, path, row_group_size=2)
    return path


def write_idx(path: Path, array: np.ndarray) -> Path:
    head = bytes([0, 0, 8, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape)
    data = head + array.astype(np.uint8).tobytes()
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return path


def opened(path: Path) -> dict[str, Images]:
    return open_source(str(path), "image", "label", False)


# ------------------------------------------------------------------------------------------ cutting
def test_a_cut_is_disjoint_complete_stratified_and_repeatable() -> None:
    images = arrays([0] * 50 + [1] * 30 + [2] * 20, 3)
    rest, part = cut(images, 0.2, seed=1)
    assert torch.bincount(part.labels).tolist() == [10, 6, 4]
    assert not digests(rest) & digests(part)
    assert digests(rest) | digests(part) == digests(images)
    assert torch.equal(part.pixels(3, 1), images.pixels(int(part.rows[3]), 1))
    assert np.array_equal(cut(images, 0.2, seed=1)[1].rows, part.rows)
    assert not np.array_equal(cut(images, 0.2, seed=2)[1].rows, part.rows)


def test_identical_images_stay_on_one_side() -> None:
    """Even under different labels, as twins in collected photographs are."""
    images = arrays([0, 1] * 30, 2)
    images.array[40:] = images.array[:20]
    rest, part = cut(images, 0.3, seed=0)
    assert not digests(rest) & digests(part)
    assert len(rest) + len(part) == 60
    assert 14 <= len(part) <= 22


def test_files_are_read_whole_only_where_they_may_be_identical(tmp_path, monkeypatch) -> None:
    for k in range(40):
        png(tmp_path / "ab"[k % 2] / f"{k}.png", k % 30, size=2 + k % 30)
    images = image_folder(tmp_path)
    read: list[str] = []
    monkeypatch.setattr(
        FileImages, "digest",
        lambda self, row: read.append(self.files[row].stem) or Images.digest(self, row),
    )  # fmt: skip
    found = cut(images, 0.3, seed=0)
    assert set(map(int, read)) == {*range(10), *range(30, 40)}
    assert not digests(found[0]) & digests(found[1])
    assert len(cut(found[0], 0.3, seed=0)[1])
    monkeypatch.setattr(FileImages, "glimpse", Images.glimpse)
    for part, whole in zip(found, cut(images, 0.3, seed=0), strict=True):
        assert np.array_equal(part.rows, whole.rows)


def test_a_cut_leaves_every_class_an_image() -> None:
    rest, part = cut(arrays([0] * 20 + [1], 2), 0.9, seed=0)
    assert set(rest.labels.tolist()) == {0, 1}
    assert set(part.labels.tolist()) == {0}


@pytest.mark.parametrize("fraction", [0.0, 1.0, -0.5])
def test_a_share_must_be_a_share(fraction: float) -> None:
    with pytest.raises(InputError, match=f"between 0 and 1: {fraction}"):
        cut(arrays([0, 1], 2), fraction, seed=0)


def test_an_empty_cut_is_refused() -> None:
    with pytest.raises(InputError, match=r"made is too small .* 0.1 .* 4 images"):
        cut(arrays([0, 0, 1, 1], 2), 0.1, seed=0)


@pytest.mark.parametrize("label", [-1, 2])
def test_a_label_out_of_range_is_named(label: int) -> None:
    with pytest.raises(InputError, match=rf"made, row 2 has label {label}, .* 2 classes .* 0 to 1"):
        arrays([0, 1, label], 2)


def test_no_images_and_lost_labels_are_refused() -> None:
    with pytest.raises(InputError, match="made holds no images"):
        arrays([], 2)
    with pytest.raises(InputError, match="3 images but 2 labels"):
        ArrayImages(np.zeros((3, 2, 2), np.uint8), [0, 1], ["a", "b"], "made")


def test_digits_are_split_without_overlap() -> None:
    pytest.importorskip("sklearn")
    splits = digits()
    seen = [digests(splits[name]) for name in ("train", "val", "test")]
    assert sum(map(len, seen)) == len(set.union(*seen)) == 1797
    counts = torch.stack([torch.bincount(images.labels) for images in splits.values()])
    shares = counts / counts.sum(0)
    assert (shares - torch.tensor([[0.7], [0.1], [0.2]])).abs().max() < 0.005
    assert splits["train"].pixels(0, 1).shape == (1, 8, 8)
    assert max(int(splits["val"].pixels(i, 1).max()) for i in range(9)) == 255
    again = digits()
    assert all(digests(again[name]) == digests(splits[name]) for name in splits)


# ------------------------------------------------------------------------------------------ Parquet
def test_parquet_gives_images_labels_and_names(tmp_path) -> None:
    cells = [png(tmp_path / "a.png", 10), png(tmp_path / "b.png", 20, "L")]
    cells.append({"path": str(tmp_path / "a.png")})
    images = parquet(
        [write_parquet(tmp_path / "x.parquet", cells, [1, 0, 1], ["no", "yes"])], "image", "label"
    )
    assert images.class_names == ["no", "yes"]
    assert images.labels.tolist() == [1, 0, 1]
    assert [int(images.pixels(i, 3).unique()) for i in range(3)] == [10, 20, 10]


def test_shards_follow_each_other(tmp_path) -> None:
    for k in range(3):
        cell = png(tmp_path / f"{k}.png", k)
        write_parquet(tmp_path / "data" / f"train-0000{k}-of-00003.parquet", [cell], [k])
    images = opened(tmp_path)["train"]
    assert (
        [int(images.pixels(i, 1).unique()) for i in range(3)] == images.labels.tolist() == [0, 1, 2]
    )


def test_words_are_labels_too(tmp_path) -> None:
    cells = [png(tmp_path / f"{k}.png", k) for k in range(3)]
    write_parquet(tmp_path / "train.parquet", cells, ["dog", "cat", "dog"])
    write_parquet(tmp_path / "validation.parquet", cells[:1], ["dog"])
    splits = opened(tmp_path)
    assert splits["train"].class_names == splits["val"].class_names == ["cat", "dog"]
    assert splits["val"].labels.tolist() == [1]
    write_parquet(tmp_path / "validation.parquet", cells[:2], ["dog", "cow"])
    with pytest.raises(InputError, match=r"validation\.parquet, row 1 has label 'cow'"):
        opened(tmp_path)


def test_a_broken_table_is_named(tmp_path) -> None:
    cell = png(tmp_path / "a.png", 10)
    cases = [
        ([cell, cell], [0, 5], ["a", "b"], r"x\.parquet, row 1 has label 5"),
        ([cell, cell], [0, None], ["a", "b"], r"x\.parquet, row 1 has no label"),
        ([cell, cell], [0.5, 1.5], None, "'label' .* neither class numbers nor names"),
        ([], [], ["a", "b"], "holds no images"),
    ]
    for images, labels, names, said in cases:
        path = write_parquet(tmp_path / "x.parquet", images, labels, names)
        with pytest.raises(InputError, match=said):
            parquet([path], "image", "label")
    with pytest.raises(InputError, match="no column 'img', only"):
        parquet([path], "img", "label")
    with pytest.raises(InputError, match=r"Column 'label' .* does not hold encoded images"):
        parquet([path], "label", "image")
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(InputError, match=r"x\.parquet is not a readable Parquet file"):
        parquet([path], "image", "label")


def test_a_corrupt_cell_is_named_by_its_row(tmp_path) -> None:
    cell = png(tmp_path / "a.png", 10)
    path = write_parquet(
        tmp_path / "x.parquet", [cell, cell[: len(cell) // 2], b"", None], [0, 1, 1, 0]
    )
    images = parquet([path], "image", "label")
    for row in (1, 2):
        with pytest.raises(
            InputError, match=rf"The image .*x\.parquet, row {row} cannot be read: "
        ):
            images.pixels(row, 3)
    with pytest.raises(InputError, match="row 3 has neither the bytes nor the path"):
        images.pixels(3, 3)


def test_a_cut_jpeg_is_not_padded_with_grey(tmp_path) -> None:
    noise = np.random.default_rng(0).integers(0, 256, (64, 64, 3), dtype=np.uint8)
    (tmp_path / "a").mkdir()
    Image.fromarray(noise).save(tmp_path / "a" / "x.jpg")
    images = image_folder(tmp_path)
    assert images.pixels(0, 3).shape == (3, 64, 64)
    whole = (tmp_path / "a" / "x.jpg").read_bytes()
    (tmp_path / "a" / "x.jpg").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(InputError, match=r"a/x\.jpg cannot be read: .*truncated"):
        images.pixels(0, 3)


# ------------------------------------------------------------------------------------------ folders
def test_class_folders(tmp_path) -> None:
    for split, classes in (("train", "ab"), ("val", "b"), ("test", "ab")):
        for k, name in enumerate(classes):
            png(tmp_path / split / name / "sub" / "1.PNG", k)
            (tmp_path / split / name / "notes.txt").write_text("not an image")
            png(tmp_path / split / name / ".ipynb_checkpoints" / "1-checkpoint.png", k)
            (tmp_path / split / name / "._1.png").write_bytes(b"of a Mac")
        png(tmp_path / split / "__MACOSX" / "1.png", 3)
    splits = opened(tmp_path)
    assert {name: len(images) for name, images in splits.items()} == {
        "train": 2,
        "val": 1,
        "test": 2,
    }
    assert splits["val"].labels.tolist() == [1]  # numbered as in training, though "a" is not there
    assert splits["train"].class_names == ["a", "b"]
    png(tmp_path / "val" / "c" / "1.png", 3)
    with pytest.raises(InputError, match="val/c is none of the 2 training classes"):
        opened(tmp_path)


def test_one_folder_of_classes(tmp_path) -> None:
    for name in "ab":
        png(tmp_path / name / "1.png", 3)
    assert list(opened(tmp_path)) == ["train"]
    (tmp_path / "c").mkdir()
    with pytest.raises(InputError, match=r"The class folder .*/c holds no images"):
        opened(tmp_path)


def test_what_is_no_source_is_named(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("FOURFOLD_DATA", str(tmp_path))
    with pytest.raises(InputError, match=r"no file .*/gone"):
        opened(tmp_path / "gone")
    with pytest.raises(InputError, match="has no folders of images"):
        opened(tmp_path)
    png(tmp_path / "val" / "a" / "1.png", 3)
    with pytest.raises(InputError, match="val images, but no training images"):
        opened(tmp_path)
    with pytest.raises(InputError, match="torchvision has no data set 'CIFAR11'"):
        open_source("torchvision:CIFAR11", "image", "label", False)
    with pytest.raises(
        InputError, match=r"torchvision:CIFAR10 train cannot be loaded: .*not found"
    ):
        open_source("torchvision:CIFAR10", "image", "label", False)


def test_a_test_split_whose_labels_are_a_secret_is_left_out(tmp_path, caplog) -> None:
    cells = [png(tmp_path / f"{k}.png", k) for k in range(2)]
    for split, labels in (("train", [0, 1]), ("validation", [1, 0]), ("test", [-1, -1])):
        write_parquet(tmp_path / f"{split}.parquet", cells, labels, ["a", "b"])
    assert list(opened(tmp_path)) == ["train", "val"]
    assert "test.parquet has no labels: all of them are -1. It is left out." in caplog.text
    write_parquet(tmp_path / "test.parquet", cells, [-1, 0], ["a", "b"])
    with pytest.raises(InputError, match=r"test\.parquet, row 0 has label -1"):
        opened(tmp_path)
    write_parquet(tmp_path / "validation.parquet", cells, [-1, -1], ["a", "b"])
    with pytest.raises(InputError, match=r"validation\.parquet has no labels"):
        opened(tmp_path)


def test_splits_must_have_the_same_classes(tmp_path) -> None:
    cells = [png(tmp_path / f"{k}.png", k) for k in range(2)]
    write_parquet(tmp_path / "train.parquet", cells, [0, 1], ["a", "b"])
    write_parquet(tmp_path / "test.parquet", cells, [0, 1], ["b", "a"])
    with pytest.raises(
        InputError, match=r"test\.parquet does not have the classes of .*train\.parquet"
    ):
        opened(tmp_path)


# ---------------------------------------------------------------------------------------------- IDX
@pytest.mark.parametrize("ending", [".gz", ""])
def test_idx_files(tmp_path, ending: str) -> None:
    pixels = np.arange(3 * 6 * 6).reshape(3, 6, 6)
    for stem in ("train", "t10k"):
        write_idx(tmp_path / f"{stem}-images-idx3-ubyte{ending}", pixels)
        write_idx(tmp_path / f"{stem}-labels-idx1-ubyte{ending}", np.array([1, 0, 1]))
    splits = opened(tmp_path)
    assert list(splits) == ["train", "test"]
    assert splits["test"].n_channels == 1
    assert splits["train"].labels.tolist() == [1, 0, 1]
    assert torch.equal(splits["train"].pixels(2, 1)[0].long(), torch.from_numpy(pixels[2]))


def test_broken_idx_files_are_named(tmp_path) -> None:
    images = write_idx(tmp_path / "train-images-idx3-ubyte", np.zeros((2, 3, 3)))
    with pytest.raises(InputError, match="only one of the two files"):
        opened(tmp_path)
    labels = write_idx(tmp_path / "train-labels-idx1-ubyte", np.array([0, 1]))
    with pytest.raises(InputError, match="labels-idx1-ubyte is not an IDX file of 3-dimensional"):
        read_idx(labels, images)
    images.write_bytes(images.read_bytes()[:-1])
    with pytest.raises(InputError, match="announces 18 bytes of data but holds 17"):
        read_idx(images, labels)
    packed = write_idx(tmp_path / "x.gz", np.array([0, 1]))
    packed.write_bytes(packed.read_bytes()[:-9])
    with pytest.raises(InputError, match=r"x\.gz cannot be unpacked"):
        read_idx(packed, packed)


# ------------------------------------------------------------------------------------------ by name
def test_torchvision_by_name(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("FOURFOLD_DATA", str(tmp_path))
    raw = tmp_path / "FashionMNIST" / "raw"
    raw.mkdir(parents=True)
    for stem in ("train", "t10k"):
        write_idx(
            raw / f"{stem}-images-idx3-ubyte", np.arange(2 * 28 * 28).reshape(2, 28, 28) % 256
        )
        write_idx(raw / f"{stem}-labels-idx1-ubyte", np.array([9, 0]))
    splits = open_source("torchvision:FashionMNIST", "image", "label", False)
    assert list(splits) == ["train", "test"]
    assert splits["train"].labels.tolist() == [9, 0]
    assert splits["test"].class_names[9] == "Ankle boot"
    assert splits["test"].pixels(1, 1).flatten().tolist() == [i % 256 for i in range(784, 1568)]
    assert len(digests(splits["train"])) == 2


def test_datasets_by_name(tmp_path) -> None:
    """A local folder is a data set to the library, too."""
    pytest.importorskip("datasets")
    cells = [png(tmp_path / "pictures" / f"{k}.png", k) for k in range(2)]
    write_parquet(tmp_path / "set" / "train.parquet", cells, [0, 1], ["a", "b"])
    write_parquet(tmp_path / "set" / "test.parquet", cells[:1], [0], ["a", "b"])
    splits = open_source(f"datasets:{tmp_path / 'set'}", "image", "label", False)
    assert list(splits) == ["train", "test"]
    assert splits["train"].class_names == ["a", "b"]
    assert [int(splits["train"].pixels(i, 1).unique()) for i in range(2)] == [0, 1]
    with pytest.raises(InputError, match=r"datasets:.*gone cannot be loaded"):
        open_source(f"datasets:{tmp_path / 'gone'}", "image", "label", False)
