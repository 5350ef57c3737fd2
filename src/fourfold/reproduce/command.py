"""`fourfold reproduce`: a paper's table, with our number beside each of its own.

Words are looked at before torch is imported, so that mistakes answer at once.
"""

import re
import shlex
import time
from argparse import Namespace
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fourfold.commands.inference import OptionParser
from fourfold.core.config import check_word
from fourfold.core.errors import InputError
from fourfold.papers.reading import find_tables
from fourfold.papers.tables import RECIPES, TIERS, Row, Table

if TYPE_CHECKING:
    from fourfold.commands.row_machine import Machine
    from fourfold.commands.row_record import Record
    from fourfold.commands.row_running import Budget
    from fourfold.commands.row_runs import Run
    from fourfold.papers.cells import Cell

SELDOM = 60.0  # seconds between two times that a table is written while its rows are run
UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}


def main(argv: Sequence[str]) -> int:
    """Obtain tables in one tier, print and write them; or list what there is.

    Raises:
        InputError: A table, tier, row or number that is not there; data or weights that are
            missing; a budget in which nothing can be done.
    """
    options = _options(argv)
    if options.list:
        from fourfold.commands.table_list import show_tables

        show_tables(find_tables(options.tables or ["all"]), Path(options.out))
        return 0
    if not options.tables:
        words = " (what follows --rows are its rows)" if options.rows else ""
        raise InputError(
            f"name a table such as vaswani2017/table3, a paper, or all{words}; or say --list"
        )
    _check(options)
    seconds = None if options.budget is None else parse_budget(options.budget)
    tables = _with_tier(find_tables(options.tables), options)
    rows = {table.name: _rows(table, options) for table in tables}
    if options.commands:
        return _show_commands(tables, rows, options)
    from fourfold.commands.child import is_stop
    from fourfold.commands.row_running import Budget
    from fourfold.commands.table_data import find_files
    from fourfold.commands.table_files import check_folder

    # What may be missing is looked for before hours go into the first table.
    for table in tables:
        check_folder(Path(options.out), table, options.tier)
        if options.tier in table.tiers:
            find_files(table, options.tier)
    command = shlex.join(["fourfold", "reproduce", *argv])
    budget, first = Budget(seconds), 0
    for table in tables:
        code = _reproduce(table, rows[table.name], options, command, budget)
        if is_stop(code):
            return code
        first = first or code
    budget.refuse_none()
    if budget.n_later:
        print(f"the budget ends here; runs left: {budget.n_later}; the same command goes on")
    return first


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
    parser.add_argument("--machine")
    parser.add_argument("--memory", type=float)
    return parser.parse_intermixed_args(list(argv))


def _check(options: Namespace) -> None:
    check_word("--tier", options.tier, TIERS)
    if options.seeds < 1:
        raise InputError(f"--seeds is {options.seeds}, but must be at least 1")
    for name in ("budget", "commands", "machine", "memory"):
        if getattr(options, name) not in (None, False) and options.tier not in RECIPES:
            raise InputError(f"--{name} is for trainings: the {options.tier} tier is obtained here")


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
    if options.rows and not wanted:
        raise InputError("--rows names no row")
    for name in wanted:
        check_word(f"{table.name}, --rows", name, tuple(row.name for row in there))
    return [row for row in there if not wanted or row.name in wanted]


def _show_commands(tables: list[Table], rows: dict[str, list[Row]], options: Namespace) -> int:
    from fourfold.commands.row_plan import plan_runs

    machine, place = _machine(options), Path(options.runs)
    plans = (
        plan_runs(table, options.tier, rows[table.name], options.seeds, place, machine)
        for table in tables
    )
    commands = (command for plan in plans for run in plan for command in _commands(run))
    print("\n".join(dict.fromkeys(commands)))  # tables share runs
    return 0


def _commands(run: "Run") -> list[str]:
    try:
        return run.commands
    except InputError as error:  # its size follows from weights or words that are not here yet
        return [f"# {run.title}: its batch cannot be cut yet: {error}"]


