"""What a run shows beside numbers: tables, confusion matrices, images and attention maps.

Each writes itself into a folder as CSV or PNG; matplotlib is imported only when it is drawn with.
"""

import csv
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from torch import Tensor

MOST_NAMES = 40  # classes whose names can still be read at the side of a matrix


class Table(NamedTuple):
    """Rows of texts and numbers, such as sources with their translations."""

    columns: list[str]
    rows: list[list[Any]]

    def save(self, folder: Path, name: str) -> list[Path]:
        """Write NAME.csv."""
        file = folder / f"{name}.csv"
        with file.open("w", newline="", encoding="utf-8") as lines:
            writer = csv.writer(lines)
            writer.writerow(self.columns)
            writer.writerows(self.rows)
        return [file]


class Confusion(NamedTuple):
    """How often each true class (rows) was taken for each class (columns)."""

    names: list[str]
    counts: list[list[int]]

    def save(self, folder: Path, name: str) -> list[Path]:
        """Write NAME.csv and NAME.png, coloured by the share of the true class."""
        rows = [[true, *row] for true, row in zip(self.names, self.counts, strict=True)]
        table = Table(["true / predicted", *self.names], rows).save(folder, name)
        named = len(self.names) <= MOST_NAMES
        side = 2.0 + 0.3 * (len(self.names) if named else 20)
        figure = _figure(side, side)
        axis = figure.add_subplot()
        shares = [[n / max(1, sum(row)) for n in row] for row in self.counts]
        axis.imshow(shares, cmap="Blues", vmin=0, vmax=1)
        if named:
            places = range(len(self.names))
            axis.set_xticks(places, self.names, rotation=90, fontsize=8)
            axis.set_yticks(places, self.names, fontsize=8)
            for i in places:
                for j in places:
                    if count := self.counts[i][j]:
                        colour = "white" if shares[i][j] > 0.5 else "black"
                        axis.text(j, i, str(count), ha="center", va="center", fontsize=7, c=colour)
        axis.set(xlabel="predicted", ylabel="true")
        return [*table, _save(figure, folder / f"{name}.png")]


class Gallery(NamedTuple):
    """Images (C, H, W) with a line below each."""

    images: Sequence[Tensor]
    captions: list[str]

    def save(self, folder: Path, name: str) -> list[Path]:
        """Write NAME.png; each image has its own black and white, since they were normalised."""
        figure = _figure(1.5 * len(self.images), 1.9)
        axes = figure.subplots(1, len(self.images), squeeze=False)[0]
        for axis, image, caption in zip(axes, self.images, self.captions, strict=True):
            pixels = image.float().cpu().numpy()
            pixels = (pixels - pixels.min()) / max(pixels.max() - pixels.min(), 1e-6)
            grey = len(pixels) != 3
            axis.imshow(pixels[0] if grey else pixels.transpose(1, 2, 0), cmap="gray")
            axis.set_xlabel(caption, fontsize=8)
            axis.set(xticks=[], yticks=[])
        return [_save(figure, folder / f"{name}.png")]


class Maps(NamedTuple):
    """Matrices side by side, such as where each layer of a decoder looks."""

    maps: Sequence[Tensor]  # (rows, columns) each
    names: list[str]  # of the matrices
    rows: list[str]  # at their left side; may be empty
    columns: list[str]  # below them; may be empty
    title: str = ""

    def save(self, folder: Path, name: str) -> list[Path]:
        """Write NAME.png."""
        height, width = self.maps[0].shape
        size = (1 + 0.2 * width, 1.2 + 0.2 * height) if self.rows else (2.0, 2.2)
        figure = _figure(0.5 + len(self.maps) * size[0], size[1])
        axes = figure.subplots(1, len(self.maps), squeeze=False)[0]
        for number, (weights, layer) in enumerate(zip(self.maps, self.names, strict=True)):
            axis, rows = axes[number], self.rows if number == 0 else []
            axis.imshow(
                weights.numpy(), cmap="Blues", vmin=0, aspect="auto" if self.rows else "equal"
            )
            axis.set_xticks(range(len(self.columns)), self.columns, rotation=90, fontsize=8)
            axis.set_yticks(range(len(rows)), rows, fontsize=8)
            axis.set_title(layer, fontsize=9)
        if self.title:
            figure.suptitle(self.title, fontsize=10)
        return [_save(figure, folder / f"{name}.png")]


Media = Table | Confusion | Gallery | Maps


def _figure(width: float, height: float) -> Any:
    """A figure that needs no display, and that pyplot does not know of and so need not close."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="tight")
    FigureCanvasAgg(figure)
    return figure


def _save(figure: Any, file: Path) -> Path:
    figure.savefig(file, dpi=130)
    return file
