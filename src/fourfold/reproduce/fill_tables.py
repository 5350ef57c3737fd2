"""Filling of tables by computation, timing or training; listing of the commands to run.

`tables` explains the terms. The provenance of a table, in its file provenance.json, names the
command and machine and records the result of each run.
"""

import time
from argparse import Namespace
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from fourfold.commands.subprocess_runs import is_stop
from fourfold.environment import provenance
from fourfold.errors import InputError
from fourfold.reproduce.cells import Cell
from fourfold.reproduce.exact_values import exact_cell
from fourfold.reproduce.layers.timing import time_rows
from fourfold.reproduce.runs import scheduler
from fourfold.reproduce.runs.plan import find_config, plan_runs
from fourfold.reproduce.runs.record import Entry, Record, collect_results
from fourfold.reproduce.runs.required_data import find_files, hashes
from fourfold.reproduce.runs.run import Machine, title_of
from fourfold.reproduce.table_files import write
from fourfold.reproduce.tables import Row, Table

Rows = Mapping[str, list[Row]]  # selected rows by name of the table
Save = Callable[..., str]  # function that writes the files of a table and returns its page


def show_commands(tables: Sequence[Table], rows: Rows, options: Namespace) -> None:
    """Print the commands of the trainings and tests behind some rows, in the order of execution.

    The commands are not executed.
    """
    tier, folder, machine = options.tier, Path(options.runs), _machine(options)
    commands: list[str] = []
    for table in tables:
        for run in plan_runs(table, tier, rows[table.name], options.seeds, folder, machine):
            try:
                commands += run.commands
            except InputError as error:  # the model size depends on untrained weights
                commands.append(f"# {run.title}: the batch cannot be split yet: {error}")
    print("\n".join(dict.fromkeys(commands)))  # duplicates removed: tables share runs


def _machine(options: Namespace) -> Machine:
    """Return the devices for the trainings, which `--machine` and `--memory` describe."""
    return Machine(options.machine and find_config(options.machine), options.memory)


def fill_tables(
    tables: Sequence[Table], rows: Rows, options: Namespace, command: str, seconds: float | None
) -> int:
    """Compute, time or train the cells of some tables, print the tables, and write their files.

    The tier `exact` computes all rows. `command` is recorded in provenance.json, and `seconds` is
    the time budget of all tables together. The exit code is that of a training or test that a
    signal stopped, or else that of the first one that failed, or 0.

    Raises:
        InputError: Data files are missing, or a provenance.json is damaged.
    """
    # Missing data are reported before hours are spent on the first table.
    for table in tables:
        if options.tier in table.tiers:
            find_files(table, options.tier)
    budget = scheduler.Budget(seconds)
    first_failure = 0
    for table in tables:
        code, page = _fill(table, rows[table.name], options, command, budget)
        print(page, flush=True)
        if is_stop(code):
            return code
        first_failure = first_failure or code
    if n := budget.n_postponed:
        print(f"the budget is spent; {n} runs remain; repeat the command to resume")
    return first_failure


def _fill(
    table: Table, rows: list[Row], options: Namespace, command: str, budget: scheduler.Budget
) -> tuple[int, str]:
    """Compute, time or train the cells of one table, and write its files."""
    start = time.monotonic()
    out = Path(options.out)

    def save(cells: list[Cell], **entries: Any) -> str:
        elapsed = round(time.monotonic() - start, 1)
        about = provenance({"command": command, **entries, "seconds": elapsed})
        return write(table, options.tier, cells, about, out)

    if options.tier == "exact":
        return 0, save([exact_cell(table, row, column) for row, column in table.cells("exact")])
    if options.tier == "measured":
        cells, runs = time_rows(table, rows, options.seeds, out)
        return 0, save(cells, runs=runs)
    return _train(table, rows, options, budget, save)


def _train(
    table: Table, rows: list[Row], options: Namespace, budget: scheduler.Budget, save: Save
) -> tuple[int, str]:
    """Execute the unfinished runs, and save the table after each, so that none is lost."""
    tier, folder = options.tier, Path(options.runs)
    data = hashes(find_files(table, tier))
    machine = _machine(options)

    def collect() -> tuple[Record, list[Cell], dict[str, list[Entry]]]:
        # The files are read again each time, because other processes may have added runs.
        record = Record(sorted(Path(options.out).glob(f"*/*/{tier}/provenance.json")), data)
        cells, runs = collect_results(table, tier, options.seeds, folder, record, machine)
        outdated = record.outdated(table.name, runs)
        return record, cells, {"runs": runs} | ({"outdated": outdated} if outdated else {})

    record, _, entries = collect()
    plan = plan_runs(table, tier, rows, options.seeds, folder, machine)
    record.check_unchanged(plan)
    if n_finished := len(entries["runs"]):
        print(f"{n_finished} runs are on record and are not repeated")
    if titles := [title_of(entry) for entry in entries.get("outdated", ())]:
        causes = "their data, config, options or start runs have changed"
        print(f"{len(titles)} recorded runs are outdated, because {causes}: {'; '.join(titles)}")

    def save_results() -> str:
        _, cells, entries = collect()
        if not any(entries.values()):
            return f"no run of {table.name}, tier {tier}, is finished: no table is written"
        return save(cells, data=data, **entries)

    return scheduler.run_all(plan, record, budget, save_results), save_results()
