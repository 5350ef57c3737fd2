"""The same rows as one picture: bars of time by ours, and lines of what grows."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fourfold.bench.clock import Spread
from fourfold.bench.rows import Row

WIDTH, HEIGHT, BAR = 6.0, 1.2, 0.22  # inches: of a panel, of its frame, of a bar
LINES = 3.2  # inches: the height of a panel of lines


def draw_plot(rows: Sequence[Row], file: Path) -> None:
    """Write a PNG; a panel for each work, and one for each axis and unit of a growth."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    panels: dict[str, list[Row]] = {}
    for row in rows:
        grows = row.x is not None
        if row.ratios or (grows and row.values):
            name = f"{row.work} with {row.what}, {row.unit}" if grows else row.work
            panels.setdefault(name, []).append(row)
    heights = [LINES if found[0].x is not None else HEIGHT + BAR * len(found)
               for found in panels.values()] or [HEIGHT]  # fmt: skip
    figure = Figure(figsize=(1.5 * WIDTH, sum(heights)), layout="tight")
    FigureCanvasAgg(figure)
    axes = figure.subplots(len(heights), 1, squeeze=False, height_ratios=heights)[:, 0]
    for axis, (name, found) in zip(axes, panels.items(), strict=False):
        (_lines if found[0].x is not None else _bars)(axis, found)
        axis.set_title(name, fontsize=10)
    figure.savefig(file, dpi=110)


def _bars(axis: Any, rows: Sequence[Row]) -> None:
    names = [" ".join(filter(None, (row.family, row.what, row.way))) for row in rows]
    found = [Spread.of(row.ratios) for row in rows]
    middle = [x.median for x in found]
    below = [x.median - x.least for x in found]
    above = [x.greatest - x.median for x in found]
    axis.barh(range(len(rows)), middle, xerr=[below, above], color="tab:blue", alpha=0.7)
    axis.set_yticks(range(len(rows)), names, fontsize=7)
    axis.invert_yaxis()
    axis.axvline(1.0, color="black", linewidth=0.8)
    axis.set_xlabel("times ours", fontsize=8)


def _lines(axis: Any, rows: Sequence[Row]) -> None:
    for way in dict.fromkeys(row.way for row in rows):
        mine = [row for row in rows if row.way == way]
        middle = [Spread.of(row.values).median for row in mine]
        axis.plot([row.x for row in mine], middle, marker="o", label=way)
    axis.set_xscale("log", base=2)
    axis.set_yscale("log")
    axis.legend(fontsize=8)
