"""Running what is not done of a table, within a budget.

What is done is not done again, what was killed goes on.
"""

import math
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from fourfold.commands import child
from fourfold.commands.row_record import Record
from fourfold.commands.row_runs import Run
from fourfold.core.errors import InputError


class Budget:
    """The time in which runs have to end, of one table or several.

    Args:
        seconds: None for no end.
    """

    def __init__(self, seconds: float | None) -> None:
        self.seconds = math.inf if seconds is None else seconds
        self.spent_on_runs = False
        self.is_over = False  # something is left that did not fit
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
        if any(start.folder in failed for start in run.starts):
            print(f"{run.title}: not run, for what it starts from failed", flush=True)
            failed[run.folder] = 1
            continue
        code = _attempt(run, runs, record, budget, f"[{number}/{len(runs)}]")
        if code is None or (code and not budget.left):
            print("the budget ends here; the same command goes on", flush=True)
            budget.is_over = True
            return 0
        if child.is_stop(code):
            return code
        if code:
            print(f"{run.title}: {child.says(code)}", flush=True)
            failed[run.folder] = code
        else:
            done()
    return next(iter(failed.values()), 0)


def _attempt(
    run: Run, runs: Sequence[Run], record: Record, budget: Budget, number: str
) -> int | None:
    """The exit code of a run, 0 if another has ended it meanwhile; None: not within the budget."""
    try:  # the lock before asking: another may be about to end it
        with child.locked(run.folder, budget.limit) as held:
            if record.usable(run):
                return 0
            needed = record.expected_seconds(runs, run) - (run.seconds or 0.0)
            if not budget.admits(needed, len(record.due(runs))):
                return None
            print(f"{number} {run.title}", flush=True)
            budget.spent_on_runs = True
            return run.go(held, budget.limit, record.data)
    except TimeoutError:
        return None


def _words(seconds: float) -> str:
    return f"{seconds:.0f}s" if seconds < 90 else f"{seconds / 60:.3g}m"
