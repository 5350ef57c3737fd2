"""A table beside its paper: Markdown to read, CSV and JSON to go on with."""

import csv
import io
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from fourfold.papers.cells import Cell, digest, number, shown
from fourfold.papers.order import Order
from fourfold.papers.tables import Column, Paper, Table

HOW = {"exact": "computed", "measured": "timed", "weights": "official weights"}  # or trained
HEADINGS = ("row", "column", "paper", "ours", "tier, how obtained", "deviation", "why")


def markdown(
    paper: Paper, table: Table, tier: str, cells: Sequence[Cell], order: Sequence[Order]
) -> str:
    """The whole page, but for how it was run."""
    lines = [
        f"# {table.name}, {tier}: {table.title}",
        "",
        f"{paper.citation}. {table.setting}.",
    ]
    if table.source:
        sources = "; ".join(paper.sources[s] for s in table.source)
        what = "Formulas" if table.derived else "Printed numbers" if has_printed(table) else "It"
        was = "was" if what == "It" else "were"
        lines += ["", f"{what} {was} {'' if table.confirmed else 'NOT '}read in {sources}."]
    if tier in table.tiers:
        lines += ["", f"How it differs: {table.tiers[tier].about}"]
    lines += ["", *_grid(paper, table, tier, cells), ""]
    lines += [f"{len(cells)} cells: {digest(cells)}."] if cells else ["No cell of this tier."]
    if rest := left_out(table, tier):
        lines += ["", f"Printed, and not given by this tier: {rest}."]
    lines += [line for found in order for line in ("", found.sentence())]
    if table.note:
        lines += ["", table.note]
    return "\n".join(lines) + "\n"


def _grid(paper: Paper, table: Table, tier: str, cells: Sequence[Cell]) -> list[str]:
    """The cells, and the explanations below them, each once."""
    headings = tuple("formula" if table.derived and h == "paper" else h for h in HEADINGS)
    rows = [headings, ("---",) * len(HEADINGS)]
    notes: dict[str, int] = {}
    for cell in cells:
        column = table.columns[cell.column]
        unit = f", {column.unit}" if column.unit else ""
        note = _note(paper, cell, column, notes)
        rows.append(
            (table.rows[cell.row].title, column.title + unit, cell.printed or "-",
             ours(cell, column), how(cell, tier), deviation(cell), note)
        )  # fmt: skip
    grid = [f"| {' | '.join(part.replace('|', '/') for part in row)} |" for row in rows]
    below = [f"[{n}] {text}" for text, n in notes.items()]
    return [*grid, *(line for note in below for line in ("", note))]


def _note(paper: Paper, cell: Cell, column: Column, notes: dict[str, int]) -> str:
    """The number of a cell's explanation, and what its change gives."""
    if not cell.why:
        return ""
    text = f"{cell.why} Source: {'; '.join(paper.sources[s] for s in cell.source)}."
    number = notes.setdefault(text, len(notes) + 1)
    return f"[{number}]" + ("" if cell.changed is None else f" gives {shown(cell.changed, column)}")


def ours(cell: Cell, column: Column) -> str:
    """What was found: a number, or mean and standard deviation over seeds."""
    if not cell.values:
        return "not run"
    if cell.spread is None:
        return shown(cell.values[0], column)
    return f"{shown(cell.mean, column)} ± {number(float(f'{cell.spread:.2g}'))}"


def how(cell: Cell, tier: str) -> str:
    """The tier and how it obtained the cell."""
    if not cell.values:
        return f"{tier}, not run"
    n = len(cell.seeds)
    return f"{tier}, {HOW.get(tier) or 'trained, ' + (f'{n} seeds' if n > 1 else '1 seed')}"


def deviation(cell: Cell) -> str:
    """How far off it is, and what to make of that."""
    if cell.verdict in ("not run", "not printed"):
        return ""
    if cell.verdict == "agrees" or cell.deviation is None:
        return cell.verdict
    far = f"{100 * cell.deviation:+.1f} %"
    return far if cell.verdict == "measured" else f"{far}, {cell.verdict}"


def has_printed(table: Table) -> bool:
    """Whether there is a number to set ours beside."""
    return any(row.printed for row in table.rows.values())


def left_out(table: Table, tier: str) -> str:
    """Columns with printed numbers that a tier does not give."""
    there = {(row.name, column) for row, column in table.cells(tier)}
    missing: dict[str, int] = {}
    for row in table.rows.values():
        for column in row.printed:
            if (row.name, column) not in there:
                missing[column] = missing.get(column, 0) + 1
    return ", ".join(
        f"{table.columns[c].title} of {n} row{'s' * (n > 1)}" for c, n in missing.items()
    )


def as_csv(table: Table, cells: Sequence[Cell]) -> str:
    """One line a cell."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(("row", "column", "unit", "paper", "ours", "std", "seeds", "deviation",
                     "verdict", "why"))  # fmt: skip
    for cell in cells:
        mean = cell.mean if cell.mean is not None else "".join(map(str, cell.values))
        writer.writerow(
            (cell.row, cell.column, table.columns[cell.column].unit, cell.printed, mean,
             cell.spread, " ".join(map(str, cell.seeds)), cell.deviation, cell.verdict, cell.why)
        )  # fmt: skip
    return out.getvalue()


def content(
    table: Table, tier: str, cells: Sequence[Cell], order: Sequence[Order]
) -> dict[str, Any]:
    """Everything, for JSON."""
    return {
        "table": table.name,
        "title": table.title,
        "tier": tier,
        "cells": [
            {**asdict(cell), "mean": cell.mean, "std": cell.spread, "deviation": cell.deviation}
            for cell in cells
        ],
        "order": [asdict(found) for found in order],
    }
