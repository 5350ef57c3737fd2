"""The published tables as data: what the YAML files beside this module hold.

A number is kept as it is printed ("5.00", "3.3e18"), so that its last digit says how exactly it can
be compared. Facts and figures only; `source` says where each was read, `confirmed` whether it was.
"""

from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields
from functools import cached_property
from typing import Any

from fourfold.core.config import check_types
from fourfold.core.errors import InputError

RECIPES = ("weights", "laptop", "single-gpu", "paper")  # from nothing to a cluster
TIERS = ("exact", "measured", *RECIPES)  # computed, timed here, or by recipes
RANDOM = "random"  # of a row that starts from no other training


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
        measured: The layer whose time on this machine it comes from, a row of `bench.layers`.
        whole: Whether ours is a count that is shown to the last one.
        at: Where it stands on the axis of a picture, where the columns are such numbers.
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
    """Why what is computed here is not what is printed, and what would be.

    Args:
        why: In a sentence or two.
        source: Where that is known from.
        rows: Which rows it explains.
        columns: Which columns.
        changes: A change of the rows' setup with which the printed number comes out.
        rounding: nearest, or down where the paper cuts digits off.
        unknown: Whether the cause is not known; the sentence then says what has been ruled out.
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
    """A row: what is printed, and what it takes to obtain it.

    Args:
        name: Its name on the command line.
        title: What the paper calls it.
        printed: Cells by column; what is not printed is left out.
        setup: What computes the exact columns; None where nothing of it can be computed here.
        runs: By tier, what the row changes in the tier's recipes: sections for the first training,
            `each` for every one, another part's name for that part alone, or null to leave it out;
            in these a `recipe` and `minutes` in place of the tier's; and `start`, whose first
            training it takes for its own (see `Tier.then`), or beside a random start `words`, the
            row of whose first training the tokenizer is; `teacher`, the row from whose first
            training its own learns; and `columns`, metrics in place of the tier's.
    """

    name: str
    title: str
    printed: Mapping[str, Printed]
    setup: dict[str, Any] | None
    runs: Mapping[str, dict[str, Any]]


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """One training and its test, and the columns that the test gives.

    Args:
        config: The recipe's file, which the rows change.
        columns: Which metric of `fourfold test` stands for which column.
        options: What all rows change, by section: config, model, data, trainer, run.
        test: What the test changes besides.
        minutes: That it takes, from a measurement; None if there was none.
    """

    config: str
    columns: dict[str, str] = field(default_factory=dict)
    options: dict[str, dict[str, Any]] = field(default_factory=dict)
    test: dict[str, dict[str, Any]] = field(default_factory=dict)
    minutes: float | None = None


@dataclass(frozen=True, kw_only=True)
class Tier(Recipe):
    """A way to obtain columns by running recipes: one, or one and then others from its weights.

    Args:
        config: As of any recipe; none where the parts of `then` all begin at random.
        about: How it differs from the paper.
        files: Files and directories that have to lie here or under $FOURFOLD_DATA; their hashes are
            kept with results. What comes from a hub is not among them.
        origin: What these files are and where they come from.
        train: Whether there is anything to train.
        like: Another tier, whose changes a row makes here where it says nothing of its own.
        then: What is learned from the weights of the first training, by name. A row's `start` is
            the row whose first training that is, ROW or PAPER/TABLE/ROW, if not its own; "random"
            leaves it out.
        also: What is learned beside the first training from random weights, by name: columns that
            take a training each.
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
        """What there is besides the first training, by name."""
        return self.then | self.also

    @property
    def metrics(self) -> dict[str, tuple[str, str]]:
        """By column, the part that gives it ("" is the first training), and its metric there."""
        parts = {"": self, **self.parts}
        return {c: (part, metric) for part, r in parts.items() for c, metric in r.columns.items()}

    def metric_of(self, column: str, changes: Mapping[str, Any]) -> tuple[str, str]:
        """The part that gives a column of a row with these changes, and its metric there."""
        part, metric = self.metrics[column]
        return part, changes.get("columns", {}).get(column, metric)

    def gives(self, changes: Mapping[str, Any]) -> list[str]:
        """The columns that it gives of a row with these changes."""
        first = bool(self.config) and changes.get("start") != RANDOM
        there = {"": first} | {part: changes.get(part, {}) is not None for part in self.parts}
        return [column for column, (part, _) in self.metrics.items() if there[part]]


@dataclass(frozen=True)
class Table:
    """A table or figure of a paper, or one of our own, of which nothing is printed.

    Its `name` is PAPER/TABLE, and its `axis` what its columns are `at`. What is `derived` is not
    printed itself, but follows from formulas that are.
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
        """The tiers that give any of its cells."""
        return [tier for tier in TIERS if self.cells(tier)]

    def cells(self, tier: str) -> list[tuple[Row, str]]:
        """Row and column of each number that a tier gives."""
        if tier not in RECIPES:
            found = [name for name, column in self.columns.items() if getattr(column, tier)]
            return [(r, c) for r in self.rows.values() if r.setup is not None for c in found]
        recipe, rows = self.tiers.get(tier), [r for r in self.rows.values() if tier in r.runs]
        return [(r, c) for r in rows for c in recipe.gives(r.runs[tier])] if recipe else []

    def reason(self, row: str, column: str) -> Reason | None:
        """Why a cell may differ."""
        hits = (r for r in self.reasons if row in r.rows and column in r.columns)
        return next(hits, None)


@dataclass(frozen=True)
class Paper:
    """A paper and those of its tables that are followed here; and what is ours alone."""

    name: str
    title: str
    authors: str
    venue: str
    year: int
    sources: dict[str, str]
    tables: Mapping[str, Table]

    @property
    def citation(self) -> str:
        """Who wrote it, title, where and when."""
        first, *others = self.authors.split(",")
        return f"{first}{' et al.' if others else ''}, {self.title}, {self.venue} {self.year}"


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
