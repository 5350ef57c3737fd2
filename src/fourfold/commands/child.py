"""`fourfold fit` and `test` as processes of their own: nothing of one is left for the next.

A signal goes on to the child, which saves and ends; one that outlives a killed parent keeps its
lock on the run directory, and whoever comes next waits for it rather than training beside it.
"""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

PATIENCE = 5.0  # seconds for a child to end on the Ctrl-C that it got from the terminal, too


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
    before = signal.signal(signal.SIGTERM, lambda number, frame: child.send_signal(number))
    try:
        return child.wait(limit)
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
def locked(folder: Path) -> Iterator[int]:
    """A lock on a run directory, to be passed on to the child; waits for one that is held.

    It lies beside the directory, which the training makes, and takes away if it comes to nothing.
    """
    import fcntl

    folder.parent.mkdir(parents=True, exist_ok=True)
    handle = os.open(folder.with_name(f".{folder.name}.lock"), os.O_RDWR | os.O_CREAT)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            print(f"{folder}: another process is at it; waiting", file=sys.stderr, flush=True)
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield handle
    finally:
        os.close(handle)
