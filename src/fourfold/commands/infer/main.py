"""`fourfold translate`, `generate`, `score` and so on: options, and standard input.

Options are parsed before torch is imported, so that `--help` and error messages appear without
delay.
"""

import sys
from argparse import BooleanOptionalAction, Namespace
from collections import Counter
from collections.abc import Callable, Sequence
from io import TextIOWrapper
from pkgutil import resolve_name
from typing import Any

from fourfold.commands.option_parser import OptionParser
from fourfold.core.validation import check_positive
from fourfold.errors import InputError

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
    "score": "Score one text per line; or context, tab, continuation; or source, tab, target:\n"
    "log-probability (natural logarithm) in total, per token, per word and per byte.",
    "evaluate": "Evaluate language models on minimal pairs: the correct sentence must have the\n"
    "higher score. Or on last words: all tokens must be the most likely ones. FILE is the\n"
    "published zip archive, a folder or a file; lines of pairs are correct, tab, incorrect.\n"
    "`fourfold evaluate glue --help` describes the fine-tuning on tasks of GLUE, and\n"
    "`fourfold evaluate features --help` k-NN and logistic regression on images.",
}
EPILOG = """\
One line is written for each line of standard input, in the same order; an empty line stays empty.
Backslashes, tabs and line breaks in an output are written as \\\\, \\t and \\n, and other control
characters as \\x1b and so on."""

# Module and function that answers a list of lines: a list of texts, or of cells, for each line.
FUNCTIONS = {
    "translate": "commands.infer.translate:translate",
    "generate": "commands.infer.generate:generate_text",
    "fill": "commands.infer.fill_mask:fill",
    "classify": "commands.infer.classify:classify_lines",
    "caption": "commands.infer.caption:caption_lines",
    "score": "generation.score:score_lines",
}
COUNTS = ("batch_size", "num_beams", "max_new_tokens", "num_return_sequences", "top_k")  # >= 1
LOADING_OPTIONS = ("checkpoint", "allow_class", "device", "precision", "quantize")
RENAMED = {"--beam": "--num-beams", "--max-new": "--max-new-tokens"}  # accepted until 0.4
RENAMED["--n-best"] = "--num-return-sequences"
# Names in `fourfold.generation.LENGTH_PENALTIES`, whose import would load torch.
LENGTH_PENALTIES = ("gnmt", "power", "none")


def make_parser(command: str) -> OptionParser:
    """Return the parser of the options of an inference command, such as "translate"."""
    parser = OptionParser(prog=f"fourfold {command}", description=DESCRIPTIONS[command])
    parser.epilog, parser.renamed = EPILOG, RENAMED
    add = parser.add_argument
    if command == "evaluate":
        parser.epilog = "Repeat --checkpoint to compare models with the first one.\n"
        parser.epilog += "A directory of `fourfold seeds` is a model with several runs."
        add("benchmark", choices=("blimp", "zorro", "pairs", "lambada"))
        add("file", metavar="FILE")
        add("--out", metavar="DIR", help="write metrics.json and accuracy.png into this folder")
    action = "append" if command == "evaluate" else "store"
    add("--checkpoint", required=True, action=action, metavar="PATH", help=CHECKPOINT_HELP)
    parser.add_loading_options(64 if command in ("classify", "score", "evaluate") else 32)
    if command not in ("caption", "score", "evaluate"):
        add("--truncate", action="store_true", help="truncate lines too long for the model")
    if command in ("translate", "generate", "caption"):
        default = f"that of the checkpoint, otherwise {1 if command == 'generate' else 4}"
        help_text = f"width of the beam search; 1 is greedy; default: {default}"
        add("--num-beams", type=int, metavar="K", help=help_text)
        add("--length-penalty", type=float, metavar="ALPHA", help="exponent of the length penalty")
        add("--length-penalty-type", choices=LENGTH_PENALTIES)
        add("--max-new-tokens", type=int, metavar="N", help="maximum number of new tokens")
        help_text = "token that is never generated, such as <unk>; may be given several times"
        add("--suppress-tokens", action="append", default=[], metavar="TEXT", help=help_text)
        add("--num-return-sequences", type=int, metavar="N", help="outputs per line, tab-separated")
        add("--repetition-penalty", type=float, metavar="P", help="1.2 avoids repeated tokens")
        add("--no-repeat-ngram-size", type=int, metavar="N", help="no N-gram occurs twice")
        add("--min-length", type=int, metavar="N", help="minimum number of tokens with the prompt")
        add("--min-new-tokens", type=int, metavar="N", help="minimum number of new tokens")
        add("--forced-bos-token-id", type=int, metavar="ID", help="first token, such as a language")
    if command == "generate":
        help_text = "0 takes the likeliest token; default: that of the checkpoint, otherwise 0"
        add("--temperature", type=float, help=help_text)
        add("--top-k", type=int, metavar="K", help="sample among the K likeliest tokens")
        add("--top-p", type=float, metavar="P", help="sample among the likeliest with mass P")
        add("--min-p", type=float, metavar="P", help="sample among those with P times the maximum")
        add("--seed", type=int, help="seed of the sampling; default: a new one each time")
        help_text = "put the end-of-document token, which precedes documents, before the prompt"
        add("--document-start", action="store_true", help=help_text)
        help_text = "answer each line, a message of a user or a JSON list of messages, with the"
        help_text += " chat template of the model; implies --only-new"
        add("--chat", action="store_true", help=help_text)
        add("--only-new", action="store_true", help="omit the prompt from the output")
        add("--stream", action="store_true", help="write each token as soon as it is generated")
        help_text = "end a continuation before this text; may be given several times"
        add("--stop", action="append", default=[], metavar="TEXT", help=help_text)
    elif command in ("fill", "classify"):
        more = ", or all labels of a multi-label model" if command == "classify" else ""
        help_text = f"alternatives, tab-separated; default: 1{more}"
        add("--top-k", type=int, default=None if more else 1, metavar="K", help=help_text)
    elif command in ("score", "evaluate"):
        help_text = "causal, mntp, fused; masked_l2r, masked; conditional, prefix, masked; default:"
        add("--method", help=f"{help_text} the first that fits, but `evaluate` prefers prefix")
        help_text = "score the end-of-text token; default: only for conditional"
        add("--eos", action=BooleanOptionalAction, help=help_text)
    if command == "score":
        help_text = "write the text and the surprisal, -log p, of each token or word instead"
        add("--by", choices=("token", "word"), help=help_text)
    return parser


