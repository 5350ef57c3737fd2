"""What is known of a table's runs: from their directories, or from what was written down."""

import statistics
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from fourfold.commands.row_runs import Run, title
from fourfold.commands.table_files import kept_runs, reading
from fourfold.core.errors import InputError


class Record:
    """What is known of runs that are done: their directories, or what was written down of them.

    A directory may have gone with its machine; the tables that were written keep what each of their
    runs found, so that it is not done again. A run is known by its stamp and its data: with others
    it is another run.

    Args:
        files: provenance.json of tables, PAPER/TABLE/TIER/provenance.json.
        data: SHA-256 of the files that are learned from now, by name.

    Raises:
        InputError: A file is damaged.
    """

    def __init__(self, files: Iterable[Path], data: Mapping[str, str]) -> None:
        self.data = data
        self._kept: dict[str, dict[str, Any]] = {}
        self._titles: dict[str, dict[str, dict[str, Any]]] = {}  # entries, by table and title
        self._seeds: dict[str, int] = {}
        for file in files:
            table = "/".join(file.parts[-4:-2])
            for entry, then in kept_runs(file):
                with reading(file):
                    for name, value in entry["metrics"].items():
                        float(value if not name.endswith("_signature") else 0)
                    self._titles.setdefault(table, {})[_title(entry)] = {**entry, "data": then}
                    self._seeds[table] = max(self._seeds.get(table, 0), entry["seed"] + 1)
                    if self._are(then):  # tables share runs, and one of them may be older
                        self._kept[entry["stamp"]] = entry

    def n_seeds(self, table: str) -> int:
        """How many seeds a table that was written has."""
        return self._seeds.get(table, 0)

    def in_directory(self, run: Run) -> dict[str, Any] | None:
        """As `Run.found`, if its directory was begun with what it is made of now.

        Raises:
            InputError: As of `Run.found`.
        """
        return None if self._change(run) else run.found

    def find(self, run: Run) -> dict[str, Any] | None:
        """As `in_directory`, or what was written down; None if it was never done.

        Raises:
            InputError: As of `Run.found`.
        """
        return self.in_directory(run) or self._kept.get(run.stamp)

    def is_outdated(self, run: Run) -> bool:
        """Whether it was done, but what it is made of has changed."""
        known = any(run.title in entries for entries in self._titles.values())
        return known and self.find(run) is None

    def outdated(self, table: str, runs: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """What was written down of a table, but for what `runs` have taken the place of.

        A change that is undone makes it count again.
        """
        now = {_title(run) for run in runs}
        return [entry for name, entry in self._titles.get(table, {}).items() if name not in now]

    def refuse_changed(self, runs: Iterable[Run]) -> None:
        """Make sure that what is in a directory is not gone on with as something else.

        Raises:
            InputError: One was begun with another config, other data or from other weights.
        """
        if changes := [change for run in runs if (change := self._change(run))]:
            more = f" ({len(changes) - 1} more are like this)" if len(changes) > 1 else ""
            raise InputError(
                f"{changes[0]}: remove it to train again, or name another directory with"
                f" --runs{more}"
            )

    def _change(self, run: Run) -> str:
        """What is not as it was when the run's directory was begun; "" if nothing is."""
        begun = run.begun
        if begun is None:
            return ""
        since = f"since {run.folder} was begun"
        for (name, now), then in zip(run.configs.items(), begun["configs"].values(), strict=False):
            if then != now:
                return f"{name} has changed {since}"
        if not self._are(begun["data"]):
            return f"the data have changed {since}"
        if begun["stamp"] != run.stamp:
            return f"its options, or what it starts from, have changed {since}"
        return ""

    def _are(self, then: Mapping[str, str]) -> bool:
        """Whether data are today's, as far as both are known."""
        return all(then[name] == self.data[name] for name in then.keys() & self.data.keys())

    def due(self, runs: Sequence[Run]) -> list[Run]:
        """Those that are to be run: not done, or done but needed, and their weights are gone."""
        found, needed = list[Run](), set[Path]()
        for run in reversed(runs):
            known = self.find(run) if run.folder not in needed else self.usable(run)
            if not known:
                found.append(run)
                needed.update(start.folder for start in run.starts)
        return found[::-1]

    def usable(self, run: Run) -> bool:
        """Whether it is done and others can start from it."""
        return run.has_weights and self.in_directory(run) is not None

    def expected_seconds(self, runs: Sequence[Run], run: Run) -> float | None:
        """The median of those like it that are done, else what the table says, if it does."""
        like = [r for r in runs if (r.recipe, r.minutes) == (run.recipe, run.minutes)]
        done = [found.get("seconds") for r in like if (found := self.find(r))]
        known = [seconds for seconds in done if isinstance(seconds, int | float)]
        if known:
            return statistics.median(known)
        return None if run.minutes is None else 60 * run.minutes


def _title(entry: Mapping[str, Any]) -> str:
    return title(entry["table"], entry["row"], entry["part"], entry["seed"])
