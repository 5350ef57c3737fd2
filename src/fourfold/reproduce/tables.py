"""Dataclasses of published tables: papers, tables, rows, columns, tiers and recipes.

The YAML files in `data/` hold the content of these classes. A number is stored as it is printed
("5.00", "3.3e18"), because its last digit determines the precision of a comparison.

Terms:
    A row is one line of a printed table, such as one model. A cell is the number in one row and
    one column. A tier is one way to obtain cells: `exact` computes them without training,
    `measured` times layers, `weights` tests official weights, and the other tiers (`laptop`,
    `single-gpu` and `paper`) train models. A recipe is a config file with changed options. A row
    of the table is obtained by running the recipe of a tier with the changes of that row. A run is
    one training of a row with one seed, followed by a test.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any, Literal, TypeVar

from fourfold.core.validation import check_types
from fourfold.errors import InputError

T = TypeVar("T")
RECIPES = ("weights", "laptop", "single-gpu", "paper")  # in the order of required compute
TIERS = ("exact", "measured", *RECIPES)  # computed, timed, or obtained by running recipes
RANDOM = "random"  # `start` of a row whose parts begin with random weights


def printed_number(text: str) -> float | None:
    """Convert the text of a printed cell, such as "4.92" or "3.3e18", to a number.

    The result is None if the text is a formula.
    """
    try:
        return float(text)
    except ValueError:
        return None


def printed_step(text: str) -> float:
    """Return the value of one unit in the last digit of a printed number.

    Example:
        >>> printed_step("4.92"), printed_step("3.3e18")
        (0.01, 1e+17)
    """
    return float(f"1e{Decimal(text).as_tuple().exponent}")


@dataclass(frozen=True)
class Column:
    """Column of a table."""

    title: str  # heading without the unit
    unit: str = ""
    scale: float = 1.0  # value of one printed unit in base units: 1e6 if the paper prints millions
    step: float | None = None  # of the paper's rounding; None means one unit in the last digit
    exact: str | None = None  # key of `exact_values.EXACT`, which computes the cells
    measured: str | None = None  # key of `layers.timing.LAYERS`, or "decoding" of the row's model
    whole: bool = False  # our value is a count that is shown in base units with all its digits
    at: float | None = None  # coordinate on the horizontal axis of a figure
    panel: str = ""  # title of the panel with the curves; "" for the title of the table
    better: Literal["higher", "lower"] = "higher"  # lower for a loss, a perplexity or an error

    @property
    def heading(self) -> str:
        """Title of the column, followed by its unit if there is one."""
        return f"{self.title}, {self.unit}" if self.unit else self.title


@dataclass(frozen=True)
class Reason:
    """Explanation of a difference between a computed number and the printed number."""

    why: str  # one or two sentences; names the causes that were ruled out if `unknown`
    source: list[str]  # keys of `Paper.sources` that support the explanation
    rows: list[str]
    columns: list[str]
    changes: dict[str, Any] = field(default_factory=dict)  # of `Row.setup`, to the printed number
    rounding: Literal["nearest", "down"] = "nearest"  # down if the paper truncates
    unknown: bool = False


@dataclass(frozen=True)
class Statement:
    """Published effect that our numbers can show or contradict: an order of rows by a column."""

    order: str  # two or more rows, the best first, such as "base > A_h4 > A_h1"
    column: str  # of our numbers; its `better` is the direction
    source: str  # table or section; begins with authors and year if it is of another paper
    printed: str = ""  # column of the paper's numbers; "" if it is `column`

    @property
    def rows(self) -> list[str]:
        """Names of the rows, the best first."""
        return self.order.split(" > ")


@dataclass(frozen=True)
class Row:
    """Row of a table: its printed numbers and the changes of the recipe that reproduce the row.

    A row may consist of several trainings: the first one, and further ones that are called parts
    (see `Tier`). `runs` has the changes of each tier that runs the row:

    - config, model, data, trainer, run: changed options of the first training (`Recipe.options`).
    - test: changed options of the test of the first training, in the same sections.
    - recipe, minutes: config file and duration that replace those of the tier.
    - each: changes of all trainings, as a mapping with the keys above.
    - the name of a part: changes of that part, or null to omit the part.
    - start: row whose first training replaces the first training of this row. With "random", there
      is none, and the parts start from random weights.
    - words: row whose tokenizer the parts use.
    - teacher: row whose model is the teacher in distillation.
    - columns: metrics by column, which replace those of the tier.

    For example, `laptop: {config: {d_ff: 64}, sst2: {data: {batch_size: 4}}}` changes the width of
    the first training and the batch size of the part "sst2".
    """

    name: str
    title: str  # name in the paper
    printed: Mapping[str, str]  # text without a unit, by column
    setup: dict[str, Any] | None  # inputs of `exact_values.EXACT` or of the timing
    runs: Mapping[str, dict[str, Any]]


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """Training and test that fill columns of a table.

    The sections of `options` and `test` are those of a config file: `config` (of the model),
    `model`, `data`, `trainer` and `run` (top level).
    """

    config: str  # config file of `fourfold fit`; a row of the table changes its options
    columns: dict[str, str] = field(default_factory=dict)  # metric of `fourfold test` by column
    options: dict[str, dict[str, Any]] = field(default_factory=dict)  # changed for all rows
    test: dict[str, dict[str, Any]] = field(default_factory=dict)  # changed for the test only
    minutes: float | None = None  # duration of training and test, measured or estimated


@dataclass(frozen=True, kw_only=True)
class Tier(Recipe):
    """Way to fill columns of a table: one or more trainings on one class of hardware.

    The fields of `Recipe` describe the first training, such as pretraining. `then` and `also` add
    trainings, such as fine-tuning, which are called parts.
    """

    config: str = ""  # "" if there is no first training
    about: str  # differences from the experiment of the paper
    # Required, relative to the current directory or $FOURFOLD_DATA; their hashes are recorded.
    files: list[str] = field(default_factory=list)
    origin: str = ""  # description and source of `files`
    train: bool = True  # False if the tier only tests given weights
    # Rows with the training and test examples of the paper, which are compared with its numbers.
    same_split: list[str] = field(default_factory=list)
    like: str = ""  # tier whose changes a row has if it lists none for this tier
    then: dict[str, Recipe] = field(default_factory=dict)  # start from the first training
    also: dict[str, Recipe] = field(default_factory=dict)  # start from random weights

    @property
    def parts(self) -> dict[str, Recipe]:
        """Recipes of all trainings except for the first training of a row, by name of the part."""
        return self.then | self.also

    @property
    def metrics(self) -> dict[str, tuple[str, str]]:
        """Name of the part ("" for the first training) and metric that fill each column."""
        parts = {"": self, **self.parts}
        return {c: (part, metric) for part, r in parts.items() for c, metric in r.columns.items()}

    def columns_of(self, changes: Mapping[str, Any]) -> list[str]:
        """Return the names of the columns that this tier (kind of training) fills for one row."""
        omitted = {part for part in self.parts if changes.get(part, {}) is None}
        if not self.config or changes.get("start") == RANDOM:
            omitted.add("")
        return [column for column, (part, _) in self.metrics.items() if part not in omitted]


@dataclass(frozen=True, kw_only=True)
class Table:
    """Table or figure of a paper, or a table of this project without printed numbers."""

    name: str  # PAPER/TABLE
    title: str
    columns: Mapping[str, Column]
    rows: Mapping[str, Row]
    setting: str = ""  # description of the experiment
    source: list[str] = field(default_factory=list)  # keys of `Paper.sources` that were read
    tiers: Mapping[str, Tier] = field(default_factory=dict)  # in `RECIPES`
    reasons: list[Reason] = field(default_factory=list)
    statements: Mapping[str, Statement] = field(default_factory=dict)
    note: str = ""  # below the table
    axis: str = ""  # label of the axis on which columns have their coordinates (`Column.at`)
    log: bool = False  # curves have a logarithmic vertical axis
    derived: bool = False  # the numbers follow from printed formulas

    @property
    def obtainable(self) -> list[str]:
        """Names of the tiers (ways to obtain numbers) that fill at least one cell."""
        return [tier for tier in TIERS if self.cells(tier)]

    def rows_of(self, tier: str) -> list[Row]:
        """Return the rows for which a tier trains or tests a model."""
        return [row for row in self.rows.values() if tier in row.runs]

    def cells(self, tier: str) -> list[tuple[Row, str]]:
        """Return the cells that a tier fills, as pairs of a row and the name of a column."""
        if tier not in RECIPES:
            columns = [name for name, column in self.columns.items() if getattr(column, tier)]
            return [(r, c) for r in self.rows.values() if r.setup is not None for c in columns]
        rows = self.rows_of(tier)
        return [(r, c) for r in rows for c in self.tiers[tier].columns_of(r.runs[tier])]

    def reason(self, row: str, column: str) -> Reason | None:
        """Return the explanation of a computed cell that differs from the paper, if any."""
        return next((r for r in self.reasons if row in r.rows and column in r.columns), None)


@dataclass(frozen=True)
class Paper:
    """Paper, or this project itself, with the tables that are reproduced."""

    name: str
    title: str
    authors: str  # separated by commas
    venue: str
    year: int
    sources: dict[str, str]  # versions, repositories and pages that were read, by key
    tables: Mapping[str, Table]  # by name without that of the paper

    @property
    def citation(self) -> str:
        """Citation as text: first author, title, venue and year."""
        first, *others = self.authors.split(",")
        return f"{first}{' et al.' if others else ''}, {self.title}, {self.venue} {self.year}"


def make(cls: type[T], where: str, given: Any, **more: Any) -> T:
    """Create an instance of a dataclass from a mapping that was read from a file.

    Raises:
        InputError: A key is missing, unknown or also in `more`, or a value has the wrong type.
    """
    try:
        made = cls(**given, **more)
        check_types(made)
        return made
    except (TypeError, InputError) as error:
        raise InputError(f"is invalid: {error}", option=where) from error
