"""Record of the runs of a table: finished, outdated and due runs, and the cells that runs fill.

A run is the training and test of one row (line) of a table with one seed. A run is identified by
its stamp (a hash of its options, its configs and the runs that it starts from) and by the hashes of
its data. Results are read from the run directories and from the committed file provenance.json of
each table. A run is outdated if a result exists, but with another stamp or other data.
"""

import statistics
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from fourfold.errors import InputError
from fourfold.reproduce.cells import Cell, run_cell
from fourfold.reproduce.runs.plan import RowPlan, plan_runs
from fourfold.reproduce.runs.run import Machine, Run, run_title
from fourfold.reproduce.table_files import read_provenance
from fourfold.reproduce.tables import Table

NAMES = ("table", "row", "part", "seed")  # names of a run in its record


class Record:
    """Results of all finished runs, whether or not their run directories still exist.

    A run directory may disappear with its machine, whereas provenance.json keeps the result of
    each run of a table, so that the run is not repeated.

    Args:
        files: Files provenance.json of several tables, in directories PAPER/TABLE/TIER.
        data: SHA-256 of the current data files, by name of the file.

    Raises:
        InputError: A provenance file is damaged.
    """

    def __init__(self, files: Iterable[Path], data: Mapping[str, str]) -> None:
        self.data = data
        self._by_stamp: dict[str, dict[str, Any]] = {}
        # Entries by the table whose file holds them, and by title.
        self._by_title: dict[tuple[str, str], dict[str, Any]] = {}
        for file in files:
            table = "/".join(file.parts[-4:-2])
            about = read_provenance(file)
            for entry in (*about.get("runs", ()), *about.get("outdated", ())):
                entry_data = entry.pop("data", about.get("data", {}))
                self._by_title[table, _title(entry)] = {**entry, "data": entry_data}
                # Tables share runs, and the record of one of them may be outdated.
                if self._is_current(entry_data):
                    self._by_stamp[entry["stamp"]] = entry

    def n_seeds(self, table: str) -> int:
        """Return the number of recorded seeds of a table: the largest seed plus 1, or 0 if none.

        Args:
            table: Name of the table, PAPER/TABLE.
        """
        return max((entry["seed"] + 1 for entry in self._of_table(table).values()), default=0)

    def _of_table(self, table: str) -> dict[str, dict[str, Any]]:
        """Return the results in the provenance files of a table, by title of the run.

        Args:
            table: Name of the table, PAPER/TABLE.
        """
        return {title: e for (name, title), e in self._by_title.items() if name == table}

    def in_directory(self, run: Run) -> dict[str, Any] | None:
        """Return the result in the directory of a run.

        None if the run is not finished, or if the directory was started with other options, data
        or start runs (the runs whose weights or tokenizer the run needs).

        Raises:
            InputError: The directory was created by hand and does not match the run.
        """
        return None if self._change(run) else run.result

    def find(self, run: Run) -> dict[str, Any] | None:
        """Return the result of a run from its directory, or else from a provenance file.

        None if the run was never finished with its present options and data.

        Raises:
            InputError: The directory was created by hand and does not match the run.
        """
        return self.in_directory(run) or self._by_stamp.get(run.stamp)

    def is_outdated(self, run: Run) -> bool:
        """Return True if a run has results in provenance files, but none that is valid now.

        A result is valid if its options, start runs and data are those of the run.
        """
        is_recorded = any(run.title == title for _, title in self._by_title)
        return is_recorded and self.find(run) is None

    def outdated(self, table: str, runs: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """Return the recorded results of a table that no current result replaces.

        An outdated result stays on record, because it becomes valid again if the change of its
        recipe is reverted.

        Args:
            table: Name of the table, PAPER/TABLE.
            runs: Current results. A recorded result with the title of one of them is left out.
        """
        current = {_title(run) for run in runs}
        return [e for title, e in self._of_table(table).items() if title not in current]

    def check_unchanged(self, runs: Iterable[Run]) -> None:
        """Raise InputError if a run's directory was started with other options, data or start runs.

        The start runs are those whose weights or tokenizer the run needs.
        """
        for run in runs:
            if change := self._change(run):
                raise InputError(
                    f"{change} since {run.folder} was started; remove the directory to train"
                    " again, or name another one with --runs",
                    file=run.folder,
                )

    def _change(self, run: Run) -> str:
        """Describe the difference between a run and the run that its directory was started with.

        An example is "the data have changed". The result is "" if there is no difference, or no
        directory that a `Run` created.
        """
        started = run.started_with
        if started and not self._is_current(started["data"]):
            return "the data have changed"
        if started and started["stamp"] != run.stamp:
            return "the config, the options or the runs that it starts from have changed"
        return ""

    def _is_current(self, data: Mapping[str, str]) -> bool:
        """Return True if all files that `data` and `self.data` share have the same hash in both.

        Args:
            data: SHA-256 of the data files of a recorded run, by name of the file.
        """
        return all(data[name] == self.data[name] for name in data.keys() & self.data.keys())

    def due(self, runs: Sequence[Run]) -> list[Run]:
        """Return the runs to execute.

        These are the unfinished runs, and each finished run whose weights no longer exist although
        a run to execute starts from them.

        Args:
            runs: Runs, each after those that it starts from.
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
        """Return True if the run is finished and its weights still exist in its directory."""
        return run.has_weights and self.in_directory(run) is not None

    def expected_seconds(self, runs: Sequence[Run], run: Run) -> float | None:
        """Estimate the duration of a run in seconds.

        The estimate is the median duration of the finished runs with the same recipe or, if there
        are none, the duration that the recipe states (`Run.minutes`). None if both are unknown.

        Args:
            runs: Runs among which those with the same recipe are searched.
            run: Run whose duration is estimated.
        """
        similar = [r for r in runs if (r.recipe, r.minutes) == (run.recipe, run.minutes)]
        results = [result for r in similar if (result := self.find(r))]
        if known := [s for result in results if (s := result.get("seconds")) is not None]:
            return statistics.median(known)
        return None if run.minutes is None else 60 * run.minutes


def _title(entry: Mapping[str, Any]) -> str:
    """Return the title of the run that a recorded result belongs to."""
    return run_title(**{key: entry[key] for key in NAMES})


def collect_results(
    table: Table, tier: str, n_seeds: int, runs_dir: Path, record: Record, machine: Machine
) -> tuple[list[Cell], list[dict[str, Any]]]:
    """Collect the results of all finished runs of a table in one tier.

    Args:
        table: Table.
        tier: Name of the tier.
        n_seeds: Number of seeds whose values the cells contain.
        runs_dir: Directory that contains all run directories.
        record: Results of the finished runs.
        machine: Devices that the runs are trained on.

    Returns:
        The cells of the table; and one mapping for each finished run, with its table, row, part,
        seed, stamp, commands, metrics, and the names of the rows whose cells the run fills.
    """
    runs = plan_runs(table, tier, table.rows_of(tier), n_seeds, runs_dir, machine)
    results = {run.folder: result for run in runs if (result := record.find(run))}
    users: dict[Path, list[str]] = {folder: [] for folder in results}
    cells = []
    for row, column in table.cells(tier):
        part, metric = table.tiers[tier].metrics[column]
        metric = row.runs[tier].get("columns", {}).get(column, metric)
        metrics_by_seed = {}
        for seed in range(n_seeds):
            folder = RowPlan(table, tier, row, seed, runs_dir).runs()[part].folder
            if folder in results:
                users[folder].append(row.name)
                if metric in results[folder]["metrics"]:
                    metrics_by_seed[seed] = results[folder]["metrics"]
        cells.append(run_cell(table, row, column, metric, metrics_by_seed))
    entries = []
    for run in runs:
        if run.folder in results:
            names = {key: getattr(run, key) for key in NAMES}
            own = {"used_by": list(dict.fromkeys(users[run.folder])), "stamp": run.stamp}
            entries.append({**results[run.folder], **names, **own})
    return cells, entries
