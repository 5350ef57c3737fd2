"""Dataclasses of published tables: papers, tables, rows, columns, tiers and recipes.

The YAML files in `data/` hold the content of these classes. A number is stored as it is printed
("5.00", "3.3e18"), because its last digit determines the precision of a comparison.

Terms:
    A row is one line of a printed table, such as one model. A cell is one number of a row and a
    column. A tier is one way to obtain cells: `exact` computes them without training, `measured`
    times layers, `weights` tests official weights, and the other tiers train models.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar

from fourfold.core.validation import check_types
from fourfold.errors import InputError

T = TypeVar("T")
RECIPES = ("weights", "laptop", "single-gpu", "paper")  # in the order of required compute
TIERS = ("exact", "measured", *RECIPES)  # computed, timed, or obtained by running recipes
RANDOM = "random"  # start of a row that is initialized at random


def printed_number(text: str) -> float | None:
    """Return the value of a printed cell such as "4.92" or "3.3e18"; None for a formula."""
    try:
        return float(text)
    except ValueError:
        return None


def printed_step(text: str) -> float:
    """Return the value of the last digit of a printed number.

    Example:
        >>> printed_step("4.92"), printed_step("3.3e18")
        (0.01, 1e+17)
    """
    mantissa, _, exponent = text.lower().partition("e")
    decimals = len(mantissa.partition(".")[2])
    return float(f"1e{int(exponent or 0) - decimals}")


@dataclass(frozen=True)
class Column:
    """Column of a table.

    Args:
        title: Heading.
        unit: Unit, appended to the heading.
        scale: Value of one printed unit: 1e6 if the paper prints millions.
        step: Rounding of the paper in printed units; None means the last printed digit.
        exact: Key of `exact_values.EXACT`, the function that computes the column.
        measured: Key of `layer_timing.LAYERS`, the layer that is timed for the column.
        whole: True if our value is a count that is shown with all digits.
        at: Coordinate of the column on the horizontal axis of a figure.
    """

    title: str
    unit: str = ""
    scale: float = 1.0
    step: float | None = None
    exact: str | None = None
    measured: str | None = None
    whole: bool = False
    at: float | None = None

    @property
    def heading(self) -> str:
        """Title and unit of the column."""
        return f"{self.title}, {self.unit}" if self.unit else self.title


@dataclass(frozen=True)
class Reason:
    """Explanation of a difference between a computed and a printed number.

    Args:
        why: Explanation in one or two sentences.
        source: Keys of the sources of the explanation.
        rows: Names of the rows that the explanation applies to.
        columns: Names of the columns that the explanation applies to.
        changes: Change of the rows' setup that results in the printed number.
        rounding: "nearest", or "down" if the paper truncates.
        unknown: True if the cause is unknown; `why` then names the causes that were ruled out.
    """

    why: str
    source: list[str]
    rows: list[str]
    columns: list[str]
    changes: dict[str, Any] = field(default_factory=dict)
    rounding: Literal["nearest", "down"] = "nearest"
    unknown: bool = False


@dataclass(frozen=True)
class Row:
    """Row of a table: its printed numbers and the changes of the recipe that reproduce the row.

    Args:
        name: Name on the command line.
        title: Name in the paper.
        printed: Text that the paper prints, without a unit, by column; columns in which the paper
            prints nothing are missing.
        setup: Input of the functions that compute exact columns; None if there are none.
        runs: Changes of the recipe by tier. Keys are the sections of the first training; `each`
            for changes of every training; the name of another part for changes of that part, or
            null to omit the part; `recipe` and `minutes` to replace those of the tier; `start` for
            the row whose first training is reused (see `Tier.then`); `words` for the row whose
            tokenizer is reused with random weights; `teacher` for the row that is distilled; and
            `columns` for metrics that replace those of the tier.
    """

    name: str
    title: str
    printed: Mapping[str, str]
    setup: dict[str, Any] | None
    runs: Mapping[str, dict[str, Any]]


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """Training and test that fill columns of a table.

    Args:
        config: Config file, which the rows modify.
        columns: Metric of `fourfold test` by column.
        options: Changes shared by all rows, by section: config, model, data, trainer, run.
        test: Additional changes of the test.
        minutes: Measured duration in minutes; None if it was never measured.
    """

    config: str
    columns: dict[str, str] = field(default_factory=dict)
    options: dict[str, dict[str, Any]] = field(default_factory=dict)
    test: dict[str, dict[str, Any]] = field(default_factory=dict)
    minutes: float | None = None


@dataclass(frozen=True, kw_only=True)
class Tier(Recipe):
    """Recipes that fill columns of a table on one class of hardware.

    Args:
        config: Config of the first training; "" if all parts of `then` start from random weights.
        about: Differences from the paper.
        files: Required files and directories, relative to the current directory or $FOURFOLD_DATA.
            Their hashes are recorded with the results. Downloads from a hub are not listed.
        origin: Description and source of these files.
        train: False if the tier only tests given weights.
        like: Other tier whose changes apply to a row that has none for this tier.
        then: Trainings that start from the weights of the first training, by name. The `start` of
            a row names the row, ROW or PAPER/TABLE/ROW, whose first training is used instead;
            "random" omits the first training.
        also: Trainings that start from random weights, by name.
    """

    config: str = ""
    about: str
    files: list[str] = field(default_factory=list)
    origin: str = ""
    train: bool = True
    like: str = ""
    then: dict[str, Recipe] = field(default_factory=dict)
    also: dict[str, Recipe] = field(default_factory=dict)

    @property
    def parts(self) -> dict[str, Recipe]:
        """Recipes of the trainings other than the first training, by name."""
        return self.then | self.also

    @property
    def metrics(self) -> dict[str, tuple[str, str]]:
        """Part ("" for the first training) and metric of each column."""
        parts = {"": self, **self.parts}
        return {c: (part, metric) for part, r in parts.items() for c, metric in r.columns.items()}

    def columns_of(self, changes: Mapping[str, Any]) -> list[str]:
        """Return the columns that the tier fills for a row with these changes of the recipe."""
        omitted = {part for part in self.parts if changes.get(part, {}) is None}
        if not self.config or changes.get("start") == RANDOM:
            omitted.add("")
        return [column for column, (part, _) in self.metrics.items() if part not in omitted]


@dataclass(frozen=True, kw_only=True)
class Table:
    """Table or figure of a paper, or a table of this project without printed numbers.

    Args:
        name: PAPER/TABLE.
        title: Title.
        setting: Description of the experiment.
        source: Keys of the sources that the numbers were read from.
        confirmed: True if the numbers were read in the source itself.
        columns: Columns by name.
        rows: Rows by name.
        tiers: Recipes by tier.
        reasons: Explanations of differences.
        note: Remark below the table.
        axis: Label of the axis on which the columns have the coordinates `at`.
        derived: True if the numbers follow from printed formulas but are not printed themselves.
    """

    name: str
    title: str
    columns: Mapping[str, Column]
    rows: Mapping[str, Row]
    setting: str = ""
    source: list[str] = field(default_factory=list)
    confirmed: bool = False
    tiers: Mapping[str, Tier] = field(default_factory=dict)
    reasons: list[Reason] = field(default_factory=list)
    note: str = ""
    axis: str = ""
    derived: bool = False

    @property
    def has_printed_numbers(self) -> bool:
        """True if the paper prints at least one cell of the table."""
        return any(row.printed for row in self.rows.values())

    @property
    def obtainable(self) -> list[str]:
        """Tiers that fill at least one cell."""
        return [tier for tier in TIERS if self.cells(tier)]

    def rows_of(self, tier: str) -> list[Row]:
        """Return the rows that a tier trains or tests."""
        return [row for row in self.rows.values() if tier in row.runs]

    def cells(self, tier: str) -> list[tuple[Row, str]]:
        """Return row and column of each cell that a tier fills."""
        if tier not in RECIPES:
            columns = [name for name, column in self.columns.items() if getattr(column, tier)]
            return [(r, c) for r in self.rows.values() if r.setup is not None for c in columns]
        rows = self.rows_of(tier)
        return [(r, c) for r in rows for c in self.tiers[tier].columns_of(r.runs[tier])]

    def reason(self, row: str, column: str) -> Reason | None:
        """Return the explanation of a cell's difference, or None."""
        matches = (r for r in self.reasons if row in r.rows and column in r.columns)
        return next(matches, None)


@dataclass(frozen=True)
class Paper:
    """Paper, or this project itself, with the tables that are reproduced."""

    name: str
    title: str
    authors: str
    venue: str
    year: int
    sources: dict[str, str]
    tables: Mapping[str, Table]

    @property
    def citation(self) -> str:
        """Citation: authors, title, venue and year."""
        first, *others = self.authors.split(",")
        return f"{first}{' et al.' if others else ''}, {self.title}, {self.venue} {self.year}"


def make(cls: type[T], where: str, given: Any, **more: Any) -> T:
    """Create a dataclass from a mapping that was read from a file.

    Args:
        cls: Dataclass.
        where: Location of the mapping in its file, for messages.
        given: Mapping.
        more: Fields that the mapping must not contain.

    Raises:
        InputError: A key is missing or unknown, or its value has the wrong type.
    """
    try:
        made = cls(**given, **more)
        check_types(made)
        return made
    except (TypeError, InputError) as error:
        raise InputError(f"is invalid: {error}", option=where) from error
