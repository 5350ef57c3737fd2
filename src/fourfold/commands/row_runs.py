"""The runs of a table's rows: which are done, and running the rest within a budget.

What is done is not done again, what was killed goes on.
"""

import json
import math
import os
import shlex
import statistics
import time
from collections.abc import Sequence
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
    """

    row: str
    part: str
    seed: int
    folder: Path
    recipe: Recipe
    fit: list[str]
    test: list[str]

    @property
    def title(self) -> str:
        """Which it is, to be printed."""
        return f"row {self.row}, {self.part + ', ' if self.part else ''}seed {self.seed}"

    @property
    def found(self) -> dict[str, Any] | None:
        """What its test found; None if it is not done."""
        return measured(self.folder, self.test)

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


def expected_seconds(runs: Sequence[Run], recipe: Recipe) -> float | None:
    """Of a run: the median of those of its recipe that are done, else what the table says."""
    known = [run.seconds for run in runs if run.recipe is recipe and run.found and run.seconds]
    if known:
        return statistics.median(known)
    return None if recipe.minutes is None else 60 * recipe.minutes


def run_all(runs: Sequence[Run], budget: float | None) -> int:
    """Run what is not done, as far as the budget reaches.

    Args:
        runs: All of them, those that others start from before these.
        budget: Seconds; None for no end. A run that is still going then is saved and stopped.

    Returns:
        0, or the exit code of the run that failed or was stopped by others.

    Raises:
        InputError: Not one run fits into the budget; says what would.
    """
    end = math.inf if budget is None else time.monotonic() + budget
    started = False
    for number, run in enumerate(runs, 1):
        left = None if budget is None else end - time.monotonic()
        try:  # the lock before asking: another may be about to end it
            with child.locked(run.folder, left) as held:
                if run.found:
                    continue
                needed = (expected_seconds(runs, run.recipe) or 0.0) - (run.seconds or 0.0)
                left = end - time.monotonic()
                if budget is not None and needed > left and not started:
                    raise InputError(
                        f"--budget {_words(budget)} is too short: the next run takes about"
                        f" {_words(needed)}, and {sum(not r.found for r in runs)} are to be done"
                    )
                if needed > left or left <= 0:
                    return _out_of_budget()
                print(f"[{number}/{len(runs)}] {run.title}", flush=True)
                started = True
                if code := run.go(held, None if budget is None else left):
                    return _out_of_budget() if time.monotonic() >= end else code
        except TimeoutError:
            return _out_of_budget()
    return 0


def _out_of_budget() -> int:
    print("the budget ends here; the same command goes on", flush=True)
    return 0


def _words(seconds: float) -> str:
    return f"{seconds:.0f}s" if seconds < 90 else f"{seconds / 60:.3g}m"
