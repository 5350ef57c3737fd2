"""Running what is not done of a table, within a budget.

What is done is not done again, what was killed goes on. A run that is known not to fit into a
budget is left for another time, and the next one that fits begins. One of which nobody knows how
long it takes begins as well, and is saved and stopped at the budget's end: a cluster gives hours at
a time, and what takes weeks would never begin.
"""

import math
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from fourfold.commands import child
from fourfold.commands.row_record import Record
from fourfold.commands.row_runs import Run
from fourfold.core.errors import InputError

UNKNOWN = "how long it takes is not known, so it is saved and stopped if the budget ends before it"


class Budget:
    """The time in which runs have to end, of one table or several.

    Args:
        seconds: None for no end.
    """

    def __init__(self, seconds: float | None) -> None:
        self.seconds = math.inf if seconds is None else seconds
        self.spent_on_runs = False
        self.n_later = 0  # runs that it leaves for another time
        self._too_long: dict[str, float] = {}  # seconds of what would not have fitted, by title
        self._begin = time.monotonic()

    @property
    def left(self) -> float:
        """Seconds; inf without an end."""
        return max(0.0, self.seconds - (time.monotonic() - self._begin))

    @property
    def limit(self) -> float | None:
        """What is left, None without an end."""
        return None if math.isinf(self.seconds) else self.left

    def admits(self, title: str, needed: float | None) -> bool:
        """Whether a run that takes so many seconds may begin; None: nobody knows how many."""
        if needed is not None and needed > self.left:
            self._too_long[title] = needed
            return False
        return self.left > 0.0

    def refuse_none(self) -> None:
        """Make sure that it was not too short for every single run.

        Raises:
            InputError: It was; says what would fit.
        """
        if self._too_long and not self.spent_on_runs:
            shortest = min(self._too_long, key=self._too_long.__getitem__)
            raise InputError(
                f"--budget {_words(self.seconds)} is too short: the shortest run that is to be"
                f" done, {shortest}, takes about {_words(self._too_long[shortest])}"
            )


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
    """
    due, failed, later = record.due(runs), dict[Path, int](), set[Path]()
    for number, run in enumerate(runs, 1):
        if run not in due:
            continue
        if any(start.folder in failed for start in run.starts):
            print(f"{run.title}: not run, for what it starts from failed", flush=True)
            failed[run.folder] = 1
            continue
        if any(start.folder in later for start in run.starts):
            later.add(run.folder)
            continue
        code = _attempt(run, runs, record, budget, f"[{number}/{len(runs)}]")
        if code is None or (code and not budget.left):
            later.add(run.folder)
            continue
        if child.is_stop(code):
            return code
        if code:
            print(f"{run.title}: {child.says(code)}", flush=True)
            failed[run.folder] = code
        else:
            done()
    budget.n_later += len(later)
    return next(iter(failed.values()), 0)


def _attempt(
    run: Run, runs: Sequence[Run], record: Record, budget: Budget, number: str
) -> int | None:
    """The exit code of a run, 0 if another has ended it meanwhile; None: not within the budget."""
    needed = record.expected_seconds(runs, run)
    is_unknown = needed is None and budget.limit is not None
    if not budget.admits(run.title, None if needed is None else needed - (run.seconds or 0.0)):
        return None
    try:
        with child.locked(run.folder, budget.limit) as held:
            if record.usable(run):  # another has ended it while it was waited for
                return 0
            print(f"{number} {run.title}{': ' + UNKNOWN if is_unknown else ''}", flush=True)
            budget.spent_on_runs = True
            return run.go(held, budget.limit, record.data)
    except TimeoutError:
        return None
    except InputError as error:  # what is wrong with one run keeps no other from being run
        print(f"{run.title}: {error}", file=sys.stderr, flush=True)
        return 2


def _words(seconds: float) -> str:
    return f"{seconds:.0f}s" if seconds < 90 else f"{seconds / 60:.3g}m"