def _machine(options: Namespace) -> "Machine":
    from fourfold.commands.row_machine import Machine
    from fourfold.commands.row_plan import find_config

    return Machine(find_config(options.machine) if options.machine else None, options.memory)


def _reproduce(
    table: Table, rows: list[Row], options: Namespace, command: str, budget: "Budget"
) -> int:
    from fourfold.commands.provenance import provenance
    from fourfold.commands.row_timing import time_rows
    from fourfold.commands.table_files import write
    from fourfold.papers.reading import papers

    begin, paper = time.monotonic(), papers()[table.name.partition("/")[0]]

    def keep(cells: "list[Cell]", **more: Any) -> str:
        seconds = round(time.monotonic() - begin, 1)
        about = provenance({"command": command, **more, "seconds": seconds})
        return write(paper, table, options.tier, cells, about, Path(options.out))

    code = 0
    if options.tier == "exact":
        page = keep(_computed(table))
    elif options.tier == "measured":
        cells, runs = time_rows(table, rows, options.seeds, Path(options.out))
        page = keep(cells, runs=runs)
    else:
        code, page = _trained(table, rows, options, budget, keep)
    print(page, flush=True)
    return code


def _computed(table: Table) -> "list[Cell]":
    """All of the table, whichever rows were asked for: that takes no time."""
    from fourfold.papers.cells import exact_cell
    from fourfold.papers.exact import compute

    return [
        exact_cell(table, row, column, partial(compute, table, row, column))
        for row, column in table.cells("exact")
    ]


def _trained(
    table: Table, rows: list[Row], options: Namespace, budget: "Budget", keep: Callable[..., str]
) -> tuple[int, str]:
    """Run what is not done; then keep all that is done of the table, whoever did it.

    Written while it goes on, too: what a training of hours found is there if the next one is lost.
    """
    from fourfold.commands.row_plan import plan_runs
    from fourfold.commands.row_record import Record
    from fourfold.commands.row_results import runs_of_table, table_of_runs
    from fourfold.commands.row_running import run_all
    from fourfold.commands.table_data import check_weights, find_files, hashes

    tier, place, out = options.tier, Path(options.runs), Path(options.out)
    data = hashes(find_files(table, tier))

    def read() -> Record:
        return Record(sorted(out.glob(f"*/*/{tier}/provenance.json")), data)

    record = read()
    machine = _machine(options)
    plan = plan_runs(table, tier, rows, options.seeds, place, machine)
    record.refuse_changed(plan)
    check_weights(record.due(plan))
    _announce(runs_of_table(table, tier, options.seeds, place, record, machine), record, out)
    written = time.monotonic()

    def write() -> str:
        now = read()  # another process may have added runs meanwhile
        cells, runs = table_of_runs(table, tier, options.seeds, place, now, machine)
        if not runs and not now.n_seeds(table.name):
            return f"nothing of {table.name}, tier {tier}, was obtained yet: no page is written"
        outdated = now.outdated(table.name, runs)
        return keep(cells, data=data, runs=runs, **({"outdated": outdated} if outdated else {}))

    def write_seldom() -> None:
        nonlocal written
        if time.monotonic() - written > SELDOM:
            write()
            written = time.monotonic()

    code = run_all(plan, record, budget, write_seldom)
    return code, write()


def _announce(runs: "list[Run]", record: "Record", out: Path) -> None:
    """Say what of a table is on record, and what no longer counts."""
    if kept := sum(record.in_directory(run) is None and bool(record.find(run)) for run in runs):
        print(f"{kept} of {len(runs)} runs are known from {out}: another --out has none on record")
    if outdated := [run.title for run in runs if record.is_outdated(run)]:
        print(
            f"{len(outdated)} more are on record, but their data, config, options or start have"
            f" changed since: {'; '.join(outdated)}"
        )
