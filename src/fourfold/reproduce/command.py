"""The command `fourfold reproduce`: published tables with our numbers next to the printed ones.

Options are checked before torch is imported, so that mistakes are reported without delay.
"""

import re
import shlex
import time
from argparse import Namespace
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fourfold.commands.option_parser import OptionParser
from fourfold.core.validation import check_choice
from fourfold.errors import InputError
from fourfold.reproduce.load_tables import find_tables, list_tables
from fourfold.reproduce.tables import RECIPES, TIERS, Row, Table

if TYPE_CHECKING:
    from fourfold.reproduce.cells import Cell
    from fourfold.reproduce.runs.machine import Machine
    from fourfold.reproduce.runs.record import Record
    from fourfold.reproduce.runs.run import Run
    from fourfold.reproduce.runs.scheduler import Budget

WRITE_INTERVAL = 60.0  # seconds between two updates of a table while its rows are running
UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}


def main(argv: Sequence[str]) -> int:
    """Reproduce tables in one tier, print and write them; or list all tables.

    Raises:
        InputError: A table, tier or row is unknown, data or weights are missing, or the budget is
            too short for every run.
    """
    options = _options(argv)
    if options.list:
        list_tables(find_tables(options.tables or ["all"]), Path(options.out))
        return 0
    if not options.tables:
        hint = " (the values after --rows are rows)" if options.rows else ""
        raise InputError(
            f"must be a table such as vaswani2017/table3, a paper, or all{hint}; --list shows all",
            option="TABLE",
        )
    _check(options)
    seconds = None if options.budget is None else parse_budget(options.budget)
    tables = _with_tier(find_tables(options.tables), options)
    rows = {table.name: _rows(table, options) for table in tables}
    if options.commands:
        return _show_commands(tables, rows, options)
    from fourfold.commands.subprocess_runs import is_stop
    from fourfold.reproduce.runs.required_data import find_files
    from fourfold.reproduce.runs.scheduler import Budget
    from fourfold.reproduce.table_files import check_folder

    # Missing data are reported before hours are spent on the first table.
    for table in tables:
        check_folder(Path(options.out), table, options.tier)
        if options.tier in table.tiers:
            find_files(table, options.tier)
    command = shlex.join(["fourfold", "reproduce", *argv])
    budget = Budget(seconds)
    first_failure = 0
    for table in tables:
        code = _reproduce(table, rows[table.name], options, command, budget)
        if is_stop(code):
            return code
        first_failure = first_failure or code
    budget.check_was_sufficient()
    if budget.n_postponed:
        print(
            f"the budget is spent; {budget.n_postponed} runs remain; repeat the command to resume"
        )
    return first_failure


DESCRIPTION = """\
Obtain the numbers of a published table and print them beside the paper's: mean and standard
deviation over seeds, origin, deviation, and the cause of the deviation where it is known. Rows
that were not run are shown as not run. TABLE is PAPER/TABLE such as vaswani2017/table3, a PAPER,
or all.

A command that was stopped resumes when it is run again: complete rows are skipped, and an
interrupted training ends with the same weights. Runs recorded in the tables under --out count as
complete. A run with another config, options, data or start is reported and repeated; its old
directory has to be removed first. A failed run only prevents the runs that start from it."""


def make_parser() -> OptionParser:
    """Return the parser of the command's options."""
    parser = OptionParser(prog="fourfold reproduce", description=DESCRIPTION)
    add = parser.add_argument
    add("tables", nargs="*", metavar="TABLE", help="PAPER/TABLE, PAPER or all")
    add("--list", action="store_true", help="list tables, tiers and how many cells have results")
    add(
        "--tier",
        default="exact",
        help="exact (default; computed without training), measured (timed on this machine),"
        " weights (official weights), laptop, single-gpu or paper (the published recipe)",
    )
    add("--rows", nargs="+", metavar="ROW", help="run only these rows")
    add(
        "--seeds",
        type=int,
        default=1,
        metavar="N",
        help="number of seeds, 0 to N - 1 (default 1); rounds of the tier measured",
    )
    add("--budget", metavar="TIME", help="start no run expected to end later: 90s, 30m, 2h")
    add(
        "--machine",
        metavar="FILE",
        help="Trainer config such as configs/trainer/ddp.yaml; batches are split over its devices",
    )
    add("--memory", type=float, metavar="GIB", help="memory of one device, to fit batches into")
    add("--commands", action="store_true", help="print the commands in order and run none")
    add("--out", default="results", metavar="DIR", help="directory of the tables (%(default)s)")
    add("--runs", default="runs/reproduce", metavar="DIR", help="directory of runs (%(default)s)")
    return parser


def _options(argv: Sequence[str]) -> Namespace:
    return make_parser().parse_intermixed_args(list(argv))


def _check(options: Namespace) -> None:
    check_choice("--tier", options.tier, TIERS)
    if options.seeds < 1:
        raise InputError(f"must be at least 1, got {options.seeds}", option="--seeds")
    for name in ("budget", "commands", "machine", "memory"):
        if getattr(options, name) not in (None, False) and options.tier not in RECIPES:
            raise InputError(
                f"must not be given for the tier {options.tier}, which trains nothing",
                option=f"--{name}",
            )


def parse_budget(text: str) -> float:
    """Convert a duration such as 90s, 30m, 2h or 1h30m to seconds.

    Raises:
        InputError: The text is not a duration.

    Example:
        >>> parse_budget("1h30m")
        5400.0
    """
    parts = re.findall(r"(\d+(?:\.\d+)?)([smhd])", text)
    seconds = sum(float(number) * UNITS[unit] for number, unit in parts)
    if "".join(n + u for n, u in parts) != text or not seconds:
        raise InputError(
            f"must be a duration such as 90s, 30m or 2h, got {text!r}", option="--budget"
        )
    return seconds


