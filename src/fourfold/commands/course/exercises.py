"""Write the exercises of the course as files, and check one of them, or list the state of all.

A file that exists is never replaced. With NAME, the exit code is 0 only if it is solved.
"""

import re
import runpy
import time
from collections.abc import Sequence
from pathlib import Path

from fourfold.atomic_files import write_atomically
from fourfold.commands.course.notebooks import COURSE
from fourfold.commands.option_parser import OptionParser
from fourfold.errors import InputError
from fourfold.learn import WrongSolution, check
from fourfold.learn.exercises import EXERCISES


def main(argv: Sequence[str]) -> int:
    """Write the files that are missing, check one or all, and return the exit code."""
    parser = OptionParser(prog="fourfold learn", description=__doc__)
    add = parser.add_argument
    add("name", nargs="?", metavar="NAME", choices=[*EXERCISES], help="exercise, such as heads")
    add("--dir", type=Path, default="exercises", help="folder of the files (%(default)s)")
    add("--watch", action="store_true", help="check again after each change, until it is solved")
    options = parser.parse_args(list(argv))
    if options.dir.is_file():
        raise InputError("must be a folder, got a file", option="--dir")
    options.dir.mkdir(parents=True, exist_ok=True)
    files = [options.dir / f"{name}.py" for name in EXERCISES]
    for file in files:
        if not file.exists():
            write_atomically(file, _stub(file.name))
    files = [file for file in files if options.name in (None, file.stem)]
    while True:
        written = _written(files)
        solved = [_is_solved(file) for file in files]
        if all(solved) or not options.watch:
            return int(options.name is not None and not all(solved))
        while _written(files) == written:
            time.sleep(0.2)


def _is_solved(file: Path) -> bool:
    """Check the solution in a file, and print the result in one line."""
    (function,) = re.findall(r"^def (\w+)", _stub(file.name), re.MULTILINE)
    try:
        check(file.stem, runpy.run_path(str(file))[function])
        return True
    except WrongSolution as error:
        print(error, flush=True)
    except Exception as error:  # the code of the reader
        print(f"{file.stem}: {file} raises {type(error).__name__}: {error}", flush=True)
    return False


def _written(files: list[Path]) -> list[int]:
    """Return the times of the last changes."""
    return [file.stat().st_mtime_ns if file.exists() else 0 for file in files]


def _stub(name: str) -> str:
    """Return the content of a file before the exercise is solved."""
    return (COURSE / "exercises" / name).read_text("utf-8")
