"""What was found for a cell, set against what is printed: agreement, deviation, and why not."""

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from fourfold.papers.reading import merged
from fourfold.papers.tables import Column, Printed, Reason, Row, Table

Value = float | str
NEAR = 1e-6  # of a step: rounding of floating-point numbers


@dataclass(frozen=True)
class Cell:
    """One cell of a table in one tier.

    Args:
        row: Its row's name.
        column: Its column's name.
        printed: As the paper prints it; None where it does not.
        values: What was found here in printed units, one a seed; none where it was not run.
        seeds: Which seeds.
        verdict: agrees, explained, unknown cause, differs, measured, not printed or not run.
        why: What explains a difference.
        source: Where that is known from.
        changed: What came out with the change that the explanation names.
    """

    row: str
    column: str
    printed: str | None
    values: list[Value]
    verdict: str
    seeds: list[int] = field(default_factory=list)
    why: str = ""
    source: list[str] = field(default_factory=list)
    changed: Value | None = None

    @property
    def numbers(self) -> list[float]:
        """The values that are numbers."""
        return [v for v in self.values if not isinstance(v, str)]

    @property
    def mean(self) -> float | None:
        """Over seeds."""
        return statistics.fmean(self.numbers) if self.numbers else None

    @property
    def spread(self) -> float | None:
        """Standard deviation over seeds (n - 1); None of fewer than two."""
        return std(self.numbers) if len(self.numbers) > 1 else None

    @property
    def deviation(self) -> float | None:
        """Relative to the printed number."""
        printed = Printed(self.printed).number if self.printed is not None else None
        if self.mean is None or not printed:
            return None
        return self.mean / printed - 1.0


def std(values: Sequence[float]) -> float:
    """Standard deviation (n - 1); nan of fewer than two, or where one is not finite."""
    # statistics.stdev ends on inf and nan with an AttributeError.
    is_defined = len(values) > 1 and all(map(math.isfinite, values))
    return statistics.stdev(values) if is_defined else math.nan


def agrees(value: Value, printed: Printed, column: Column, rounding: str = "nearest") -> bool:
    """Whether a value, in printed units, is what is printed, to the digit that is printed."""
    if isinstance(value, str) or printed.number is None:
        return value == printed.text
    step = column.step or printed.step
    steps, wanted = value / step, printed.number / step
    if rounding == "down":
        return math.floor(steps + NEAR) == round(wanted)
    return abs(steps - wanted) <= 0.5 + NEAR


def in_units(value: Value, column: Column) -> Value:
    """A value in the units that the paper prints."""
    return value if isinstance(value, str) else value / column.scale


def exact_cell(
    table: Table, row: Row, name: str, compute: Callable[[dict[str, object]], Value]
) -> Cell:
    """A computed cell, with the reason where it is not what is printed.

    Args:
        table: The table.
        row: Its row.
        name: Its column.
        compute: From a setup to the value.
    """
    column, printed = table.columns[name], row.printed.get(name)
    assert row.setup is not None, f"{row.name} is not computed"
    value = in_units(compute(row.setup), column)
    if printed is None:
        return Cell(row.name, name, None, [value], "not printed")
    if agrees(value, printed, column):
        return Cell(row.name, name, printed.text, [value], "agrees")
    reason = table.reason(row.name, name)
    if reason is None:
        return Cell(row.name, name, printed.text, [value], "differs")
    changed = None
    if reason.changes:
        changed = in_units(compute(merged(row.setup, reason.changes)), column)
    verdict = _verdict(reason, value if changed is None else changed, printed, column)
    return Cell(
        row.name, name, printed.text, [value], verdict,
        why=reason.why, source=reason.source, changed=changed,
    )  # fmt: skip


def _verdict(reason: Reason, value: Value, printed: Printed, column: Column) -> str:
    """What a reason is worth, put to the test."""
    if reason.unknown:
        return "unknown cause"
    return "explained" if agrees(value, printed, column, reason.rounding) else "differs"


def run_cell(
    table: Table, row: Row, name: str, metric: str, found: dict[int, dict[str, float]]
) -> Cell:
    """A cell of a training tier from what the tests of its seeds found; none: not run."""
    printed = row.printed.get(name)
    text = None if printed is None else printed.text
    if not found:
        return Cell(row.name, name, text, [], "not run")
    values = [in_units(float(metrics[metric]), table.columns[name]) for metrics in found.values()]
    return Cell(row.name, name, text, values, "measured", seeds=list(found))


def timed_cell(row: Row, name: str, values: list[Value], rounds: int) -> Cell:
    """A cell that was found by timing, one value a round or one word for all."""
    printed = row.printed.get(name)
    text = None if printed is None else printed.text
    verdict = "measured" if values else "not run"
    return Cell(row.name, name, text, values, verdict, seeds=list(range(rounds)))


def number(value: Value | None) -> str:
    """A number as it is read best: whole ones whole, others to five digits."""
    if value is None:
        return ""
    if isinstance(value, str):
        return value
    if float(value).is_integer() and abs(value) < 1e12:
        return f"{value:,.0f}"
    return f"{value:.5g}" if not 1e3 <= abs(value) < 1e12 else f"{value:,.1f}"


def shown(value: Value | None, column: Column) -> str:
    """A value in printed units, as its column is best read."""
    if column.whole and isinstance(value, int | float):
        return f"{value * column.scale:,.0f}"
    return number(value)


def digest(cells: Sequence[Cell]) -> str:
    """How many cells came out how, in words."""
    verdicts = [cell.verdict for cell in cells]
    return ", ".join(f"{verdicts.count(v)} {v}" for v in dict.fromkeys(verdicts))
