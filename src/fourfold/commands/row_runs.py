"""The runs of a table's rows, and running what is not done within a budget.

What is done is not done again, what was killed goes on.
"""

import json
import math
import os
import shlex
import statistics
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from fourfold.commands import child
from fourfold.commands.seeds import measured
from fourfold.core.errors import InputError
from fourfold.papers.tables import Recipe


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
    """

    row: str
    part: str
    seed: int
    folder: Path
    recipe: Recipe
    fit: list[str]
    test: list[str]
    starts: tuple[Path, ...] = ()

    @property
    def title(self) -> str:
        """Which it is, to be printed."""
        return f"row {self.row}, {self.part + ', ' if self.part else ''}seed {self.seed}"

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
        except (FileNotFoundError, ValueError):
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
    runs found, so that it is not done again. A run is known by its commands: with other options, or
    another directory, it is another run.

    Args:
        files: provenance.json of tables.

    Raises:
        InputError: A file is damaged.
    """

    def __init__(self, files: Iterable[Path]) -> None:
        self._kept: dict[tuple[str, ...], dict[str, Any]] = {}
        for file in files:
            try:
                entries = json.loads(file.read_text(encoding="utf-8"))["runs"]
                self._kept |= {tuple(entry["commands"]): entry for entry in entries}
            except (ValueError, KeyError, TypeError) as error:
                raise InputError(f"{file} is damaged ({error}): remove it, or restore it") from None

    def find(self, run: Run) -> dict[str, Any] | None:
        """As `Run.found`, or what was written down; None if it was never done."""
        return run.found or self._kept.get(tuple(run.commands))

    def due(self, runs: Sequence[Run]) -> list[Run]:
        """Those that are to be run: not done, or done but needed, and their weights are gone."""
        found, needed = list[Run](), set[Path]()
        for run in reversed(runs):
            if run.found or (self.find(run) and run.folder not in needed):
                continue
            found.append(run)
            needed.update(run.starts)
        return found[::-1]

    def expected_seconds(self, runs: Sequence[Run], recipe: Recipe) -> float | None:
        """Of a run: the median of those of its recipe that are done, else what the table says."""
        done = [found for run in runs if run.recipe is recipe and (found := self.find(run))]
        if known := [found["seconds"] for found in done if found["seconds"]]:
            return statistics.median(known)
        return None if recipe.minutes is None else 60 * recipe.minutes


def run_all(
    runs: Sequence[Run], record: Record, budget: float | None, done: Callable[[], None]
) -> int:
    """Run what is not done, as far as the budget reaches.

    Args:
        runs: All of them, those that others start from before these.
        record: What is known of those that are done.
        budget: Seconds; None for no end. A run that is still going then is saved and stopped.
        done: Called after each run that came to its end.

    Returns:
        0, or the exit code of the run that failed or was stopped by others.

    Raises:
        InputError: Not one run fits into the budget; says what would.
    """
    end = math.inf if budget is None else time.monotonic() + budget
    started = False
    due = record.due(runs)
    for number, run in enumerate(runs, 1):
        if run not in due:
            continue
        left = None if budget is None else end - time.monotonic()
        try:  # the lock before asking: another may be about to end it
            with child.locked(run.folder, left) as held:
                if run.found:
                    continue
                needed = (record.expected_seconds(runs, run.recipe) or 0.0) - (run.seconds or 0.0)
                left = end - time.monotonic()
                if budget is not None and needed > left and not started:
                    raise InputError(
                        f"--budget {_words(budget)} is too short: the next run takes about"
                        f" {_words(needed)}, and {len(record.due(runs))} are to be done"
                    )
                if needed > left or left <= 0:
                    return _out_of_budget()
                print(f"[{number}/{len(runs)}] {run.title}", flush=True)
                started = True
                if code := run.go(held, None if budget is None else left):
                    return _out_of_budget() if time.monotonic() >= end else code
            done()
        except TimeoutError:
            return _out_of_budget()
    return 0


def _out_of_budget() -> int:
    print("the budget ends here; the same command goes on", flush=True)
    return 0


def _words(seconds: float) -> str:
    return f"{seconds:.0f}s" if seconds < 90 else f"{seconds / 60:.3g}m"
