"""A whole file translated: `fourfold translate` against transformers' generate, same weights.

    python scripts/bench_translate.py CHECKPOINT SOURCE [--precision bf16] [--out FILE]

Ours reads the lines as the command does, of like length together. Theirs gets batches of as many
lines, padded to their longest: in the file's order, as most of its users translate, and sorted by
length. All begin at the same ids and search alike; the ways take turns, and how many
translations are the same is counted.
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
from fourfold.bench.clock import Spread, interleave, ratios
from fourfold.bench.machine import machine
from fourfold.bench.peers.transformers_models import read_pairs
from fourfold.bench.ways import TYPES
from fourfold.commands.inference import make_verb, parse
from fourfold.commands.lines import process
from fourfold.commands.run_directory import RunDirectory
from fourfold.tasks import load_task

OURS, THEIRS, SORTED = "fourfold", "transformers", "transformers, sorted by length"
Way = Callable[[], list[str]]


def our_way(worker: Any, lines: list[str], batch: int) -> Way:
    """As `fourfold translate` does it."""

    def write() -> list[str]:
        out = StringIO()
        process(lines, worker.prepare, worker.run, out, batch, batch * worker.batches_ahead)
        return out.getvalue().splitlines()

    return write


def their_way(
    model: Any, worker: Any, lines: list[str], options: Namespace, order: list[int]
) -> Way:
    """`generate` over batches of the lines in an order."""

    def write() -> list[str]:
        found: dict[int, str] = {}
        for start in range(0, len(order), options.batch_size):
            part = order[start : start + options.batch_size]
            src, mask = worker.pad([worker.prepare(lines[i]).content for i in part])
            ids = model.generate(
                src, attention_mask=mask.long(), max_new_tokens=options.max_new,
                num_beams=options.beam, length_penalty=options.length_penalty, do_sample=False,
            )  # fmt: skip
            found |= zip(part, worker.tokenizer.decode_batch(ids.tolist()), strict=True)
        return [found[i] for i in range(len(lines))]

    return write


def compare(options: Namespace) -> dict[str, Any]:
    """Seconds of each way, and how often theirs says what ours says."""
    with (gzip.open if options.source.suffix == ".gz" else open)(options.source, "rt") as file:
        lines = [line.strip() for line in file if line.strip()][: options.sentences]
    task = load_task(RunDirectory.checkpoint_in(options.checkpoint)).eval()
    words = ["--checkpoint", str(options.checkpoint), "--penalty", "power"]
    words += ["--beam", str(options.beam), "--length-penalty", str(options.length_penalty)]
    words += ["--max-new", str(options.max_new), "--batch-size", str(options.batch_size)]
    worker = make_verb("translate", task, parse("translate", words))
    with tempfile.TemporaryDirectory() as folder:
        fourfold.save(task.model, folder)
        theirs = read_pairs(folder, TYPES[options.precision]).eval()
    task.model.to(TYPES[options.precision])
    in_file = list(range(len(lines)))
    by_length = sorted(in_file, key=lambda i: worker.prepare(lines[i]).size, reverse=True)
    ways = {
        OURS: our_way(worker, lines, options.batch_size),
        THEIRS: their_way(theirs, worker, lines, options, in_file),
        SORTED: their_way(theirs, worker, lines, options, by_length),
    }
    with torch.inference_mode():
        said = {name: way() for name, way in ways.items()}
        seconds = interleave(ways, options.rounds, warm=0)
    relative = ratios(seconds, OURS)
    return {
        name: {
            "seconds": seconds[name],
            "times_ours": relative[name],
            "same_translations": sum(map(str.__eq__, said[name], said[OURS])) / len(lines),
        }
        for name in ways
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    add = parser.add_argument
    add("checkpoint", type=Path, help="run directory or checkpoint of a translation")
    add("source", type=Path, help="sentences, one a line; may be .gz")
    add("--sentences", type=int, default=1000, help="how many of them (%(default)s)")
    add("--beam", type=int, default=5)
    add("--length-penalty", type=float, default=1.0)
    add("--max-new", type=int, default=60)
    add("--batch-size", type=int, default=64)
    add("--rounds", type=int, default=3)
    add("--precision", choices=tuple(TYPES), default="fp32")
    add("--out", type=Path, help="JSON file")
    options = parser.parse_args()
    found = compare(options)
    for name, row in found.items():
        seconds, times = Spread.of(row["seconds"]), Spread.of(row["times_ours"])
        print(
            f"{name}: {seconds.text(digits=1)} s, {times.text()} of ours,"
            f" {100 * row['same_translations']:.1f} % the same translations"
        )
    if options.out is not None:
        asked = {k: v for k, v in vars(options).items() if not isinstance(v, Path)}
        about = {**asked, "source": options.source.name, "machine": machine(torch.device("cpu"))}
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(json.dumps({"about": about, "ways": found}, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
