"""Tables of images: one label, several labels or a number per image."""

import csv
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fourfold.data import ImageData
from fourfold.data.vision.eval_transforms import TransformConfig
from fourfold.errors import InputError
from tests.data.vision.stores import write_png

LABELS = ["sky sea", "sea", "", "sky", "sea  house", "house sky sea"]


def write_table(folder: Path, labels: list[Any], split: str = "train", suffix: str = "csv") -> str:
    """Write one image per label, each of another gray value, and a table of them."""
    for i in range(len(labels)):
        write_png(folder / "pictures" / f"{split}{i}.png", 10 * i)
    with (folder / f"{split}.{suffix}").open("w", newline="") as file:
        writer = csv.writer(file, delimiter="\t" if suffix == "tsv" else ",")
        writer.writerow(["image", "note", "label"])
        writer.writerows([f"pictures/{split}{i}.png", "", x] for i, x in enumerate(labels))
    return str(folder / f"{split}.{suffix}")


@pytest.mark.parametrize("suffix", ["csv", "tsv"])
def test_several_labels_of_an_image(suffix: str, tmp_path: Path) -> None:
    source = write_table(tmp_path, LABELS * 4, suffix=suffix)
    data = ImageData(source, label_separator=" ", n_channels=1)
    assert data.class_names == ["house", "sea", "sky"]
    assert data.artifacts()["multi_label"] is True
    stores = [data.split(name).images for name in ("train", "val", "test")]  # type: ignore[attr-defined]
    names = {}
    for store in stores:
        for row in range(len(store)):
            shown = [x for x, y in zip(data.class_names, store.labels[row], strict=True) if y]
            names[store.location(row)] = set(shown)
    assert names == {
        f"{tmp_path}/pictures/train{i}.png": set(x.split()) for i, x in enumerate(LABELS * 4)
    }
    batch: Any = data.split("train").batch(np.arange(3), 0, 0)
    assert batch.labels.dtype == torch.float32
    assert batch.labels.shape == (3, 3)


def test_numbers_and_splits_of_a_folder(tmp_path: Path) -> None:
    write_table(tmp_path, [0.5, 2, -1e-3])
    write_table(tmp_path, [7, 8], "val")
    data = ImageData(str(tmp_path), regression=True)
    assert (data.n_classes, data.class_names) == (1, [])
    batch: Any = data.split("train").batch(np.arange(3), 0, 0)
    assert batch.labels.tolist() == pytest.approx([0.5, 2, -1e-3], abs=1e-9)
    assert data.split("test").labels.tolist() == [7, 8]  # type: ignore[attr-defined]


def test_one_label_and_absolute_paths(tmp_path: Path) -> None:
    file = Path(write_table(tmp_path, ["dog", "cat"] * 6))
    file.write_text(file.read_text().replace("pictures", str(tmp_path / "pictures")))
    data = ImageData(os.path.relpath(file), val_fraction=0.2, test_fraction=0.2)
    assert data.class_names == ["cat", "dog"]
    location = Path(data.split("train").location(0))  # type: ignore[attr-defined]
    assert location.resolve().parent == tmp_path / "pictures"
    assert "multi_label" not in data.artifacts()


def test_classes_of_other_splits_are_those_of_training(tmp_path: Path) -> None:
    write_table(tmp_path, ["a b", "b"])
    file = write_table(tmp_path, ["b", "a c"], "val")
    with pytest.raises(InputError, match="the label must be one of a, b, got 'c'") as error:
        ImageData(str(tmp_path), label_separator=" ").setup()
    assert error.value.file == f"{file}, row 3"


def test_mixed_images_mix_their_labels(tmp_path: Path) -> None:
    source = write_table(tmp_path, LABELS * 4)
    config = TransformConfig(mixup=0.8)
    batches = [
        ImageData(source, label_separator=" ", transform=x, batch_size=8).split("train")
        for x in (config, TransformConfig())
    ]
    mixed, plain = (x.batch(np.arange(8), 0, 0).labels for x in batches)  # type: ignore[attr-defined]
    assert ((mixed > 0) & (mixed < 1)).any()
    assert ((mixed >= 0) & (mixed <= 1)).all()
    partners = batches[0].order.mix_partners(np.arange(8), 0)  # type: ignore[attr-defined]
    others = batches[1].batch(partners, 0, 0).labels  # type: ignore[attr-defined]
    share = ((mixed - others) / (plain - others)).nanmean(1, keepdim=True).nan_to_num(1.0)
    torch.testing.assert_close(mixed, torch.lerp(others, plain, share))


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"regression": True}, "the label must be a finite number, got 'sky sea'"),
        ({"regression": True, "label_separator": ","}, "label_separator must be None"),
        ({"label_separator": " ", "classes": ["sea"]}, "classes must be None"),
        ({"label_separator": " ", "source": "digits"}, "data.source must be a table"),
        ({"regression": True, "source": "folders"}, "data.source must be a table"),
        ({"source": "numbers", "regression": True, "mix": True}, "mixup and cutmix must"),
        ({"source": "gone"}, "there is no such image"),
    ],
)
def test_wrong_tables(options: dict[str, Any], problem: str, tmp_path: Path) -> None:
    source = options.pop("source", None)
    path = write_table(tmp_path, LABELS if source != "numbers" else list(range(20)))
    if source == "digits":
        path = source
    elif source == "folders":
        path = str(tmp_path / "folders")
        for i in range(8):
            write_png(tmp_path / "folders" / "ab"[i % 2] / f"{i}.png", i)
    elif source == "gone":
        (tmp_path / "pictures" / "train2.png").unlink()
    config = TransformConfig(mixup=0.5) if options.pop("mix", False) else None
    with pytest.raises(InputError, match=problem):
        ImageData(path, transform=config, **options).setup()
