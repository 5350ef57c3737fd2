"""The published tables as data: what the YAML files beside this module hold, and their reader.

A number is kept as it is printed ("5.00", "3.3e18"), so that its last digit says how exactly it can
be compared. Facts and figures only; `source` says where each was read, `confirmed` whether it was.
"""

from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields
from functools import cached_property
from typing import Any

from fourfold.core.config import check_types
from fourfold.core.errors import InputError

TIERS = ("exact", "weights", "laptop", "single-gpu", "paper")  # from nothing to a cluster


@dataclass(frozen=True)
class Printed:
    """What stands in a cell of a paper.

    Args:
        text: As it is printed, without a unit.
    """

    text: str

    @cached_property
    def number(self) -> float | None:
        """Its value; None where it is a formula."""
        try:
            return float(self.text)
        except ValueError:
            return None

    @cached_property
    def step(self) -> float:
        """What its last digit is worth: 0.01 for 4.92, 1e17 for 3.3e18."""
        mantissa, _, exponent = self.text.lower().partition("e")
        decimals = len(mantissa.partition(".")[2])
        return float(f"1e{int(exponent or 0) - decimals}")


@dataclass(frozen=True)
class Column:
    """A column of numbers.

    Args:
        title: Its heading.
        unit: What it counts, for the heading.
        scale: What one printed unit is: 1e6 where millions are printed.
        step: To what the paper rounds, in printed units; None means its last digit.
        exact: The row of `EXACT` that computes it without training.
        whole: Whether ours is a count that is shown to the last one.
    """

    title: str
    unit: str = ""
    scale: float = 1.0
    step: float | None = None
    exact: str | None = None
    whole: bool = False


@dataclass(frozen=True)
class Reason:
    """Why what is computed here is not what is printed, and what would be.

    Args:
        why: In a sentence or two.
        source: Where that is known from.
        rows: Which rows it explains.
        columns: Which columns.
        changes: A change of the rows' setup with which the printed number comes out.
        rounding: nearest, or down where the paper cuts digits off.
        within: The relative deviation that it accounts for.
        unknown: Whether the cause is not known; the sentence then says what has been ruled out.
    """

    why: str
    source: list[str]
    rows: list[str]
    columns: list[str]
    changes: dict[str, Any] = field(default_factory=dict)
    rounding: str = "nearest"
    within: float = 0.0
    unknown: bool = False


@dataclass(frozen=True)
class Row:
    """A row: what is printed, and what it takes to obtain it.

    Args:
        name: Its name on the command line.
        title: What the paper calls it.
        printed: Cells by column; what is not printed is left out.
        setup: What computes the exact columns; None where nothing of it can be computed here.
        runs: By tier, what the row changes in the tier's recipe.
    """

    name: str
    title: str
    printed: Mapping[str, Printed]
    setup: dict[str, Any] | None
    runs: Mapping[str, dict[str, Any]]


@dataclass(frozen=True)
class Tier:
    """A way to obtain columns by running a recipe.

    Args:
        config: The recipe that the rows change.
        columns: Which metric of `fourfold test` stands for which column.
        about: How it differs from the paper.
        options: What all rows change, by section: config, model, data, trainer, run.
        test: What the test changes besides.
        files: What has to lie here or under $FOURFOLD_DATA; their hashes are kept with results.
        origin: What these files are and where they come from.
        minutes: That a row takes, from a measurement; None if there was none.
        train: Whether there is anything to train.
    """

    config: str
    columns: dict[str, str]
    about: str
    options: dict[str, dict[str, Any]] = field(default_factory=dict)
    test: dict[str, dict[str, Any]] = field(default_factory=dict)
    files: list[str] = field(default_factory=list)
    origin: str = ""
    minutes: float | None = None
    train: bool = True


@dataclass(frozen=True)
class Table:
    """A table or figure of a paper; `name` is PAPER/TABLE."""

    name: str
    title: str
    setting: str
    source: list[str]
    confirmed: bool
    columns: Mapping[str, Column]
    rows: Mapping[str, Row]
    tiers: Mapping[str, Tier]
    reasons: list[Reason]
    note: str

    @property
    def obtainable(self) -> list[str]:
        """The tiers that give any of its cells."""
        return [tier for tier in TIERS if self.cells(tier)]

    def cells(self, tier: str) -> list[tuple[Row, str]]:
        """Row and column of each number that a tier gives."""
        if tier == "exact":
            computed = [name for name, column in self.columns.items() if column.exact]
            return [(r, c) for r in self.rows.values() if r.setup is not None for c in computed]
        columns = self.tiers[tier].columns if tier in self.tiers else {}
        return [(r, c) for r in self.rows.values() if tier in r.runs for c in columns]

    def reason(self, row: str, column: str) -> Reason | None:
        """Why a cell may differ."""
        hits = (r for r in self.reasons if row in r.rows and column in r.columns)
        return next(hits, None)


@dataclass(frozen=True)
class Paper:
    """A paper and those of its tables that are followed here."""

    name: str
    title: str
    authors: str
    venue: str
    year: int
    sources: dict[str, str]
    tables: Mapping[str, Table]


def make(cls: type[Any], where: str, given: object, **more: Any) -> Any:
    """A dataclass of a mapping.

    Raises:
        InputError: A key is missing, not known, or of the wrong kind.
    """
    if not isinstance(given, dict):
        raise InputError(f"{where}: must be a mapping, not {str(given)[:60]!r}")
    known = {f.name for f in fields(cls)} - more.keys()
    if strange := given.keys() - known:
        raise InputError(f"{where}: there is no {sorted(strange)[0]} here")
    optional = {
        f.name for f in fields(cls) if f.default is not MISSING or f.default_factory is not MISSING
    }
    if missing := known - optional - given.keys():
        raise InputError(f"{where}: {sorted(missing)[0]} is missing")
    made = cls(**given, **more)
    try:
        check_types(made)
    except InputError as error:
        raise InputError(f"{where}: {error}") from error
    return made
