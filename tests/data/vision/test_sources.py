import math
from pathlib import Path

import pytest
import torch

from fourfold.data.readers.labels import parse_labels
from fourfold.data.vision.sources import digits, open_source
from fourfold.errors import InputError
from tests.data.vision.stores import digests, open_path, write_parquet, write_png


def test_digits_are_split_without_overlap() -> None:
    pytest.importorskip("sklearn", reason="needs the package scikit-learn")
    splits = digits()
    contents = [digests(splits[name]) for name in ("train", "val", "test")]
    assert sum(map(len, contents)) == len(set.union(*contents)) == 1797
    counts = torch.stack([torch.bincount(images.labels) for images in splits.values()])
    shares = counts / counts.sum(0)
    assert (shares - torch.tensor([[0.7], [0.1], [0.2]])).abs().max() < 0.005
    assert splits["train"].pixels(0, 1).shape == (1, 8, 8)
    assert max(int(splits["val"].pixels(i, 1).max()) for i in range(9)) == 255
    again = digits()
    assert all(digests(again[name]) == digests(splits[name]) for name in splits)


# Parquet.


def test_parquet_images_labels_and_class_names(tmp_path: Path) -> None:
    cells = [write_png(tmp_path / "a.png", 10), write_png(tmp_path / "b.png", 20, "L")]
    cells.append({"path": str(tmp_path / "a.png")})  # type: ignore[arg-type]
    file = write_parquet(tmp_path / "x.parquet", cells, [1, 0, 1], ["no", "yes"])
    images = open_path(file)["train"]
    assert images.class_names == ["no", "yes"]
    assert images.labels.tolist() == [1, 0, 1]
    assert [int(images.pixels(i, 3).unique()) for i in range(3)] == [10, 20, 10]


def test_parquet_shards_are_read_in_order(tmp_path: Path) -> None:
    for k in range(3):
        cell = write_png(tmp_path / f"{k}.png", k)
        write_parquet(tmp_path / "data" / f"train-0000{k}-of-00003.parquet", [cell], [k])
    images = open_path(tmp_path)["train"]
    assert images.labels.tolist() == [0, 1, 2]
    assert [int(images.pixels(i, 1).unique()) for i in range(3)] == [0, 1, 2]


def test_class_names_as_labels(tmp_path: Path) -> None:
    cells = [write_png(tmp_path / f"{k}.png", k) for k in range(3)]
    write_parquet(tmp_path / "train.parquet", cells, ["dog", "cat", "dog"])
    write_parquet(tmp_path / "validation.parquet", cells[:1], ["dog"])
    splits = open_path(tmp_path)
    assert splits["train"].class_names == splits["val"].class_names == ["cat", "dog"]
    assert splits["val"].labels.tolist() == [1]
    write_parquet(tmp_path / "validation.parquet", cells[:2], ["dog", "cow"])
    with pytest.raises(InputError, match=r"split val, row 1: .* one of cat, dog, got 'cow'"):
        open_path(tmp_path)


def test_invalid_parquet_labels(tmp_path: Path) -> None:
    cell = write_png(tmp_path / "a.png", 10)
    cases = [
        ([cell, cell], [0, 5], ["a", "b"], r"x\.parquet, row 1: .* got 5"),
        ([cell, cell], [0, None], ["a", "b"], "label must hold class numbers or names"),
        ([cell, cell], ["a", None], None, r"x\.parquet, row 1: .*must hold class numbers or names"),
        ([cell, cell], [1.0, math.nan], None, r"x\.parquet, row 1: .*must hold class numbers"),
        ([cell, cell], ["a", ""], None, r"x\.parquet, row 1: the label '' is empty"),
        ([cell, cell], ["a", " a"], None, r"x\.parquet, row 1: the label ' a' begins or ends"),
        (
            [cell, cell],
            ["1", "1.0"],
            None,
            r"x\.parquet, row 1: the label '1.0' is the same number",
        ),
        ([cell, cell], [0.5, 1.5], None, "label must hold class numbers or names"),
    ]
    for images, labels, names, message in cases:
        path = write_parquet(tmp_path / "x.parquet", images, labels, names)
        with pytest.raises(InputError, match=message):
            open_path(path)
    with pytest.raises(InputError, match="image_column must be one of image, label, got 'img'"):
        open_source(str(path), "img", "label", parse_labels)
    with pytest.raises(InputError, match="column label must hold encoded images"):
        open_source(str(path), "label", "image", parse_labels)
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(InputError, match=r"x\.parquet: the dataset cannot be loaded"):
        open_path(path)


