"""Subprocesses that run `fourfold fit` and `fourfold test`, with signals and locks.

Each command runs in its own subprocess, so that no memory, random state or compiled code of one
training affects the next one. A training that continues after its parent process has ended keeps
the lock of its run directory. `wait_until_unlocked` waits for the end of such a training.
"""

import math
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from threading import Timer, current_thread, main_thread
from typing import Any

from fourfold.commands.run_directory import RunDirectory

SIGKILL = 9  # a number, as below, since Windows lacks some of the names
STOPS = {75, 128 + 1, 128 + 2, 128 + 15}  # of `StopOnSignal`; SIGHUP, SIGINT, SIGTERM
GRACE_SECONDS = 5.0  # time for a child to end after Ctrl-C, which the terminal sends to it, too
POLL_SECONDS = 0.2  # interval between two attempts to get a lock

_children: "set[subprocess.Popen[bytes]]" = set()  # running subprocesses of all threads
_received: list[int] = []  # signals that stop them


@contextmanager
def forwarded_signals() -> Iterator[None]:
    """Context of the main thread in which SIGTERM and Ctrl-C stop the subprocesses of all threads.

    The subprocesses save a checkpoint and end, also those that are started after the signal.
    """

    def stop() -> None:
        for child in tuple(_children):
            child.terminate()

    def handle(number: int, frame: object) -> None:
        _received.append(number)
        timer = Timer(GRACE_SECONDS if number == signal.SIGINT else 0.0, stop)
        timer.daemon = True
        timer.start()

    previous = {n: signal.signal(n, handle) for n in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
        _received.clear()


def run(
    command: str,
    options: Sequence[str],
    environment: dict[str, str],
    limit: float | None = None,
    log: Path | None = None,
) -> int:
    """Run `fourfold COMMAND OPTIONS` in a subprocess and return its exit code.

    The code is 128 plus the number of a signal that ended the subprocess. If this process receives
    SIGTERM or SIGINT, the code satisfies `is_stop`, even if the subprocess finishes normally. In
    another thread than the main thread, the caller provides the context `forwarded_signals`.

    Args:
        command: Name of the command, fit or test.
        options: Command-line options of the command.
        environment: Environment variables of the subprocess.
        limit: Seconds after which the subprocess receives SIGTERM; None means no limit.
        log: File to which the output is appended; None means the output of this process.
    """
    with ExitStack() as stack:
        if current_thread() is main_thread():
            stack.enter_context(forwarded_signals())
        output: Any = stack.enter_context(log.open("ab")) if log else None
        call = [sys.executable, "-m", "fourfold", command, *options]
        child = subprocess.Popen(call, env=environment, stdout=output, stderr=output)
        _children.add(child)
        if _received:
            child.terminate()
        code = _wait(child, limit)
        _children.discard(child)
        # Report a stop even if the child finished normally, so that the next command does not start
        return code if not _received or is_stop(code) else 128 + _received[0]


def _wait(child: "subprocess.Popen[bytes]", limit: float | None) -> int:
    """Wait for a subprocess, which gets SIGTERM after `limit` seconds, and return its exit code."""
    try:
        code = child.wait(limit)
    except subprocess.TimeoutExpired:
        child.terminate()
        code = child.wait()
    return code if code >= 0 else 128 - code  # the convention of shells


def is_stop(code: int) -> bool:
    """Return True for the exit code of a run that was stopped by SIGINT, SIGTERM or SIGHUP."""
    return code in STOPS


def describe_exit(code: int) -> str:
    """Describe the exit code of a failed run by a phrase, such as "failed with exit code 2"."""
    if code <= 128:
        return f"failed with exit code {code}"
    hint = ", possibly for lack of memory" if code - 128 == SIGKILL else ""
    return f"was killed by signal {code - 128}{hint}"


def wait_until_unlocked(folder: Path, limit: float | None = None) -> None:
    """Wait until no training process holds the lock of a run directory, which need not exist.

    Raises:
        TimeoutError: Another process held the lock for `limit` seconds.
    """
    run_directory = RunDirectory(folder)
    end = time.monotonic() + (math.inf if limit is None else limit)
    if run_directory.is_locked():
        print(f"{folder}: waiting for another process that trains there", file=sys.stderr)
    while run_directory.is_locked() and not _received:
        if time.monotonic() >= end:
            raise TimeoutError(f"{folder} is still locked by another training process")
        time.sleep(POLL_SECONDS)
