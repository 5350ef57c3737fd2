"""The runs of a table's rows, and running what is not done within a budget.

What is done is not done again, what was killed goes on.
"""

import json
import math
import os
import shlex
import statistics
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from fourfold.commands import child
from fourfold.commands.config_files import fingerprints
from fourfold.commands.seeds import measured
from fourfold.commands.table_files import kept_runs, reading
from fourfold.core.errors import InputError
from fourfold.papers.tables import Recipe

Key = tuple[tuple[str, ...], ...]


@dataclass(frozen=True)
class Run:
    """One training of a row with one seed, and its test.

    Args:
        row: The row's name.
        part: The name of what is learned from the first training or beside it; "" for that itself.
        seed: The seed.
        folder: The run directory.
        recipe: What it follows.
        fit: Options of `fourfold fit`; none where nothing is trained.
        test: Options of `fourfold test`.
        starts: Run directories of which it needs the weights or the words.
        minutes: That it takes, from a measurement; None if there was none.
    """

    row: str
    part: str
    seed: int
    folder: Path
    recipe: Recipe
    fit: list[str]
    test: list[str]
    starts: tuple[Path, ...] = ()
    minutes: float | None = None

    @property
    def title(self) -> str:
        """Which it is, to be printed."""
        paper, table = self.folder.relative_to(_place(self.folder, self.part)).parts[:2]
        part = f"{self.part}, " if self.part else ""
        return f"{paper}/{table}, row {self.row}, {part}seed {self.seed}"

    @property
    def key(self) -> Key:
        """Its commands, wherever its directory is."""
        return _key(self.commands, self.part)

    @cached_property
    def configs(self) -> dict[str, str]:
        """Its config files, each with a hash of what it says."""
        return fingerprints(self.test)

    @property
    def found(self) -> dict[str, Any] | None:
        """What its directory says of it: how long it took, its metrics, and how they were obtained.

        None if it is not done, or done where its directory is no more.
        """
        if (content := measured(self.folder, self.test)) is None:
            return None
        metrics = {k: v for k, v in content.items() if isinstance(v, int | float | str)}
        return {"seconds": self.seconds, "metrics": metrics, **content["run"]}

    @property
    def commands(self) -> list[str]:
        """What is run, as one would type it."""
        verbs = {"fit": self.fit, "test": self.test}
        return [shlex.join(["fourfold", verb, *given]) for verb, given in verbs.items() if given]

    @cached_property
    def _clock(self) -> Path:
        return self.folder / "seconds.json"

    @property
    def seconds(self) -> float | None:
        """What its parts took that came to an end; None where there is none."""
        try:
            return float(json.loads(self._clock.read_text(encoding="utf-8")))
        except (FileNotFoundError, ValueError, TypeError):
            return None

    def go(self, held: int, limit: float | None) -> int:
        """Train and test it, or what is left of that.

        Args:
            held: The lock.
            limit: Seconds after which it is stopped, to go on another time.

        Returns:
            0, or the exit code of what failed or was stopped.
        """
        begin = time.monotonic()
        environment = {"WANDB_RUN_GROUP": self.folder.parent.name, **os.environ}
        try:
            for verb, options in (("fit", self.fit), ("test", self.test)):
                left = None if limit is None else max(0.0, limit - (time.monotonic() - begin))
                if options and (code := child.run(verb, options, environment, [held], left)):
                    return code
            return 0
        finally:
            spent = (self.seconds or 0.0) + time.monotonic() - begin
            if self.folder.is_dir():
                self._clock.write_text(json.dumps(round(spent, 1)), encoding="utf-8")


class Record:
    """What is known of runs that are done: their directories, or what was written down of them.

    A directory may have gone with its machine; the tables that were written keep what each of their
    runs found, so that it is not done again. A run is known by its commands, what its config says,
    and its data: with others it is another run.

    Args:
        files: provenance.json of tables, PAPER/TABLE/TIER/provenance.json.
        data: SHA-256 of the files that are learned from now, by name.

    Raises:
        InputError: A file is damaged.
    """

    def __init__(self, files: Iterable[Path], data: Mapping[str, str]) -> None:
        # Tables share runs, and one of them may be older: all that is known, and if its data agree.
        self._kept: dict[Key, list[tuple[dict[str, Any], bool]]] = {}
        self._seeds: dict[str, int] = {}
        for file in files:
            table = "/".join(file.parts[-4:-2])
            runs, data_then = kept_runs(file)
            same = all(data_then[name] == data[name] for name in data_then.keys() & data)
            for entry in runs:
                with reading(file):
                    dict(entry["metrics"])
                    key = _key(entry["commands"], entry["part"])
                    self._seeds[table] = max(self._seeds.get(table, 0), entry["seed"] + 1)
                self._kept.setdefault(key, []).append((entry, same))

    def n_seeds(self, table: str) -> int:
        """How many seeds a table that was written has."""
        return self._seeds.get(table, 0)

    def find(self, run: Run) -> dict[str, Any] | None:
        """As `Run.found`, or what was written down; None if it was never done."""
        if (found := run.found) is not None:
            return found
        for kept, same in self._kept.get(run.key, []):
            if same and kept.get("configs", run.configs) == run.configs:
                return kept
        return None

    def is_outdated(self, run: Run) -> bool:
        """Whether it was done with other data, or by a config that has changed."""
        return run.key in self._kept and self.find(run) is None

    def due(self, runs: Sequence[Run]) -> list[Run]:
        """Those that are to be run: not done, or done but needed, and their weights are gone."""
        found, needed = list[Run](), set[Path]()
        for run in reversed(runs):
            if run.found or (self.find(run) and run.folder not in needed):
                continue
            found.append(run)
            needed.update(run.starts)
        return found[::-1]

    def expected_seconds(self, runs: Sequence[Run], run: Run) -> float:
        """The median of those like it that are done, else what the table says, else 0."""
        like = [r for r in runs if (r.recipe, r.minutes) == (run.recipe, run.minutes)]
        done = [found.get("seconds") for r in like if (found := self.find(r))]
        known = [seconds for seconds in done if isinstance(seconds, int | float)]
        return statistics.median(known) if known else 60 * (run.minutes or 0.0)


