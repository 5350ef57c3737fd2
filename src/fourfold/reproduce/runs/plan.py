"""Planning of the training runs behind the rows of a table: directories, options and order.

A run consists of `fourfold fit` and `fourfold test` of a recipe, with the changes of one row (line)
of the table and with one seed. A row may need several trainings, such as pretraining and
fine-tuning; those after the first training are called parts. The run directory, which holds
checkpoints and metrics, is RUNS/PAPER/TABLE/TIER/ROW/seed_N for the first training of a row, and
.../ROW/PART/seed_N for a part.
"""

import json
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fourfold.commands.packaged_recipes import find_recipe
from fourfold.core.validation import check_choice
from fourfold.reproduce.load_tables import find_tables, merged
from fourfold.reproduce.runs.run import RECIPE_MACHINE, Machine, Run
from fourfold.reproduce.tables import RANDOM, Recipe, Row, Table, Tier

# Prefix of the options of `fourfold fit`, by section of the changes of a recipe.
SECTIONS = {
    "config": "model.init_args.config.",
    "model": "model.init_args.",
    "data": "data.init_args.",
    "trainer": "trainer.",
    "run": "",
}
RUN_KEYS = (*SECTIONS, "recipe", "minutes")  # keys of the changes of one run
ROW_KEYS = (*RUN_KEYS, "each", "start", "words", "teacher", "columns")


@dataclass(frozen=True)
class RowPlan:
    """Plan of the runs of one row of a table with one seed.

    Args:
        table: Table.
        tier: Name of the tier whose recipes are run, such as laptop.
        row: Row of the table.
        seed: Random seed.
        folder: Directory that contains all run directories (RUNS).
        machine: Devices that the runs are trained on.
    """

    table: Table
    tier: str
    row: Row
    seed: int
    folder: Path
    machine: Machine = RECIPE_MACHINE

    @property
    def where(self) -> str:
        """Location of the row's changes, for messages."""
        return f"{self.table.name}, row {self.row.name}, tier {self.tier}"

    def runs(self) -> dict[str, Run]:
        """Return the runs of the row by part, in the order of execution.

        The key of the first training is "", and that of a teacher to distil is "teacher". Both of
        these runs may belong to other rows.

        Raises:
            InputError: A recipe is missing, or the row has an unknown key or an unknown start.
        """
        recipe, changes = self.table.tiers[self.tier], self.row.runs[self.tier]
        each = changes.get("each", {})
        changes = merged(each, changes)
        _check_keys(self.where, changes, (*ROW_KEYS, *recipe.parts))
        planned = self._teacher_and_first(recipe, changes)
        first = planned.get("")
        for part, part_recipe in recipe.parts.items():
            own = merged(each, changes.get(part, {}))
            if own is None:  # null: the row has no such part
                continue
            _check_keys(f"{self.where}, {part}", own, RUN_KEYS)
            start = first if part in recipe.then else None
            options: list[str] = []
            if start and "words" in changes:
                options = ["--data.tokenizer.file", str(start.folder / "checkpoints" / "last.ckpt")]
            elif start:
                options = ["--model.init_from", str(start.folder)]
            planned[part] = self._run(part, part_recipe, own, options, (start,) if start else ())
        return planned

    def _teacher_and_first(self, recipe: Tier, changes: dict[str, Any]) -> dict[str, Run]:
        """Return the runs that come before the parts of the row, in the order of execution.

        Args:
            recipe: Recipes of the tier.
            changes: Changes of the recipe for the row.

        Returns:
            A dict with the run "teacher", if the row distils a teacher, and the run "", the first
            training, whose weights or tokenizer the parts use. The run "" is missing if the parts
            use neither. Both runs may belong to other rows.
        """
        start = changes.get("start", self.row.name)
        planned: dict[str, Run] = {}
        if "teacher" in changes:
            planned["teacher"] = self._other_row("teacher", changes["teacher"])
        if "words" in changes:
            planned[""] = self._other_row("words", changes["words"])
        elif start not in (RANDOM, self.row.name):
            planned[""] = self._other_row("start", start)
        elif start != RANDOM and recipe.config:
            teachers = tuple(planned.values())
            options = [text for run in teachers for text in ("--model.teacher", str(run.folder))]
            planned[""] = self._run("", recipe, changes, options, teachers)
        return planned

    def _other_row(self, key: str, name: str) -> Run:
        """Return the first training of another row of this table or of another table.

        Args:
            key: Key of the row's changes that names the other row (start, words or teacher), for
                the message.
            name: Name of the other row: ROW in this table, or PAPER/TABLE/ROW.

        Raises:
            InputError: There is no such row in the tier, or the other row has a `start` itself.
        """
        table_name, _, row = name.rpartition("/")
        table = find_tables([table_name])[0] if table_name else self.table
        rows = {r.name: r for r in table.rows_of(self.tier) if "start" not in r.runs[self.tier]}
        check_choice(f"{self.where}: {key}", row, tuple(rows))
        return replace(self, table=table, row=rows[row]).runs()[""]

    def _run(
        self,
        part: str,
        recipe: Recipe,
        changes: dict[str, Any],
        start_options: list[str],
        starts: tuple[Run, ...],
    ) -> Run:
        """Return the run of one training of the row.

        Args:
            part: Name of the part; "" for the first training.
            recipe: Recipe of the training.
            changes: Changes of the recipe for this training of the row.
            start_options: Options of the commands that name the weights, the tokenizer or the
                teacher in the directories of `starts`.
            starts: Runs that have to be finished before this run.
        """
        config = find_config(changes.get("recipe", recipe.config))
        changed = merged(recipe.options, {k: v for k, v in changes.items() if k in SECTIONS})
        names = (self.table.name, self.row.name, part, self.seed)
        parts = (self.table.name, self.tier, self.row.name, part, f"seed_{self.seed}")
        folder = self.folder.joinpath(*parts)
        where = [*start_options, "--run_dir", str(folder), "--seed_everything", str(self.seed)]
        fit, test = (
            ["--config", config, *options(given), *where]
            for given in (changed, merged(changed, recipe.test))
        )
        if isinstance(recipe, Tier) and not recipe.train:
            fit = []
        minutes = changes.get("minutes", recipe.minutes)
        return Run(*names, folder, recipe, fit, test, starts, minutes, self.machine)


