"""Predict for each row of a table of one's own with the model of a run, and write CSV.

No file of the training is needed. The columns with the texts, or with the paths of images, are
those of the training of a run directory, unless --text names them. The output has a row for each
row of the table, in the same order: class, name and probability, all labels, a value, tags, or a
text.
"""

import csv
import io
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from fourfold.atomic_files import write_atomically
from fourfold.callbacks.monitoring.predictions import format_csv
from fourfold.commands import option_parser
from fourfold.commands.infer.caption import caption
from fourfold.commands.infer.classify import classify, tag
from fourfold.commands.infer.devices import load_model
from fourfold.commands.infer.translate import translate
from fourfold.commands.run_directory import RunDirectory
from fourfold.data.readers.text_table import read_table
from fourfold.errors import InputError
from fourfold.generation.text_model import INPUTS
from fourfold.layers.base_model import Model
from fourfold.models import TokenClassifier
from fourfold.text_files import resolve


def main(argv: Sequence[str]) -> int:
    """Write the predictions for a table to a file or to standard output, and return 0.

    Raises:
        InputError: An option, the model or a row is invalid.
    """
    parser = option_parser.OptionParser(prog="fourfold predict --input", description=__doc__)
    add = parser.add_argument
    add("--run_dir", "--checkpoint", required=True, metavar="PATH", help="run, or any checkpoint")
    add("--input", required=True, metavar="FILE", help=".csv, .tsv or .jsonl, also compressed")
    help_text = "column, or two for pairs, as a name or as an index from 0 without a header"
    add("--text", nargs="+", metavar="COLUMN", help=help_text)
    add("--out", metavar="FILE", help="CSV file; default: standard output")
    parser.add_loading_options(64)
    options = parser.parse_args(argv)
    path, model, precision = load_model(options.run_dir, options)
    table = read_table(options.input, options.text or trained_columns(path, model))
    rows: list[Any] = [row[0] if len(row) == 1 else row for row in zip(*table.columns, strict=True)]
    if model.accepts_images:  # paths are relative to the folder of the table, as in training
        rows = [str(resolve(options.input).parent / file) for file in rows]
    try:
        with torch.inference_mode(), precision:
            text = answer(model, rows, options.batch_size)
    except InputError as error:
        if error.file != INPUTS or error.line is None:
            raise
        place = table.location(error.line - 1)
        raise InputError(error.message, option=error.option, file=place) from error
    if options.out is None:
        if isinstance(sys.stdout, io.TextIOWrapper):
            sys.stdout.reconfigure(encoding="utf-8", newline="")  # as in a file
        sys.stdout.write(text)
    else:
        Path(options.out).parent.mkdir(parents=True, exist_ok=True)
        write_atomically(Path(options.out), text)
    return 0


def trained_columns(path: Path, model: Model) -> list[str]:
    """Return the columns of the training of a run; otherwise "text", or "image" for images."""
    given = RunDirectory(path).recorded_config().get("data", {}).get("init_args", {})
    pair = (given.get("columns") or [None])[:1]  # the source of a translation
    default = "image" if model.accepts_images else "text"
    found = given.get("text") or given.get("image_column") or pair[0] or default
    return [str(name) for name in (found if isinstance(found, list) else [found])]


def answer(model: Model, rows: Sequence[Any], batch_size: int) -> str:
    """Return the predictions for texts, tuples of texts, or paths of images, as CSV."""
    options: Any = {} if model.accepts_images else {"truncate": True}
    options["batch_size"] = batch_size
    if isinstance(model, TokenClassifier):
        name, found = "tags", [" ".join(tags) for tags in tag(model, rows, **options)]
    elif hasattr(model.config, "n_classes"):
        values = classify(model, rows, **options)
        return format_csv(list(range(len(rows))), values, dict(model.artifacts))
    else:
        function = caption if model.accepts_images else translate
        name, found = "text", function(model, rows, **options)
    out = io.StringIO()
    csv.writer(out).writerows([["row", name], *enumerate(found)])
    return out.getvalue()
