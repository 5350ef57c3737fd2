"""`fourfold translate|generate|fill|classify`: a checkpoint, lines in, lines out.

The options are parsed before torch is imported, so that `--help` and mistakes answer at once.
"""

import re
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from difflib import get_close_matches
from io import TextIOWrapper
from math import inf, isfinite
from typing import Any, NoReturn

from fourfold.core.config import check_word
from fourfold.core.errors import InputError

# Verb: what it does.
VERBS = {
    "translate": "Translates one sentence a line.",
    "generate": "Continues one prompt a line.",
    "fill": "Fills [MASK] or <mask> in each line.",
    "classify": (
        "Prints path, class and probability of one image a line; of a text classifier class and"
        " probability (or the number) of one sentence a line, or of a pair with a tab between; of a"
        " tagger the tags of each word."
    ),
}
# Verb and task: the module that does it, and the class in it.
WORKERS = {
    "translate": {"Translation": ("translate", "Translate")},
    "generate": {"CausalLanguageModeling": ("generate", "Generate")},
    "fill": {"MaskedLanguageModeling": ("fill", "Fill")},
    "classify": {
        "ImageClassification": ("classify", "Classify"),
        "SequenceClassification": ("classify_text", "ClassifyText"),
        "TokenClassification": ("tag", "Tag"),
    },
}
BATCH = {"translate": 32, "generate": 32, "fill": 32, "classify": 64}
PENALTIES = ("gnmt", "power", "none")  # as of `generation`, which would load torch
PRECISIONS = ("32-true", "bf16-true", "16-true", "bf16-mixed", "16-mixed")

ABOUT = (
    "Reads standard input and writes one line for each line, in the same order; an empty line stays"
    " empty. Backslashes, tabs and line breaks inside an output are written \\\\, \\t and \\n."
)


class OptionParser(ArgumentParser):
    """argparse whose errors are one sentence."""

    def error(self, message: str) -> NoReturn:
        """Raise InputError, with what was probably meant."""
        words = [w.partition("=")[0] for w in message.split() if w.startswith("--")]
        known = list(self._option_string_actions)
        unknown = message.startswith("unrecognized")
        close = [
            m for word in words for m in get_close_matches(word, known, n=1, cutoff=0.75) if unknown
        ]
        raise InputError(message + (f"; did you mean {close[0]}?" if close else ""))


def make_parser(verb: str) -> ArgumentParser:
    """The options of a verb."""
    parser = OptionParser(
        prog=f"fourfold {verb}", description=VERBS[verb], epilog=ABOUT, allow_abbrev=False
    )
    add = parser.add_argument
    add("--checkpoint", required=True, metavar="PATH", help="checkpoint file or run directory")
    add("--batch-size", type=int, default=BATCH[verb], help="lines at a time (%(default)s)")
    add("--device", default="auto", help="auto, cpu, cuda or cuda:N (%(default)s)")
    add("--precision", default="32-true", choices=PRECISIONS, help="(%(default)s)")
    add("--truncate", action="store_true", help="cut lines that are too long for the model")
    if verb in ("translate", "generate"):
        add("--beam", type=int, help="width of the beam search; 1 is greedy")
        add("--length-penalty", type=float, metavar="ALPHA", help="exponent of the penalty")
        add("--penalty", help=f"of a beam's hypotheses: {', '.join(PENALTIES)}")
        add("--max-new", type=int, metavar="N", help="most tokens to write")
        add("--n-best", type=int, default=1, metavar="N", help="outputs a line, tabs between")
    if verb == "generate":
        add("--temperature", type=float, default=0.0, help="0 takes the likeliest token (default)")
        add("--top-k", type=int, metavar="K", help="draw among the K likeliest tokens")
        add("--top-p", type=float, metavar="P", help="draw among the likeliest that make up P")
        add("--seed", type=int, help="of the draws; without it they differ each time")
        add(
            "--document-start", action="store_true",
            help="the prompt begins a document: put the token before it that ends the last one",
        )  # fmt: skip
        add("--only-new", action="store_true", help="leave the prompt out of the output")
    elif verb != "translate":
        add("--top-k", type=int, default=1, metavar="K", help="alternatives, tabs between")
    return parser


