"""A table as a picture: each column a panel, the paper's number beside ours for every row."""

from collections.abc import Sequence
from pathlib import Path

from fourfold.papers.results import Cell
from fourfold.papers.tables import Printed, Table

WIDTH, FRAME, ROW = 7.0, 0.9, 0.24  # inches: of the picture, around a panel, of a row


def draw(table: Table, cells: Sequence[Cell], file: Path) -> bool:
    """Write a PNG; False, and no file, where there is no number to draw."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    panels = {
        name: found
        for name in table.columns
        if (found := [c for c in cells if c.column == name and c.numbers])
    }
    if not panels:
        return False
    heights = [FRAME + ROW * len(found) for found in panels.values()]
    figure = Figure(figsize=(WIDTH, sum(heights)), layout="tight")
    FigureCanvasAgg(figure)
    axes = figure.subplots(len(heights), 1, squeeze=False, height_ratios=heights)[:, 0]
    for axis, (name, found) in zip(axes, panels.items(), strict=True):
        places = range(len(found))
        axis.errorbar(
            [cell.mean for cell in found], places, xerr=[cell.spread or 0.0 for cell in found],
            fmt="o", label="ours",
        )  # fmt: skip
        printed = [Printed(cell.printed).number if cell.printed else None for cell in found]
        known = [(value, place) for value, place in zip(printed, places, strict=True) if value]
        if known:
            axis.plot(*zip(*known, strict=True), "x", color="black", label="paper")
        axis.set_yticks(places, [table.rows[cell.row].title for cell in found], fontsize=7)
        axis.invert_yaxis()
        column = table.columns[name]
        axis.set_title(column.title + (f", {column.unit}" if column.unit else ""), fontsize=9)
        axis.grid(alpha=0.3)
        axis.legend(fontsize=7)
    figure.savefig(file, dpi=100)
    return True
