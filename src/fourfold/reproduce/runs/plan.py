"""Planning of the training runs behind the rows of a table.

A run consists of `fourfold fit` and `fourfold test` of a recipe, with the changes of a row and a
seed. Its directory is RUNS/PAPER/TABLE/TIER/ROW/seed_N for the first training of a row, and
.../ROW/PART/seed_N for each further training.
"""

import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import fourfold
from fourfold.core.validation import check_choice
from fourfold.errors import InputError
from fourfold.reproduce.load_tables import find_tables, merged
from fourfold.reproduce.runs.machine import RECIPE_MACHINE, Machine
from fourfold.reproduce.runs.run import Run
from fourfold.reproduce.tables import RANDOM, Recipe, Row, Table, Tier

# Section of a row's changes: prefix of the corresponding options of `fourfold fit`.
SECTIONS = {
    "config": "model.init_args.config.",
    "model": "model.init_args.",
    "data": "data.init_args.",
    "trainer": "trainer.",
    "run": "",
}
RUN_KEYS = ("recipe", "minutes")  # keys of one run in addition to SECTIONS
ROW_KEYS = (*RUN_KEYS, "each", "start", "words", "teacher", "columns")
REPOSITORY = Path(fourfold.__file__).parents[2]  # root of a checkout


def runs_of_row(table: Table, tier: str, row: Row, seed: int, runs: Path) -> dict[str, Run]:
    """Return the runs of a row with one seed by part, in order; "" is the first training.

    Raises:
        InputError: A recipe is missing, or the row has an unknown key or an unknown start.
    """
    recipe, changes = table.tiers[tier], row.runs[tier]
    where, each = f"{table.name}, row {row.name}, tier {tier}", changes.get("each", {})
    _check_keys(where, changes, {*SECTIONS, *recipe.parts, *ROW_KEYS})
    _check_keys(f"{where}, each", each, {*SECTIONS, *RUN_KEYS})
    planned = _teacher_and_first(where, table, tier, row, seed, runs)
    for part, part_recipe in recipe.parts.items():
        own = changes.get(part, {})
        if own is None:  # null: the row has no such part
            continue
        _check_keys(f"{where}, {part}", own, {*SECTIONS, *RUN_KEYS})
        first = planned.get("") if part in recipe.then else None
        own = {"each": each, **own}
        starts = (first,) if first else ()
        names = (table.name, row.name, part, seed)
        start_options = _start_options(changes, first)
        planned[part] = _plan_run(part_recipe, own, names, tier, runs, start_options, starts)
    return planned


def _teacher_and_first(
    where: str, table: Table, tier: str, row: Row, seed: int, runs: Path
) -> dict[str, Run]:
    """Return the teacher of a row, if it has one, and its first training or that of another row."""
    recipe, changes = table.tiers[tier], row.runs[tier]
    start = changes.get("start", row.name)
    tokenizer_row = changes.get("words")
    if tokenizer_row is not None and start != RANDOM:
        raise InputError(
            f"must not be given ({tokenizer_row}): a row that starts from weights has their"
            " tokenizer",
            option=f"{where}: words",
        )

    def other(key: str, name: str) -> Run:
        source, row = _other_row(f"{where}: {key}", table, tier, name)
        return runs_of_row(source, tier, row, seed, runs)[""]

    planned: dict[str, Run] = {}
    teacher_options: list[str] = []
    if "teacher" in changes:
        planned["teacher"] = other("teacher", changes["teacher"])
        teacher_options = ["--model.teacher", str(planned["teacher"].folder)]
    if tokenizer_row is not None:
        planned[""] = other("words", tokenizer_row)
    elif start not in (RANDOM, row.name):
        planned[""] = other("start", start)
    elif start != RANDOM and recipe.config:
        teachers = (planned["teacher"],) if teacher_options else ()
        names = (table.name, row.name, "", seed)
        planned[""] = _plan_run(recipe, changes, names, tier, runs, teacher_options, teachers)
    return planned