def parse(verb: str, arguments: Sequence[str]) -> Namespace:
    """Options of a verb.

    Raises:
        InputError: An option is not known, or has a value that cannot be.
    """
    # --max_new is --max-new, since the options of fit have underscores.
    spelt = [re.sub(r"^--[\w-]+", lambda name: name[0].replace("_", "-"), a) for a in arguments]
    options = make_parser(verb).parse_args(spelt)
    for name in ("batch_size", "beam", "max_new", "n_best", "top_k"):
        value = getattr(options, name, None)
        if value is not None and value < 1:
            raise InputError(f"--{name.replace('_', '-')} is {value}, but must be at least 1")
    check_ranges(options)
    if verb == "generate" and options.n_best > (options.beam or 1) and not options.temperature:
        raise InputError("--n-best needs a --beam as wide, or a --temperature to draw with")
    if verb == "generate":
        _refuse_unheard(options)
    return options


def check_ranges(options: Namespace) -> None:
    """Values that generation itself would refuse, but only with the first line.

    Raises:
        InputError: Names the option.
    """
    said = vars(options)
    temperature, top_p, alpha = (said.get(n) for n in ("temperature", "top_p", "length_penalty"))
    if temperature is not None and not 0.0 <= temperature < inf:
        raise InputError(f"--temperature is {temperature}, but must be 0 or more")
    if top_p is not None and not 0.0 < top_p <= 1.0:
        raise InputError(f"--top-p is {top_p}, but must lie in (0, 1]")
    if said.get("penalty") is not None:
        check_word("--penalty", options.penalty, PENALTIES)
    if alpha is not None and not isfinite(alpha):
        raise InputError(f"--length-penalty is {alpha}, but must be a finite number")
    if said.get("beam") is not None and options.beam > 1 and options.n_best > options.beam:
        raise InputError(f"--n-best is {options.n_best}, more than the --beam of {options.beam}")


def _refuse_unheard(options: Namespace) -> None:
    """Raise InputError for options of `generate` that another one would make idle."""
    beams = (options.beam or 1) > 1
    if options.temperature and beams:
        raise InputError("--temperature draws and --beam searches: give one of them")
    for name in ("top_k", "top_p", "seed"):
        if getattr(options, name) is not None and not options.temperature:
            option = name.replace("_", "-")
            raise InputError(f"--{option} needs a --temperature to draw with, such as 1")
    for name in ("length_penalty", "penalty"):
        if getattr(options, name) is not None and not beams:
            raise InputError(f"--{name.replace('_', '-')} needs a --beam of 2 or more")


def main(argv: Sequence[str]) -> int:
    """Run a verb on standard input.

    Raises:
        InputError: An option, the checkpoint or a line is not what it should be.
    """
    verb = argv[0]
    options = parse(verb, argv[1:])
    run(verb, options)
    return 0


def run(verb: str, options: Namespace) -> None:
    """Load the checkpoint, then turn lines into lines."""
    from fourfold.commands.devices import autocast, choose_device, settle
    from fourfold.commands.lines import process, read_lines
    from fourfold.commands.run_directory import RunDirectory
    from fourfold.tasks import load_task

    path = RunDirectory.checkpoint_in(options.checkpoint)
    task = load_task(path, expect=tuple(WORKERS[verb]))
    device = choose_device(options.device)
    settle(task, device, options.precision)
    try:
        worker = make_verb(verb, task, options)
    except InputError as error:  # the checkpoint lacks what the verb needs
        raise InputError(f"{path}: {error}") from error
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(encoding="utf-8", newline="\n")  # whatever the locale says
    # Somebody who types wants each answer at once.
    ahead = 1 if sys.stdin.isatty() else options.batch_size * worker.batches_ahead
    with autocast(device, options.precision):
        lines = read_lines(sys.stdin.buffer)
        process(lines, worker.prepare, worker.run, sys.stdout, options.batch_size, ahead)


def make_verb(verb: str, task: Any, options: Namespace) -> Any:
    """The object that does the work."""
    from importlib import import_module

    names = [kind.__name__ for kind in type(task).__mro__]
    module, worker = next(WORKERS[verb][name] for name in names if name in WORKERS[verb])
    return getattr(import_module(f"fourfold.commands.verbs.{module}"), worker)(task, options)
