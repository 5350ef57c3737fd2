"""Planning of the training runs behind the rows of a table: directories, options and order.

`tables` explains the terms row, tier, recipe, part and run. A run may need another run, which
provides the initial weights, the tokenizer or the teacher for distillation: its start.

The run directory is RUNS/PAPER/TABLE/TIER/ROW/seed_N for the first run of a row, and
RUNS/PAPER/TABLE/TIER/ROW/PART/seed_N for a part. In a tier that only tests given weights, the first
run has no training.
"""

import json
import os
from collections.abc import Iterable, Mapping
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
Changes = dict[str, Any]  # changes of a recipe for one row, see `Row`


@dataclass(frozen=True)
class RowPlan:
    """Plan of the runs of one row of a table in one tier with one seed."""

    table: Table
    tier: str
    row: Row
    seed: int
    folder: Path  # contains all run directories (RUNS)
    machine: Machine

    def runs(self) -> dict[str, Run]:
        """Return the runs that the row needs, in order of execution.

        The key of the first training is "", that of a further training the name of its part, and
        that of a teacher "teacher". The first training and the teacher may be of other rows.

        Raises:
            InputError: A recipe is missing, or `start`, `words` or `teacher` names an unknown row.
        """
        recipe, changes = self.table.tiers[self.tier], self.row.runs[self.tier]
        each = changes.get("each", {})
        changes = merged(each, changes)
        planned = self._teacher_and_first(recipe, changes)
        first = planned.get("")
        for part, part_recipe in recipe.parts.items():
            own = merged(each, changes.get(part, {}))
            if own is None:  # null: the row has no such part
                continue
            start = first if part in recipe.then else None
            options: list[str] = []
            if start and "words" in changes:
                options = ["--data.tokenizer.file", str(start.folder / "checkpoints" / "last.ckpt")]
            elif start:
                options = ["--model.init_from", str(start.folder)]
            planned[part] = self._run(part, part_recipe, own, options, start)
        return planned

    def _teacher_and_first(self, recipe: Tier, changes: Changes) -> dict[str, Run]:
        """Return the runs that come before the later trainings of the row."""
        key = "words" if "words" in changes else "start"
        first = changes.get(key, self.row.name)
        planned: dict[str, Run] = {}
        if "teacher" in changes:
            planned["teacher"] = self._other_row("teacher", changes["teacher"])
        if first not in (RANDOM, self.row.name):
            planned[""] = self._other_row(key, first)
        elif first != RANDOM and recipe.config:
            teacher = planned.get("teacher")
            options = ["--model.teacher", str(teacher.folder)] if teacher else []
            planned[""] = self._run("", recipe, changes, options, teacher)
        return planned

    def _other_row(self, key: str, name: str) -> Run:
        """Return the first training of another row, given as ROW or PAPER/TABLE/ROW."""
        table_name, _, row = name.rpartition("/")
        table = find_tables([table_name])[0] if table_name else self.table
        rows = {r.name: r for r in table.rows_of(self.tier) if "start" not in r.runs[self.tier]}
        check_choice(f"{self.table.name}, row {self.row.name}: {key}", row, tuple(rows))
        return replace(self, table=table, row=rows[row]).runs()[""]

    def _run(
        self, part: str, recipe: Recipe, changes: Changes, links: list[str], start: Run | None
    ) -> Run:
        """Return one training of the row; `links` are options with paths of the run `start`."""
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
    """Return the runs of several rows with the seeds 0 to `n_seeds` - 1, each run once.

    A run comes after its start, which is contained even if it belongs to a row not in `rows`.

    Raises:
        InputError: A recipe is missing, or a row starts from an unknown row.
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
    """Return the relative path of a config file or packaged recipe, valid on other machines."""
    return os.path.relpath(find_recipe(name))


def options(changes: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Convert changes of a recipe to command-line options of `fourfold fit`."""
    converted = []
    for section, keys in changes.items():
        for key, value in keys.items():
            text = value if isinstance(value, str) else json.dumps(value)
            converted += [f"--{SECTIONS[section]}{key}", text]
    return converted
