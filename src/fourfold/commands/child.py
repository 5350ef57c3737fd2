"""`fourfold fit` and `test` as processes of their own: nothing of one is left for the next.

A signal goes on to the child, which saves and ends; one that outlives a killed parent keeps its
lock on the run directory, and whoever comes next waits for it rather than training beside it.
"""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

PATIENCE = 5.0  # seconds for a child to end on the Ctrl-C that it got from the terminal, too
GLANCE = 0.2  # seconds between two looks at a lock that is held


def run(
    verb: str,
    options: Sequence[str],
    environment: dict[str, str],
    held: Sequence[int] = (),
    limit: float | None = None,
) -> int:
    """Run `fourfold VERB OPTIONS`; its exit code.

    Args:
        verb: fit or test.
        options: As on the command line.
        environment: Its variables.
        held: Files to be kept open in it, such as a lock.
        limit: Seconds after which it is told to save and end.
    """
    command = [sys.executable, "-m", "fourfold", verb, *options]
    child = subprocess.Popen(command, env=environment, pass_fds=held)
    told: list[int] = []

    def pass_on(number: int, frame: object) -> None:
        told.append(number)
        child.send_signal(number)

    before = signal.signal(signal.SIGTERM, pass_on)
    try:
        code = child.wait(limit)
        return code or (128 + told[0] if told else 0)  # it was at its end: what follows is not
    except subprocess.TimeoutExpired:
        child.terminate()
        return child.wait()
    except KeyboardInterrupt:
        try:
            return child.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            child.terminate()
            return child.wait()
    finally:
        signal.signal(signal.SIGTERM, before)


@contextmanager
def locked(folder: Path, limit: float | None = None) -> Iterator[int]:
    """A lock on a run directory, to be passed on to the child; waits for one that is held.

    It lies beside the directory, which the training makes, and takes away if it comes to nothing.

    Args:
        folder: The run directory.
        limit: Seconds to wait; None for no end.

    Raises:
        TimeoutError: Another process held it all that time.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    handle = os.open(folder.with_name(f".{folder.name}.lock"), os.O_RDWR | os.O_CREAT)
    try:
        if not _taken(handle):
            print(f"{folder}: another process is at it; waiting", file=sys.stderr, flush=True)
            end = None if limit is None else time.monotonic() + limit
            while not _taken(handle):
                if end is not None and time.monotonic() >= end:
                    raise TimeoutError(f"{folder} is still at work in another process")
                time.sleep(GLANCE)
        yield handle
    finally:
        os.close(handle)


def _taken(handle: int) -> bool:
    import fcntl  # not on every system, and not needed to read a table

    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
