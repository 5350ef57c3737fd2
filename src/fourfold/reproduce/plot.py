"""Plot of a reproduced table: a panel for each column, and curves over columns of a figure.

The columns with a coordinate (`Column.at`) are drawn as one curve per row, in one panel for each
`Column.panel`.
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
    """Plot our numbers and the printed numbers of a table into a PNG file.

    Cells for which we have no number, because they were not run or contain a formula, are left
    out. Nothing is written if all cells are left out.
    """
    from matplotlib.figure import Figure

    known = [cell for cell in cells if cell.numbers]
    if not known:
        return
    curves: dict[str, list[Cell]] = {}
    for cell in known:
        if (column := table.columns[cell.column]).at is not None:
            curves.setdefault(column.panel or table.title, []).append(cell)
    names = [name for name, column in table.columns.items() if column.at is None]
    panels = [panel for name in names if (panel := [c for c in known if c.column == name])]
    heights = [PANEL_MARGIN + ROW_HEIGHT * len(panel) for panel in panels]
    heights += [CURVE_PANEL_HEIGHT] * len(curves)
    figure = Figure(figsize=(FIGURE_WIDTH, sum(heights)), layout="tight")
    axes = figure.subplots(len(heights), 1, squeeze=False, height_ratios=heights)[:, 0]
    for axis, panel in zip(axes, panels, strict=False):
        _draw_column(axis, table, panel)
    for axis, (title, panel) in zip(axes[len(panels) :], curves.items(), strict=True):
        _draw_curves(axis, table, panel, title)
    with atomic_path(file) as temporary:
        figure.savefig(temporary, dpi=100, format="png")


def _draw_column(axis: Any, table: Table, cells: Sequence[Cell]) -> None:
    """Draw a panel for one column of a table: our means with error bars, and the printed values."""
    rows = range(len(cells))
    spread = [cell.spread or 0.0 for cell in cells]
    axis.errorbar([cell.mean for cell in cells], rows, xerr=spread, fmt="o", label="ours")
    known = [(x, row) for row, c in enumerate(cells) if (x := c.printed_number) is not None]
    if known:
        axis.plot(*zip(*known, strict=True), "x", color="black", label="paper")
    axis.set_yticks(rows, [table.rows[cell.row].title for cell in cells], fontsize=7)
    axis.invert_yaxis()
    _finish(axis, table.columns[cells[0].column].heading)


def _draw_curves(axis: Any, table: Table, cells: Sequence[Cell], title: str) -> None:
    """Draw our means as one curve per row of the table, over the coordinates of the columns."""
    for row in dict.fromkeys(cell.row for cell in cells):
        own = [cell for cell in cells if cell.row == row]
        points = sorted((table.columns[c.column].at or 0.0, c.mean, c.spread or 0.0) for c in own)
        x, mean, spread = zip(*points, strict=True)
        axis.errorbar(x, mean, yerr=spread, fmt="o-", capsize=3, label=table.rows[row].title)
    axis.set_xscale("log")
    axis.set_yscale("log" if table.log else "linear")
    axis.set_xlabel(table.axis, fontsize=9)
    _finish(axis, title)


def _finish(axis: Any, title: str) -> None:
    """Add title, grid and legend to the axes of a panel."""
    axis.set_title(title, fontsize=9)
    axis.grid(alpha=0.3)
    axis.legend(fontsize=7)
