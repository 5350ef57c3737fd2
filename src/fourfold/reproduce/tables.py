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
    """Column of a table.

    Args:
        title: Heading without the unit.
        unit: Unit, appended to the heading.
        scale: Value of one printed unit in base units: 1e6 if the paper prints millions.
        step: Step to which the paper rounds, in printed units; None means one unit in the last
            printed digit.
        exact: Key of `exact_values.EXACT`, the function that computes the cells of the column
            without training; None if no function does.
        measured: Key of `layers.timing.LAYERS`, the layer that is timed for the column, or
            "decoding", if the decoding of the row's model is timed; None if nothing is timed.
        whole: True if our value is a count that is shown in base units with all its digits.
        at: Coordinate of the column on the horizontal axis of a figure; None if the column is not
            a point of a curve.
        panel: Title of the panel that shows the curves; "" for the title of the table.
        better: Direction of better numbers: "lower" for a loss, a perplexity or an error.
    """

    title: str
    unit: str = ""
    scale: float = 1.0
    step: float | None = None
    exact: str | None = None
    measured: str | None = None
    whole: bool = False
    at: float | None = None
    panel: str = ""
    better: Literal["higher", "lower"] = "higher"

    @property
    def heading(self) -> str:
        """Title of the column, followed by its unit if there is one."""
        return f"{self.title}, {self.unit}" if self.unit else self.title


