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
    """Run `fourfold VERB OPTIONS`; its exit code, 128 and more if a signal ended it.

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
        code = _end(child, limit)
    except KeyboardInterrupt:
        told.append(signal.SIGINT)
        code = _end(child, PATIENCE)
    finally:
        signal.signal(signal.SIGTERM, before)
    # Whatever it made of the signal, or were it at its end: what follows is not to begin.
    return code if not told or is_stop(code) else 128 + told[0]


def _end(child: "subprocess.Popen[bytes]", limit: float | None) -> int:
    """The exit code of a process that is told to end after some seconds, if it has not."""
    try:
        code = child.wait(limit)
    except subprocess.TimeoutExpired:
        child.terminate()
        code = child.wait()
    return code if code >= 0 else 128 - code  # as a shell says it


def is_stop(code: int) -> bool:
    """Whether an exit code is that of a run that was told to end, having saved or not."""
    told = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    return code == os.EX_TEMPFAIL or code - 128 in told


def says(code: int) -> str:
    """How a run failed, in words."""
    if code <= 128:
        return f"failed with exit code {code}"
    why = ", as for want of memory" if code - 128 == signal.SIGKILL else ""
    return f"was killed by signal {code - 128}{why}"


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
    try:
        import fcntl
    except ImportError:  # a system without it has no such locks
        return True
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