def plan_runs(
    table: Table,
    tier: str,
    rows: Iterable[Row],
    n_seeds: int,
    runs: Path,
    machine: Machine = RECIPE_MACHINE,
) -> list[Run]:
    """Return the runs of several rows of a table without repetition, ordered by seed.

    Each run comes after all runs that it starts from, which are included even if they belong to
    rows that are not in `rows`.

    Args:
        table: Table.
        tier: Name of the tier whose recipes are run.
        rows: Rows of the table.
        n_seeds: Number of seeds, which are 0 to `n_seeds` - 1.
        runs: Directory that contains all run directories.
        machine: Devices that the runs are trained on.

    Raises:
        InputError: A recipe is missing, or a row has an unknown key or starts from an unknown row.
    """
    planned = {
        run.folder: run
        for seed in range(n_seeds)
        for row in rows
        for last in RowPlan(table, tier, row, seed, runs, machine).runs().values()
        for run in _with_starts(last)
    }
    return list(planned.values())


def _with_starts(run: Run) -> Iterator[Run]:
    """Iterate over the runs that a run directly or indirectly starts from, and the run itself."""
    for start in run.starts:
        yield from _with_starts(start)
    yield run


def _check_keys(where: str, given: dict[str, Any], known: tuple[str, ...]) -> None:
    """Raise InputError, with the location `where`, if a key of `given` is not in `known`."""
    for key in given:
        check_choice(f"{where}: key", key, known)


def find_config(name: str) -> str:
    """Return the path of a config file relative to the current directory.

    Records of runs therefore contain no directory of the machine.

    Args:
        name: Path of the file, or name of a packaged recipe.

    Raises:
        InputError: There is neither a file nor a packaged recipe of that name.
    """
    return os.path.relpath(find_recipe(name))


def options(changes: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Convert changes of a recipe to command-line options of `fourfold fit`.

    Args:
        changes: For each section (a key of `SECTIONS`), the values by name of the option.

    Returns:
        Options and values in alternation. A value that is not a text is written as JSON.
    """
    converted = []
    for section, keys in changes.items():
        for key, value in keys.items():
            text = value if isinstance(value, str) else json.dumps(value)
            converted += [f"--{SECTIONS[section]}{key}", text]
    return converted