@dataclass(frozen=True)
class Reason:
    """Explanation of a difference between a computed number and the printed number.

    Args:
        why: Explanation in one or two sentences.
        source: Keys of `Paper.sources` that support the explanation.
        rows: Names of the rows of the table that the explanation applies to.
        columns: Names of the columns that the explanation applies to.
        changes: Changes of `Row.setup` that lead to the printed number; empty if the explanation
            changes no input, for example if only the rounding is different.
        rounding: Rounding of the paper: "nearest", or "down" if the paper truncates.
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
class Statement:
    """Published effect that our numbers can show or contradict: an order of rows by a column.

    Args:
        order: Names of two or more rows, the best first, such as "base > A_h4 > A_h1". The sign
            means "better than"; `Column.better` is the direction.
        column: Name of the column of our numbers.
        source: Table or section of the paper that states the effect; it begins with the authors
            and the year if it is another paper than that of the table.
        printed: Name of the column with the paper's numbers; "" if it is `column`.
    """

    order: str
    column: str
    source: str
    printed: str = ""

    @property
    def rows(self) -> list[str]:
        """Names of the rows, the best first."""
        return self.order.split(" > ")


@dataclass(frozen=True)
class Row:
    """Row of a table: its printed numbers and the changes of the recipe that reproduce the row.

    Args:
        name: Name on the command line.
        title: Name in the paper.
        printed: Text that the paper prints, without a unit, by column; columns in which the paper
            prints nothing are missing.
        setup: Inputs of the functions of `exact_values.EXACT`, such as the model's config, or of
            the timing, such as the width; None if no cell of the row is computed or timed.
        runs: For each tier (kind of training, such as laptop) that runs this row, the changes of
            the tier's recipe.

    A row may consist of several trainings: the first one, and further ones that are called parts
    (see `Tier`). The changes of one tier are a mapping with these keys:

    - config, model, data, trainer, run: changed options of the first training, as a mapping from
      the option to its value. `Recipe.options` describes these sections.
    - recipe: config file that replaces `config` of the tier.
    - minutes: duration that replaces `minutes` of the tier.
    - each: changes of all trainings, as a mapping with the keys above.
    - the name of a part: changes of that part, as a mapping with the keys above, or null to omit
      the part.
    - start: name of the row whose first training replaces the first training of this row. With
      "random" there is no first training, and the parts start from random weights.
    - words: name of the row whose tokenizer the parts use.
    - teacher: name of the row whose model is the teacher in distillation.
    - columns: metrics by column, which replace those of the tier.

    Example:
        A row that changes the width of the first training and the batch size of the part "sst2"::

            laptop: {config: {d_ff: 64}, sst2: {data: {batch_size: 4}}}
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
        config: Path of a config file of `fourfold fit`. A row of the table changes its options.
        columns: For each column that the recipe fills, by name, the metric of `fourfold test` that
            fills the column, such as test/accuracy.
        options: Changed options that all rows share. The outer keys are sections of the config
            file: `config` (model.init_args.config), `model` (model.init_args), `data`
            (data.init_args), `trainer`, and `run` (top level). The inner keys are options.
        test: Further changed options, by section and option, which apply to the test only.
        minutes: Duration of training and test in minutes, measured or estimated; None if it is
            unknown.
    """

    config: str
    columns: dict[str, str] = field(default_factory=dict)
    options: dict[str, dict[str, Any]] = field(default_factory=dict)
    test: dict[str, dict[str, Any]] = field(default_factory=dict)
    minutes: float | None = None


@dataclass(frozen=True, kw_only=True)
class Tier(Recipe):
    """Way to fill columns of a table: one or more trainings on one class of hardware.

    The fields that a tier shares with `Recipe` describe its first training, such as pretraining.
    `then` and `also` add trainings, such as fine-tuning, which are called parts.

    Args:
        config: Config of the first training; "" if there is none.
        about: Differences from the experiment of the paper.
        files: Required files and directories, relative to the current directory or $FOURFOLD_DATA.
            Their hashes are recorded with the results. Downloads from a hub are not listed.
        origin: Description and source of `files`.
        train: False if the tier only tests given weights.
        same_split: Names of the rows that have the training and test examples of the paper. Their
            cells are compared with the printed numbers; others stand beside them.
        like: Name of another tier. A row that lists no changed options for this tier has those
            that it lists for the other tier.
        then: Parts that start from the weights of the first training, by name. If a row lists the
            option `start`, its parts start from the first training of another row. The value of
            `start` is the name of that row, ROW or PAPER/TABLE/ROW.
        also: Parts that always start from random weights, by name.
    """

    config: str = ""
    about: str
    files: list[str] = field(default_factory=list)
    origin: str = ""
    train: bool = True
    same_split: list[str] = field(default_factory=list)
    like: str = ""
    then: dict[str, Recipe] = field(default_factory=dict)
    also: dict[str, Recipe] = field(default_factory=dict)

    @property
    def parts(self) -> dict[str, Recipe]:
        """Recipes of all trainings except for the first training of a row, by name of the part."""
        return self.then | self.also

    @property
    def metrics(self) -> dict[str, tuple[str, str]]:
        """Training and metric that fill each column, as pairs by name of the column.

        The training is the name of a part, or "" for the first training. The metric is a metric of
        `fourfold test`, such as test/accuracy.
        """
        parts = {"": self, **self.parts}
        return {c: (part, metric) for part, r in parts.items() for c, metric in r.columns.items()}

    def columns_of(self, changes: Mapping[str, Any]) -> list[str]:
        """Return the names of the columns that this tier (kind of training) fills for one row.

        Args:
            changes: Changes of the recipe for this row and tier, a value of `Row.runs`.
        """
        omitted = {part for part in self.parts if changes.get(part, {}) is None}
        if not self.config or changes.get("start") == RANDOM:
            omitted.add("")
        return [column for column, (part, _) in self.metrics.items() if part not in omitted]


@dataclass(frozen=True, kw_only=True)
class Table:
    """Table or figure of a paper, or a table of this project without printed numbers.

    Args:
        name: Name in the form PAPER/TABLE.
        title: Title.
        columns: Columns by name.
        rows: Rows by name.
        setting: Description of the experiment.
        source: Keys in `Paper.sources` of the sources in which the numbers were read; empty if the
            table has no source.
        tiers: Tiers (ways to obtain numbers) that train or test models, by name. The names are in
            `RECIPES`.
        reasons: Explanations of differences between computed and printed numbers.
        statements: Published effects by name.
        note: Remark below the table.
        axis: Label of the horizontal axis on which columns have their coordinates (`Column.at`).
        log: True if curves have a logarithmic vertical axis.
        derived: True if the numbers follow from printed formulas but are not printed themselves.
    """

    name: str
    title: str
    columns: Mapping[str, Column]
    rows: Mapping[str, Row]
    setting: str = ""
    source: list[str] = field(default_factory=list)
    tiers: Mapping[str, Tier] = field(default_factory=dict)
    reasons: list[Reason] = field(default_factory=list)
    statements: Mapping[str, Statement] = field(default_factory=dict)
    note: str = ""
    axis: str = ""
    log: bool = False
    derived: bool = False

    @property
    def obtainable(self) -> list[str]:
        """Names of the tiers (ways to obtain numbers) that fill at least one cell."""
        return [tier for tier in TIERS if self.cells(tier)]

    def rows_of(self, tier: str) -> list[Row]:
        """Return the rows for which a tier trains or tests a model.

        Args:
            tier: Name of the tier, one of `RECIPES`.
        """
        return [row for row in self.rows.values() if tier in row.runs]

    def cells(self, tier: str) -> list[tuple[Row, str]]:
        """Return the cells that a tier fills, as pairs of a row and the name of a column.

        Args:
            tier: Name of the tier (way to obtain numbers), one of `TIERS`.
        """
        if tier not in RECIPES:
            columns = [name for name, column in self.columns.items() if getattr(column, tier)]
            return [(r, c) for r in self.rows.values() if r.setup is not None for c in columns]
        rows = self.rows_of(tier)
        return [(r, c) for r in rows for c in self.tiers[tier].columns_of(r.runs[tier])]

    def reason(self, row: str, column: str) -> Reason | None:
        """Return the explanation of a computed cell that differs from the paper; None without one.

        Args:
            row: Name of the row.
            column: Name of the column.
        """
        return next((r for r in self.reasons if row in r.rows and column in r.columns), None)


@dataclass(frozen=True)
class Paper:
    """Paper, or this project itself, with the tables that are reproduced.

    Args:
        name: Name on the command line.
        title: Title.
        authors: Authors, separated by commas.
        venue: Place of publication, such as NIPS.
        year: Year of publication.
        sources: Descriptions of the versions, repositories and pages that were read, by key.
        tables: Tables by name, without the name of the paper.
    """

    name: str
    title: str
    authors: str
    venue: str
    year: int
    sources: dict[str, str]
    tables: Mapping[str, Table]

    @property
    def citation(self) -> str:
        """Citation as text: first author, title, venue and year."""
        first, *others = self.authors.split(",")
        return f"{first}{' et al.' if others else ''}, {self.title}, {self.venue} {self.year}"


def make(cls: type[T], where: str, given: Any, **more: Any) -> T:
    """Create an instance of a dataclass from a mapping that was read from a file.

    Args:
        cls: Dataclass to create.
        where: Location of the mapping in its file, for error messages.
        given: The mapping, with the names of fields as keys.
        more: Values of further fields, which the mapping must not contain.

    Raises:
        InputError: A key is missing, unknown or also in `more`, or a value has the wrong type.
    """
    try:
        made = cls(**given, **more)
        check_types(made)
        return made
    except (TypeError, InputError) as error:
        raise InputError(f"is invalid: {error}", option=where) from error
