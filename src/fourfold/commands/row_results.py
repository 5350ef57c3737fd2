"""What the runs of a table found: as its cells, and as what is written down of each run."""

from pathlib import Path
from typing import Any

from fourfold.commands.row_machine import HERE, Machine
from fourfold.commands.row_plan import plan_runs, runs_of_row
from fourfold.commands.row_record import Record
from fourfold.commands.row_runs import Run
from fourfold.papers.cells import Cell, run_cell
from fourfold.papers.tables import Table


def runs_of_table(
    table: Table, tier: str, n_seeds: int, place: Path, record: Record, machine: Machine = HERE
) -> list[Run]:
    """The runs of all rows, as many seeds as `n_seeds` or are on record; as of `table_of_runs`."""
    rows = [row for row in table.rows.values() if tier in row.runs]
    return plan_runs(table, tier, rows, max(n_seeds, record.n_seeds(table.name)), place, machine)


def table_of_runs(
    table: Table, tier: str, n_seeds: int, place: Path, record: Record, machine: Machine = HERE
) -> tuple[list[Cell], list[dict[str, Any]]]:
    """All that is known of a table in a tier, whoever did it.

    Args:
        table: The table.
        tier: The tier.
        n_seeds: Seeds 0 to n - 1 are shown, and those on record.
        place: Where the runs are.
        record: What is known of them.
        machine: Where they are trained.

    Returns:
        The cells, and of each run that is done its row, seed, stamp, commands, metrics and how they
        were obtained.
    """
    n_seeds = max(n_seeds, record.n_seeds(table.name))
    runs = {run.folder: run for run in runs_of_table(table, tier, n_seeds, place, record, machine)}
    known = {folder: found for folder, run in runs.items() if (found := record.find(run))}
    users = {folder: list[str]() for folder in known}
    cells = []
    for row, column in table.cells(tier):
        part, metric = table.tiers[tier].metric_of(column, row.runs[tier])
        folders = {seed: runs_of_row(table, tier, row, seed, place)[part].folder
                   for seed in range(n_seeds)}  # fmt: skip
        own = {seed: known[folder]["metrics"] for seed, folder in folders.items()
               if metric in known.get(folder, {}).get("metrics", {})}  # fmt: skip
        for folder in known.keys() & folders.values():
            users[folder].append(row.name)
        cells.append(run_cell(table, row, column, metric, own))
    kept = []
    for folder, found in known.items():
        run, by = runs[folder], list(dict.fromkeys(users[folder]))
        names = {"table": run.table, "row": run.row, "part": run.part, "seed": run.seed}
        about = {**names, "used_by": by, "stamp": run.stamp}
        kept.append({**found, **about})
    return cells, kept
