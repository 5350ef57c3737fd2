"""The command line's door: finds the command, and turns what went wrong into one sentence.

Nothing heavy is imported here, so that help, version and a misspelt command answer at once; torch
and Lightning are imported by the command that needs them.
"""

import os
import re
import sys
from collections.abc import Callable, Sequence
from difflib import get_close_matches

from fourfold import __version__
from fourfold.commands.overview import OVERVIEWS, overview
from fourfold.commands.quick_import import import_quickly
from fourfold.core.errors import InputError, TrainingStopped

FAILED = 1
BAD_INPUT = 2  # the exit code of argparse, too
LONGEST = 450  # characters of a sentence

# Command: the module whose `main(argv)` runs it.
COMMANDS = {
    "fit": "fourfold.commands.training",
    "validate": "fourfold.commands.training",
    "test": "fourfold.commands.training",
    "predict": "fourfold.commands.training",
    "translate": "fourfold.commands.inference",
    "generate": "fourfold.commands.inference",
    "fill": "fourfold.commands.inference",
    "classify": "fourfold.commands.inference",
    "import": "fourfold.commands.convert",
    "export": "fourfold.commands.convert",
    "seeds": "fourfold.commands.seeds",
    "plan": "fourfold.commands.plan",
    "replay": "fourfold.commands.replay",
    "bench": "fourfold.commands.bench",
    "reproduce": "fourfold.commands.reproduce",
    "diff": "fourfold.commands.diff",
    "completion": "fourfold.commands.completion",
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run `fourfold` with arguments `argv` (without the program's name); return the exit code."""
    argv = list(sys.argv[1:] if argv is None else argv)
    try:
        return _run(argv)
    except InputError as error:
        print(f"fourfold: error: {plain_sentence(error)}", file=sys.stderr)
        return BAD_INPUT
    except TrainingStopped as stop:
        print(f"fourfold: stopped: {stop}", file=sys.stderr)
        return FAILED
    except SystemExit as stop:  # help of argparse and jsonargparse, or a signal
        return stop.code if isinstance(stop.code, int) else int(stop.code is not None)
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # `fourfold translate ... | head` has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except OSError as error:  # a path that is too long or forbidden, a disk that is full
        if error.filename is None:
            raise
        print(f"fourfold: error: {error.filename}: {error.strerror}", file=sys.stderr)
        return BAD_INPUT


def _run(argv: list[str]) -> int:
    if not argv or argv[0] in ("-h", "--help", "help"):
        print(overview())
        return 0 if argv else BAD_INPUT
    if argv[0] in ("-V", "--version"):
        print(f"fourfold {__version__}")
        return 0
    command, rest = argv[0], argv[1:]
    if command not in COMMANDS:
        raise InputError(f"there is no command {command!r}{_did_you_mean(command)}")
    if command in OVERVIEWS and rest in (["-h"], ["--help"]):
        print(OVERVIEWS[command])
        return 0
    module = import_quickly(COMMANDS[command])
    # These modules run several commands, and are told which.
    shared = list(COMMANDS.values()).count(COMMANDS[command]) > 1
    run: Callable[[list[str]], int | None] = module.main
    return run(argv if shared else rest) or 0


def _did_you_mean(word: str) -> str:
    close = get_close_matches(word, COMMANDS, n=1)
    return f"; did you mean {close[0]!r}?" if close else "; `fourfold --help` lists them"


def plain_sentence(error: Exception) -> str:
    """What an error says, on one line, without the traceback that a data worker wraps around it."""
    text = str(error)
    if "Original Traceback" in text:
        text = text.rsplit("InputError: ", 1)[-1]
    text = " ".join(text.split())
    text = re.sub(r"(\S{100})\S{60,}(\S{40})", r"\1...\2", text)  # of a word, what one looks for
    if choice := re.search(r" is '([^']+)', but must be one of ([^;]+)$", text):
        close = get_close_matches(choice[1], choice[2].split(", "), n=1)
        text += f"; did you mean {close[0]}?" if close else ""
    # A line of data that is quoted may be a page.
    return text if len(text) <= LONGEST else f"{text[:300]} ... {text[-100:]}"