def _with_tier(tables: list[Table], options: Namespace) -> list[Table]:
    """Return the tables that have the tier; a table named explicitly must have it."""
    for table in tables:
        if table.name in options.tables and options.tier not in table.obtainable:
            check_choice(f"--tier of {table.name}", options.tier, table.obtainable or ("none",))
    available = [table for table in tables if options.tier in table.obtainable]
    if not available:
        raise InputError(
            f"must be a tier of {', '.join(options.tables)}, got {options.tier}", option="--tier"
        )
    return available


def _rows(table: Table, options: Namespace) -> list[Row]:
    """Return the selected rows in the order of the table."""
    available = list({row.name: row for row, _ in table.cells(options.tier)}.values())
    wanted = [name for word in options.rows or [] for name in word.split(",") if name]
    if options.rows and not wanted:
        raise InputError("must name at least one row", option="--rows")
    for name in wanted:
        check_choice(f"{table.name}, --rows", name, tuple(row.name for row in available))
    return [row for row in available if not wanted or row.name in wanted]


def _show_commands(tables: list[Table], rows: dict[str, list[Row]], options: Namespace) -> int:
    from fourfold.reproduce.runs.plan import plan_runs

    machine = _machine(options)
    runs_dir = Path(options.runs)
    plans = (
        plan_runs(table, options.tier, rows[table.name], options.seeds, runs_dir, machine)
        for table in tables
    )
    commands = (command for plan in plans for run in plan for command in _commands(run))
    print("\n".join(dict.fromkeys(commands)))  # without repetition: tables share runs
    return 0


def _commands(run: "Run") -> list[str]:
    try:
        return run.commands
    except InputError as error:  # the size of the model depends on weights that do not exist yet
        return [f"# {run.title}: the batch cannot be split yet: {error}"]


def _machine(options: Namespace) -> "Machine":
    from fourfold.reproduce.runs.machine import Machine
    from fourfold.reproduce.runs.plan import find_config

    return Machine(find_config(options.machine) if options.machine else None, options.memory)


def _reproduce(
    table: Table, rows: list[Row], options: Namespace, command: str, budget: "Budget"
) -> int:
    from fourfold.environment import provenance
    from fourfold.reproduce.layer_timing import time_rows
    from fourfold.reproduce.load_tables import papers
    from fourfold.reproduce.table_files import write

    start = time.monotonic()
    paper = papers()[table.name.partition("/")[0]]

    def save(cells: "list[Cell]", **more: Any) -> str:
        seconds = round(time.monotonic() - start, 1)
        about = provenance({"command": command, **more, "seconds": seconds})
        return write(paper, table, options.tier, cells, about, Path(options.out))

    code = 0
    if options.tier == "exact":
        page = save(_computed(table))
    elif options.tier == "measured":
        cells, runs = time_rows(table, rows, options.seeds, Path(options.out))
        page = save(cells, runs=runs)
    else:
        code, page = _trained(table, rows, options, budget, save)
    print(page, flush=True)
    return code


def _computed(table: Table) -> "list[Cell]":
    """Compute all exact cells of a table, also of rows that were not selected."""
    from fourfold.reproduce.cells import exact_cell
    from fourfold.reproduce.exact_values import compute

    return [
        exact_cell(table, row, column, partial(compute, table, row, column))
        for row, column in table.cells("exact")
    ]


def _trained(
    table: Table, rows: list[Row], options: Namespace, budget: "Budget", save: Callable[..., str]
) -> tuple[int, str]:
    """Execute the unfinished runs of a table and save the results of all finished ones.

    The table is also saved while runs are in progress, so that no finished training is lost.
    """
    from fourfold.reproduce.runs.plan import plan_runs
    from fourfold.reproduce.runs.record import Record, collect_results, runs_of_table
    from fourfold.reproduce.runs.required_data import check_weights, find_files, hashes
    from fourfold.reproduce.runs.scheduler import run_all

    tier = options.tier
    runs_dir = Path(options.runs)
    out = Path(options.out)
    data = hashes(find_files(table, tier))

    def read_record() -> Record:
        return Record(sorted(out.glob(f"*/*/{tier}/provenance.json")), data)

    record = read_record()
    machine = _machine(options)
    plan = plan_runs(table, tier, rows, options.seeds, runs_dir, machine)
    record.check_unchanged(plan)
    check_weights(record.due(plan))
    _announce(runs_of_table(table, tier, options.seeds, runs_dir, record, machine), record, out)
    written = time.monotonic()

    def write() -> str:
        current = read_record()  # other processes may have added runs
        cells, runs = collect_results(table, tier, options.seeds, runs_dir, current, machine)
        if not runs and not current.n_seeds(table.name):
            return f"no run of {table.name}, tier {tier}, is finished: no table is written"
        outdated = current.outdated(table.name, runs)
        return save(cells, data=data, runs=runs, **({"outdated": outdated} if outdated else {}))

    def write_periodically() -> None:
        nonlocal written
        if time.monotonic() - written > WRITE_INTERVAL:
            write()
            written = time.monotonic()

    code = run_all(plan, record, budget, write_periodically)
    return code, write()


def _announce(runs: "list[Run]", record: "Record", out: Path) -> None:
    """Print the number of recorded runs and the titles of outdated ones."""
    recorded = sum(record.in_directory(run) is None and bool(record.find(run)) for run in runs)
    if recorded:
        print(f"{recorded} of {len(runs)} runs are on record in {out} and are not repeated")
    if outdated := [run.title for run in runs if record.is_outdated(run)]:
        print(
            f"{len(outdated)} recorded runs are outdated, because their data, config, options or"
            f" start runs have changed: {'; '.join(outdated)}"
        )
