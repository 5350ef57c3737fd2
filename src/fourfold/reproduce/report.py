"""Report of a reproduced table as Markdown, CSV and JSON."""

import csv
import io
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from fourfold.reproduce.cells import Cell, count_verdicts, format_number, format_value
from fourfold.reproduce.rank_correlation import RankCorrelation
from fourfold.reproduce.tables import Column, Paper, Table

METHODS = {"exact": "computed", "measured": "timed", "weights": "official weights"}  # or trained
HEADINGS = ("row", "column", "paper", "ours", "tier, how obtained", "deviation", "why")


def markdown(
    paper: Paper, table: Table, tier: str, cells: Sequence[Cell], order: Sequence[RankCorrelation]
) -> str:
    """Format the page of a table, without its provenance."""
    lines = [
        f"# {table.name}, {tier}: {table.title}",
        "",
        f"{paper.citation}. {table.setting}.",
    ]
    if table.source:
        sources = "; ".join(paper.sources[s] for s in table.source)
        if has_printed(table):
            subject = "Formulas were" if table.derived else "Printed numbers were"
        else:
            subject = "Formulas were" if table.derived else "The setting was"
        lines += ["", f"{subject} {'' if table.confirmed else 'NOT '}read in {sources}."]
    if tier in table.tiers:
        lines += ["", f"Differences from the paper: {table.tiers[tier].about}"]
    lines += ["", *_grid(paper, table, tier, cells), ""]
    lines += (
        [f"{len(cells)} cells: {count_verdicts(cells)}."] if cells else ["This tier fills no cell."]
    )
    if rest := left_out(table, tier):
        lines += ["", f"Printed, but not filled by this tier: {rest}."]
    lines += [line for entry in order for line in ("", entry.sentence())]
    if table.note:
        lines += ["", table.note]
    return "\n".join(lines) + "\n"


def _grid(paper: Paper, table: Table, tier: str, cells: Sequence[Cell]) -> list[str]:
    """Format the cells as a Markdown table, followed by numbered explanations."""
    headings = tuple("formula" if table.derived and h == "paper" else h for h in HEADINGS)
    rows = [headings, ("---",) * len(HEADINGS)]
    notes: dict[str, int] = {}
    for cell in cells:
        column = table.columns[cell.column]
        unit = f", {column.unit}" if column.unit else ""
        note = _note(paper, cell, column, notes)
        rows.append(
            (
                table.rows[cell.row].title,
                column.title + unit,
                cell.printed or "-",
                ours(cell, column),
                method(cell, tier),
                deviation(cell),
                note,
            )
        )
    grid = [f"| {' | '.join(text.replace('|', '/') for text in row)} |" for row in rows]
    below = [f"[{n}] {text}" for text, n in notes.items()]
    return [*grid, *(line for note in below for line in ("", note))]


def _note(paper: Paper, cell: Cell, column: Column, notes: dict[str, int]) -> str:
    """Format the reference of a cell's explanation, with the value that its change yields."""
    if not cell.why:
        return ""
    text = f"{cell.why} Source: {'; '.join(paper.sources[s] for s in cell.source)}."
    number = notes.setdefault(text, len(notes) + 1)
    return f"[{number}]" + (
        "" if cell.changed is None else f" gives {format_value(cell.changed, column)}"
    )


def ours(cell: Cell, column: Column) -> str:
    """Format our value: a number, or mean and standard deviation over seeds."""
    if not cell.values:
        return "not run"
    if cell.spread is None:
        return format_value(cell.values[0], column)
    return f"{format_value(cell.mean, column)} ± {format_number(float(f'{cell.spread:.2g}'))}"


def method(cell: Cell, tier: str) -> str:
    """Describe the method that produced a cell."""
    if not cell.values:
        return f"{tier}, not run"
    n = len(cell.seeds)
    return f"{tier}, {METHODS.get(tier) or 'trained, ' + (f'{n} seeds' if n > 1 else '1 seed')}"


def deviation(cell: Cell) -> str:
    """Format the deviation of a cell and its verdict."""
    if cell.verdict in ("not run", "not printed"):
        return ""
    if cell.verdict == "agrees" or cell.deviation is None:
        return cell.verdict
    percent = f"{100 * cell.deviation:+.1f} %"
    return percent if cell.verdict == "measured" else f"{percent}, {cell.verdict}"


def has_printed(table: Table) -> bool:
    """Return True if the paper prints at least one number."""
    return any(row.printed for row in table.rows.values())


def left_out(table: Table, tier: str) -> str:
    """List the columns with printed numbers that a tier does not fill."""
    filled = {(row.name, column) for row, column in table.cells(tier)}
    missing: dict[str, int] = {}
    for row in table.rows.values():
        for column in row.printed:
            if (row.name, column) not in filled:
                missing[column] = missing.get(column, 0) + 1
    return ", ".join(
        f"{table.columns[c].title} of {n} row{'s' * (n > 1)}" for c, n in missing.items()
    )


def as_csv(table: Table, cells: Sequence[Cell]) -> str:
    """Format the cells as CSV, one line per cell."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(
        ("row", "column", "unit", "paper", "ours", "std", "seeds", "deviation", "verdict", "why")
    )
    for cell in cells:
        mean = cell.mean if cell.mean is not None else "".join(map(str, cell.values))
        writer.writerow(
            (
                cell.row,
                cell.column,
                table.columns[cell.column].unit,
                cell.printed,
                mean,
                cell.spread,
                " ".join(map(str, cell.seeds)),
                cell.deviation,
                cell.verdict,
                cell.why,
            )
        )
    return out.getvalue()


def content(
    table: Table, tier: str, cells: Sequence[Cell], order: Sequence[RankCorrelation]
) -> dict[str, Any]:
    """Return all cells and rank correlations for JSON."""
    return {
        "table": table.name,
        "title": table.title,
        "tier": tier,
        "cells": [
            {**asdict(cell), "mean": cell.mean, "std": cell.spread, "deviation": cell.deviation}
            for cell in cells
        ],
        "order": [asdict(entry) for entry in order],
    }
