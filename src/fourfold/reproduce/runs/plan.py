"""Which runs the rows of a table are.

A run is `fit` and `test` of a recipe with a row's changes and a seed, in a directory of its own:
RUNS/PAPER/TABLE/TIER/ROW/seed_N, and for each other part, which is learned from its weights or
beside it, .../ROW/PART/seed_N.
"""

import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import fourfold
from fourfold.commands.row_machine import HERE, Machine
from fourfold.commands.row_runs import Run
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
OF_A_RUN = ("recipe", "minutes")  # besides sections
OF_A_ROW = (*OF_A_RUN, "each", "start", "words", "teacher", "columns")  # and parts
ROOT = Path(fourfold.__file__).parents[2]  # of a checkout


def runs_of_row(table: Table, tier: str, row: Row, seed: int, runs: Path) -> dict[str, Run]:
    """The runs of a row with one seed, by part, in their order; "" is the first training.

    Raises:
        InputError: A recipe is not here, or the row changes or starts from what is not there.
    """
    recipe, changes = table.tiers[tier], row.runs[tier]
    where, each = f"{table.name}, row {row.name}, tier {tier}", changes.get("each", {})
    _check_keys(where, changes, {*SECTIONS, *recipe.parts, *OF_A_ROW})
    _check_keys(f"{where}, each", each, {*SECTIONS, *OF_A_RUN})
    found = _teacher_and_first(where, table, tier, row, seed, runs)
    for part, learned in recipe.parts.items():
        own = changes.get(part, {})
        if own is None:  # the row leaves it out
            continue
        _check_keys(f"{where}, {part}", own, {*SECTIONS, *OF_A_RUN})
        first = found.get("") if part in recipe.then else None
        begin = _begin(changes, first)
        own = {"each": each, **own}
        starts = (first,) if first else ()
        names = (table.name, row.name, part, seed)
        found[part] = _planned(learned, own, names, tier, runs, begin, starts)
    return found


def _teacher_and_first(
    where: str, table: Table, tier: str, row: Row, seed: int, runs: Path
) -> dict[str, Run]:
    """The teacher of a row, if it has one, and its first training, its own or another row's."""
    recipe, changes = table.tiers[tier], row.runs[tier]
    start, words = changes.get("start", row.name), changes.get("words")
    if words is not None and start != RANDOM:
        raise InputError(
            f"{where}: words is {words}, but a row that starts from weights has theirs"
        )

    def other(key: str, name: str) -> Run:
        source, row = _other_row(f"{where}: {key}", table, tier, name)
        return runs_of_row(source, tier, row, seed, runs)[""]

    found: dict[str, Run] = {}
    learning: list[str] = []
    if "teacher" in changes:
        found["teacher"] = other("teacher", changes["teacher"])
        learning = ["--model.teacher", str(found["teacher"].folder)]
    if words is not None:
        found[""] = other("words", words)
    elif start not in (RANDOM, row.name):
        found[""] = other("start", start)
    elif start != RANDOM and recipe.config:
        teachers = (found["teacher"],) if learning else ()
        names = (table.name, row.name, "", seed)
        found[""] = _planned(recipe, changes, names, tier, runs, learning, teachers)
    return found


def _begin(changes: Mapping[str, Any], first: Run | None) -> list[str]:
    """What a later part takes of the first training: its weights, or its words alone."""
    if first is None:
        return []
    if "words" in changes:
        return ["--data.tokenizer.file", str(first.folder / "checkpoints" / "last.ckpt")]
    return ["--model.init_from", str(first.folder)]


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


def _planned(
    recipe: Recipe,
    changes: dict[str, Any],
    names: tuple[str, str, str, int],
    tier: str,
    runs: Path,
    begin: Sequence[str],
    starts: tuple[Run, ...],
) -> Run:
    both = merged(changes.get("each", {}), changes)
    config = find_config(both.get("recipe", recipe.config))
    own = {key: value for key, value in both.items() if key in SECTIONS}
    changed = merged(recipe.options, own)
    table, row, part, seed = names
    folder = runs / table / tier / row / part / f"seed_{seed}"
    where = [*begin, "--run_dir", str(folder), "--seed_everything", str(seed)]
    fit, test = (
        ["--config", config, *options(given), *where]
        for given in (changed, merged(changed, recipe.test))
    )
    trains = not isinstance(recipe, Tier) or recipe.train
    minutes = both.get("minutes", recipe.minutes)
    return Run(*names, folder, recipe, fit if trains else [], test, starts, minutes)


def plan_runs(
    table: Table, tier: str, rows: Iterable[Row], n_seeds: int, runs: Path, machine: Machine = HERE
) -> list[Run]:
    """The runs of some rows, each once, all with the first seed before any with the second.

    What a run starts from is among them, before it, also where no row of these is its own.

    Raises:
        InputError: As of `runs_of_row`.
    """
    found = {
        run.folder: replace(run, machine=machine)
        for seed in range(n_seeds)
        for row in rows
        for last in runs_of_row(table, tier, row, seed, runs).values()
        for run in _with_starts(last)
    }
    return list(found.values())


def _with_starts(run: Run) -> Iterator[Run]:
    for start in run.starts:
        yield from _with_starts(start)
    yield run


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
