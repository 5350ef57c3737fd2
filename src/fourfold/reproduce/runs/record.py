"""Record of runs of tables: results, filled cells, runs to execute, expected durations.

`tables` explains the terms, `run` the stamp. Stamp and hashes of the data files identify a result.
Results are read from the run directories and from the file provenance.json of each table, which is
committed to git, so that a run whose directory was deleted is not repeated. A recorded result is
outdated if the stamp of its run or the data have changed since. A run is due if it has no result,
or only an outdated one.
"""

import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from fourfold.errors import InputError
from fourfold.json_files import read_json
from fourfold.reproduce.cells import Cell, run_cell
from fourfold.reproduce.runs.plan import plan_runs, row_runs
from fourfold.reproduce.runs.run import Machine, Run, title_of
from fourfold.reproduce.tables import Table

Entry = dict[str, Any]  # result of one run, as provenance.json holds it


class Record:
    """Results of all finished runs.

    Args:
        files: Paths PAPER/TABLE/TIER/provenance.json, one for each table.
        data: SHA-256 of the current data files, by name of the file.

    Raises:
        InputError: A provenance file is damaged.
    """

    def __init__(self, files: Iterable[Path], data: Mapping[str, str]) -> None:
        self.data = data
        self._by_stamp: dict[str, Entry] = {}
        # Results by title of the run, for each table whose file holds them.
        self._by_table: defaultdict[str, dict[str, Entry]] = defaultdict(dict)
        for file in files:
            about = read_json(file, optional=True)
            for entry in (*about.get("runs", ()), *about.get("outdated", ())):
                entry_data = entry.pop("data", about.get("data", {}))
                title = title_of(entry)
                self._by_table["/".join(file.parts[-4:-2])][title] = {**entry, "data": entry_data}
                # Tables share runs, and the record of one of them may be outdated.
                if self._is_current(entry_data):
                    self._by_stamp[entry["stamp"]] = entry

    def n_seeds(self, table: str) -> int:
        """Return the largest recorded seed of a table plus 1, or 0."""
        return max((entry["seed"] + 1 for entry in self._by_table[table].values()), default=0)

    def in_directory(self, run: Run) -> Entry | None:
        """Return the result in the directory of a run; None if it is unfinished or outdated.

        Raises:
            InputError: The directory was not created by `Run.execute` and does not match the run.
        """
        return None if self._change(run) else run.result

    def find(self, run: Run) -> Entry | None:
        """Return the current result of a run from its directory, or else from provenance.json."""
        return self.in_directory(run) or self._by_stamp.get(run.stamp)

    def outdated(self, table: str, current: Iterable[Entry]) -> list[Entry]:
        """Return the recorded results of a table that no current result replaces.

        They are kept, because they become valid again if the change of the recipe is reverted.
        """
        replaced = {title_of(entry) for entry in current}
        return [e for title, e in self._by_table[table].items() if title not in replaced]

    def check_unchanged(self, runs: Iterable[Run]) -> None:
        """Raise InputError if a training was started with other options, data or start."""
        for run in runs:
            if change := self._change(run):
                hint = "remove the directory to train again, or name another one with --runs"
                message = f"{change} since {run.folder} was started; {hint}"
                raise InputError(message, file=run.folder)

    def _change(self, run: Run) -> str:
        """Describe what has changed since the training in the directory of a run was started."""
        note = run.note
        if note and not self._is_current(note["data"]):
            return "the data have changed"
        if note and note["stamp"] != run.stamp:
            return "the config, the options or the runs that it starts from have changed"
        return ""

    def _is_current(self, data: Mapping[str, str]) -> bool:
        """Return True if the data files of a recorded run have not changed since."""
        return all(data[name] == self.data[name] for name in data.keys() & self.data.keys())

    def due(self, runs: Sequence[Run]) -> list[Run]:
        """Return the runs to execute; a run comes after its start, in `runs` and in the result.

        A finished run is executed again if a run to execute needs its weights, but its directory
        holds no checkpoint any more.
        """
        due: list[Run] = []
        for run in reversed(runs):
            is_needed = any(user.start and user.start.folder == run.folder for user in due)
            if not (self.usable(run) if is_needed else self.find(run)):
                due.append(run)
        return due[::-1]

    def usable(self, run: Run) -> bool:
        """Return True if a run is finished, and another run can start from its directory."""
        has_weights = not run.fit or any((run.folder / "checkpoints").glob("*.ckpt"))
        return has_weights and self.in_directory(run) is not None

    def expected_seconds(self, runs: Sequence[Run], run: Run) -> float | None:
        """Return the median seconds of finished runs with the same recipe, or `Run.minutes`."""
        similar = [r for r in runs if (r.recipe, r.minutes) == (run.recipe, run.minutes)]
        results = [result for r in similar if (result := self.find(r))]
        if known := [s for result in results if (s := result.get("seconds")) is not None]:
            return statistics.median(known)
        return None if run.minutes is None else 60 * run.minutes


def collect_results(
    table: Table, tier: str, n_seeds: int, runs_dir: Path, record: Record, machine: Machine
) -> tuple[list[Cell], list[Entry]]:
    """Return the cells of a table in one tier, and the entries of all its finished runs.

    Results of the seeds 0 to `n_seeds` - 1 are collected, and of higher seeds if they are recorded.
    An entry has the keys of `Run.result` and `Run.names`, `stamp`, and `used_by`, the names of the
    rows whose cells are computed from the run.
    """
    n_seeds = max(n_seeds, record.n_seeds(table.name))
    runs = plan_runs(table, tier, table.rows_of(tier), n_seeds, runs_dir, machine)
    results = {run.folder: result for run in runs if (result := record.find(run))}
    users: defaultdict[Path, list[str]] = defaultdict(list)
    cells = []
    for row, column in table.cells(tier):
        part, metric = table.tiers[tier].metrics[column]
        metric = row.runs[tier].get("columns", {}).get(column, metric)
        metrics = {}
        for seed in range(n_seeds):
            folder = row_runs(table, tier, row, seed, runs_dir, machine)[part].folder
            users[folder].append(row.name)
            if folder in results:
                metrics[seed] = results[folder]["metrics"]
        same_split = row.name in table.tiers[tier].same_split
        cells.append(run_cell(table, row, column, metric, metrics, same_split))
    entries = []
    for run in runs:
        if result := results.get(run.folder):
            used_by = list(dict.fromkeys(users[run.folder]))
            entries.append({**result, **run.names, "used_by": used_by, "stamp": run.stamp})
    return cells, entries
