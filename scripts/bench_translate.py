"""Benchmark of translating a file: `fourfold translate` against `generate` of transformers.

    python scripts/bench_translate.py CHECKPOINT SOURCE [--precision bf16] [--out FILE]

Both have the same weights, start tokens and search. fourfold reads the lines as the command does,
batched by length. transformers gets batches of the same number of lines, padded to the longest:
once in the order of the file, as most users translate, and once sorted by length. The methods are
measured in interleaved rounds, and equal translations are counted.
"""

import argparse
import gzip
import json
import sys
import tempfile
from argparse import Namespace
from collections.abc import Callable
from io import StringIO
from pathlib import Path
from typing import Any

import torch

import fourfold
from fourfold.checkpoints.files import find_checkpoint
from fourfold.commands.infer.line_io import process
from fourfold.commands.infer.main import make_processor, parse
from fourfold.environment import machine
from fourfold.reproduce.interleaved_timing import interleave
from fourfold.tasks import load_task
from scripts.benchmarks.contenders import DTYPES
from scripts.benchmarks.measurements import Spread, ratios
from scripts.benchmarks.peers.transformers import load_seq2seq

FOURFOLD = "fourfold"
TRANSFORMERS = "transformers"
TRANSFORMERS_SORTED = "transformers, sorted by length"
Translate = Callable[[], list[str]]


def fourfold_method(worker: Any, lines: list[str], batch: int) -> Translate:
    """Return a function that translates the lines as `fourfold translate` does."""

    def translate() -> list[str]:
        out = StringIO()
        process(lines, worker.prepare, worker.run, out, batch, batch * worker.batches_ahead)
        return out.getvalue().splitlines()

    return translate


def transformers_method(
    model: Any, worker: Any, lines: list[str], options: Namespace, order: list[int]
) -> Translate:
    """Return a function that translates the lines in batches, in the given order."""

    def translate() -> list[str]:
        translations: dict[int, str] = {}
        for start in range(0, len(order), options.batch_size):
            rows = order[start : start + options.batch_size]
            src, mask = worker.pad([worker.prepare(lines[i]).content for i in rows])
            ids = model.generate(
                src,
                attention_mask=mask.long(),
                max_new_tokens=options.max_new,
                num_beams=options.beam,
                length_penalty=options.length_penalty,
                do_sample=False,
            )
            translations |= zip(rows, worker.tokenizer.decode_batch(ids.tolist()), strict=True)
        return [translations[i] for i in range(len(lines))]

    return translate


def compare(options: Namespace) -> dict[str, Any]:
    """Measure the seconds of each method, and the fraction of translations equal to fourfold's."""
    with (gzip.open if options.source.suffix == ".gz" else open)(options.source, "rt") as file:
        lines = [line.strip() for line in file if line.strip()][: options.sentences]
    checkpoint = Path(options.checkpoint)
    task = load_task(find_checkpoint(checkpoint) if checkpoint.is_dir() else checkpoint).eval()
    arguments = ["--checkpoint", str(options.checkpoint), "--length-penalty-type", "power"]
    arguments += ["--beam", str(options.beam), "--length-penalty", str(options.length_penalty)]
    arguments += ["--max-new", str(options.max_new), "--batch-size", str(options.batch_size)]
    worker = make_processor("translate", task, parse("translate", arguments))
    with tempfile.TemporaryDirectory() as folder:
        fourfold.save(task.model, folder)
        peer = load_seq2seq(folder, DTYPES[options.precision]).eval()
    task.model.to(DTYPES[options.precision])
    file_order = list(range(len(lines)))
    by_length = sorted(file_order, key=lambda i: worker.prepare(lines[i]).size, reverse=True)
    methods = {
        FOURFOLD: fourfold_method(worker, lines, options.batch_size),
        TRANSFORMERS: transformers_method(peer, worker, lines, options, file_order),
        TRANSFORMERS_SORTED: transformers_method(peer, worker, lines, options, by_length),
    }
    with torch.inference_mode():
        translations = {name: method() for name, method in methods.items()}
        seconds = interleave(methods, options.rounds, warm=0)
    relative = ratios(seconds, FOURFOLD)
    return {
        name: {
            "seconds": seconds[name],
            "relative_to_fourfold": relative[name],
            "equal_translations": sum(map(str.__eq__, translations[name], translations[FOURFOLD]))
            / len(lines),
        }
        for name in methods
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    add = parser.add_argument
    add("checkpoint", type=Path, help="checkpoint or run directory of a translation model")
    add("source", type=Path, help="text file with one sentence per line; may be .gz")
    add("--sentences", type=int, default=1000, help="maximum number (default: %(default)s)")
    add("--beam", type=int, default=5)
    add("--length-penalty", type=float, default=1.0)
    add("--max-new", type=int, default=60)
    add("--batch-size", type=int, default=64)
    add("--rounds", type=int, default=3)
    add("--precision", choices=tuple(DTYPES), default="fp32")
    add("--out", type=Path, help="JSON file")
    options = parser.parse_args()
    results = compare(options)
    for name, row in results.items():
        seconds, times = Spread.of(row["seconds"]), Spread.of(row["relative_to_fourfold"])
        print(
            f"{name}: {seconds.text(digits=1)} s, {times.text()} relative to fourfold,"
            f" {100 * row['equal_translations']:.1f} % equal translations"
        )
    if options.out is not None:
        values = {k: v for k, v in vars(options).items() if not isinstance(v, Path)}
        about = {**values, "source": options.source.name, "machine": machine(torch.device("cpu"))}
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(json.dumps({"about": about, "methods": results}, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
