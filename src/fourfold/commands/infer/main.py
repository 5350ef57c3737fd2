"""`fourfold translate`, `generate`, `fill`, `classify` and `caption`: options, and standard input.

Options are parsed before torch is imported, so that `--help` and error messages appear without
delay.
"""

import sys
from argparse import Namespace
from collections.abc import Sequence
from io import TextIOWrapper
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

from fourfold.commands.option_parser import OptionParser
from fourfold.core.precision import (
    AUTO,
    PRECISIONS,
    describe_bf16,
    resolve_precision,
    slow_precision,
)
from fourfold.core.validation import MAX_BEAMS, MAX_SIZE, check_positive
from fourfold.errors import InputError, errors_in

CHECKPOINT_HELP = (
    "checkpoint file, run directory, directory of transformers or timm, hf://owner/name"
)
DESCRIPTIONS = {
    "translate": "Translate one sentence per line.",
    "generate": "Continue one prompt per line.",
    "fill": "Fill [MASK] or <mask> in each line.",
    "classify": "Image classifiers: one path per line, answered by path, class and probability.\n"
    "Text classifiers: one sentence, a pair separated by a tab, or a document, answered by class\n"
    "and probability, or by the predicted value. Taggers: the tag of each word.",
    "caption": "Describe images: one path per line, answered by path and caption.",
}
EPILOG = """\
One line is written for each line of standard input, in the same order; an empty line stays empty.
Backslashes, tabs and line breaks in an output are written as \\\\, \\t and \\n, and other control
characters as \\x1b and so on."""

# Command and class of the task: module and class that process its lines.
PROCESSORS = {
    "translate": {"Translation": "translate:SentenceTranslator"},
    "generate": {"CausalLanguageModeling": "generate:PromptContinuer"},
    "fill": {"MaskedLanguageModeling": "fill_mask:MaskFiller"},
    "classify": {
        "ImageClassification": "classify:ImageClassifier",
        "DocumentClassification": "classify:DocumentClassifier",
        "SequenceClassification": "classify:TextClassifier",
        "TokenClassification": "classify:WordTagger",
    },
    "caption": {"Captioning": "caption:ImageCaptioner"},
}
# Largest values of options, whose memory grows with them.
MAXIMA = {
    "batch_size": 1 << 16,
    "beam": MAX_BEAMS,
    "max_new": 1 << 22,
    "n_best": 1 << 16,
    "top_k": MAX_SIZE,
}
# Classes of tasks that a command does not import, because its processor reads only the model.
TASKS_WITHOUT_LIGHTNING = {
    "generate": "fourfold.tasks.CausalLanguageModeling",
    "fill": "fourfold.tasks.MaskedLanguageModeling",
}
# Classes of the models of these tasks.
MODELS_WITHOUT_LIGHTNING = {"generate": "CausalLM", "fill": "MaskedLM"}
# Names in `fourfold.generation.LENGTH_PENALTIES`, whose import would load torch.
LENGTH_PENALTIES = ("gnmt", "power", "none")


