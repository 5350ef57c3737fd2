"""A table as a picture: each column a panel, the paper's number beside ours for every row.

Where columns are numbers of something, such as of images, that is the axis, and each row a line.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fourfold.files import whole
from fourfold.papers.cells import Cell
from fourfold.papers.tables import Printed, Table

WIDTH, FRAME, ROW = 7.0, 0.9, 0.24  # inches: of the picture, around a panel, of a row
LINES = 3.6  # inches: height of a panel of lines


def draw(table: Table, cells: Sequence[Cell], file: Path) -> None:
    """Write a PNG, if there is a number to draw."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    panels = {
        name: found
        for name in table.columns
        if (found := [c for c in cells if c.column == name and c.numbers])
    }
    if not panels:
        return
    placed = [cell for name in panels for cell in panels[name] if _place(table, cell) is not None]
    columns = {name: found for name, found in panels.items() if found[0] not in placed}
    heights = [FRAME + ROW * len(found) for found in columns.values()] + [LINES] * bool(placed)
    figure = Figure(figsize=(WIDTH, sum(heights)), layout="tight")
    FigureCanvasAgg(figure)
    axes = figure.subplots(len(heights), 1, squeeze=False, height_ratios=heights)[:, 0]
    for axis, (name, found) in zip(axes, columns.items(), strict=False):
        _draw_column(axis, table, name, found)
    if placed:
        _draw_lines(axes[-1], table, placed)
    with whole(file) as part:
        figure.savefig(part, dpi=100, format="png")


def _place(table: Table, cell: Cell) -> float | None:
    return table.columns[cell.column].at


def _draw_column(axis: Any, table: Table, name: str, found: Sequence[Cell]) -> None:
    """Ours with its spread, and the paper's, one row below the other."""
    places = range(len(found))
    axis.errorbar(
        [cell.mean for cell in found], places, xerr=[cell.spread or 0.0 for cell in found],
        fmt="o", label="ours",
    )  # fmt: skip
    printed = [Printed(cell.printed).number if cell.printed else None for cell in found]
    known = [
        (value, place) for value, place in zip(printed, places, strict=True) if value is not None
    ]
    if known:
        axis.plot(*zip(*known, strict=True), "x", color="black", label="paper")
    axis.set_yticks(places, [table.rows[cell.row].title for cell in found], fontsize=7)
    axis.invert_yaxis()
    column = table.columns[name]
    axis.set_title(column.title + (f", {column.unit}" if column.unit else ""), fontsize=9)
    axis.grid(alpha=0.3)
    axis.legend(fontsize=7)


def _draw_lines(axis: Any, table: Table, cells: Sequence[Cell]) -> None:
    """Ours over where the columns stand, a line a row with its spread."""
    for row in dict.fromkeys(cell.row for cell in cells):
        own = sorted((c for c in cells if c.row == row), key=lambda c: _place(table, c) or 0.0)
        axis.errorbar(
            [_place(table, cell) for cell in own], [cell.mean for cell in own],
            yerr=[cell.spread or 0.0 for cell in own],
            fmt="o-", capsize=3, label=table.rows[row].title,
        )  # fmt: skip
    axis.set_xscale("log")
    axis.set_xlabel(table.axis, fontsize=9)
    axis.set_title(table.title, fontsize=9)
    axis.grid(alpha=0.3)
    axis.legend(fontsize=7)
