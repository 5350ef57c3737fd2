"""Filling of tables with results: computation, timing or training of their cells.

A row of a table is one of its lines, and a cell is one number of a row. A tier is one way to obtain
cells: `exact` computes them, `measured` times layers, and the other tiers run recipes. A run is the
training and test of one row with one seed. The provenance of a table, in its file provenance.json,
names the command and machine and records the result of each run.
"""

import time
from argparse import Namespace
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from fourfold.commands.subprocess_runs import is_stop
from fourfold.environment import provenance
from fourfold.errors import InputError
from fourfold.reproduce import load_tables
from fourfold.reproduce.cells import Cell, exact_cell
from fourfold.reproduce.exact_values import compute
from fourfold.reproduce.layer_timing import time_rows
from fourfold.reproduce.runs import scheduler
from fourfold.reproduce.runs.plan import find_config, plan_runs
from fourfold.reproduce.runs.record import Record, collect_results
from fourfold.reproduce.runs.required_data import find_files, hashes
from fourfold.reproduce.runs.run import Machine, Run
from fourfold.reproduce.table_files import check_folder, write
from fourfold.reproduce.tables import Row, Table

WRITE_INTERVAL = 60.0  # seconds between two updates of a table while its rows are running

Rows = Mapping[str, list[Row]]  # selected rows by name of the table


def show_commands(tables: Sequence[Table], rows: Rows, options: Namespace) -> None:
    """Print the commands of all runs of the selected rows in the order of execution; run none.

    Args:
        tables: Tables.
        rows: Selected rows by name of the table.
        options: Options of `fourfold reproduce`.
    """
    machine = _machine(options)
    runs_dir = Path(options.runs)
    commands: list[str] = []
    for table in tables:
        for run in plan_runs(
            table, options.tier, rows[table.name], options.seeds, runs_dir, machine
        ):
            try:
                commands += run.commands
            except InputError as error:  # the size of the model depends on weights to be trained
                commands.append(f"# {run.title}: the batch cannot be split yet: {error}")
    print("\n".join(dict.fromkeys(commands)))  # without repetition: tables share runs


def _machine(options: Namespace) -> Machine:
    """Return the devices that the options `--machine` and `--memory` describe."""
    return Machine(options.machine and find_config(options.machine), options.memory)


def fill_tables(
    tables: Sequence[Table], rows: Rows, options: Namespace, command: str, seconds: float | None
) -> int:
    """Obtain the cells of some tables in one tier, print them, and write their files.

    Args:
        tables: Tables.
        rows: Selected rows by name of the table; the tier `exact` computes all rows.
        options: Options of `fourfold reproduce`, among them the tier.
        command: Command line, which the provenance names.
        seconds: Time budget of all tables together in seconds; None for no limit.

    Returns:
        0 if no run failed; the exit code of the run that a signal stopped, if any; otherwise the
        exit code of the first run that failed.

    Raises:
        InputError: Data files are missing, a directory or provenance.json is invalid, or the budget
            is shorter than every run.
    """
    # Missing data are reported before hours are spent on the first table.
    for table in tables:
        check_folder(Path(options.out), table, options.tier)
        if options.tier in table.tiers:
            find_files(table, options.tier)
    budget = scheduler.Budget(seconds)
    first_failure = 0
    for table in tables:
        start = time.monotonic()

        def save(cells: list[Cell], table: Table = table, start: float = start, **more: Any) -> str:
            elapsed = round(time.monotonic() - start, 1)
            about = provenance({"command": command, **more, "seconds": elapsed})
            paper = load_tables.papers()[table.name.partition("/")[0]]
            return write(paper, table, options.tier, cells, about, Path(options.out))

        code = 0
        if options.tier == "exact":  # all rows, also those that were not selected
            page = save(
                [
                    exact_cell(table, row, column, partial(compute, table, row, column))
                    for row, column in table.cells("exact")
                ]
            )
        elif options.tier == "measured":
            cells, runs = time_rows(table, rows[table.name], options.seeds, Path(options.out))
            page = save(cells, runs=runs)
        else:
            code, page = _train(table, rows[table.name], options, budget, save)
        print(page, flush=True)
        if is_stop(code):
            return code
        first_failure = first_failure or code
    budget.check_was_sufficient()
    if n := budget.n_postponed:
        print(f"the budget is spent; {n} runs remain; repeat the command to resume")
    return first_failure


def _train(
    table: Table,
    rows: list[Row],
    options: Namespace,
    budget: scheduler.Budget,
    save: Callable[..., str],
) -> tuple[int, str]:
    """Execute the unfinished runs of a table and save the results of all finished runs.

    The table is also saved while runs are in progress, so that no finished training is lost.

    Args:
        table: Table.
        rows: Selected rows of the table.
        options: Options of `fourfold reproduce`.
        budget: Time budget.
        save: Function that writes the table's files from its cells and further entries of the
            provenance, and returns the page of the table.

    Returns:
        The exit code of the runs, 0 if none failed; and the page of the table, or a message if no
        run is finished.
    """
    tier, out, runs_dir = options.tier, Path(options.out), Path(options.runs)
    data = hashes(find_files(table, tier))
    machine = _machine(options)

    def read_record() -> Record:
        return Record(sorted(out.glob(f"*/*/{tier}/provenance.json")), data)

    record = read_record()
    plan = plan_runs(table, tier, rows, options.seeds, runs_dir, machine)
    record.check_unchanged(plan)
    n_seeds = max(options.seeds, record.n_seeds(table.name))
    _announce(plan_runs(table, tier, table.rows_of(tier), n_seeds, runs_dir, machine), record, out)
    written = time.monotonic()

    def save_results() -> str:
        current = read_record()  # other processes may have added runs
        n_seeds = max(options.seeds, current.n_seeds(table.name))
        cells, runs = collect_results(table, tier, n_seeds, runs_dir, current, machine)
        if not current.n_seeds(table.name) and not runs:
            return f"no run of {table.name}, tier {tier}, is finished: no table is written"
        outdated = current.outdated(table.name, runs)
        return save(cells, data=data, runs=runs, **({"outdated": outdated} if outdated else {}))

    def save_periodically() -> None:
        nonlocal written
        if time.monotonic() - written > WRITE_INTERVAL:
            save_results()
            written = time.monotonic()

    code = scheduler.run_all(plan, record, budget, save_periodically)
    return code, save_results()


def _announce(runs: Sequence[Run], record: Record, out: Path) -> None:
    """Print how many runs have results in provenance.json only, and the titles of outdated runs.

    The former runs have a valid result there, but no finished run directory. A run is outdated
    if all of its results are those of other options, data or start runs.

    Args:
        runs: All runs of a table in one tier.
        record: Results of the finished runs.
        out: Directory of the results, for the message.
    """
    recorded = sum(record.in_directory(run) is None and bool(record.find(run)) for run in runs)
    if recorded:
        print(f"{recorded} of {len(runs)} runs are on record in {out} and are not repeated")
    if outdated := [run.title for run in runs if record.is_outdated(run)]:
        print(
            f"{len(outdated)} recorded runs are outdated, because their data, config, options or"
            f" start runs have changed: {'; '.join(outdated)}"
        )
