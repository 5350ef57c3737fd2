"""Verdicts on published effects: does an order of rows also hold for our numbers?

A statement (`tables.Statement`) is an order of rows by one column, such as "base > A_h1", and comes
from the paper. Its verdict comes from the seeds that two rows share: the differences of the values
with the same seed have a mean and a 95 % interval of Student's t distribution. The interval
contains the variation over seeds and not the choice of the test examples.

The verdicts of two rows are:

- "seen": the interval lies above 0.
- "opposite": the interval lies below 0.
- "not seen": the interval contains 0, and lies below the difference that the paper prints.
- "not resolved": the interval contains 0 and the printed difference, or no difference is printed,
  or there is no interval, because the rows share fewer than two seeds or a training diverged.

An order of more than two rows is seen if each of its steps is. Otherwise it has the verdict and the
numbers of its worst step.
"""

import csv
import io
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from fourfold.metrics.significance import mean_interval
from fourfold.reproduce.cells import Cell, format_number
from fourfold.reproduce.tables import Statement, Table, printed_number

VERDICTS = ("opposite", "not seen", "not resolved", "seen")  # the worst first
SIGNS = {"higher": 1, "lower": -1}  # of the advantage of a higher number


@dataclass(frozen=True)
class Step:
    """Comparison of two rows by one column."""

    verdict: str  # of `VERDICTS`
    seeds: int  # number of seeds that both rows have
    # Mean over these seeds of the advantage of the better row, in printed units: negative if it is
    # worse, and None without a shared seed or if a training diverged; and its 95 % interval.
    effect: float | None = None
    low: float | None = None
    high: float | None = None


FIELDS = ("statement", "column", "better", "rows", "source", *Step.__annotations__)  # of the CSV


def compare(differences: Sequence[float], printed: float | None) -> Step:
    """Judge that one row is better than another, from its advantage with each shared seed."""
    n = len(differences)
    if n < 2 or not all(map(math.isfinite, differences)):
        return Step("not resolved", n, *(differences if n == 1 else ()))
    low, high = mean_interval(differences)
    verdict = "not resolved" if printed is None or high >= printed else "not seen"
    verdict = "seen" if low > 0 else "opposite" if high < 0 else verdict
    return Step(verdict, n, statistics.fmean(differences), low, high)


def judge(table: Table, tier: str, cells: Sequence[Cell]) -> dict[str, Step]:
    """Judge the statements of a table whose rows a tier fills; an order by its worst step."""
    filled = {(row.name, column) for row, column in table.cells(tier)}
    return {
        name: min(_steps(table, statement, cells), key=lambda step: VERDICTS.index(step.verdict))
        for name, statement in table.statements.items()
        if filled.issuperset((row, statement.column) for row in statement.rows)
    }


def _steps(table: Table, statement: Statement, cells: Sequence[Cell]) -> list[Step]:
    """Compare each row of a statement with the next one, the smallest effects first."""
    steps = []
    sign = SIGNS[table.columns[statement.column].better]
    # JSON holds the loss of a training that diverged as the string "inf" or "nan".
    values = {
        cell.row: dict(zip(cell.seeds, map(float, cell.values), strict=True))
        for cell in cells
        if cell.column == statement.column
    }
    for pair in pairwise(statement.rows):
        ours, theirs = (values.get(row, {}) for row in pair)
        shared = [sign * (ours[seed] - theirs[seed]) for seed in ours if seed in theirs]
        steps.append(compare(shared, printed_advantage(table, statement, *pair)))
    return sorted(steps, key=lambda step: step.effect or 0.0)


def printed_advantage(table: Table, statement: Statement, better: str, worse: str) -> float | None:
    """Return by how much the paper prints one row to be better than another, in printed units.

    The result is None if the paper does not print a number for both rows.
    """
    column = statement.printed or statement.column
    sign = SIGNS[table.columns[column].better]
    texts = (table.rows[row].printed.get(column, "") for row in (better, worse))
    first, second = (printed_number(text) for text in texts)
    return None if first is None or second is None else sign * (first - second)


def as_list(table: Table, judged: Mapping[str, Step]) -> str:
    """Format verdicts as a Markdown list for the page of a table."""
    lines = []
    for name, step in judged.items():
        of = table.statements[name]
        text = f"- `{name}`: {of.order}, {table.columns[of.column].heading}: {step.verdict}"
        text += "" if step.effect is None else f", by {format_number(step.effect)}"
        ends = f" ({format_number(step.low)} to {format_number(step.high)}), {step.seeds} seeds"
        text += "" if step.low is None else ends
        lines.append(f"{text}. Source: {of.source}.")
    return "\n".join(lines)


def as_csv(table: Table, judged: Mapping[str, Step]) -> str:
    """Format verdicts as CSV, with the headings `FIELDS` and one line per statement."""
    rows = []
    for name, step in judged.items():
        of = table.statements[name]
        what = (name, of.column, table.columns[of.column].better, of.order, of.source)
        numbers = ("" if x is None else f"{x:.4g}" for x in (step.effect, step.low, step.high))
        rows.append((*what, step.verdict, step.seeds, *numbers))
    return csv_text(FIELDS, rows)


def csv_text(headings: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Format rows as CSV, below their headings."""
    out = io.StringIO()
    csv.writer(out, lineterminator="\n").writerows([headings, *rows])
    return out.getvalue()
