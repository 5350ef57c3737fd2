"""Rows of a table that are trained: which runs they are, which are done, and running the rest.

A run is `fit` and `test` of a recipe with a row's changes and a seed, in a directory of its own:
RUNS/PAPER/TABLE/TIER/ROW/seed_N, and for each other part, which is learned from its weights or
beside it, .../ROW/PART/seed_N. What is done is not done again, what was killed goes on.
"""

import json
import math
import os
import shlex
import statistics
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import fourfold
from fourfold.commands import child
from fourfold.commands.seeds import measured
from fourfold.core.config import check_word
from fourfold.core.errors import InputError
from fourfold.papers.reading import find_tables, merged
from fourfold.papers.tables import RANDOM, Recipe, Row, Table, Tier

# A section of a row's changes: the key of `fourfold fit` that it stands for.
SECTIONS = {
    "config": "model.init_args.config.",
    "model": "model.init_args.",
    "data": "data.init_args.",
    "trainer": "trainer.",
    "run": "",
}
ROOT = Path(fourfold.__file__).parents[2]  # of a checkout


@dataclass(frozen=True)
class Run:
    """One training of a row with one seed, and its test.

    Args:
        row: The row's name.
        part: The name of what is learned from the first training or beside it; "" for that itself.
        seed: The seed.
        folder: The run directory.
        recipe: What it follows.
        fit: Options of `fourfold fit`; none where nothing is trained.
        test: Options of `fourfold test`.
    """

    row: str
    part: str
    seed: int
    folder: Path
    recipe: Recipe
    fit: list[str]
    test: list[str]

    @property
    def title(self) -> str:
        """Which it is, to be printed."""
        return f"row {self.row}, {self.part + ', ' if self.part else ''}seed {self.seed}"

    @property
    def found(self) -> dict[str, Any] | None:
        """What its test found; None if it is not done."""
        return measured(self.folder, self.test)

    @property
    def commands(self) -> list[str]:
        """What is run, as one would type it."""
        verbs = {"fit": self.fit, "test": self.test}
        return [shlex.join(["fourfold", verb, *given]) for verb, given in verbs.items() if given]

    @cached_property
    def _clock(self) -> Path:
        return self.folder / "seconds.json"

    @property
    def seconds(self) -> float | None:
        """What its parts took that came to an end; None where there is none."""
        try:
            return float(json.loads(self._clock.read_text(encoding="utf-8")))
        except (FileNotFoundError, ValueError):
            return None

    def go(self, held: int, limit: float | None) -> int:
        """Train and test it, or what is left of that.

        Args:
            held: The lock.
            limit: Seconds after which it is stopped, to go on another time.

        Returns:
            0, or the exit code of what failed or was stopped.
        """
        begin = time.monotonic()
        environment = {"WANDB_RUN_GROUP": self.folder.parent.name, **os.environ}
        try:
            for verb, options in (("fit", self.fit), ("test", self.test)):
                left = None if limit is None else max(0.0, limit - (time.monotonic() - begin))
                if options and (code := child.run(verb, options, environment, [held], left)):
                    return code
            return 0
        finally:
            spent = (self.seconds or 0.0) + time.monotonic() - begin
            if self.folder.is_dir():
                self._clock.write_text(json.dumps(round(spent, 1)), encoding="utf-8")


def row_runs(table: Table, tier: str, row: Row, seed: int, runs: Path) -> dict[str, Run]:
    """The runs of a row with one seed, by part, in their order; "" is the first training.

    Raises:
        InputError: A recipe is not here, or the row changes or starts from what is not there.
    """
    recipe, changes = table.tiers[tier], row.runs[tier]
    where = f"{table.name}, row {row.name}, tier {tier}"
    known = {"recipe", "each", "start", "words", "teacher", "columns"}
    _check_keys(where, changes, {*SECTIONS, *recipe.parts, *known})
    _check_keys(f"{where}, each", changes.get("each", {}), {*SECTIONS, "recipe"})
    place = runs / table.name / tier / row.name
    found: dict[str, Run] = {}
    start, words = changes.get("start", row.name), changes.get("words")
    if words is not None and start != RANDOM:
        raise InputError(
            f"{where}: words is {words}, but a row that starts from weights has theirs"
        )
    start = words or start

    def other(key: str, name: str) -> Run:
        source, row = _other_row(f"{where}: {key}", table, tier, name)
        return row_runs(source, tier, row, seed, runs)[""]

    learning: list[str] = []
    if "teacher" in changes:
        found["teacher"] = other("teacher", changes["teacher"])
        learning = ["--model.teacher", str(found["teacher"].folder)]
    if start not in (RANDOM, row.name):
        found[""] = other("words" if words else "start", start)
    elif start != RANDOM and recipe.config:
        found[""] = _run(recipe, changes, row.name, "", seed, place / f"seed_{seed}", learning)
    begin: list[str] = []
    if words:
        begin = ["--data.tokenizer.file", str(found[""].folder / "checkpoints" / "last.ckpt")]
    elif "" in found:
        begin = ["--model.init_from", str(found[""].folder)]
    for part, learned in recipe.parts.items():
        own = changes.get(part, {})
        if own is None:
            continue
        _check_keys(f"{where}, {part}", own, {*SECTIONS, "recipe"})
        own = {"each": changes.get("each", {}), **own}
        folder, first = place / part / f"seed_{seed}", begin if part in recipe.then else []
        found[part] = _run(learned, own, row.name, part, seed, folder, first)
    return found


