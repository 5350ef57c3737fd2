"""Plot of a reproduced table: a panel for each column, and curves over columns of a figure.

The columns with a coordinate (`Column.at`) are drawn as one curve per row, in one panel for each
`Column.panel`.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fourfold.commands import compare_runs
from fourfold.reproduce.cells import Cell
from fourfold.reproduce.tables import Table


def draw(table: Table, cells: Sequence[Cell], file: Path) -> None:
    """Plot our numbers and the printed numbers of a table into a PNG file.

    Cells for which we have no number, because they were not run or contain a formula, are left
    out. Nothing is written if all cells are left out.
    """
    panels: dict[str, list[Cell]] = {}
    for cell in cells:
        if cell.numbers:
            column = table.columns[cell.column]
            title = column.heading if column.at is None else column.panel or table.title
            panels.setdefault(title, []).append(cell)
    if not panels:
        return

    def plot(axis: Any, title: str) -> None:
        is_column = table.columns[panels[title][0].column].at is None
        (_draw_column if is_column else _draw_curves)(axis, table, panels[title])
        axis.legend(fontsize=7)

    height = 1.0 + compare_runs.ROW_HEIGHT * len(table.rows)
    compare_runs.draw(list(panels), max(compare_runs.CURVE_HEIGHT, height), plot, file)


def _draw_column(axis: Any, table: Table, cells: Sequence[Cell]) -> None:
    """Draw a panel for one column of a table: our means with error bars, and the printed values."""
    rows = range(len(cells))
    spread = [cell.spread or 0.0 for cell in cells]
    axis.errorbar([cell.mean for cell in cells], rows, xerr=spread, fmt="o", label="ours")
    known = [(x, row) for row, c in enumerate(cells) if (x := c.printed_number) is not None]
    if known:
        axis.plot(*zip(*known, strict=True), "x", color="black", label="paper")
    axis.set_yticks(rows, [table.rows[cell.row].title for cell in cells])
    axis.invert_yaxis()


def _draw_curves(axis: Any, table: Table, cells: Sequence[Cell]) -> None:
    """Draw our means as one curve per row of the table, over the coordinates of the columns."""
    for row in dict.fromkeys(cell.row for cell in cells):
        own = [cell for cell in cells if cell.row == row]
        points = sorted((table.columns[c.column].at or 0.0, c.mean, c.spread or 0.0) for c in own)
        x, mean, spread = zip(*points, strict=True)
        axis.errorbar(x, mean, yerr=spread, fmt="o-", capsize=3, label=table.rows[row].title)
    axis.set_xscale("log")
    axis.set_yscale("log" if table.log else "linear")
    axis.set_xlabel(table.axis, fontsize=9)
