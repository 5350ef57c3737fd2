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
from collections.abc import Sequence
from pathlib import Path

from fourfold.commands.run_directory import RunDirectory

SIGKILL = 9  # a number, as below, since Windows lacks some of the names
STOPS = {75, 128 + 1, 128 + 2, 128 + 15}  # of `StopOnSignal`; SIGHUP, SIGINT, SIGTERM
GRACE_SECONDS = 5.0  # time for a child to end after Ctrl-C, which the terminal sends to it, too
POLL_SECONDS = 0.2  # interval between two attempts to get a lock


def run(
    command: str, options: Sequence[str], environment: dict[str, str], limit: float | None = None
) -> int:
    """Run `fourfold COMMAND OPTIONS` in a subprocess and return its exit code.

    SIGTERM is forwarded to the subprocess, which saves a checkpoint and ends. The code is 128 plus
    the number of a signal that ended the subprocess. If this process receives SIGTERM or SIGINT,
    the code satisfies `is_stop`, even if the subprocess finishes normally.

    Args:
        command: Name of the command, fit or test.
        options: Command-line options of the command.
        environment: Environment variables of the subprocess.
        limit: Seconds after which the subprocess receives SIGTERM; None means no limit.
    """
    child = subprocess.Popen([sys.executable, "-m", "fourfold", command, *options], env=environment)
    received: list[int] = []

    def forward(number: int, frame: object) -> None:
        received.append(number)
        child.send_signal(number)

    previous_handler = signal.signal(signal.SIGTERM, forward)
    try:
        code = _wait(child, limit)
    except KeyboardInterrupt:
        received.append(signal.SIGINT)
        code = _wait(child, GRACE_SECONDS)
    finally:
        signal.signal(signal.SIGTERM, previous_handler)
    # Report a stop even if the child finished normally, so that the next command does not start.
    return code if not received or is_stop(code) else 128 + received[0]


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
    while run_directory.is_locked():
        if time.monotonic() >= end:
            raise TimeoutError(f"{folder} is still locked by another training process")
        time.sleep(POLL_SECONDS)
