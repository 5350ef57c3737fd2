"""Planning of the training runs behind the rows of a table: directories, options and order.

A run is one training with one seed, followed by a test: `fourfold fit` and `fourfold test` of a
recipe, with the options in which one row (line) of the table differs from the recipe. These options
are called the changes of the row. A row may need several runs, such as pretraining and fine-tuning.
The runs after the first one are called parts. A run may need another run, which provides the
initial weights, the tokenizer or the teacher for distillation.

The run directory, which holds checkpoints and metrics, is RUNS/PAPER/TABLE/TIER/ROW/seed_N for the
first run of a row, and RUNS/PAPER/TABLE/TIER/ROW/PART/seed_N for a part. TIER is the name of the
tier (kind of training), such as laptop. In a tier that only tests given weights, the first run has
no training.
"""

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fourfold.commands.packaged_recipes import find_recipe
from fourfold.core.validation import check_choice
from fourfold.reproduce.load_tables import find_tables, merged
from fourfold.reproduce.runs.run import Machine, Run
from fourfold.reproduce.tables import RANDOM, Recipe, Row, Table, Tier

# Prefix of the options of `fourfold fit` for each section of the changes of a recipe.
SECTIONS = {
    "config": "model.init_args.config.",
    "model": "model.init_args.",
    "data": "data.init_args.",
    "trainer": "trainer.",
    "run": "",
}
RUN_KEYS = (*SECTIONS, "recipe", "minutes")  # keys of the changes of one run
ROW_KEYS = (*RUN_KEYS, "each", "start", "words", "teacher", "columns")

Changes = dict[str, Any]  # changes of a recipe for one row, see `Row`


