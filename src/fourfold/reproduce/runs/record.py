"""Results of the runs of a table, read from run directories and from committed provenance files."""

import statistics
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from fourfold.errors import InputError
from fourfold.reproduce.cells import Cell, run_cell
from fourfold.reproduce.runs.machine import RECIPE_MACHINE, Machine
from fourfold.reproduce.runs.plan import plan_runs, runs_of_row
from fourfold.reproduce.runs.run import Run, run_title
from fourfold.reproduce.table_files import raise_if_damaged, recorded_runs
from fourfold.reproduce.tables import Table


class Record:
    """Results of all runs that are finished, whether or not their directories still exist.

    A run directory may disappear with its machine, whereas provenance.json keeps the result of
    each run of a table, so that the run is not repeated. A run is identified by its stamp and the
    hashes of its data.

    Args:
        files: Provenance files, PAPER/TABLE/TIER/provenance.json.
        data: SHA-256 of the current data files, by name.

    Raises:
        InputError: A file is damaged.
    """

    def __init__(self, files: Iterable[Path], data: Mapping[str, str]) -> None:
        self.data = data
        self._by_stamp: dict[str, dict[str, Any]] = {}
        self._by_title: dict[str, dict[str, dict[str, Any]]] = {}  # by table, then by run title
        self._n_seeds: dict[str, int] = {}
        for file in files:
            table = "/".join(file.parts[-4:-2])
            for entry, entry_data in recorded_runs(file):
                with raise_if_damaged(file):
                    for name, value in entry["metrics"].items():
                        float(value if not name.endswith("_signature") else 0)
                    titles = self._by_title.setdefault(table, {})
                    titles[_title(entry)] = {**entry, "data": entry_data}
                    self._n_seeds[table] = max(self._n_seeds.get(table, 0), entry["seed"] + 1)
                    # Tables share runs, and the record of one of them may be outdated.
                    if self._is_current(entry_data):
                        self._by_stamp[entry["stamp"]] = entry

    def n_seeds(self, table: str) -> int:
        """Return the number of seeds on record for a table."""
        return self._n_seeds.get(table, 0)

    def in_directory(self, run: Run) -> dict[str, Any] | None:
        """Return `Run.result` if the run directory was started with the current options and data.

        Raises:
            InputError: The directory was created by hand and does not match the run.
        """
        return None if self._change(run) else run.result

    def find(self, run: Run) -> dict[str, Any] | None:
        """Return the result of a run from its directory or the record; None if it never finished.

        Raises:
            InputError: The directory was created by hand and does not match the run.
        """
        return self.in_directory(run) or self._by_stamp.get(run.stamp)

    def is_outdated(self, run: Run) -> bool:
        """Return True if the run is on record, but with other options or data."""
        is_recorded = any(run.title in entries for entries in self._by_title.values())
        return is_recorded and self.find(run) is None

    def outdated(self, table: str, runs: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """Return recorded entries of a table that none of `runs` replaces.

        They are kept because an entry becomes valid again if the change of its recipe is reverted.
        """
        current = {_title(run) for run in runs}
        entries = self._by_title.get(table, {})
        return [entry for title, entry in entries.items() if title not in current]

    def check_unchanged(self, runs: Iterable[Run]) -> None:
        """Raise InputError if a run directory was started with another config, data or weights."""
        changes = [(run, change) for run in runs if (change := self._change(run))]
        if changes:
            run, change = changes[0]
            others = f" ({len(changes) - 1} other directories likewise)" if changes[1:] else ""
            raise InputError(
                f"{change} since {run.folder} was started; remove the directory to train again,"
                f" or name another one with --runs{others}",
                file=run.folder,
            )

    def _change(self, run: Run) -> str:
        """Describe the first difference between a run and its directory; "" if there is none."""
        started = run.started_with
        if started is None:
            return ""
        hashes = zip(run.configs.items(), started["configs"].values(), strict=False)
        for (name, current), recorded in hashes:
            if recorded != current:
                return f"{name} has changed"
        if not self._is_current(started["data"]):
            return "the data have changed"
        if started["stamp"] != run.stamp:
            return "the options or the runs that it starts from have changed"
        return ""

    def _is_current(self, data: Mapping[str, str]) -> bool:
        """Return True if the hashes of `data` equal the current ones as far as both are known."""
        return all(data[name] == self.data[name] for name in data.keys() & self.data.keys())

    def due(self, runs: Sequence[Run]) -> list[Run]:
        """Return the runs to execute: unfinished ones, and finished ones whose weights are needed.

        A finished run is repeated if another run starts from it and its weights no longer exist.
        """
        due: list[Run] = []
        needed: set[Path] = set()
        for run in reversed(runs):
            is_done = self.usable(run) if run.folder in needed else self.find(run)
            if not is_done:
                due.append(run)
                needed.update(start.folder for start in run.starts)
        return due[::-1]

    def usable(self, run: Run) -> bool:
        """Return True if the run is finished and its weights exist."""
        return run.has_weights and self.in_directory(run) is not None

    def expected_seconds(self, runs: Sequence[Run], run: Run) -> float | None:
        """Return the median duration of finished runs of the same recipe, or that of the table."""
        similar = [r for r in runs if (r.recipe, r.minutes) == (run.recipe, run.minutes)]
        results = [result for r in similar if (result := self.find(r))]
        known = [s for result in results if isinstance(s := result.get("seconds"), int | float)]
        if known:
            return statistics.median(known)
        return None if run.minutes is None else 60 * run.minutes


def _title(entry: Mapping[str, Any]) -> str:
    return run_title(entry["table"], entry["row"], entry["part"], entry["seed"])


def runs_of_table(
    table: Table,
    tier: str,
    n_seeds: int,
    runs_dir: Path,
    record: Record,
    machine: Machine = RECIPE_MACHINE,
) -> list[Run]:
    """Return the runs of all rows of a table for at least `n_seeds` and all recorded seeds."""
    rows = [row for row in table.rows.values() if tier in row.runs]
    n_seeds = max(n_seeds, record.n_seeds(table.name))
    return plan_runs(table, tier, rows, n_seeds, runs_dir, machine)


def collect_results(
    table: Table,
    tier: str,
    n_seeds: int,
    runs_dir: Path,
    record: Record,
    machine: Machine = RECIPE_MACHINE,
) -> tuple[list[Cell], list[dict[str, Any]]]:
    """Collect the results of all finished runs of a table in one tier.

    Args:
        table: Table.
        tier: Tier.
        n_seeds: Number of seeds to show in addition to the recorded ones.
        runs_dir: Directory of the run directories.
        record: Results of the finished runs.
        machine: Devices that the runs are trained on.

    Returns:
        The cells of the table; and for each finished run its row, seed, stamp, commands, metrics
        and provenance.
    """
    n_seeds = max(n_seeds, record.n_seeds(table.name))
    planned = runs_of_table(table, tier, n_seeds, runs_dir, record, machine)
    runs = {run.folder: run for run in planned}
    results = {folder: result for folder, run in runs.items() if (result := record.find(run))}
    users: dict[Path, list[str]] = {folder: [] for folder in results}
    cells = []
    for row, column in table.cells(tier):
        part, metric = table.tiers[tier].metric_of(column, row.runs[tier])
        folders = {
            seed: runs_of_row(table, tier, row, seed, runs_dir)[part].folder
            for seed in range(n_seeds)
        }
        metrics_by_seed = {
            seed: results[folder]["metrics"]
            for seed, folder in folders.items()
            if metric in results.get(folder, {}).get("metrics", {})
        }
        for folder in results.keys() & folders.values():
            users[folder].append(row.name)
        cells.append(run_cell(table, row, column, metric, metrics_by_seed))
    entries = []
    for folder, result in results.items():
        run = runs[folder]
        names = {"table": run.table, "row": run.row, "part": run.part, "seed": run.seed}
        used_by = list(dict.fromkeys(users[folder]))
        entries.append({**result, **names, "used_by": used_by, "stamp": run.stamp})
    return cells, entries
