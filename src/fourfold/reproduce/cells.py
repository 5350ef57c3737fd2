"""Cells of a reproduced table: our values, the printed value, and the verdict of the comparison.

Printed units are the units of the paper, such as millions of parameters. Values in base units, such
as parameters, are divided by `Column.scale` to obtain printed units.
"""

import math
import statistics
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from fourfold.metrics.significance import mean_interval, standard_deviation
from fourfold.reproduce.tables import Column, Row, Table, printed_number, printed_step

Value = float | str
Metrics = Mapping[int, Mapping[str, float]]  # by seed and name
TOLERANCE = 1e-6  # in rounding steps; allows for floating-point errors


@dataclass(frozen=True)
class Cell:
    """Number in one row and one column of a table: our values and the printed value.

    A computed cell has the verdict "agrees", "explained" (the value agrees after the inputs or the
    rounding are changed as in `why`), "unknown cause", "differs" or "not printed". Every other cell
    has "measured" or "not run", and "agrees" or "differs" if the paper has the same split.
    """

    row: str
    column: str
    printed: str | None  # text that the paper prints; None if the cell is empty in the paper
    # In printed units: one value per seed or round, or the only value of a computed cell. A string
    # is a formula, or a bound such as "over 1024", which is then the only entry.
    values: list[Value]
    verdict: str
    seeds: list[int] = field(default_factory=list)  # or rounds; empty if the value is computed
    why: str = ""  # explanation of the difference from the printed value
    source: list[str] = field(default_factory=list)  # keys of `Paper.sources` that support it
    changed: Value | None = None  # our value with the inputs of the explanation

    @property
    def numbers(self) -> list[float]:
        """Our values that are numbers, in printed units."""
        return [v for v in self.values if not isinstance(v, str)]

    @property
    def printed_number(self) -> float | None:
        """Number that the paper prints; None if the paper prints nothing or a formula."""
        return None if self.printed is None else printed_number(self.printed)

    @property
    def mean(self) -> float | None:
        """Mean of our values over seeds or rounds, in printed units; None if there are none."""
        return statistics.fmean(self.numbers) if self.numbers else None

    @property
    def spread(self) -> float | None:
        """Sample standard deviation of our values, in printed units; None for fewer than two."""
        return standard_deviation(self.numbers) if len(self.numbers) > 1 else None

    @property
    def deviation(self) -> float | None:
        """Relative deviation of our mean from the printed number, if both are known and not 0."""
        if self.mean is None or not self.printed_number:
            return None
        return self.mean / self.printed_number - 1.0

    def as_dict(self) -> dict[str, Any]:
        """Return the fields with `mean`, `std` and `deviation`, as JSON and CSV files have them."""
        statistics = {"mean": self.mean, "std": self.spread, "deviation": self.deviation}
        return {**asdict(self), **statistics}


def agrees(value: Value, printed: str, column: Column, rounding: str = "nearest") -> bool:
    """Return True if a value in printed units rounds to the printed number.

    The rounding of the paper is "nearest", or "down" if the paper truncates. A formula agrees only
    with a formula of the same text.
    """
    number = printed_number(printed)
    if isinstance(value, str) or number is None:
        return value == printed
    step = column.step or printed_step(printed)
    if rounding == "down":
        return math.floor(value / step + TOLERANCE) == round(number / step)
    return abs(value / step - number / step) <= 0.5 + TOLERANCE


def in_units(value: Value, column: Column) -> Value:
    """Convert a number from base units to printed units; return a formula unchanged."""
    return value if isinstance(value, str) else value / column.scale


def run_cell(
    table: Table, row: Row, name: str, metric: str, metrics: Metrics, same_split: bool = False
) -> Cell:
    """Create a cell from the results of `fourfold test` with several seeds, in base units.

    With `same_split` (training and test examples are those of the printed number) and three or more
    seeds, the verdict is "agrees" if a number that rounds to the printed one lies in the 95 %
    interval of the mean over the seeds, otherwise "differs".
    """
    column = table.columns[name]
    known = {seed: float(m[metric]) for seed, m in metrics.items() if metric in m}
    cell = measured_cell(row, name, [in_units(x, column) for x in known.values()], list(known))
    printed = cell.printed_number
    if not same_split or printed is None or len(known) < 3:  # an interval of two is too wide
        return cell
    low, high = mean_interval(cell.numbers)
    half = (column.step or printed_step(row.printed[name])) * (0.5 + TOLERANCE)
    return replace(cell, verdict="agrees" if low - half <= printed <= high + half else "differs")


def measured_cell(row: Row, name: str, values: list[Value], seeds: list[int]) -> Cell:
    """Create a cell with the verdict "measured" or, without values, "not run"."""
    verdict = "measured" if values else "not run"
    return Cell(row.name, name, row.printed.get(name), values, verdict, seeds)


def format_number(value: Value | None) -> str:
    """Format a number for display; return a string unchanged, and "" for None."""
    if value is None or isinstance(value, str):
        return value or ""
    if float(value).is_integer() and abs(value) < 1e12:
        return f"{value:,.0f}"
    return f"{value:.5g}" if not 1e3 <= abs(value) < 1e12 else f"{value:,.1f}"


def format_value(value: Value | None, column: Column) -> str:
    """Format a value for display."""
    if column.whole and isinstance(value, int | float):
        return f"{value * column.scale:,.0f}"
    return format_number(value)


def count_verdicts(verdicts: Iterable[str]) -> str:
    """Return the number of times that each verdict occurs, such as "3 agrees, 1 differs"."""
    return ", ".join(f"{n} {verdict}" for verdict, n in Counter(verdicts).items())