@dataclass(frozen=True)
class RowPlan:
    """Plan of the runs of one row of a table with one seed.

    Args:
        table: Published table.
        tier: Name of the tier (kind of training) whose recipes are run, such as laptop.
        row: Row of the table, such as one model.
        seed: Random seed.
        folder: Directory that contains all run directories (RUNS).
        machine: Devices for the trainings.
    """

    table: Table
    tier: str
    row: Row
    seed: int
    folder: Path
    machine: Machine

    def runs(self) -> dict[str, Run]:
        """Return the runs (trainings with their tests) that the row needs, in order of execution.

        Returns:
            A dict of runs. The key of the first training is "". The key of each further training is
            the name of its part, such as a fine-tuning. The key of the training of a teacher for
            distillation is "teacher". The first training and that of the teacher may be trainings
            of other rows.

        Raises:
            InputError: A recipe is missing, the row has an unknown key, or its `start`, `words` or
                `teacher` names an unknown row.
        """
        recipe, changes = self.table.tiers[self.tier], self.row.runs[self.tier]
        each = changes.get("each", {})
        changes = merged(each, changes)
        self._check_keys(changes, (*ROW_KEYS, *recipe.parts))
        planned = self._teacher_and_first(recipe, changes)
        first = planned.get("")
        for part, part_recipe in recipe.parts.items():
            own = merged(each, changes.get(part, {}))
            if own is None:  # null: the row has no such part
                continue
            self._check_keys(own, RUN_KEYS, f", {part}")
            start = first if part in recipe.then else None
            options: list[str] = []
            if start and "words" in changes:
                options = ["--data.tokenizer.file", str(start.folder / "checkpoints" / "last.ckpt")]
            elif start:
                options = ["--model.init_from", str(start.folder)]
            planned[part] = self._run(part, part_recipe, own, options, start)
        return planned

    def _check_keys(self, changes: Iterable[str], known: Sequence[str], part: str = "") -> None:
        """Raise InputError if a key of the changes of the row is not in `known`.

        Args:
            changes: Keys of the changes, by which the row differs from the recipe.
            known: Allowed keys.
            part: Text for the error message that names a later training of the row; "" for the row.
        """
        for key in changes:
            check_choice(f"{self._place}{part}: key", key, known)

    @property
    def _place(self) -> str:
        """Text with the names of the table, the row and the tier, for error messages."""
        return f"{self.table.name}, row {self.row.name}, tier {self.tier}"

    def _teacher_and_first(self, recipe: Tier, changes: Changes) -> dict[str, Run]:
        """Return the runs that come before the later trainings of the row, in order of execution.

        Args:
            recipe: Tier (kind of training). The fields of a tier describe the first training.
            changes: Changes of the recipe for the row. Three keys name rows: "teacher" the row of
                the teacher for distillation, "words" the row that provides the tokenizer, and
                "start" the row that provides the initial weights of the parts.

        Returns:
            A dict with up to two runs:

            - "teacher": the first training of the row `changes["teacher"]`; absent without a
              teacher.
            - "": the first training of the row `changes["words"]` or `changes["start"]`, or of
              this row if neither key is given. The entry is absent if `start` is "random", or if
              this row would be trained and the tier has no config.
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
            teacher = planned.get("teacher")
            options = ["--model.teacher", str(teacher.folder)] if teacher else []
            planned[""] = self._run("", recipe, changes, options, teacher)
        return planned

    def _other_row(self, key: str, name: str) -> Run:
        """Return the run of the first training of another row of this table or of another table.

        Args:
            key: Key of the row's changes that names the other row: "start", "words" or "teacher".
                The error message contains the key.
            name: Name of the other row: ROW in this table, or PAPER/TABLE/ROW.

        Raises:
            InputError: The tier (kind of training) has no such row, or the other row has a `start`
                itself.
        """
        table_name, _, row = name.rpartition("/")
        table = find_tables([table_name])[0] if table_name else self.table
        rows = {r.name: r for r in table.rows_of(self.tier) if "start" not in r.runs[self.tier]}
        check_choice(f"{self._place}: {key}", row, tuple(rows))
        return replace(self, table=table, row=rows[row]).runs()[""]

    def _run(
        self, part: str, recipe: Recipe, changes: Changes, links: list[str], start: Run | None
    ) -> Run:
        """Return the run of one training of the row.

        Args:
            part: Name of the part (later training of the row); "" for the first training.
            recipe: Recipe of the training.
            changes: Changes of the recipe for this training of the row.
            links: Command-line options and values with paths in the directory of `start`, such as
                ["--model.init_from", DIRECTORY].
            start: Run that provides the initial weights, tokenizer or teacher, and that has to be
                finished before this run; None if there is none.
        """
        config = find_config(changes.get("recipe", recipe.config))
        changed = merged(recipe.options, {k: v for k, v in changes.items() if k in SECTIONS})
        names = (self.table.name, self.row.name, part, self.seed)
        parts = (self.table.name, self.tier, self.row.name, part, f"seed_{self.seed}")
        folder = self.folder.joinpath(*parts)
        where = [*links, "--run_dir", str(folder), "--seed_everything", str(self.seed)]
        fit, test = (
            ["--config", config, *options(given), *where]
            for given in (changed, merged(changed, recipe.test))
        )
        if isinstance(recipe, Tier) and not recipe.train:
            fit = []
        minutes = changes.get("minutes", recipe.minutes)
        return Run(*names, folder, recipe, fit, test, start, minutes, self.machine)


def plan_runs(
    table: Table, tier: str, rows: Iterable[Row], n_seeds: int, runs: Path, machine: Machine
) -> list[Run]:
    """Return the runs (trainings with their tests) of several rows of a table, ordered by seed.

    A run that several rows need is contained once. A run that needs the weights, tokenizer or
    teacher of another run comes after the other run. The other run is contained even if it belongs
    to a row that is not in `rows`.

    Args:
        table: Published table.
        tier: Name of the tier (kind of training) whose recipes are run, such as laptop.
        rows: Rows of the table.
        n_seeds: Number of seeds, which are 0 to `n_seeds` - 1.
        runs: Directory that contains all run directories.
        machine: Devices for the trainings.

    Raises:
        InputError: A recipe is missing, or a row has an unknown key or starts from an unknown row.
    """
    planned = {
        run.folder: run
        for seed in range(n_seeds)
        for row in rows
        for last in RowPlan(table, tier, row, seed, runs, machine).runs().values()
        for run in last.with_starts()
    }
    return list(planned.values())


def find_config(name: str) -> str:
    """Return the path of a config file relative to the current directory.

    The path is relative, so that the recorded command lines are valid on other machines.

    Args:
        name: Path of the file, or name of a packaged recipe.

    Raises:
        InputError: There is neither a file nor a packaged recipe of that name.
    """
    return os.path.relpath(find_recipe(name))


def options(changes: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Convert changes of a recipe to command-line options of `fourfold fit`.

    Args:
        changes: Values by section and option, such as {"config": {"d_ff": 64}}. A section is a key
            of `SECTIONS`.

    Returns:
        Options and values in alternation, such as ["--model.init_args.config.d_ff", "64"]. A value
        that is not a string is written as JSON.
    """
    converted = []
    for section, keys in changes.items():
        for key, value in keys.items():
            text = value if isinstance(value, str) else json.dumps(value)
            converted += [f"--{SECTIONS[section]}{key}", text]
    return converted