def _key(commands: Sequence[str], part: str) -> Key:
    """Commands without the place of their directories."""
    words = [shlex.split(command) for command in commands]
    folder = Path(words[0][words[0].index("--run_dir") + 1])
    place = f"{_place(folder, part)}/"
    return tuple(tuple(word.removeprefix(place) for word in command) for command in words)


def _place(folder: Path, part: str) -> Path:
    """Where all runs are: PLACE/PAPER/TABLE/TIER/ROW/seed_N, and of a part .../ROW/PART/seed_N."""
    return folder.parents[5 if part else 4]


class Budget:
    """The time in which runs have to end, of one table or several.

    Args:
        seconds: None for no end.
    """

    def __init__(self, seconds: float | None) -> None:
        self.seconds = math.inf if seconds is None else seconds
        self.spent_on_runs = False
        self._begin = time.monotonic()

    @property
    def left(self) -> float:
        """Seconds; inf without an end."""
        return max(0.0, self.seconds - (time.monotonic() - self._begin))

    @property
    def limit(self) -> float | None:
        """What is left, None without an end."""
        return None if math.isinf(self.seconds) else self.left

    def admits(self, needed: float, n_due: int) -> bool:
        """Whether a run that takes so many seconds may begin.

        Raises:
            InputError: It may not, and none has; says what would fit.
        """
        if needed > self.left and not self.spent_on_runs:
            raise InputError(
                f"--budget {_words(self.seconds)} is too short: the next run takes about"
                f" {_words(needed)}, and {n_due} are to be done"
            )
        return needed <= self.left > 0.0


def run_all(runs: Sequence[Run], record: Record, budget: Budget, done: Callable[[], None]) -> int:
    """Run what is not done, as far as the budget reaches.

    What fails does not keep the rest from being run, but for what starts from it.

    Args:
        runs: All of them, those that others start from before these.
        record: What is known of those that are done.
        budget: A run that is still going at its end is saved and stopped.
        done: Called after each run that came to its end.

    Returns:
        0, or the exit code of the first run that failed, or of one that was stopped by others.

    Raises:
        InputError: Not one run fits into the budget; says what would.
    """
    due, failed = record.due(runs), dict[Path, int]()
    for number, run in enumerate(runs, 1):
        if run not in due:
            continue
        if any(folder in failed for folder in run.starts):
            print(f"{run.title}: not run, for what it starts from failed", flush=True)
            failed[run.folder] = 1
            continue
        code = _run(run, runs, record, budget, f"[{number}/{len(runs)}]")
        if code is None or (code and not budget.left):
            print("the budget ends here; the same command goes on", flush=True)
            return 0
        if is_stop(code):
            return code
        if code:
            print(f"{run.title}: failed with exit code {code}", flush=True)
            failed[run.folder] = code
        else:
            done()
    return next(iter(failed.values()), 0)


def _run(run: Run, runs: Sequence[Run], record: Record, budget: Budget, number: str) -> int | None:
    """The exit code of a run, 0 if another has ended it meanwhile; None: not within the budget."""
    try:  # the lock before asking: another may be about to end it
        with child.locked(run.folder, budget.limit) as held:
            if run.found:
                return 0
            needed = record.expected_seconds(runs, run) - (run.seconds or 0.0)
            if not budget.admits(needed, len(record.due(runs))):
                return None
            print(f"{number} {run.title}", flush=True)
            budget.spent_on_runs = True
            return run.go(held, budget.limit)
    except TimeoutError:
        return None


def is_stop(code: int) -> bool:
    """Whether an exit code is that of a run which a signal ended, having saved or not."""
    return code == os.EX_TEMPFAIL or code >= 128 or code < 0


def _words(seconds: float) -> str:
    return f"{seconds:.0f}s" if seconds < 90 else f"{seconds / 60:.3g}m"
