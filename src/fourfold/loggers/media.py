"""Tables, plots and images that a run saves as CSV and PNG files."""

import csv
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from torch import Tensor

from fourfold.atomic_files import atomic_path

MAX_IMAGES_IN_ROW = 8
MAX_NAMED_CLASSES = 40  # classes; more names would be too small to read beside a matrix


class Table(NamedTuple):
    """Table of texts and numbers, such as source sentences with their translations."""

    columns: list[str]
    rows: list[list[Any]]

    def save(self, folder: Path, name: str) -> list[Path]:
        """Save the table as `name`.csv in `folder`, and return a list with the path."""
        path = folder / f"{name}.csv"
        with atomic_path(path) as part, part.open("w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file)
            writer.writerow(self.columns)
            writer.writerows(self.rows)
        return [path]


class ConfusionMatrix(NamedTuple):
    """Number of samples `counts[i][j]` of class i that were predicted as class j."""

    names: list[str]
    counts: list[list[int]]

    def save(self, folder: Path, name: str) -> list[Path]:
        """Save the matrix as `name`.csv and as a plot, `name`.png, in `folder`; return both paths.

        The color of an entry in the plot shows the count divided by the number of samples of the
        true class. Rare classes are then as visible as frequent classes. In the plot of
        torchmetrics, colors show counts.
        """
        rows = [[true, *row] for true, row in zip(self.names, self.counts, strict=True)]
        files = Table(["true / predicted", *self.names], rows).save(folder, name)
        show_names = len(self.names) <= MAX_NAMED_CLASSES
        side = 2.0 + 0.3 * (len(self.names) if show_names else 20)
        figure, (axis,) = _figure(side, side)
        shares = [[n / max(1, sum(row)) for n in row] for row in self.counts]
        axis.imshow(shares, cmap="Blues", vmin=0, vmax=1)
        if show_names:
            axis.set_xticks(range(len(self.names)), self.names, rotation=90, fontsize=8)
            axis.set_yticks(range(len(self.names)), self.names, fontsize=8)
            for i, j in np.argwhere(self.counts):
                color = "white" if shares[i][j] > 0.5 else "black"
                count = self.counts[i][j]
                axis.text(j, i, count, ha="center", va="center", fontsize=7, c=color)
        axis.set(xlabel="predicted", ylabel="true")
        return [*files, _save(figure, folder / f"{name}.png")]


class ImageGrid(NamedTuple):
    """Images (C, H, W) of 1 or 3 channels side by side, each with a caption."""

    images: Sequence[Tensor]
    captions: list[str]

    def save(self, folder: Path, name: str) -> list[Path]:
        """Save the images as `name`.png in `folder`, and return a list with the path.

        The pixels of each image are scaled to [0, 1], because images of a batch are normalized.
        """
        figure, axes = _panels(len(self.images), 1.5, 1.9)
        for axis, image, caption in zip(axes, self.images, self.captions, strict=False):
            axis.imshow(_pixels(image), cmap="gray")
            axis.set_xlabel(caption, fontsize=8)
            axis.set(xticks=[], yticks=[])
        return [_save(figure, folder / f"{name}.png")]


class AttentionMaps(NamedTuple):
    """Matrices side by side, such as the attention weights of each layer.

    Args:
        maps: Matrices of equal shape (rows, columns).
        names: Name of each matrix, written above the matrix.
        rows: Label of each matrix row; an empty list for no labels.
        columns: Label of each matrix column; an empty list for no labels.
        image: Image (C, H, W) whose patches the entries of each matrix belong to. The matrices are
            drawn over the image, with a scale, and the image alone is drawn first.
        title: Title of the figure.
    """

    maps: Sequence[Tensor]
    names: list[str]
    rows: list[str]
    columns: list[str]
    image: Tensor | None = None
    title: str = ""

    def save(self, folder: Path, name: str) -> list[Path]:
        """Save the matrices as `name`.png in `folder`, and return a list with the path."""
        if self.image is not None:
            return [self._save_over_image(_pixels(self.image), folder / f"{name}.png")]
        height, width = self.maps[0].shape
        size = (1 + 0.2 * width, 1.2 + 0.2 * height) if self.rows else (2.0, 2.2)
        aspect = "auto" if self.rows else "equal"
        figure, axes = _figure(0.5 + len(self.maps) * size[0], size[1], len(self.maps))
        for axis, weights, title in zip(axes, self.maps, self.names, strict=True):
            rows = self.rows if axis is axes[0] else []
            axis.imshow(weights.numpy(), cmap="Blues", vmin=0, aspect=aspect)
            axis.set_xticks(range(len(self.columns)), self.columns, rotation=90, fontsize=8)
            axis.set_yticks(range(len(rows)), rows, fontsize=8)
            axis.set_title(title, fontsize=9)
        return [_save(figure, folder / f"{name}.png")]

    def _save_over_image(self, pixels: np.ndarray, path: Path) -> Path:
        height, width = pixels.shape[:2]
        figure, axes = _panels(len(self.maps) + 1, 2.2, 2.3, right=0.8, top=0.6)
        figure.set_layout_engine("constrained")
        highest = max(float(weights.max()) for weights in self.maps)
        extent = (0, width, height, 0)
        options: Any = {"vmin": 0, "vmax": highest, "alpha": 0.6, "extent": extent}
        for axis, title in zip(axes, ["image", *self.names], strict=False):
            axis.imshow(pixels, cmap="gray", extent=extent)
            axis.set_title(title, fontsize=9)
            axis.set(xticks=[], yticks=[])
        for axis, weights in zip(axes[1:], self.maps, strict=False):
            drawn = axis.imshow(weights.numpy(), "inferno", **options)
        figure.colorbar(drawn, ax=list(axes), label="attention weight", shrink=0.8)
        figure.suptitle(self.title, fontsize=9)
        return _save(figure, path)


Media = Table | ConfusionMatrix | ImageGrid | AttentionMaps


def _pixels(image: Tensor) -> np.ndarray:
    """Return the pixels (H, W, 3), or (H, W) for one channel, scaled to the range from 0 to 1."""
    pixels: np.ndarray = image.float().cpu().numpy()
    pixels = (pixels - pixels.min()) / max(pixels.max() - pixels.min(), 1e-6)
    return pixels.transpose(1, 2, 0) if len(pixels) == 3 else pixels[0]


def _figure(width: float, height: float, n_columns: int = 1, n_rows: int = 1) -> tuple[Any, Any]:
    """Return a matplotlib figure of that size in inches, and the array of its axes, row by row."""
    # Without pyplot, a figure needs no display and is freed with its last reference. Importing
    # matplotlib takes half a second.
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="tight")
    return figure, figure.subplots(n_rows, n_columns, squeeze=False).ravel()


def _panels(n: int, width: float, height: float, right: float = 0, top: float = 0) -> Any:
    """Return a figure with `n` panels of that size in rows and space beside them, and its axes."""
    columns = min(MAX_IMAGES_IN_ROW, n)
    n_rows = -(-n // columns)
    figure, axes = _figure(width * columns + right, height * n_rows + top, columns, n_rows)
    for axis in axes[n:]:
        axis.set_axis_off()
    return figure, axes


def _save(figure: Any, path: Path) -> Path:
    with atomic_path(path) as part:
        figure.savefig(part, dpi=130, format="png")
    return path
