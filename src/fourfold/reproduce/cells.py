"""Cells of a reproduced table: our values, the printed value, and the verdict of the comparison."""

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from fourfold.reproduce.load_tables import merged
from fourfold.reproduce.tables import Column, Printed, Reason, Row, Table

Value = float | str
TOLERANCE = 1e-6  # of a rounding step, for floating-point errors


@dataclass(frozen=True)
class Cell:
    """Cell of a table in one tier.

    Args:
        row: Name of the row.
        column: Name of the column.
        printed: Text that the paper prints; None if it prints nothing.
        values: Our values in printed units, one per seed; empty if the cell was not run.
        seeds: Seeds of the values.
        verdict: "agrees", "explained", "unknown cause", "differs", "measured", "not printed" or
            "not run".
        why: Explanation of a difference.
        source: Keys of the sources of the explanation.
        changed: Value that results from the change named in the explanation.
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
        """Values that are numbers."""
        return [v for v in self.values if not isinstance(v, str)]

    @property
    def mean(self) -> float | None:
        """Mean over seeds."""
        return statistics.fmean(self.numbers) if self.numbers else None

    @property
    def spread(self) -> float | None:
        """Sample standard deviation over seeds; None for fewer than two."""
        return std(self.numbers) if len(self.numbers) > 1 else None

    @property
    def deviation(self) -> float | None:
        """Relative deviation of the mean from the printed number."""
        printed = Printed(self.printed).number if self.printed is not None else None
        if self.mean is None or not printed:
            return None
        return self.mean / printed - 1.0


def std(values: Sequence[float]) -> float:
    """Sample standard deviation; nan for fewer than two values or if a value is not finite."""
    # statistics.stdev raises AttributeError for inf and nan.
    is_defined = len(values) > 1 and all(map(math.isfinite, values))
    return statistics.stdev(values) if is_defined else math.nan


def agrees(value: Value, printed: Printed, column: Column, rounding: str = "nearest") -> bool:
    """Return True if a value in printed units rounds to the printed number."""
    if isinstance(value, str) or printed.number is None:
        return value == printed.text
    step = column.step or printed.step
    steps = value / step
    printed_steps = printed.number / step
    if rounding == "down":
        return math.floor(steps + TOLERANCE) == round(printed_steps)
    return abs(steps - printed_steps) <= 0.5 + TOLERANCE


def in_units(value: Value, column: Column) -> Value:
    """Convert a value to the unit that the paper prints."""
    return value if isinstance(value, str) else value / column.scale


def exact_cell(
    table: Table, row: Row, name: str, compute: Callable[[dict[str, object]], Value]
) -> Cell:
    """Compute a cell of the exact tier, with an explanation if it differs from the printed number.

    Args:
        table: Table.
        row: Row with a setup.
        name: Name of the column.
        compute: Function from a setup to the value.
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
        row.name,
        name,
        printed.text,
        [value],
        verdict,
        why=reason.why,
        source=reason.source,
        changed=changed,
    )


def _verdict(reason: Reason, value: Value, printed: Printed, column: Column) -> str:
    """Verdict of an explanation, given the value that results from its change."""
    if reason.unknown:
        return "unknown cause"
    return "explained" if agrees(value, printed, column, reason.rounding) else "differs"


def run_cell(
    table: Table, row: Row, name: str, metric: str, metrics_by_seed: dict[int, dict[str, float]]
) -> Cell:
    """Return a cell of a training tier from the test metrics of its seeds, if any."""
    printed = row.printed.get(name)
    text = None if printed is None else printed.text
    if not metrics_by_seed:
        return Cell(row.name, name, text, [], "not run")
    column = table.columns[name]
    values = [in_units(float(metrics[metric]), column) for metrics in metrics_by_seed.values()]
    return Cell(row.name, name, text, values, "measured", seeds=list(metrics_by_seed))


def timed_cell(row: Row, name: str, values: list[Value], rounds: int) -> Cell:
    """Return a cell of the measured tier: one value per round, or one text for all rounds."""
    printed = row.printed.get(name)
    text = None if printed is None else printed.text
    verdict = "measured" if values else "not run"
    return Cell(row.name, name, text, values, verdict, seeds=list(range(rounds)))


def format_number(value: Value | None) -> str:
    """Format a number: integers with all digits, others with five significant digits."""
    if value is None:
        return ""
    if isinstance(value, str):
        return value
    if float(value).is_integer() and abs(value) < 1e12:
        return f"{value:,.0f}"
    return f"{value:.5g}" if not 1e3 <= abs(value) < 1e12 else f"{value:,.1f}"


def format_value(value: Value | None, column: Column) -> str:
    """Format a value in printed units, with all digits if the column holds counts."""
    if column.whole and isinstance(value, int | float):
        return f"{value * column.scale:,.0f}"
    return format_number(value)


def count_verdicts(cells: Sequence[Cell]) -> str:
    """Count the cells by verdict, such as "3 agrees, 1 differs"."""
    verdicts = [cell.verdict for cell in cells]
    return ", ".join(f"{verdicts.count(v)} {v}" for v in dict.fromkeys(verdicts))
