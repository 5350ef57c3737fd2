import csv
from pathlib import Path

import pytest
import torch
from PIL import Image

from fourfold.loggers.media import (
    AttentionMaps,
    ConfusionMatrix,
    ImageGrid,
    Table,
)


def test_table_keeps_special_characters(tmp_path: Path) -> None:
    rows = [["a, b", 'say "c"', 1], ["", "two\nlines", 0.5]]
    (file,) = Table(["text", "other", "n"], rows).save(tmp_path, "samples")
    assert file == tmp_path / "samples.csv"
    rows_read = list(csv.reader(file.open(newline="", encoding="utf-8")))
    assert rows_read == [
        ["text", "other", "n"],
        ["a, b", 'say "c"', "1"],
        ["", "two\nlines", "0.5"],
    ]


@pytest.mark.parametrize("k", [2, 60])
def test_confusion_matrix_writes_csv_and_png(k: int, tmp_path: Path) -> None:
    counts = [[i + j for j in range(k)] for i in range(k)]
    names = [f"class {i}" for i in range(k)]
    table, image = ConfusionMatrix(names, counts).save(tmp_path, "confusion")
    head, *rows = csv.reader(table.open())
    assert head == ["true / predicted", *names]
    assert [row[0] for row in rows] == names
    assert [[int(n) for n in row[1:]] for row in rows] == counts
    assert Image.open(image).size[0] > 200


def test_confusion_matrix_is_colored_by_share_of_the_class(tmp_path: Path) -> None:
    """A rare class without errors is as dark as a frequent one."""
    _, file = ConfusionMatrix(["a", "b"], [[100, 0], [0, 1]]).save(tmp_path, "confusion")
    colors = Image.open(file).convert("RGB").getcolors(1 << 16)
    assert colors is not None
    count = {color: n for n, color in colors}
    dark, light = count[8, 48, 107], count[247, 251, 255]  # the ends of matplotlib's "Blues"
    assert 0.8 < dark / light < 1.0  # the counts are printed on the dark cells


def test_width_grows_with_the_number_of_images(tmp_path: Path) -> None:
    sizes = []
    for n in (1, 4):
        images = [torch.randn(3, 8, 8) for _ in range(n)]
        (file,) = ImageGrid(images, ["x"] * n).save(tmp_path, "images")
        sizes.append(Image.open(file).size)
        (file,) = AttentionMaps([torch.rand(5, 4)] * n, ["x"] * n, ["r"] * 5, ["c"] * 4).save(
            tmp_path, "m"
        )
        sizes.append(Image.open(file).size)
    assert sizes[2][0] > 3 * sizes[0][0]
    assert sizes[3][0] > 3 * sizes[1][0]


def test_constant_image_is_drawn(tmp_path: Path) -> None:
    (file,) = ImageGrid([torch.zeros(1, 4, 4)], ["black"]).save(tmp_path, "images")
    assert Image.open(file).convert("L").getextrema()[0] < 20


def test_attention_maps_are_drawn_over_the_image_with_a_scale(tmp_path: Path) -> None:
    maps = [torch.tensor([[0.0, 1.0], [0.0, 0.0]])] * 2
    image = torch.zeros(3, 16, 16)
    image[0] = 1.0  # red
    over = AttentionMaps(maps, ["layer 1", "layer 2"], [], [], image, "class token")
    (file,) = over.save(tmp_path, "attention")
    colors = Image.open(file).convert("RGB").getcolors(1 << 20)
    assert colors is not None
    large = {color for count, color in colors if count > 1000}
    assert (255, 0, 0) in large  # the image alone
    assert (102, 0, 1) in large  # weight 0 over the image: 0.4 red + 0.6 black of "inferno"


def test_many_maps_over_an_image_are_drawn_in_rows(tmp_path: Path) -> None:
    def size(n: int) -> tuple[int, int]:
        maps = AttentionMaps([torch.eye(2)] * n, ["word"] * n, [], [], torch.zeros(1, 4, 4))
        return Image.open(maps.save(tmp_path, "attention")[0]).size

    one_row, two_rows = size(7), size(12)
    assert two_rows[0] == one_row[0]
    assert 1.5 * one_row[1] < two_rows[1] < 2.5 * one_row[1]
