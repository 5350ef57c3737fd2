"""Execution of the unfinished runs of a table within a time budget.

Finished runs are skipped, and interrupted runs are resumed. A run is postponed if its expected
duration exceeds the remaining budget, and a shorter run is executed instead. A run of unknown
duration is started in any case. At the end of the budget, the current training saves a checkpoint
and stops; it is resumed when the command is repeated.
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

    `n_postponed` counts the runs that were postponed, that were stopped at the end of the budget,
    or that start from such a run.
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
    """Execute all unfinished runs that fit into the budget, and return the exit code.

    If a run fails, the runs that start from it are skipped. The code is that of a run that a signal
    stopped, or else that of the first run that failed. `on_finished` is called after each success.
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
    """Execute one run; return its exit code, or None at the end of the budget."""
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
