import csv
from pathlib import Path

import pytest
import torch
from PIL import Image

from fourfold.callbacks.media import Confusion, Gallery, Maps, Table


def test_a_table_is_what_was_given(tmp_path: Path) -> None:
    rows = [["a, b", 'say "c"', 1], ["", "two\nlines", 0.5]]
    (file,) = Table(["text", "other", "n"], rows).save(tmp_path, "samples")
    assert file == tmp_path / "samples.csv"
    found = list(csv.reader(file.open(newline="", encoding="utf-8")))
    assert found == [["text", "other", "n"], ["a, b", 'say "c"', "1"], ["", "two\nlines", "0.5"]]


@pytest.mark.parametrize("k", [2, 60])
def test_a_confusion_matrix(k: int, tmp_path: Path) -> None:
    counts = [[i + j for j in range(k)] for i in range(k)]
    names = [f"class {i}" for i in range(k)]
    table, picture = Confusion(names, counts).save(tmp_path, "confusion")
    head, *rows = csv.reader(table.open())
    assert head == ["true / predicted", *names]
    assert [row[0] for row in rows] == names
    assert [[int(n) for n in row[1:]] for row in rows] == counts
    assert Image.open(picture).size[0] > 200


def test_each_class_is_coloured_by_itself(tmp_path: Path) -> None:
    """A rare one that is always right is as dark as a frequent one."""
    _, file = Confusion(["a", "b"], [[100, 0], [0, 1]]).save(tmp_path, "confusion")
    colours = Image.open(file).convert("RGB").getcolors(1 << 16)
    assert colours is not None
    count = {colour: n for n, colour in colours}
    dark, light = count[8, 48, 107], count[247, 251, 255]  # the ends of matplotlib's "Blues"
    assert 0.8 < dark / light < 1.0  # the numbers stand on the dark cells


def test_pictures_have_a_place_for_each(tmp_path: Path) -> None:
    sizes = []
    for n in (1, 4):
        images = [torch.randn(3, 8, 8) for _ in range(n)]
        (file,) = Gallery(images, ["x"] * n).save(tmp_path, "images")
        sizes.append(Image.open(file).size)
        (file,) = Maps([torch.rand(5, 4)] * n, ["x"] * n, ["r"] * 5, ["c"] * 4).save(tmp_path, "m")
        sizes.append(Image.open(file).size)
    assert sizes[2][0] > 3 * sizes[0][0]
    assert sizes[3][0] > 3 * sizes[1][0]


def test_an_image_of_one_colour(tmp_path: Path) -> None:
    (file,) = Gallery([torch.zeros(1, 4, 4)], ["black"]).save(tmp_path, "images")
    assert Image.open(file).convert("L").getextrema()[0] < 20