def test_corrupted_parquet_image_is_named_by_its_row(tmp_path: Path) -> None:
    cell = write_png(tmp_path / "a.png", 10)
    cells = [cell, cell[: len(cell) // 2], b"", None]
    images = open_path(write_parquet(tmp_path / "x.parquet", cells, [0, 1, 1, 0]))["train"]
    for row in (1, 2, 3):
        with pytest.raises(InputError, match=rf"x\.parquet, row {row}: the image cannot be read"):
            images.pixels(row, 3)


def test_test_split_without_labels_is_skipped(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    cells = [write_png(tmp_path / f"{k}.png", k) for k in range(2)]
    for split, labels in (("train", [0, 1]), ("validation", [1, 0]), ("test", [-1, -1])):
        write_parquet(tmp_path / f"{split}.parquet", cells, labels, ["a", "b"])
    assert list(open_path(tmp_path)) == ["train", "val"]
    assert "the test split has no labels and is skipped" in caplog.text
    write_parquet(tmp_path / "test.parquet", cells, [-1, 0], ["a", "b"])
    with pytest.raises(InputError, match=r"split test, row 0: .* got -1"):
        open_path(tmp_path)
    write_parquet(tmp_path / "train.parquet", cells, [-1, -1], ["a", "b"])
    (tmp_path / "test.parquet").unlink()
    with pytest.raises(InputError, match="there are no training images with labels"):
        open_path(tmp_path)


def test_classes_of_the_splits_differ(tmp_path: Path) -> None:
    cells = [write_png(tmp_path / f"{k}.png", k) for k in range(2)]
    write_parquet(tmp_path / "train.parquet", cells, [0, 1], ["a", "b"])
    write_parquet(tmp_path / "val.parquet", cells, [0, 1], ["b", "a"])
    with pytest.raises(InputError, match="split val: the classes must be those of"):
        open_path(tmp_path)


# Class folders.


def test_class_folders(tmp_path: Path) -> None:
    for split, classes in (("train", "ab"), ("val", "b"), ("test", "ab")):
        for k, name in enumerate(classes):
            folder = tmp_path / split / name
            write_png(folder / "sub" / "1.PNG", k)
            (folder / "notes.txt").write_text("not an image")
            write_png(folder / ".ipynb_checkpoints" / "1-checkpoint.png", k)
            (folder / "._1.png").write_bytes(b"metadata of macOS")
    splits = open_path(tmp_path)
    n_images = {name: len(images) for name, images in splits.items()}
    assert n_images == {"train": 2, "val": 1, "test": 2}
    assert splits["val"].labels.tolist() == [1]  # class numbers are those of the training split
    assert splits["train"].class_names == ["a", "b"]
    (tmp_path / "train.csv").write_text("id,breed\n1,a\n")  # beside the folders of a competition
    assert open_path(tmp_path)["train"].class_names == ["a", "b"]
    write_png(tmp_path / "val" / "c" / "1.png", 3)
    with pytest.raises(InputError, match="val/c: the folder must be one of the 2 training classes"):
        open_path(tmp_path)


def test_class_folders_without_splits(tmp_path: Path) -> None:
    for name in "ab":
        write_png(tmp_path / name / "1.png", 3)
    assert list(open_path(tmp_path)) == ["train"]


@pytest.mark.parametrize("split", ["train", "val"])
@pytest.mark.parametrize(
    "file", [None, "notes.txt", "._1.png", ".hidden/1.png", "train/cat/._1.jpg"]
)
def test_a_class_folder_without_images_is_skipped_and_named(
    split: str, file: str | None, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for folder in ("train/a", "train/z", "val/z"):
        write_png(tmp_path / folder / "1.png", 3)
    empty = tmp_path / split / "__MACOSX"
    empty.mkdir()
    if file:
        (empty / file).parent.mkdir(parents=True, exist_ok=True)
        write_png(tmp_path / "1.png", 3)
        (empty / file).write_bytes((tmp_path / "1.png").read_bytes())
    splits = open_path(tmp_path)
    assert splits["train"].class_names == splits["val"].class_names == ["a", "z"]
    assert (splits["train"].labels.tolist(), splits["val"].labels.tolist()) == ([0, 1], [1])
    message = f"{tmp_path / split}: skipped the folders without images: __MACOSX"
    assert caplog.messages == [message]
    write_png(empty / "1.png", 3)
    if split == "train":
        assert open_path(tmp_path)["train"].class_names == ["__MACOSX", "a", "z"]
    else:
        with pytest.raises(InputError, match="val/__MACOSX: the folder must be one of the 2"):
            open_path(tmp_path)


def test_missing_sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FOURFOLD_DATA", str(tmp_path))
    with pytest.raises(InputError, match="/gone"):
        open_path(tmp_path / "gone")
    with pytest.raises(InputError, match="there are no class folders"):
        open_path(tmp_path)
    write_png(tmp_path / "val" / "a" / "1.png", 3)
    with pytest.raises(InputError, match="there are no training images"):
        open_path(tmp_path)


# datasets.


def test_hugging_face_dataset(tmp_path: Path) -> None:
    pytest.importorskip("datasets", reason="needs the package datasets")
    cells = [write_png(tmp_path / "images" / f"{k}.png", k) for k in range(2)]
    write_parquet(tmp_path / "set" / "train.parquet", cells, [0, 1], ["a", "b"])
    write_parquet(tmp_path / "set" / "test.parquet", cells[:1], [0], ["a", "b"])
    splits = open_source(f"datasets:{tmp_path / 'set'}", "image", "label", parse_labels)
    assert list(splits) == ["train", "test"]
    assert splits["train"].class_names == ["a", "b"]
    assert [int(splits["train"].pixels(i, 1).unique()) for i in range(2)] == [0, 1]
    with pytest.raises(InputError, match=r"datasets:.*gone: the dataset cannot be loaded"):
        open_source(f"datasets:{tmp_path / 'gone'}", "image", "label", parse_labels)
