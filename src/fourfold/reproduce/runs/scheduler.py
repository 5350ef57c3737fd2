"""Execution of the unfinished runs of a table within a time budget.

A run is the training and test of one row (line) of a table with one seed. Finished runs are skipped
and interrupted runs are resumed. A run whose expected duration exceeds the remaining budget is
skipped in favour of a shorter run. A run of unknown duration is started, then saved and stopped
when the budget ends, so that a long training advances by one budget at a time, for example on a
cluster that grants a few hours per job.
"""

import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from fourfold.commands import subprocess_runs
from fourfold.errors import InputError
from fourfold.reproduce.runs.record import Record
from fourfold.reproduce.runs.run import Run

UNKNOWN_DURATION = ": duration unknown; it will be saved and stopped when the budget ends"


class Budget:
    """Time budget shared by the runs of one or several tables.

    Args:
        seconds: Length of the budget in seconds, from the creation of this object; None for no
            limit.

    Attributes:
        was_used: True if at least one run was started.
        n_postponed: Number of runs that did not fit into the budget or were stopped at its end,
            and of the runs that start from them.
    """

    def __init__(self, seconds: float | None) -> None:
        self.seconds = seconds
        self.was_used = False
        self.n_postponed = 0
        self._too_long: dict[str, float] = {}  # seconds of each run that did not fit, by title
        self._start = time.monotonic()

    @property
    def left(self) -> float | None:
        """Remaining seconds of the budget; None if there is no limit."""
        if self.seconds is None:
            return None
        return max(0.0, self.seconds - (time.monotonic() - self._start))

    def admits(self, title: str, needed: float | None) -> bool:
        """Return True if a run may start in the remaining time.

        A run that needs more than the remaining time is noted for `check_was_sufficient`.

        Args:
            title: Title of the run.
            needed: Expected remaining duration of the run in seconds; None if it is unknown.
        """
        left = self.left
        if left is None:
            return True
        if needed is not None and needed > left:
            self._too_long[title] = needed
            return False
        return left > 0.0

    def check_was_sufficient(self) -> None:
        """Check that the budget was long enough for at least one of the runs to execute.

        Raises:
            InputError: No run was started, because all of them were too long. The message names the
                shortest run.
        """
        if self._too_long and not self.was_used:
            shortest = min(self._too_long, key=self._too_long.__getitem__)
            raise InputError(
                f"must be at least {_duration(self._too_long[shortest])}, the approximate duration"
                f" of the shortest unfinished run ({shortest}), got {_duration(self.seconds or 0)}",
                option="--budget",
            )


def run_all(
    runs: Sequence[Run], record: Record, budget: Budget, on_finished: Callable[[], None]
) -> int:
    """Execute all unfinished runs that fit into the budget.

    If a run fails, only the runs that start from the failed run are skipped.

    Args:
        runs: Runs, each after those that it starts from.
        record: Results of the finished runs.
        budget: Time budget, at the end of which the current run is saved and stopped.
        on_finished: Function that is called after each run that ends without failure.

    Returns:
        0 if no run failed; the exit code of the run that a signal stopped, if any; otherwise the
        exit code of the first run that failed.
    """
    due = record.due(runs)
    failed: dict[Path, int] = {}
    postponed: set[Path] = set()
    for number, run in enumerate(runs, 1):
        if run not in due:
            continue
        starts = {start.folder for start in run.starts}
        if starts & failed.keys():
            print(f"{run.title}: skipped, because a run that it starts from failed", flush=True)
            failed[run.folder] = 1
            continue
        prefix = f"[{number}/{len(runs)}] "
        code = None if starts & postponed else _attempt(run, runs, record, budget, prefix)
        if code is None:
            postponed.add(run.folder)
        elif subprocess_runs.is_stop(code):
            return code
        elif code:
            print(f"{run.title}: {subprocess_runs.describe_exit(code)}", flush=True)
            failed[run.folder] = code
        else:
            on_finished()
    budget.n_postponed += len(postponed)
    return next(iter(failed.values()), 0)


def _attempt(
    run: Run, runs: Sequence[Run], record: Record, budget: Budget, prefix: str
) -> int | None:
    """Execute one run if it fits into the budget.

    Args:
        run: Run to execute.
        runs: Runs of the same plan, from which the duration of `run` is estimated.
        record: Results of the finished runs.
        budget: Time budget.
        prefix: Text before the run's title in the message, such as "[2/9] ".

    Returns:
        The exit code of the run, 2 if an input is invalid; None if the run does not fit into the
        budget or was stopped at the end of the budget.
    """
    needed = record.expected_seconds(runs, run)
    if not budget.admits(run.title, None if needed is None else needed - (run.seconds or 0.0)):
        return None
    try:
        subprocess_runs.wait_until_unlocked(run.folder, budget.left)
        if record.usable(run):  # another process finished it while this process waited
            return 0
        is_unknown = needed is None and budget.seconds is not None
        print(f"{prefix}{run.title}{UNKNOWN_DURATION if is_unknown else ''}", flush=True)
        budget.was_used = True
        code = run.execute(budget.left, record.data)
    except TimeoutError:
        return None
    except InputError as error:  # an invalid run does not prevent the others
        print(f"{run.title}: {error}", file=sys.stderr, flush=True)
        code = 2
    return None if code and budget.left == 0.0 else code


def _duration(seconds: float) -> str:
    """Format a number of seconds, such as "75s", or "2.5m" (minutes) from 90 s on."""
    return f"{seconds:.0f}s" if seconds < 90 else f"{seconds / 60:.3g}m"
