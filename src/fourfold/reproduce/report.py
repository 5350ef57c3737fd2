"""Report of a reproduced table as Markdown, CSV and JSON."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from fourfold.reproduce.cells import Cell, count_verdicts, format_number, format_value
from fourfold.reproduce.rank_correlation import RankCorrelation
from fourfold.reproduce.statements import as_list, csv_text, judge
from fourfold.reproduce.tables import Column, Paper, Table

METHODS = {"exact": "computed", "measured": "timed", "weights": "official weights"}  # or trained
HEADINGS = ("row", "column", "paper", "ours", "tier, how obtained", "deviation", "why")
EFFECTS = 'The sign ">" means "better than". docs/reproduce.md explains verdicts and intervals.'
FIELDS = ("row", "column", "unit", "paper", "ours", "std", "seeds", "deviation", "verdict", "why")


def markdown(
    paper: Paper, table: Table, tier: str, cells: Sequence[Cell], order: Sequence[RankCorrelation]
) -> str:
    """Format the page of a table as Markdown, without the command and commit of the results."""
    paragraphs = [f"# {table.name}, {tier}: {table.title}", f"{paper.citation}. {table.setting}."]
    if table.source:
        is_printed = any(row.printed for row in table.rows.values())
        subject = "Printed numbers were" if is_printed else "The setting was"
        subject = "Formulas were" if table.derived else subject
        sources = "; ".join(paper.sources[s] for s in table.source)
        paragraphs.append(f"{subject} read in {sources}.")
    if tier in table.tiers:
        paragraphs.append(f"Differences from the paper: {table.tiers[tier].about}")
    paragraphs += _grid(paper, table, tier, cells)
    paragraphs.append(f"{len(cells)} cells: {count_verdicts(cell.verdict for cell in cells)}.")
    if rest := left_out(table, tier):
        paragraphs.append(f"Printed, but not filled by this tier: {rest}.")
    paragraphs += [entry.sentence() for entry in order]
    if judged := judge(table, tier, cells):
        counts = count_verdicts(step.verdict for step in judged.values())
        paragraphs += [f"Published effects: {counts}. {EFFECTS}", as_list(table, judged)]
    if table.note:
        paragraphs.append(table.note)
    return "\n\n".join(paragraphs) + "\n"


def _grid(paper: Paper, table: Table, tier: str, cells: Sequence[Cell]) -> list[str]:
    """Format cells as a Markdown table, followed by their explanations as footnotes."""
    headings = tuple("formula" if table.derived and h == "paper" else h for h in HEADINGS)
    rows = [headings, ("---",) * len(HEADINGS)]
    notes: dict[str, int] = {}  # number of each explanation
    for cell in cells:
        column = table.columns[cell.column]
        why = ""
        if cell.why:
            text = f"{cell.why} Source: {'; '.join(paper.sources[s] for s in cell.source)}."
            why = f"[{notes.setdefault(text, len(notes) + 1)}]"
        if cell.changed is not None:
            why += f" gives {format_value(cell.changed, column)}"
        names = (table.rows[cell.row].title, column.heading, cell.printed or "-")
        rows.append((*names, ours(cell, column), method(cell, tier), deviation(cell), why))
    grid = [f"| {' | '.join(text.replace('|', '/') for text in row)} |" for row in rows]
    return ["\n".join(grid), *(f"[{n}] {text}" for text, n in notes.items())]


def ours(cell: Cell, column: Column) -> str:
    """Format our value of a cell: the only value, or mean ± standard deviation of several values.

    The result is "not run" if the cell has no value. `column` is the column of the cell.
    """
    if not cell.values:
        return "not run"
    if cell.spread is None:
        return format_value(cell.values[0], column)
    return f"{format_value(cell.mean, column)} ± {format_number(float(f'{cell.spread:.2g}'))}"


def method(cell: Cell, tier: str) -> str:
    """Describe the method that produced a cell, such as "laptop, trained, 3 seeds"."""
    if not cell.values:
        return f"{tier}, not run"
    n = len(cell.seeds)
    return f"{tier}, {METHODS.get(tier) or 'trained, ' + (f'{n} seeds' if n > 1 else '1 seed')}"


def deviation(cell: Cell) -> str:
    """Format the deviation of our mean from the printed number in percent, and the verdict.

    The result depends on the verdict:

    - "not run" or "not printed": an empty string.
    - "agrees": the verdict.
    - "measured": the deviation, such as "+6.4 %".
    - Any other verdict: both, such as "+6.4 %, explained".

    In the last two cases, the result is the verdict alone if there is no deviation, for example for
    a formula.
    """
    if cell.verdict in ("not run", "not printed"):
        return ""
    if cell.verdict == "agrees" or cell.deviation is None:
        return cell.verdict
    percent = f"{100 * cell.deviation:+.1f} %"
    return percent if cell.verdict == "measured" else f"{percent}, {cell.verdict}"


def left_out(table: Table, tier: str) -> str:
    """Count, for each column, the cells with a published value that a tier does not fill."""
    printed = Counter(column for row in table.rows.values() for column in row.printed)
    printed.subtract(column for row, column in table.cells(tier) if column in row.printed)
    return ", ".join(
        f"{table.columns[c].title} of {n} row{'s' * (n > 1)}" for c, n in printed.items() if n
    )


def as_csv(table: Table, cells: Sequence[Cell]) -> str:
    """Format the cells of a table as CSV, with the headings `FIELDS` and one line per cell."""
    rows = []
    for cell in cells:
        mean = cell.mean if cell.mean is not None else "".join(map(str, cell.values))
        unit = table.columns[cell.column].unit
        texts = {"unit": unit, "ours": mean, "seeds": " ".join(map(str, cell.seeds))}
        entry = {**cell.as_dict(), "paper": cell.printed, **texts}
        rows.append([entry[name] for name in FIELDS])
    return csv_text(FIELDS, rows)


def content(
    table: Table, tier: str, cells: Sequence[Cell], order: Sequence[RankCorrelation]
) -> dict[str, Any]:
    """Return the content of table.json, a dict with all cells and rank correlations of a table."""
    about = {"table": table.name, "title": table.title, "tier": tier}
    return about | {"cells": [c.as_dict() for c in cells], "order": [asdict(o) for o in order]}
