"""Plot of a reproduced table: values by row, or curves over a coordinate, one panel per column.

A row is one line of the table, such as one model, and a cell is one number. Columns with a
coordinate (`Column.at`) are drawn in one panel, with one curve per row.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fourfold.atomic_files import atomic_path
from fourfold.reproduce.cells import Cell
from fourfold.reproduce.tables import Table

FIGURE_WIDTH = 7.0  # inches
PANEL_MARGIN = 0.9  # inches
ROW_HEIGHT = 0.24  # inches
CURVE_PANEL_HEIGHT = 3.6  # inches


def draw(table: Table, cells: Sequence[Cell], file: Path) -> None:
    """Plot the cells of a table into a PNG file.

    Cells for which we have no number, because they were not run or contain a formula, are left
    out. Nothing is written if all cells are left out.

    Args:
        table: Table.
        cells: Cells of the table in one tier.
        file: PNG file to write.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    known = [cell for cell in cells if cell.numbers]
    curves = [cell for cell in known if table.columns[cell.column].at is not None]
    panels = {name: [c for c in known if c.column == name] for name in table.columns}
    columns = {n: panel for n, panel in panels.items() if panel and table.columns[n].at is None}
    if not known:
        return
    heights = [PANEL_MARGIN + ROW_HEIGHT * len(panel) for panel in columns.values()]
    heights += [CURVE_PANEL_HEIGHT] if curves else []
    figure = Figure(figsize=(FIGURE_WIDTH, sum(heights)), layout="tight")
    FigureCanvasAgg(figure)
    axes = figure.subplots(len(heights), 1, squeeze=False, height_ratios=heights)[:, 0]
    for axis, (name, panel) in zip(axes, columns.items(), strict=False):
        _draw_column(axis, table, name, panel)
    if curves:
        _draw_curves(axes[-1], table, curves)
    with atomic_path(file) as temporary:
        figure.savefig(temporary, dpi=100, format="png")


def _draw_column(axis: Any, table: Table, name: str, cells: Sequence[Cell]) -> None:
    """Draw our means with their standard deviations, and the printed values, of one column.

    Args:
        axis: Axes of matplotlib.
        table: Table.
        name: Name of the column.
        cells: Cells of the column, one per row of the table.
    """
    rows = range(len(cells))
    spread = [cell.spread or 0.0 for cell in cells]
    axis.errorbar([cell.mean for cell in cells], rows, xerr=spread, fmt="o", label="ours")
    known = [(x, row) for row, c in enumerate(cells) if (x := c.printed_number) is not None]
    if known:
        axis.plot(*zip(*known, strict=True), "x", color="black", label="paper")
    axis.set_yticks(rows, [table.rows[cell.row].title for cell in cells], fontsize=7)
    axis.invert_yaxis()
    _finish(axis, table.columns[name].heading)


def _draw_curves(axis: Any, table: Table, cells: Sequence[Cell]) -> None:
    """Draw our means as one curve per row of the table, over the coordinates of the columns.

    Args:
        axis: Axes of matplotlib.
        table: Table.
        cells: Cells of all columns with a coordinate (`Column.at`).
    """
    for row in dict.fromkeys(cell.row for cell in cells):
        own = [(table.columns[cell.column].at or 0.0, cell) for cell in cells if cell.row == row]
        own.sort(key=lambda pair: pair[0])
        axis.errorbar(
            [x for x, _ in own],
            [cell.mean for _, cell in own],
            yerr=[cell.spread or 0.0 for _, cell in own],
            fmt="o-",
            capsize=3,
            label=table.rows[row].title,
        )
    axis.set_xscale("log")
    axis.set_xlabel(table.axis, fontsize=9)
    _finish(axis, table.title)


def _finish(axis: Any, title: str) -> None:
    """Add title, grid and legend to the axes of a panel."""
    axis.set_title(title, fontsize=9)
    axis.grid(alpha=0.3)
    axis.legend(fontsize=7)
