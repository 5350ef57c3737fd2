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


def row_runs(
    table: Table, tier: str, row: Row, seed: int, runs: Path, machine: Machine
) -> dict[str, Run]:
    """Return the runs that one row of a table needs with one seed, in order of execution.

    The key of the first training is "", that of a further training the name of its part, and that
    of a teacher "teacher". The first training and the teacher may be of other rows.

    Raises:
        InputError: A recipe is missing, or `start`, `words` or `teacher` names an unknown row.
    """
    recipe, own = table.tiers[tier], row.runs[tier]
    each = own.get("each", {})
    changes = merged(each, own)

    def train(
        part: str, recipe: Recipe, changes: Changes, link: list[str], start: Run | None
    ) -> Run:
        config = find_config(changes.get("recipe", recipe.config))
        changed = merged(recipe.options, {k: v for k, v in changes.items() if k in SECTIONS})
        folder = runs.joinpath(table.name, tier, row.name, part, f"seed_{seed}")
        where = [*link, "--run_dir", str(folder), "--seed_everything", str(seed)]
        for_test = merged(merged(changed, recipe.test), changes.get("test", {}))
        fit, test = (["--config", config, *options(given), *where] for given in (changed, for_test))
        if isinstance(recipe, Tier) and not recipe.train:
            fit = []
        minutes = changes.get("minutes", recipe.minutes)
        names = (table.name, row.name, part, seed)
        return Run(*names, folder, recipe, fit, test, start, minutes, machine)

    def other(key: str) -> Run:  # first training of another row, given as ROW or PAPER/TABLE/ROW
        table_name, _, name = changes[key].rpartition("/")
        of = find_tables([table_name])[0] if table_name else table
        known = {r.name: r for r in of.rows_of(tier) if "start" not in r.runs[tier]}
        check_choice(f"{table.name}, row {row.name}: {key}", name, tuple(known))
        return row_runs(of, tier, known[name], seed, runs, machine)[""]

    planned = {"teacher": other("teacher")} if "teacher" in changes else {}
    key = "words" if "words" in changes else "start"
    first = changes.get(key, row.name)
    if first not in (RANDOM, row.name):
        planned[""] = other(key)
    elif first != RANDOM and recipe.config:
        teacher = planned.get("teacher")
        link = ["--model.teacher", str(teacher.folder)] if teacher else []
        planned[""] = train("", recipe, changes, link, teacher)
    for part, part_recipe in recipe.parts.items():
        of_part = merged(each, changes.get(part, {}))
        if of_part is None:  # null: the row has no such part
            continue
        start = planned.get("") if part in recipe.then else None
        link = ["--model.init_from", str(start.folder)] if start else []
        if start and "words" in changes:
            link = ["--data.tokenizer.file", str(start.folder / "checkpoints" / "last.ckpt")]
        planned[part] = train(part, part_recipe, of_part, link, start)
    return planned


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
        for last in row_runs(table, tier, row, seed, runs, machine).values()
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
