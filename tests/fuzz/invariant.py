"""Invariant of all inputs: a command succeeds, or rejects its input in one line."""

import io
import os
import re
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import NamedTuple
from unittest import mock

import torch
from lightning.pytorch.utilities.exceptions import MisconfigurationException

FOREIGN_ERROR = -1  # exit code of an error that keeps its traceback
SECONDS = 120.0  # a longer command counts as a hang; its CPU time has a limit of its own
LONGEST = 500  # characters of a message

# Content of each file. None is a directory, a string is the target of a symbolic link.
Files = dict[str, bytes | str | None]


@dataclass(frozen=True)
class Case:
    """Command with its input files.

    Args:
        argv: Arguments of `fourfold`; relative paths refer to `files`.
        files: Files in the working directory of the command.
        stdin: Standard input.
        names: If the command rejects its input, the message contains one of these strings.
        env: Environment variables; each value is a path in the working directory.
        refused: The command must reject its input, because its result would change in silence.
    """

    argv: tuple[str, ...]
    files: Files = field(default_factory=dict)
    stdin: bytes = b""
    names: tuple[str, ...] = ()
    env: dict[str, str] = field(default_factory=dict)
    refused: bool = False

    def __repr__(self) -> str:
        files = {k: v[:200] if isinstance(v, bytes) else v for k, v in self.files.items()}
        said = [f"fourfold {' '.join(self.argv)!r:.1500}"]
        said += [f"  {name!r}: {content!r}" for name, content in files.items()]
        return "\n".join([*said, f"  stdin: {self.stdin[:200]!r}" if self.stdin else ""])


class Outcome(NamedTuple):
    """Exit code and message of a command, the violations of the invariant, and its costs.

    `seconds` is the time of the CPU, which does not depend on other processes. `n_bytes` is the
    memory of the process at its peak during the command, minus the memory before.
    """

    code: int | None
    error: str
    faults: list[str]
    seconds: float = 0.0
    n_bytes: int = 0


class Hang(BaseException):
    """Raised if a command exceeds its time limit."""


def write(folder: Path, files: Files) -> None:
    """Create the files of a case."""
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if content is None:
            path.mkdir(exist_ok=True)
        elif isinstance(content, str):
            path.symlink_to(content)
        else:
            path.write_bytes(content)


def snapshot(folder: Path) -> dict[str, int]:
    """Return a hash of the content of every path below a folder."""
    found = {}
    for parent, folders, files in os.walk(folder):
        found |= {os.path.join(parent, name): 0 for name in folders}
        for name in files:
            path = os.path.join(parent, name)
            found[path] = 0 if os.path.islink(path) else hash(Path(path).read_bytes())
    return found


@contextmanager
def limited(seconds: float) -> Iterator[None]:
    def stop(number: int, frame: FrameType | None) -> None:
        raise Hang(f"more than {seconds:g} seconds")

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@contextmanager
def descriptors() -> Iterator[Callable[[], str]]:
    """Context that redirects the descriptors 1 and 2, past sys.stdout and sys.stderr.

    A panic of Rust and other libraries write there. The function that it yields returns the text.
    """
    kept = [os.dup(number) for number in (1, 2)]
    with tempfile.TemporaryFile() as file:
        for number in (1, 2):
            os.dup2(file.fileno(), number)
        try:
            yield lambda: os.pread(file.fileno(), 1 << 16, 0).decode(errors="replace")
        finally:
            for number, descriptor in zip((1, 2), kept, strict=True):
                os.dup2(descriptor, number)
                os.close(descriptor)


def call(argv: tuple[str, ...], stdin: bytes = b"") -> tuple[int | None, str, str, str]:
    """Return exit code, output, error output and traceback (empty without one) of a command.

    The error output includes what was written to the descriptors themselves.
    """
    from fourfold.cli import main

    out = io.TextIOWrapper(io.BytesIO(), encoding="utf-8")
    err = io.TextIOWrapper(io.BytesIO(), encoding="utf-8", errors="backslashreplace")
    code, escaped = None, ""
    streams = {"stdin": io.TextIOWrapper(io.BytesIO(stdin)), "stdout": out, "stderr": err}
    with mock.patch.multiple(sys, **streams), descriptors() as written:
        try:
            with limited(SECONDS):
                code = main(argv)
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # a panic of Rust is not an Exception
            if keeps_its_traceback(error):
                return FOREIGN_ERROR, "", f"{type(error).__name__}: {error}", ""
            escaped = "\n".join(line[:300] for line in traceback.format_exc(limit=-8).splitlines())
        for stream in (out, err):
            stream.flush()
        err.write(written())
        err.flush()
    texts = [stream.detach().getvalue().decode() for stream in (out, err)]  # type: ignore[attr-defined]
    return code, *texts, escaped