def _start_options(changes: Mapping[str, Any], first: Run | None) -> list[str]:
    """Return options that load the weights, or only the tokenizer, of the first training."""
    if first is None:
        return []
    if "words" in changes:
        return ["--data.tokenizer.file", str(first.folder / "checkpoints" / "last.ckpt")]
    return ["--model.init_from", str(first.folder)]


def _other_row(where: str, table: Table, tier: str, name: str) -> tuple[Table, Row]:
    """Return the row named ROW or PAPER/TABLE/ROW, which must have a first training itself."""
    table_name, _, row = name.rpartition("/")
    source = find_tables([table_name])[0] if table_name else table
    trained = (r for r in source.rows.values() if "start" not in r.runs.get(tier, {"start"}))
    rows = {r.name: r for r in trained}
    check_choice(where, row, tuple(rows))
    return source, rows[row]


def _check_keys(where: str, given: dict[str, Any], known: set[str]) -> None:
    if unknown := sorted(given.keys() - known):
        raise InputError(
            f"has the unknown key {unknown[0]}, must be one of {', '.join(sorted(known))}",
            option=where,
        )


def _plan_run(
    recipe: Recipe,
    changes: dict[str, Any],
    names: tuple[str, str, str, int],
    tier: str,
    runs: Path,
    start_options: Sequence[str],
    starts: tuple[Run, ...],
) -> Run:
    both = merged(changes.get("each", {}), changes)
    config = find_config(both.get("recipe", recipe.config))
    own = {key: value for key, value in both.items() if key in SECTIONS}
    changed = merged(recipe.options, own)
    table, row, part, seed = names
    folder = runs / table / tier / row / part / f"seed_{seed}"
    where = [*start_options, "--run_dir", str(folder), "--seed_everything", str(seed)]
    fit, test = (
        ["--config", config, *options(given), *where]
        for given in (changed, merged(changed, recipe.test))
    )
    trains = not isinstance(recipe, Tier) or recipe.train
    minutes = both.get("minutes", recipe.minutes)
    return Run(*names, folder, recipe, fit if trains else [], test, starts, minutes)


def plan_runs(
    table: Table,
    tier: str,
    rows: Iterable[Row],
    n_seeds: int,
    runs: Path,
    machine: Machine = RECIPE_MACHINE,
) -> list[Run]:
    """Return the runs of several rows without repetition, ordered by seed.

    A run follows all runs that it starts from, even if those belong to rows that are not given.

    Raises:
        InputError: A recipe is missing, or a row has an unknown key or starts from an unknown row.
    """
    planned = {
        run.folder: replace(run, machine=machine)
        for seed in range(n_seeds)
        for row in rows
        for last in runs_of_row(table, tier, row, seed, runs).values()
        for run in _with_starts(last)
    }
    return list(planned.values())


def _with_starts(run: Run) -> Iterator[Run]:
    for start in run.starts:
        yield from _with_starts(start)
    yield run


def options(changes: dict[str, dict[str, Any]]) -> list[str]:
    """Convert changes by section to command-line options.

    Raises:
        InputError: A section is unknown.
    """
    _check_keys("options of a recipe", changes, set(SECTIONS))
    converted = []
    for section, keys in changes.items():
        for key, value in keys.items():
            text = value if isinstance(value, str) else json.dumps(value)
            converted += [f"--{SECTIONS[section]}{key}", text]
    return converted


def find_config(name: str) -> str:
    """Return the relative path of a recipe, in the current directory or in the checkout.

    The path is relative so that records contain no path of the machine.

    Raises:
        InputError: The recipe exists in neither directory.
    """
    for path in (Path(name), REPOSITORY / name):
        if path.is_file():
            return os.path.relpath(path)
    raise InputError("the recipe was not found; run this in a checkout of fourfold", file=name)