def make_parser(command: str) -> OptionParser:
    """Return the parser of the options of an inference command, such as "translate"."""
    parser = OptionParser(
        prog=f"fourfold {command}", description=DESCRIPTIONS[command], epilog=EPILOG
    )
    add = parser.add_argument
    add("--checkpoint", required=True, metavar="PATH", help=CHECKPOINT_HELP)
    parser.add_allow_class()
    batch_size = 64 if command == "classify" else 32
    add("--batch-size", type=int, default=batch_size, help="lines per batch (%(default)s)")
    add("--device", default="auto", help="auto, cpu, cuda or cuda:N (%(default)s)")
    precisions = (AUTO, *PRECISIONS)
    help_text = "(%(default)s); auto is bf16-mixed if the device is fast at it, or 32-true"
    add("--precision", default="32-true", choices=precisions, help=help_text)
    add("--quantize", choices=("int8",), help="weights in int8, on a CPU only")
    add("--truncate", action="store_true", help="truncate lines that are too long for the model")
    if command in ("translate", "generate", "caption"):
        default = "1" if command == "generate" else "that of the checkpoint"
        add("--beam", type=int, help=f"width of the beam search; 1 is greedy; default: {default}")
        add("--length-penalty", type=float, metavar="ALPHA", help="exponent of the length penalty")
        add("--length-penalty-type", choices=LENGTH_PENALTIES)
        add("--max-new", type=int, metavar="N", help="maximum number of new tokens")
        help_text = "token that is never generated, such as <unk>; may be given several times"
        add("--suppress-tokens", action="append", default=[], metavar="TEXT", help=help_text)
        add(
            "--n-best",
            type=int,
            default=1,
            metavar="N",
            help="outputs per line, tab-separated (%(default)s)",
        )
    if command == "generate":
        add("--temperature", type=float, default=0.0, help="0 (default) takes the likeliest token")
        add("--top-k", type=int, metavar="K", help="sample among the K likeliest tokens")
        add("--top-p", type=float, metavar="P", help="sample among the likeliest with mass P")
        add("--seed", type=int, help="seed of the sampling; default: a new one each time")
        help_text = "put the end-of-document token, which precedes documents, before the prompt"
        add("--document-start", action="store_true", help=help_text)
        help_text = (
            "answer each line, a message of a user or a JSON list of messages, with the chat"
        )
        help_text += " template of the model; implies --only-new"
        add("--chat", action="store_true", help=help_text)
        add("--only-new", action="store_true", help="omit the prompt from the output")
        add("--stream", action="store_true", help="write each token as soon as it is generated")
        help_text = "end a continuation before this text; may be given several times"
        add("--stop", action="append", default=[], metavar="TEXT", help=help_text)
    elif command in ("fill", "classify"):
        add("--top-k", type=int, default=1, metavar="K", help="alternatives, tab-separated")
    return parser


def parse(command: str, arguments: Sequence[str]) -> Namespace:
    """Parse the options of an inference command.

    Args:
        command: A key of `PROCESSORS`.
        arguments: Arguments after the command.

    Raises:
        InputError: An option is unknown, has an invalid value, or has no effect because of another
            option.
    """
    options = make_parser(command).parse_args(list(arguments))
    for name, maximum in MAXIMA.items():
        check_positive(_option(name), vars(options).get(name), maximum)
    if command == "generate":
        _check_conflicting_options(options)
    if command in ("translate", "caption"):
        _check_length_penalty(options, options.beam)
    return options


def _check_conflicting_options(options: Namespace) -> None:
    """Raise InputError if an option of `generate` has no effect because of another option."""
    beam = options.beam or 1
    samples = options.temperature > 0
    if samples and beam > 1:
        raise InputError("cannot be combined with --beam", option="--temperature")
    if options.n_best > beam and not samples:
        raise InputError("needs --temperature, or a --beam of that width", option="--n-best")
    for name in ("top_k", "top_p", "seed"):
        if vars(options)[name] is not None and not samples:
            raise InputError("needs a --temperature above 0, such as 1", option=_option(name))
    if options.stream and (beam > 1 or options.n_best > 1):
        raise InputError("cannot be combined with --beam or --n-best", option="--stream")
    if options.chat and options.document_start:
        raise InputError("cannot be combined with --chat", option="--document-start")
    options.only_new |= options.chat
    if "" in options.stop:
        raise InputError("must not be empty", option="--stop")
    _check_length_penalty(options, beam)


def _check_length_penalty(options: Namespace, beam: int | None) -> None:
    """Raise InputError if a length penalty has no effect; a beam of None is not known yet."""
    for name in ("length_penalty", "length_penalty_type"):
        if vars(options)[name] is not None and beam == 1:
            raise InputError("needs a --beam of at least 2", option=_option(name))
    if options.length_penalty is not None and options.length_penalty_type == "none":
        raise InputError("needs another --length-penalty-type than none", option="--length-penalty")


