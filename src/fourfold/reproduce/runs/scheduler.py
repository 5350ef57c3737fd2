"""Execution of the unfinished runs of a table within a time budget.

A run is one training of a row (line) of a table with one seed, followed by a test. Finished runs
are skipped, and interrupted runs are resumed. A run is postponed if its expected duration exceeds
the remaining budget, and a shorter run is executed instead. A run of unknown duration is started in
any case. At the end of the budget, the current training saves a checkpoint and stops. It is resumed
when the command is repeated, for example in the next job on a cluster with a time limit per job.
"""

import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from fourfold.commands import subprocess_runs
from fourfold.errors import InputError
from fourfold.reproduce.runs.record import Record
from fourfold.reproduce.runs.run import Run


class Budget:
    """Time budget shared by the runs of one or several tables.

    Args:
        seconds: Length of the budget in seconds, from the creation of this object; None for no
            limit.

    Attributes:
        n_postponed: Number of runs that were postponed, that were stopped at the end of the budget,
            or that need the weights, tokenizer or teacher of such a run.
    """

    def __init__(self, seconds: float | None) -> None:
        self.n_postponed = 0
        self._end = None if seconds is None else time.monotonic() + seconds

    @property
    def left(self) -> float | None:
        """Remaining seconds of the budget; None if there is no limit."""
        return None if self._end is None else max(0.0, self._end - time.monotonic())


def run_all(
    runs: Sequence[Run], record: Record, budget: Budget, on_finished: Callable[[], object]
) -> int:
    """Execute all unfinished runs that fit into the budget.

    If a run fails, only the runs that need the weights, tokenizer or teacher of the failed run are
    skipped.

    Args:
        runs: Runs (trainings with their tests). A run that needs another run comes after the other
            run.
        record: Results of the finished runs.
        budget: Time budget. `budget.n_postponed` is increased by the number of postponed runs.
        on_finished: Function that is called after each run that ends without failure.

    Returns:
        The exit code: 0 if no run failed. If a signal stopped a run, it is the exit code of that
        run. Otherwise it is the exit code of the first run that failed.
    """
    due = record.due(runs)
    failed: dict[Path, int] = {}
    postponed: set[Path] = set()
    for number, run in enumerate(due, 1):
        start = run.start and run.start.folder
        if start in failed:
            print(f"{run.title}: skipped, because a run that it starts from failed", flush=True)
            failed[run.folder] = 1
            continue
        code = None
        if start not in postponed:
            expected = record.expected_seconds(runs, run)
            code = _attempt(run, expected, record, budget, f"[{number}/{len(due)}] {run.title}")
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
    run: Run, expected: float | None, record: Record, budget: Budget, title: str
) -> int | None:
    """Execute one run if it fits into the budget.

    Args:
        run: Run to execute.
        expected: Expected duration of the run in seconds; None if it is unknown.
        record: Results of the finished runs.
        budget: Time budget, which all runs share.
        title: Message to print when the run starts.

    Returns:
        None if the run does not fit into the budget or was stopped at the end of the budget.
        Otherwise the exit code of the run, such as 0 for success or 2 for invalid input.
    """
    left = budget.left
    needed = max(0.0, (expected or 0.0) - run.note.get("seconds", 0.0))
    if left is not None and needed >= left:
        if left:
            print(f"{title}: postponed; expected to take {needed / 60:.3g} minutes", flush=True)
        return None
    try:
        subprocess_runs.wait_until_unlocked(run.folder, left)
        if record.usable(run):  # another process finished it while this process waited
            return 0
        print(title, flush=True)
        code = run.execute(budget.left, record.data)
    except TimeoutError:
        return None
    except InputError as error:  # an invalid run does not prevent the others
        print(f"{run.title}: {error}", file=sys.stderr, flush=True)
        code = 2
    return None if code and budget.left == 0.0 else code