def keeps_its_traceback(error: BaseException) -> bool:
    """Return True for errors that are neither InputErrors nor faults of fourfold.

    Lightning rejects arguments of the Trainer itself, and the machine may lack memory or a file.
    """
    if isinstance(error, MisconfigurationException | OSError | MemoryError):
        return True
    if re.search(r"allocate memory|not enough memory|Storage size calculation", str(error)):
        return True
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    return frames[-1].f_globals.get("__name__", "").startswith("lightning.")


def sentence_faults(err: str, names: tuple[str, ...], begin: str = "error") -> list[str]:
    """Return the violations of the message style in an error message."""
    lines = [line for line in err.splitlines() if line.strip()]
    if len(lines) != 1 or not lines[0].startswith(f"fourfold: {begin}: "):
        return [f"{len(lines)} lines of errors instead of one: {err[-600:]!r}"]
    said = lines[0].removeprefix(f"fourfold: {begin}: ")
    faults = []
    if len(said) > LONGEST:
        faults.append(f"a message of {len(said)} characters: {said[:900]}")
    # jsonargparse's own messages name the types that it expects.
    ours = said
    if re.search("Expected an? |Given value: |Got value: |Unable to load config", said):
        ours = re.sub(r"<class '[\w.]+('>|$)", "", said)
    if found := re.search(r"Traceback|\b[A-Z]\w*(Error|Exception)\b|<class '|object at 0x", ours):
        faults.append(f"{found[0]!r} belongs to Python, not to a message: {said[:600]}")
    if names and not any(name in said for name in names):
        faults.append(f"none of {names} is named: {said[:600]}")
    return faults


def status(name: str) -> int:
    """Return a value in bytes of /proc/self/status, such as VmRSS."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{name}:"))


def reset_peak() -> int:
    """Set the peak memory of this process to its current memory, and return it in bytes."""
    Path("/proc/self/clear_refs").write_text("5")
    return status("VmRSS")


def run(case: Case, folder: Path) -> Outcome:
    """Run a case in a temporary directory."""
    folder.mkdir()
    write(folder, case.files)
    before, here = snapshot(folder), Path.cwd()
    env: Mapping[str, str] = {name: str(folder / path) for name, path in case.env.items()}
    os.chdir(folder)
    begin, memory = time.process_time(), reset_peak()
    try:
        with mock.patch.dict(os.environ, env):
            code, out, err, escaped = call(case.argv, case.stdin)
    finally:
        seconds, n_bytes = time.process_time() - begin, status("VmHWM") - memory
        moved = Path.cwd() != folder
        os.chdir(here)
    after = snapshot(folder)
    shutil.rmtree(folder)
    faults = ["the working directory has changed"] * moved
    if escaped:
        faults.append(escaped)
    elif code == 2:
        is_help = (
            len(case.argv) < 2 and out and not err
        )  # a command without arguments prints its help
        faults += [] if is_help else sentence_faults(err, case.names)
    elif code == 1:  # a loss was not finite
        faults += sentence_faults(err, (), "stopped")
    elif code not in (0, FOREIGN_ERROR):
        faults.append(f"ended with {code}: {err[-600:]}")
    if case.refused and code != 2:
        faults.append(f"is not refused, but ends with {code}: {err[-300:]}")
    if re.search(r"panicked at|stack backtrace", err):
        faults.append(f"lines of a panic: {err[:300]}")
    new = {path for path in after if before.get(path) != after[path]} | before.keys() - after.keys()
    left = sorted(os.path.relpath(path, folder) for path in new)
    if code in (0, 1, FOREIGN_ERROR):  # these files must not remain
        left = [path for path in left if re.search(r"\.part\b|pwned", path)]
    if left and not escaped:
        faults.append(f"left behind or changed: {left[:8]}")
    if torch.get_default_dtype() != torch.float32 or not torch.is_grad_enabled():
        faults.append("torch was left in another state")
        torch.set_default_dtype(torch.float32)
        torch.set_grad_enabled(True)
    return Outcome(code, err.strip(), faults, seconds, n_bytes)
