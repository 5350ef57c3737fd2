"""Invariant of all inputs: a command succeeds, or rejects its input in one line."""

import io
import os
import re
import shutil
import signal
import sys
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import NamedTuple
from unittest import mock

import torch
from lightning.pytorch.utilities.exceptions import MisconfigurationException

FOREIGN_ERROR = -1  # in place of an exit code: the error keeps its traceback
SECONDS = 30.0  # more than this is a hang
LONGEST = 500  # characters of a sentence

# A file's content; None is a directory, a text the target of a link.
Files = dict[str, bytes | str | None]


@dataclass(frozen=True)
class Case:
    """A command with the files that it finds.

    Args:
        argv: Of `fourfold`; relative paths are among `files`.
        files: What lies in the directory that it runs in.
        stdin: What it reads.
        names: One of these has to stand in the sentence, if it is refused; none means any.
        env: Environment variables; a value is a path in that directory.
    """

    argv: tuple[str, ...]
    files: Files = field(default_factory=dict)
    stdin: bytes = b""
    names: tuple[str, ...] = ()
    env: dict[str, str] = field(default_factory=dict)

    def __repr__(self) -> str:
        files = {k: v[:200] if isinstance(v, bytes) else v for k, v in self.files.items()}
        said = [f"fourfold {' '.join(self.argv)!r:.1500}"]
        said += [f"  {name!r}: {content!r}" for name, content in files.items()]
        return "\n".join([*said, f"  stdin: {self.stdin[:200]!r}" if self.stdin else ""])


class Outcome(NamedTuple):
    """How a command ended, and what is wrong with that (nothing, if all is well)."""

    code: int | None
    error: str
    faults: list[str]


class Hang(BaseException):
    """A command takes too long."""


def write(folder: Path, files: Files) -> None:
    """Make the files of a case."""
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
    """Every path below a folder, and what is in it."""
    found = {}
    for place, folders, files in os.walk(folder):
        found |= {os.path.join(place, name): 0 for name in folders}
        for name in files:
            path = os.path.join(place, name)
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


def call(argv: tuple[str, ...], stdin: bytes = b"") -> tuple[int | None, str, str, str]:
    """Code, output, errors and traceback (empty, unless something escaped) of a command."""
    from fourfold.cli import main

    out = io.TextIOWrapper(io.BytesIO(), encoding="utf-8")
    err = io.TextIOWrapper(io.BytesIO(), encoding="utf-8", errors="backslashreplace")
    code, escaped = None, ""
    streams = {"stdin": io.TextIOWrapper(io.BytesIO(stdin)), "stdout": out, "stderr": err}
    with mock.patch.multiple(sys, **streams):
        try:
            with limited(SECONDS):
                code = main(argv)
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # a panic of Rust is not an Exception
            if keeps_its_traceback(error):
                return FOREIGN_ERROR, "", "", ""
            escaped = "\n".join(line[:300] for line in traceback.format_exc(limit=-8).splitlines())
        for stream in (out, err):
            stream.flush()
    texts = [stream.detach().getvalue().decode() for stream in (out, err)]  # type: ignore[attr-defined]
    return code, *texts, escaped


def keeps_its_traceback(error: BaseException) -> bool:
    """Return True for errors that are not InputErrors and still no fault of fourfold.

    Lightning rejects arguments of the Trainer itself, and the machine may lack memory or a file.
    """
    if isinstance(error, MisconfigurationException | OSError | MemoryError):
        return True
    if re.search(r"allocate memory|not enough memory|Storage size calculation", str(error)):
        return True
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    return frames[-1].f_globals.get("__name__", "").startswith("lightning.")


def sentence_faults(err: str, names: tuple[str, ...], begin: str = "error") -> list[str]:
    """What is wrong with the words of a refusal."""
    lines = [line for line in err.splitlines() if line.strip()]
    if len(lines) != 1 or not lines[0].startswith(f"fourfold: {begin}: "):
        return [f"{len(lines)} lines of errors in place of one: {err[-600:]!r}"]
    said = lines[0].removeprefix(f"fourfold: {begin}: ")
    faults = []
    if len(said) > LONGEST:
        faults.append(f"a sentence of {len(said)} characters: {said[:900]}")
    if found := re.search(r"Traceback|\b[A-Z]\w*(Error|Exception)\b|<class '|object at 0x", said):
        faults.append(f"{found[0]!r} is no plain language: {said[:600]}")
    if names and not any(name in said for name in names):
        faults.append(f"none of {names} is named: {said[:600]}")
    return faults


def run(case: Case, folder: Path) -> Outcome:
    """Run a case in a directory of its own, which is removed again."""
    folder.mkdir()
    write(folder, case.files)
    before, here = snapshot(folder), Path.cwd()
    env: Mapping[str, str] = {name: str(folder / path) for name, path in case.env.items()}
    os.chdir(folder)
    try:
        with mock.patch.dict(os.environ, env):
            code, out, err, escaped = call(case.argv, case.stdin)
    finally:
        moved = Path.cwd() != folder
        os.chdir(here)
    after = snapshot(folder)
    shutil.rmtree(folder)
    faults = ["the working directory has changed"] * moved
    if escaped:
        faults.append(escaped)
    elif code == 2:
        is_help = len(case.argv) < 2 and out and not err  # of a command without arguments
        faults += [] if is_help else sentence_faults(err, case.names)
    elif code == 1:  # a loss that is no number, which is kept for `replay`
        faults += sentence_faults(err, (), "stopped")
    elif code not in (0, FOREIGN_ERROR):
        faults.append(f"ended with {code}: {err[-600:]}")
    new = {path for path in after if before.get(path) != after[path]} | before.keys() - after.keys()
    left = sorted(os.path.relpath(path, folder) for path in new)
    if code in (0, 1, FOREIGN_ERROR):  # what is never left, whatever happens
        left = [path for path in left if re.search(r"\.part\b|pwned", path)]
    if left and not escaped:
        faults.append(f"left behind or changed: {left[:8]}")
    if torch.get_default_dtype() != torch.float32 or not torch.is_grad_enabled():
        faults.append("torch was left in another state")
        torch.set_default_dtype(torch.float32)
        torch.set_grad_enabled(True)
    return Outcome(code, err.strip(), faults)