def _option(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def main(argv: Sequence[str]) -> int:
    """Load a checkpoint, and write one line of output for each line of standard input.

    Args:
        argv: The command, such as "translate", and its options.

    Returns:
        The exit code 0.

    Raises:
        InputError: An option, the checkpoint or a line is invalid.
    """
    command, *arguments = argv
    options = parse(command, arguments)
    if sys.stdin is None or sys.stdout is None:
        name = "output" if sys.stdin else "input"
        raise InputError("must be open, but is closed", option=f"the standard {name}")
    import torch

    from fourfold.commands.infer.devices import autocast, choose_device, move_model
    from fourfold.commands.infer.line_io import process, read_lines, stream_errors
    from fourfold.hub.directory import resolve_path
    from fourfold.layers.quantization import quantize

    device = choose_device(options.device)
    precision = resolve_precision(options.precision, device, "--precision")
    if options.precision == AUTO:
        print(f"--precision {AUTO}: {precision}, since {describe_bf16(device)}", file=sys.stderr)
    elif warning := slow_precision(precision, device, "--precision"):
        print(warning, file=sys.stderr)
    path = resolve_path(options.checkpoint)
    task = _load(path, command, tuple(options.allow_class))
    move_model(task.model, device, precision)
    quantize(task.model, options.quantize, "--quantize")
    try:
        processor = make_processor(command, task, options)
    except InputError as error:  # the checkpoint lacks something that the command needs
        raise error.in_file(path) from error
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(encoding="utf-8", newline="\n")  # independent of the locale
    # On a terminal, the output of each line appears before the next line is read.
    streams = vars(options).get("stream", False)
    batch_size = 1 if streams else options.batch_size
    n_ahead = 1 if streams or sys.stdin.isatty() else batch_size * processor.batches_ahead
    with torch.inference_mode(), autocast(device, precision), stream_errors():
        lines = read_lines(sys.stdin.buffer)
        process(lines, processor.prepare, processor.run, sys.stdout, batch_size, n_ahead)
    return 0


def _load(path: Path, command: str, classes: tuple[str, ...]) -> Any:
    """Return the task of a checkpoint, or an object that takes its place without Lightning.

    The import of the tasks and of Lightning takes seconds. `generate` and `fill` read only the
    model, its tokenizer and its artifacts, so a `LoadedModel` is enough for a task of fourfold.

    Args:
        path: The checkpoint file, or a directory.
        command: A key of `PROCESSORS`.
        classes: Import paths of the user's classes that may be imported.

    Raises:
        InputError: The checkpoint is invalid, or its task does not fit the command.
    """
    from fourfold.checkpoints.classes import public_path
    from fourfold.checkpoints.files import find_checkpoint, read_file
    from fourfold.checkpoints.load import is_model_directory, load
    from fourfold.commands.infer.base import LoadedModel

    if path.is_dir():
        if is_model_directory(path):
            return _load_directory(path, command)
        path = find_checkpoint(path)
    saved = read_file(path).get("fourfold")
    task = saved.get("task") if isinstance(saved, dict) else None
    name = task.get("class") if isinstance(task, dict) else None
    if name is not None and public_path(name) == TASKS_WITHOUT_LIGHTNING.get(command):
        return LoadedModel(load(path))
    from fourfold.training.loading import load_task

    return load_task(path, expect=tuple(PROCESSORS[command]), classes=classes)


def _load_directory(path: Path, command: str) -> Any:
    """Return the task, or the `LoadedModel`, of a directory that `fourfold.load` reads.

    The arguments and the errors are those of `_load`.
    """
    from fourfold.checkpoints.load import load
    from fourfold.commands.infer.base import LoadedModel

    model = load(path)
    if type(model).__name__ == MODELS_WITHOUT_LIGHTNING.get(command):
        return LoadedModel(model)
    from fourfold.tasks.convert import make_task
    from fourfold.training.loading import check_task

    with errors_in(path):
        task = make_task(model)
    check_task(task, path, tuple(PROCESSORS[command]))
    return task


def make_processor(command: str, task: Any, options: Namespace) -> Any:
    """Return the `LineProcessor` of a command for the task of a checkpoint.

    Args:
        command: A key of `PROCESSORS`.
        task: The loaded task, of a class that `PROCESSORS` lists for the command.
        options: Parsed options of the command.

    Raises:
        InputError: The checkpoint lacks something that the command needs, such as a mask token.
    """
    processors = PROCESSORS[command]
    names = [cls.__name__ for cls in type(task).__mro__]
    # A command that accepts a `LoadedModel` has one processor.
    processor = next((processors[name] for name in names if name in processors), None)
    processor = processor or next(iter(processors.values()))
    return resolve_name(f"fourfold.commands.infer.{processor}")(task, options)