def parse(command: str, arguments: Sequence[str]) -> Namespace:
    """Parse the options of an inference command, a key of `FUNCTIONS`.

    Raises:
        InputError: An option is unknown or has an invalid value.
    """
    options = make_parser(command).parse_args(arguments)
    for name in COUNTS:
        check_positive(_option(name), vars(options).get(name))
    return options


def _option(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def main(argv: Sequence[str]) -> int:
    """Load a checkpoint, write one line of output for each line of standard input, and return 0.

    Raises:
        InputError: An option, the checkpoint or a line is invalid.
    """
    command, *arguments = argv
    if command == "evaluate" and arguments[:1] in (["glue"], ["features"]):
        return int(resolve_name(f"fourfold.commands.infer.{arguments[0]}:main")(argv))
    options = parse(command, arguments)
    if command == "evaluate":
        from fourfold.commands.infer.evaluate import evaluate

        return evaluate(options, argv)
    import torch

    from fourfold.commands.infer.devices import load_model
    from fourfold.commands.infer.line_io import process, read_lines

    path, model, precision = load_model(options.checkpoint, options)
    answer = make_answer(command, model, options)
    try:
        answer([])
    except InputError as error:  # an option has no effect, or the model lacks something
        if error.option in vars(options):
            raise InputError(error.message, option=_option(error.option)) from error
        raise error.in_file(path) from error
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(encoding="utf-8", newline="\n")  # independent of the locale
    # On a terminal, the output of each line appears before the next line is read. Images have one
    # size and need memory; batches of texts are formed from lines of similar length.
    is_single = vars(options).get("stream", False) or sys.stdin.isatty()
    n_batches = 1 if model.accepts_images else 64
    with torch.inference_mode(), precision:
        lines = read_lines(sys.stdin.buffer)
        process(lines, answer, sys.stdout, 1 if is_single else options.batch_size * n_batches)
    return 0


def make_answer(command: str, model: Any, options: Namespace) -> Callable[[list[str]], list[str]]:
    """Return the function from lines of input to lines of output of a command."""
    from fourfold.commands.infer.line_io import escape

    function = resolve_name(f"fourfold.{FUNCTIONS[command]}")
    given = {name: x for name, x in vars(options).items() if name not in LOADING_OPTIONS}
    streams = given.get("stream", False)
    if command == "generate":
        given["copies"] = Counter()  # so that a repeated prompt is sampled anew
        given["stream"] = (lambda x: print(escape(x), end="", flush=True)) if streams else None

    def answer(lines: list[str]) -> list[str]:
        found = function(model, lines, **given)
        if streams:
            return [""] * len(lines)  # it is written already
        cells = ([text] if isinstance(text, str) else text for text in found)
        return ["\t".join(map(escape, texts)) for texts in cells]

    return answer
