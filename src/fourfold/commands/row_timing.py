"""Rows that the clock obtains: layers beside each other, in one process."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fourfold.bench.layers import crossover, measure_layers
from fourfold.commands.provenance import provenance
from fourfold.commands.table_files import kept_runs, reading
from fourfold.core.errors import InputError
from fourfold.papers.cells import Cell, timed_cell
from fourfold.papers.tables import Row, Table

TIER = "measured"


def time_rows(
    table: Table, rows: Sequence[Row], rounds: int, out: Path
) -> tuple[list[Cell], list[dict[str, Any]]]:
    """Layers by the clock, and all that it showed; of other rows what it showed before.

    Raises:
        InputError: Fewer rounds are asked for than are on record.
    """
    file = out / table.name / TIER / "provenance.json"
    before = _on_record(table, file)
    for row in rows:
        if rounds < (n := len(before[row.name])):
            raise InputError(
                f"{file} has {n} rounds of {row.name}: give --seeds {n} or more, or another --out"
            )
    timed = {}
    for row in rows:
        assert row.setup is not None, f"{row.name} is not timed"
        times = measure_layers(row.setup["d"], rounds, row.setup.get("longest"))
        timed[row.name] = [
            {"row": row.name, "seed": seed, **provenance({}), "seconds_by_length": {
                str(n): {layer: s[seed] for layer, s in t.items()} for n, t in times.items()}}
            for seed in range(rounds)
        ]  # fmt: skip
    by_row = _on_record(table, file) | timed  # another process may have added rows meanwhile
    cells = []
    for row, name in table.cells(TIER):
        found = [run["seconds_by_length"] for run in by_row[row.name]]
        layer = table.columns[name].measured
        assert layer is not None  # of such are the cells
        cells.append(timed_cell(row, name, crossover(found, layer), len(found)))
    return cells, [run for runs in by_row.values() for run in runs]


def _on_record(table: Table, file: Path) -> dict[str, list[dict[str, Any]]]:
    by_row: dict[str, list[dict[str, Any]]] = {row.name: [] for row in table.rows.values()}
    with reading(file):
        for run, _ in kept_runs(file):
            by_row[run["row"]].append(run)
    return by_row
