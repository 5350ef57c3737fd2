"""Dataclasses of published tables: papers, tables, rows, columns, tiers and recipes.

The YAML files in `data/` hold their content. A number is stored as it is printed ("5.00",
"3.3e18"), because its last digit determines the precision of a comparison. Each table names the
`source` that its numbers were read from.
"""

from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields
from functools import cached_property
from typing import Any

from fourfold.core.validation import check_types
from fourfold.errors import InputError

RECIPES = ("weights", "laptop", "single-gpu", "paper")  # in the order of required compute
TIERS = ("exact", "measured", *RECIPES)  # computed, timed, or obtained by running recipes
RANDOM = "random"  # start of a row that is initialized at random


@dataclass(frozen=True)
class Printed:
    """Content of a cell of a paper.

    Args:
        text: Text of the cell as printed, without a unit.
    """

    text: str

    @cached_property
    def number(self) -> float | None:
        """Value of the cell; None if it is a formula."""
        try:
            return float(self.text)
        except ValueError:
            return None

    @cached_property
    def step(self) -> float:
        """Unit of the last printed digit: 0.01 for 4.92, 1e17 for 3.3e18."""
        mantissa, _, exponent = self.text.lower().partition("e")
        decimals = len(mantissa.partition(".")[2])
        return float(f"1e{int(exponent or 0) - decimals}")


@dataclass(frozen=True)
class Column:
    """Column of a table.

    Args:
        title: Heading.
        unit: Unit, appended to the heading.
        scale: Value of one printed unit: 1e6 if the paper prints millions.
        step: Rounding of the paper in printed units; None means its last digit.
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


@dataclass(frozen=True)
class Reason:
    """Explanation of a difference between a computed and a printed number.

    Args:
        why: Explanation in one or two sentences.
        source: Keys of the sources of the explanation.
        rows: Rows that it applies to.
        columns: Columns that it applies to.
        changes: Change of the rows' setup that results in the printed number.
        rounding: "nearest", or "down" if the paper truncates.
        unknown: True if the cause is unknown; `why` then names the causes that were ruled out.
    """

    why: str
    source: list[str]
    rows: list[str]
    columns: list[str]
    changes: dict[str, Any] = field(default_factory=dict)
    rounding: str = "nearest"
    unknown: bool = False


@dataclass(frozen=True)
class Row:
    """Row of a table: its printed numbers and the changes of the recipe that reproduce it.

    Args:
        name: Name on the command line.
        title: Name in the paper.
        printed: Printed cells by column; columns without a printed number are missing.
        setup: Input of the functions that compute exact columns; None if there are none.
        runs: Changes of the recipe by tier. Keys are the sections of the first training; `each`
            for changes of every training; the name of another part for changes of that part, or
            null to omit it; `recipe` and `minutes` to replace those of the tier; `start` for the
            row whose first training is reused (see `Tier.then`); `words` for the row whose
            tokenizer is reused with random weights; `teacher` for the row that is distilled; and
            `columns` for metrics that replace those of the tier.
    """

    name: str
    title: str
    printed: Mapping[str, Printed]
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
        minutes: Measured duration; None if it was never measured.
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
        then: Trainings that start from the weights of the first one, by name. The `start` of a row
            names the row, ROW or PAPER/TABLE/ROW, whose first training is used instead of its
            own; "random" omits the first training.
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
        """Trainings other than the first one, by name."""
        return self.then | self.also

    @property
    def metrics(self) -> dict[str, tuple[str, str]]:
        """Part ("" for the first training) and metric of each column."""
        parts = {"": self, **self.parts}
        return {c: (part, metric) for part, r in parts.items() for c, metric in r.columns.items()}

    def metric_of(self, column: str, changes: Mapping[str, Any]) -> tuple[str, str]:
        """Return part and metric of a column for a row with these changes."""
        part, metric = self.metrics[column]
        return part, changes.get("columns", {}).get(column, metric)

    def columns_of(self, changes: Mapping[str, Any]) -> list[str]:
        """Return the columns that the tier fills for a row with these changes."""
        has_first = bool(self.config) and changes.get("start") != RANDOM
        runs = {"": has_first}
        runs |= {part: changes.get(part, {}) is not None for part in self.parts}
        return [column for column, (part, _) in self.metrics.items() if runs[part]]


@dataclass(frozen=True)
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
    setting: str
    source: list[str]
    confirmed: bool
    columns: Mapping[str, Column]
    rows: Mapping[str, Row]
    tiers: Mapping[str, Tier]
    reasons: list[Reason]
    note: str
    axis: str = ""
    derived: bool = False

    @property
    def obtainable(self) -> list[str]:
        """Tiers that fill at least one cell."""
        return [tier for tier in TIERS if self.cells(tier)]

    def cells(self, tier: str) -> list[tuple[Row, str]]:
        """Return row and column of each cell that a tier fills."""
        if tier not in RECIPES:
            columns = [name for name, column in self.columns.items() if getattr(column, tier)]
            return [(r, c) for r in self.rows.values() if r.setup is not None for c in columns]
        recipe = self.tiers.get(tier)
        rows = [r for r in self.rows.values() if tier in r.runs]
        return [(r, c) for r in rows for c in recipe.columns_of(r.runs[tier])] if recipe else []

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


def make(cls: type[Any], where: str, given: object, **more: Any) -> Any:
    """Create a dataclass from a mapping.

    Args:
        cls: Dataclass.
        where: Location of the mapping in its file, for messages.
        given: Mapping.
        more: Fields that the mapping must not contain.

    Raises:
        InputError: A key is missing or unknown, or its value has the wrong type.
    """
    if not isinstance(given, dict):
        raise InputError(f"must be a mapping, got {str(given)[:60]!r}", option=where)
    known = {f.name for f in fields(cls)} - more.keys()
    if unknown := given.keys() - known:
        raise InputError(f"has the unknown key {sorted(unknown)[0]}", option=where)
    optional = {
        f.name for f in fields(cls) if f.default is not MISSING or f.default_factory is not MISSING
    }
    if missing := known - optional - given.keys():
        raise InputError(f"must have the key {sorted(missing)[0]}", option=where)
    made = cls(**given, **more)
    try:
        check_types(made)
    except InputError as error:
        raise InputError(error.message, option=f"{where}, {error.option}") from error
    return made