def _other_row(where: str, table: Table, tier: str, name: str) -> tuple[Table, Row]:
    """The row ROW or PAPER/TABLE/ROW, which must have a first training of its own."""
    place, _, row = name.rpartition("/")
    source = find_tables([place])[0] if place else table
    with_own = (r for r in source.rows.values() if "start" not in r.runs.get(tier, {"start"}))
    rows = {r.name: r for r in with_own}
    check_word(where, row, tuple(rows))
    return source, rows[row]


def _check_keys(where: str, given: dict[str, Any], known: set[str]) -> None:
    if strange := sorted(given.keys() - known):
        raise InputError(f"{where}: {strange[0]} is none of {', '.join(sorted(known))}")


def _run(
    recipe: Recipe,
    changes: dict[str, Any],
    row: str,
    part: str,
    seed: int,
    folder: Path,
    begin: Sequence[str] = (),
) -> Run:
    both = merged(changes.get("each", {}), changes)
    config = find_config(both.get("recipe", recipe.config))
    own = {key: value for key, value in both.items() if key in SECTIONS}
    changed = merged(recipe.options, own)
    where = [*begin, "--run_dir", str(folder), "--seed_everything", str(seed)]
    fit, test = (
        ["--config", config, *options(given), *where]
        for given in (changed, merged(changed, recipe.test))
    )
    trains = not isinstance(recipe, Tier) or recipe.train
    return Run(row, part, seed, folder, recipe, fit if trains else [], test)


def plan_runs(table: Table, tier: str, rows: Iterable[Row], n_seeds: int, runs: Path) -> list[Run]:
    """The runs of some rows, each once, all with the first seed before any with the second.

    Raises:
        InputError: As of `row_runs`.
    """
    found = {
        run.folder: run
        for seed in range(n_seeds)
        for row in rows
        for run in row_runs(table, tier, row, seed, runs).values()
    }
    return list(found.values())


def options(changes: dict[str, dict[str, Any]]) -> list[str]:
    """Changes by section as options of the command line.

    Raises:
        InputError: There is no such section.
    """
    _check_keys("a recipe's options", changes, set(SECTIONS))
    found = []
    for section, keys in changes.items():
        for key, value in keys.items():
            text = value if isinstance(value, str) else json.dumps(value)
            found += [f"--{SECTIONS[section]}{key}", text]
    return found


def find_config(name: str) -> str:
    """Where a recipe of the repository is, from here or in the checkout.

    Raises:
        InputError: In neither.
    """
    for place in (Path(name), ROOT / name):
        if place.is_file():
            return os.path.relpath(place)  # names no machine in what is written down
    raise InputError(f"{name} is not here: run this in a checkout of fourfold")


def expected_seconds(runs: Sequence[Run], recipe: Recipe) -> float | None:
    """Of a run: the median of those of its recipe that are done, else what the table says."""
    known = [run.seconds for run in runs if run.recipe is recipe and run.found and run.seconds]
    if known:
        return statistics.median(known)
    return None if recipe.minutes is None else 60 * recipe.minutes


def run_all(runs: Sequence[Run], budget: float | None) -> int:
    """Run what is not done, as far as the budget reaches.

    Args:
        runs: All of them, those that others start from before these.
        budget: Seconds; None for no end. A run that is still going then is saved and stopped.

    Returns:
        0, or the exit code of the run that failed or was stopped by others.

    Raises:
        InputError: Not one run fits into the budget; says what would.
    """
    end = math.inf if budget is None else time.monotonic() + budget
    started = False
    for number, run in enumerate(runs, 1):
        left = None if budget is None else end - time.monotonic()
        try:  # the lock before asking: another may be about to end it
            with child.locked(run.folder, left) as held:
                if run.found:
                    continue
                needed = (expected_seconds(runs, run.recipe) or 0.0) - (run.seconds or 0.0)
                left = end - time.monotonic()
                if budget is not None and needed > left and not started:
                    raise InputError(
                        f"--budget {_words(budget)} is too short: the next run takes about"
                        f" {_words(needed)}, and {sum(not r.found for r in runs)} are to be done"
                    )
                if needed > left or left <= 0:
                    return _out_of_budget()
                print(f"[{number}/{len(runs)}] {run.title}", flush=True)
                started = True
                if code := run.go(held, None if budget is None else left):
                    return _out_of_budget() if time.monotonic() >= end else code
        except TimeoutError:
            return _out_of_budget()
    return 0


def _out_of_budget() -> int:
    print("the budget ends here; the same command goes on", flush=True)
    return 0


def _words(seconds: float) -> str:
    return f"{seconds:.0f}s" if seconds < 90 else f"{seconds / 60:.3g}m"
