"""Write one HTML file that shows the attention of a checkpoint.

It has the maps of all layers and heads, their statistics beside those of uniform attention, and
predictions. It opens without a network. A checkpoint is a checkpoint file, a run directory, or a
directory of transformers with config.json and weights.

Without --text, --source and --image, the inputs are the first rows of the test data of the
checkpoint's run directory. Several checkpoints, also of different families, are shown on one page,
each with rows of its own test data. Layers and heads are counted from 0.
"""

import os
import shlex
import webbrowser
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fourfold.commands.option_parser import OptionParser
from fourfold.core.validation import check_positive, check_range
from fourfold.errors import InputError


def make_parser() -> OptionParser:
    """Return the parser of `fourfold look`."""
    parser = OptionParser(prog="fourfold look", description=__doc__)
    add = parser.add_argument
    add(
        "checkpoints",
        nargs="+",
        metavar="CHECKPOINT",
        help="checkpoint, run or transformers directory",
    )
    parser.add_allow_class()
    add("--text", action="append", default=[], help="text, with [MASK] for masks; may be repeated")
    add("--source", action="append", default=[], help="source text; may be repeated")
    add("--target", action="append", default=[], help="target of a source (default: the model's)")
    add("--image", nargs="+", default=[], metavar="FILE", help="image files")
    add("--generate", type=int, default=20, metavar="N", help="tokens of a causal LM (%(default)s)")
    add("--compare", metavar="OTHER", help="second checkpoint of the same family and tokens")
    help_text = "layers, such as 0,3,last (default: all that fit)"
    add("--layers", type=parse_layers, metavar="L,...", help=help_text)
    add("--rows", type=int, default=8, metavar="N", help="rows of the test data (%(default)s)")
    add("--out", default="look.html", metavar="FILE", help="file to write (%(default)s)")
    add("--overwrite", action="store_true", help="replace the file if it exists")
    add("--precision", type=int, default=8, choices=(8, 16), help="bits of a weight (%(default)s)")
    add("--truncate", action="store_true", help="shorten texts that are too long for the model")
    add("--live", action="store_true", help="the page runs the model, on your inputs and edits")
    help_text = "write a live page of a model that is large for a browser"
    add("--live-anyway", action="store_true", help=help_text)
    add("--open", action="store_true", help="open the file in the browser")
    return parser


def parse_layers(text: str) -> tuple[int, ...]:
    """Convert a list of layers such as "0,3,last" to indices such as (0, 3, -1)."""
    return tuple(-1 if item.strip() == "last" else int(item) for item in text.split(","))


def main(argv: Sequence[str]) -> int:
    """Write an HTML page that shows the attention of a checkpoint, and return the exit code 0.

    One line with the path, size and content of the page is printed.

    Raises:
        InputError: An option, the checkpoint or an input is invalid, or the output file exists.
    """
    options = make_parser().parse_args(list(argv))
    check_range("--generate", options.generate, minimum=0)
    check_positive("--rows", options.rows)
    from fourfold.explorer.document import Settings
    from fourfold.explorer.write import Page, check_output

    out = Path(options.out)
    check_output(out, options.overwrite)
    if options.target and not options.source:
        raise InputError("needs --source", option="--target")
    paths = [Path(path) for path in options.checkpoints]
    inputs = ("text", "source", "image", "compare")
    if len(paths) > 1 and (given := next((name for name in inputs if getattr(options, name)), "")):
        raise InputError(f"needs a single checkpoint, got {len(paths)}", option=f"--{given}")
    shown = options.layers, options.precision, options.generate, options.truncate
    if options.live and (len(paths) > 1 or options.compare):
        raise InputError("needs a single checkpoint", option="--live")
    settings = Settings(*shown, shown_command(argv), n_models=len(paths))
    page = Page.join([document_of(path, options, settings) for path in paths])
    page.save(out, overwrite=options.overwrite)
    print(page.describe(out))
    if options.open:
        webbrowser.open(out.absolute().as_uri())
    return 0


def document_of(path: Path, options: Any, settings: Any) -> tuple[dict[str, Any], bytes]:
    """Return the document and the maps of one checkpoint file or run directory.

    `settings` are those of the page, without the names of the checkpoint and the run.

    Raises:
        InputError: The checkpoint or an input is invalid.
    """
    from fourfold.checkpoints.files import find_checkpoint
    from fourfold.checkpoints.load import load
    from fourfold.explorer.document import build_document, make_view, shown_name
    from fourfold.explorer.live import live_part
    from fourfold.explorer.weights import pack_model
    from fourfold.explorer.write import read_examples

    classes, name = tuple(options.allow_class), shown_name(path)
    path = find_checkpoint(path) if (path / "checkpoints").is_dir() else path
    compared = "" if options.compare is None else shown_name(options.compare)
    settings = settings._replace(name=name, checkpoint=shown_name(path), compared=compared)
    model = load(path, classes=classes)
    other = None if options.compare is None else load(options.compare, classes=classes)
    packed = pack_model(model) if options.live else None
    model = model if packed is None else packed.model  # so that stored and live maps agree
    view = make_view(model, settings)
    examples = read_examples(view, options.text, options.source, options.target, options.image)
    examples = examples or examples_of_run(view, path, options.rows)
    document, maps = build_document(model, examples, settings, other)
    if packed is not None:
        document["live"] = live_part(view, packed, examples, check=not options.live_anyway)
    return document, maps


def shown_command(argv: Sequence[str]) -> str:
    """Return the command line `fourfold look ...` as text that the page shows.

    Each path is replaced by the name of its file, so that the page names no folder of this machine.
    """
    shown = []
    for item in argv:
        option, equals, value = item.rpartition("=") if item.startswith("--") else ("", "", item)
        is_path = os.sep in value and (Path(value).exists() or Path(value).parent.is_dir())
        shown.append(option + equals + (Path(value).name if is_path else value))
    return shlex.join(["fourfold", "look", *shown])


def examples_of_run(view: Any, checkpoint: Path, n_rows: int) -> list[Any]:
    """Return the first rows of the test data that RUN/config.yaml of a checkpoint names.

    `view` converts rows to examples.

    Raises:
        InputError: The checkpoint is in no run directory, or its data have no test split.
    """
    config = checkpoint.absolute().parent.parent / "config.yaml"
    if not config.is_file():
        problem = "is in no run directory whose test data can be shown; give --text, --source or"
        raise InputError(f"{problem} --image", option=str(checkpoint))
    from fourfold.commands.recipe import make_parser, parse, read_recipe
    from fourfold.explorer.write import first_examples

    parser = make_parser("fourfold look")
    data = read_recipe(parser, parse(parser, ["--config", str(config)])).data
    return first_examples(view, data, n_rows)
