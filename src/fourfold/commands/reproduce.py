"""`fourfold reproduce`: a paper's table, with our number beside each of its own.

Words are looked at before torch is imported, so that mistakes answer at once.
"""

import re
import shlex
import time
from argparse import Namespace
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fourfold.commands.inference import OptionParser
from fourfold.core.config import check_word
from fourfold.core.errors import InputError
from fourfold.papers.reading import find_tables
from fourfold.papers.tables import RECIPES, TIERS, Row, Table

if TYPE_CHECKING:
    from fourfold.papers.results import Cell

UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}


def main(argv: Sequence[str]) -> int:
    """Obtain tables in one tier, print and write them; or list what there is.

    Raises:
        InputError: A table, tier, row or number that is not there; data that are missing; a budget
            in which nothing can be done.
    """
    options = _options(argv)
    if options.list:
        from fourfold.commands.table_list import show_tables

        show_tables(find_tables(options.tables or ["all"]), Path(options.out))
        return 0
    if not options.tables:
        raise InputError("name a table such as vaswani2017/table3, a paper, or all; or say --list")
    check_word("--tier", options.tier, TIERS)
    if options.seeds < 1:
        raise InputError(f"--seeds is {options.seeds}, but must be at least 1")
    budget = None if options.budget is None else parse_budget(options.budget)
    tables = _with_tier(find_tables(options.tables), options)
    rows = {table.name: _rows(table, options) for table in tables}
    if options.commands:
        return _show_commands(tables, rows, options)
    command = shlex.join(["fourfold", "reproduce", *argv])
    end = None if budget is None else time.monotonic() + budget
    code = 0
    for table in tables:
        left = None if end is None else max(0.0, end - time.monotonic())
        code = code or _reproduce(table, rows[table.name], options, command, left)
    return code


def _options(argv: Sequence[str]) -> Namespace:
    parser = OptionParser(prog="fourfold reproduce", add_help=False, allow_abbrev=False)
    parser.add_argument("tables", nargs="*")
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--tier", default="exact")
    parser.add_argument("--rows", nargs="+")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--budget")
    parser.add_argument("--out", default="results")
    parser.add_argument("--runs", default="runs/reproduce")
    parser.add_argument("--commands", action="store_true")
    return parser.parse_intermixed_args(list(argv))


def parse_budget(text: str) -> float:
    """Seconds of a duration such as 90s, 30m, 2h or 1h30m.

    Raises:
        InputError: It is none.
    """
    parts = re.findall(r"(\d+(?:\.\d+)?)([smhd])", text)
    seconds = sum(float(number) * UNITS[unit] for number, unit in parts)
    if "".join(n + u for n, u in parts) != text or not seconds:
        raise InputError(f"--budget is {text!r}, but must be a time such as 90s, 30m or 2h")
    return seconds


def _with_tier(tables: list[Table], options: Namespace) -> list[Table]:
    """Those that have the tier; one that was named itself must."""
    for table in tables:
        if table.name in options.tables and options.tier not in table.obtainable:
            known = ", ".join(table.obtainable) or "none yet"
            raise InputError(f"{table.name} has no cell of tier {options.tier}: it has {known}")
    found = [table for table in tables if options.tier in table.obtainable]
    if not found:
        raise InputError(f"no table of {', '.join(options.tables)} has tier {options.tier}")
    return found


def _rows(table: Table, options: Namespace) -> list[Row]:
    """The rows to obtain, in the table's order."""
    there = list({row.name: row for row, _ in table.cells(options.tier)}.values())
    wanted = [name for word in options.rows or [] for name in word.split(",") if name]
    for name in wanted:
        check_word(f"{table.name}, --rows", name, tuple(row.name for row in there))
    return [row for row in there if not wanted or row.name in wanted]


