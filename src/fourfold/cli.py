"""Entry point of `fourfold`: find the command, run it, print input errors in one line.

Torch and Lightning are imported by the commands that need them, so that `--help`, `--version` and
the error for a misspelt command appear without delay.
"""

import atexit
import gc
import os
import re
import sys
import traceback
import warnings
from collections.abc import Callable, Sequence
from contextlib import suppress
from difflib import get_close_matches
from importlib import import_module
from pathlib import Path

from fourfold import __version__
from fourfold.atomic_files import disk_error
from fourfold.errors import InputError, TrainingStopped

# Exit codes.
STOPPED = 1
INVALID_INPUT = 2  # also the exit code of argparse
INTERRUPTED = 130
BROKEN_PIPE = 141

MAX_MESSAGE = 450  # characters of an error message; quoted lines of data may be long

# Help of the commands whose parsers need torch, which is slow to import.
HELP_FILES = {name: name for name in ("fit", "plan", "tune")}
HELP_FILES |= dict.fromkeys(("validate", "test", "predict"), "evaluation")

# Modules that run several commands. Their `main` gets the command as the first argument.
TRAIN = "commands.train.main"
INFER = "commands.infer.main"
CONVERT = "commands.convert"
SWEEP = "commands.sweep"
# Command: the module whose `main(argv)` runs it, and the description in `fourfold --help`.
COMMANDS = {
    "fit": (TRAIN, "train a model; resumes after an interruption"),
    "validate": (TRAIN, "evaluate a checkpoint on the validation split"),
    "test": (TRAIN, "evaluate a checkpoint on the test split: a table and metrics.json"),
    "predict": (TRAIN, "write the model's outputs for the test split to a file"),
    "tune": (TRAIN, "learning-rate range test, or search for the largest batch size"),
    "sweep": (SWEEP, "fit and test a grid of options with several seeds: table and picture"),
    "seeds": (SWEEP, "`sweep` without a grid (until version 0.4)"),
    "recipes": ("commands.packaged_recipes", "list the recipes of the package"),
    "course": ("commands.course.notebooks", "write the pages of the course as notebooks"),
    "plan": ("commands.plan", "parameters, FLOPs and memory of a recipe, before running it"),
    "reproduce": ("reproduce.command", "a published table with our numbers beside the paper's"),
    "diff": ("reproduce.recipe_cards.diff_command", "differences between recipes"),
    "translate": (INFER, "translate one sentence per line of standard input"),
    "generate": (INFER, "continue one prompt per line"),
    "fill": (INFER, "fill [MASK] or <mask> in each line"),
    "classify": (INFER, "classify one image file or one sentence per line"),
    "caption": (INFER, "describe one image file per line"),
    "score": (INFER, "log-probability of one text per line"),
    "evaluate": (INFER, "accuracy on minimal pairs (BLiMP, Zorro), LAMBADA or GLUE"),
    "ablate": ("commands.infer.ablate", "change of the loss without each head or sub-layer"),
    "look": ("commands.look", "one HTML file with the attention of a checkpoint"),
    "learn": ("commands.course.exercises", "exercises of the course that check themselves"),
    "import": (CONVERT, "write a checkpoint from a directory of transformers"),
    "export": (CONVERT, "write a directory of transformers from a checkpoint"),
    "push": (CONVERT, "export a model and upload it to the Hugging Face hub"),
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line `fourfold COMMAND ...` and return its exit code.

    The current directory becomes importable, as with `python -m`, so that configs can name classes
    of the user's own modules. Warnings are printed in one line, without the line of the code.

    Args:
        argv: Arguments without the program's name; None means `sys.argv[1:]`.
    """
    if "" not in sys.path and os.getcwd() not in sys.path and not sys.flags.safe_path:
        sys.path.append(os.getcwd())
    warnings.formatwarning = _one_line_warning
    # Of torch, about files whose tensors are rejected later.
    warnings.filterwarnings("ignore", "Validating sparse tensor|Detected pickle protocol")
    return run_main(_run, sys.argv[1:] if argv is None else argv)


def run_main(command: Callable[[list[str]], int], argv: Sequence[str]) -> int:
    """Run a command and return its exit code; invalid input is reported in one line on stderr.

    The exit code is 2 for an InputError, 1 for a TrainingStopped (for example after a NaN loss),
    130 for Ctrl-C, 141 for a broken output pipe, and the code of the exception for a SystemExit
    or DiskError. Other exceptions are not caught. The traceback of an error in one line is printed
    only if `--traceback` is among the arguments or the environment variable FOURFOLD_DEBUG is 1.

    Args:
        command: Function that takes the arguments and returns an exit code.
        argv: Command-line arguments without the program's name. `--traceback` is not passed on to
            `command`.
    """
    arguments = [argument for argument in argv if argument != "--traceback"]
    shows_traceback = len(arguments) < len(argv) or os.environ.get("FOURFOLD_DEBUG") == "1"
    try:
        return command(arguments)
    except SystemExit as exit:  # from the help of argparse and jsonargparse, or a signal handler
        return exit.code if isinstance(exit.code, int) else int(exit.code is not None)
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:  # the reader of a pipe such as `fourfold translate ... | head` ended
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return BROKEN_PIPE
    except (InputError, TrainingStopped, OSError) as error:
        problem = disk_error(error) if isinstance(error, OSError) else error
        if problem is None:
            raise
        if shows_traceback:
            traceback.print_exc()
        is_stop = isinstance(problem, TrainingStopped)
        text = f"fourfold: {'stopped' if is_stop else 'error'}: {one_line_message(problem)}"
        with suppress(OSError):  # the disk of the log file may be full, too
            print(text, file=sys.stderr, flush=True)
        for stream in (sys.stdout, sys.stderr):
            try:
                stream.flush()
            except OSError:  # Python would exit with code 120
                os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
        return STOPPED if is_stop else getattr(problem, "exit_code", INVALID_INPUT)


def _help_text(name: str) -> str:
    return (Path(__file__).parent / "commands/help" / f"{name}.txt").read_text("utf-8").rstrip()


def _run(argv: list[str]) -> int:
    command, *arguments = argv or ["--help"]
    if command in ("-h", "--help", "help"):
        lines = [f"  {name:<11}{description}" for name, (_, description) in COMMANDS.items()]
        print(_help_text("overview").format(version=__version__, commands="\n".join(lines)))
        return 0 if argv else INVALID_INPUT
    if command in ("-V", "--version"):
        print(f"fourfold {__version__}")
        return 0
    if command not in COMMANDS:
        close = get_close_matches(command, COMMANDS, n=1)
        hint = f"did you mean {close[0]!r}?" if close else "`fourfold --help` lists the commands"
        raise InputError(f"is not a command; {hint}", option=repr(command))
    if command in HELP_FILES and arguments in (["-h"], ["--help"]):
        print(_help_text(HELP_FILES[command]).replace("COMMAND", command))
        return 0
    name, _ = COMMANDS[command]
    if command == "predict" and "--input" in (option.partition("=")[0] for option in arguments):
        name = "commands.infer.predict_table"
    module = import_module(f"fourfold.{name}")
    # Exclude the imported modules from garbage collection, which would traverse them repeatedly.
    gc.freeze()
    atexit.register(gc.unfreeze)  # triton reports objects that are frozen at exit as leaks
    return int(module.main(argv if name in (TRAIN, INFER, CONVERT, SWEEP) else arguments))


def _one_line_warning(message: Warning | str, *_: object, **__: object) -> str:
    return f"fourfold: warning: {' '.join(str(message).split())}\n"


def one_line_message(error: Exception) -> str:
    """Return the message of an error as one line, without the middle part if it is long."""
    text = str(error)
    if "Original Traceback" in text:  # of a worker process of a DataLoader
        text = re.split("(?:InputError|DiskError): ", text)[-1]
    text = re.sub(r"[\x00-\x1f\x7f-\x9f]", lambda m: ascii(m[0])[1:-1], " ".join(text.split()))
    return text if len(text) <= MAX_MESSAGE else f"{text[:300]} ... {text[-100:]}"