def _show_commands(tables: list[Table], rows: dict[str, list[Row]], options: Namespace) -> int:
    from fourfold.commands.row_plan import plan_runs

    if options.tier not in RECIPES:
        raise InputError(f"--commands is for trainings: the {options.tier} tier is obtained here")
    for table in tables:
        chosen = rows[table.name]
        for run in plan_runs(table, options.tier, chosen, options.seeds, Path(options.runs)):
            print("\n".join(run.commands))
    return 0


def _reproduce(
    table: Table, rows: list[Row], options: Namespace, command: str, left: float | None
) -> int:
    from fourfold.commands.provenance import provenance
    from fourfold.commands.table_files import show_and_write
    from fourfold.papers.reading import papers

    begin = time.monotonic()
    about: dict[str, Any] = {"command": command}
    if options.tier == "exact":
        code, cells = 0, _computed(table, rows)
    elif options.tier == "measured":
        code, cells, about["runs"] = 0, *_timed(table, rows, options.seeds)
    else:
        code, cells, more = _trained(table, rows, options, left)
        about |= more
    about["seconds"] = round(time.monotonic() - begin, 1)
    paper = papers()[table.name.partition("/")[0]]
    show_and_write(paper, table, options.tier, cells, provenance(about), Path(options.out))
    return code


def _computed(table: Table, rows: list[Row]) -> "list[Cell]":
    from fourfold.papers.exact import compute
    from fourfold.papers.results import exact_cell

    return [
        exact_cell(table, row, column, partial(compute, table, row, column))
        for row, column in table.cells("exact")
        if row in rows
    ]


def _timed(table: Table, rows: list[Row], rounds: int) -> "tuple[list[Cell], list[dict[str, Any]]]":
    """Layers by the clock, and all that it showed."""
    from fourfold.bench.layers import crossover, measure_layers
    from fourfold.papers.results import timed_cell

    cells, kept = [], []
    for row in rows:
        assert row.setup is not None, f"{row.name} is not timed"
        times = measure_layers(row.setup["d"], rounds, row.setup.get("longest"))
        for name, column in table.columns.items():
            if column.measured:
                cells.append(timed_cell(row, name, crossover(times, column.measured), rounds))
        for seed in range(rounds):
            seconds = {n: {layer: s[seed] for layer, s in t.items()} for n, t in times.items()}
            kept.append({"row": row.name, "seed": seed, "seconds_by_length": seconds})
    return cells, kept


def _trained(
    table: Table, rows: list[Row], options: Namespace, left: float | None
) -> "tuple[int, list[Cell], dict[str, Any]]":
    """Run what is not done; then all that is done of the table, whoever did it."""
    from fourfold.commands.row_plan import plan_runs, row_runs
    from fourfold.commands.row_runs import run_all
    from fourfold.commands.table_data import find_files, hashes
    from fourfold.papers.results import Cell, run_cell

    tier, place = options.tier, Path(options.runs)
    files, recipe = find_files(table, tier), table.tiers[tier]
    code = run_all(plan_runs(table, tier, rows, options.seeds, place), left)
    everything = [row for row in table.rows.values() if tier in row.runs]
    runs = plan_runs(table, tier, everything, options.seeds, place)
    done = {run.folder: (run, found) for run in runs if (found := run.found)}
    cells, users = list[Cell](), {folder: list[str]() for folder in done}
    for row, column in table.cells(tier):
        part, metric = recipe.metric_of(column, row.runs[tier])
        folders = {seed: row_runs(table, tier, row, seed, place)[part].folder
                   for seed in range(options.seeds)}  # fmt: skip
        own = {seed: done[folder][1] for seed, folder in folders.items() if folder in done}
        for folder in done.keys() & folders.values():
            users[folder].append(row.name)
        cells.append(run_cell(table, row, column, metric, own))
    kept = [
        {"row": run.row, "part": run.part, "seed": run.seed, "seconds": run.seconds,
         "used_by": list(dict.fromkeys(users[folder])), "commands": run.commands, **found["run"]}
        for folder, (run, found) in done.items()
    ]  # fmt: skip
    return code, cells, {"data": hashes(files), "runs": kept}
