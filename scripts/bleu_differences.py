"""Differences of BLEU-4 between models, with the intervals of a paired bootstrap over examples.

    python scripts/bleu_differences.py REFERENCES BASE ROW ... [--runs DIR] [--split val]
        [--out FILE]

REFERENCES holds captioned images, such as captions/flickr8k_900_short224.zip, or is a text file
with one reference translation per line. BASE and ROW are rows of `fourfold reproduce`, whose runs
lie in DIR/ROW/seed_*. `fourfold predict --run_dir DIR/ROW/seed_0 --ckpt_path last` writes the
captions or translations of a run, which must be there. Translations after the last line of
REFERENCES are left out. Only the seeds that BASE and ROW share are used. In each resample, the same
examples are drawn for both, and the BLEU-4 of a row is the mean over its seeds.
"""

import argparse
import csv
import io
import sys
from collections.abc import Sequence
from itertools import islice
from pathlib import Path

import numpy as np

from fourfold.atomic_files import write_atomically
from fourfold.data.vision.caption_files import CaptionLayout, read_captions
from fourfold.errors import InputError
from fourfold.metrics.captions import (
    PERCENTILES,
    bleu_of_counts,
    caption_counts,
    ngram_counts,
    resamples,
)
from fourfold.text_files import read_lines

RUNS = Path("runs/reproduce/xu2015/flickr8k/laptop")
HEADINGS = ("row", "base", "seeds", "bleu4", "base_bleu4", "difference", "low", "high")


def holds_captions(source: str) -> bool:
    """Return True for a folder or archive of captioned images, and False for a text file."""
    return Path(source).is_dir() or Path(source).suffix == ".zip"


def read_references(source: str, split: str) -> list[list[str]]:
    """Return the captions of each image of a split, or the translation of each line."""
    if not holds_captions(source):
        return [[text] for text in read_lines(source)]
    images = read_captions(source, CaptionLayout())[split]
    texts = iter(images.texts.columns[0])
    return [list(islice(texts, count)) for count in images.counts]


def read_counts(
    row: Path, references: Sequence[list[str]], *, captions: bool
) -> dict[str, np.ndarray]:
    """Return the n-gram counts (examples, 10) of the predictions of each seed that were written.

    Args:
        row: Directory of the runs of the row.
        references: Reference texts of each example.
        captions: True if the texts are divided as in the COCO evaluation, and not by sacreBLEU.

    Raises:
        InputError: A file does not have a prediction for each example, or no seed has predictions.
    """
    found = {}
    for file in sorted(row.glob("seed_*/predictions.txt")):
        texts = read_lines(str(file))
        if len(texts) < len(references) or (captions and len(texts) > len(references)):
            message = f"the file has {len(texts)} predictions for {len(references)} examples"
            raise InputError(message, file=str(file))
        pairs = list(zip(texts, references, strict=False))
        found[file.parent.name] = caption_counts(pairs) if captions else ngram_counts(pairs)
    if not found:
        raise InputError("there is no seed_*/predictions.txt in the directory", file=str(row))
    return found


def compare(row: dict[str, np.ndarray], base: dict[str, np.ndarray]) -> dict[str, float]:
    """Return the BLEU-4 of a row and of its base, their difference, and its 95 % interval.

    Args:
        row: Counts (examples, 10) by seed.
        base: The same for the base.

    Raises:
        InputError: The two have no seed in common.
    """
    seeds = sorted(row.keys() & base.keys())
    if not seeds:
        message = f"have no seed in common: {', '.join(row)} and {', '.join(base)}"
        raise InputError(message, option="BASE and ROW")
    draws = resamples(len(row[seeds[0]]))
    draws = np.concatenate([np.ones_like(draws[:1]), draws])  # first all examples, each once
    scores = [
        np.mean([bleu_of_counts(draws @ counts[seed])[:, 3] for seed in seeds], axis=0)
        for counts in (row, base)
    ]
    low, high = np.percentile((scores[0] - scores[1])[1:], PERCENTILES)
    values = (len(seeds), scores[0][0], scores[1][0], scores[0][0] - scores[1][0], low, high)
    return dict(zip(HEADINGS[2:], map(float, values), strict=True))


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("references", help="captioned images, or a file of translations")
    parser.add_argument("base", help="row with which the others are compared")
    parser.add_argument("rows", nargs="+", help="rows that are compared with BASE")
    parser.add_argument("--runs", type=Path, default=RUNS, help=f"directory of the rows ({RUNS})")
    parser.add_argument("--split", default="val", help="split of the captions (val)")
    parser.add_argument("--out", type=Path, help="CSV file of the table")
    given = parser.parse_args(arguments)
    table = io.StringIO()
    writer = csv.writer(table, lineterminator="\n")
    writer.writerow(HEADINGS)
    try:
        references = read_references(given.references, given.split)
        captions = holds_captions(given.references)
        base = read_counts(given.runs / given.base, references, captions=captions)
        for row in given.rows:
            counts = read_counts(given.runs / row, references, captions=captions)
            n_seeds, *scores = compare(counts, base).values()
            cells = [f"{score:.2f}" for score in scores]
            writer.writerow([row, given.base, int(n_seeds), *cells])
        if given.out:
            write_atomically(given.out, table.getvalue())
    except InputError as error:
        print(f"bleu_differences: {error}", file=sys.stderr)
        return 2
    print(table.getvalue(), end="")
    return 0


if __name__ == "__main__":
    sys.exit(main())
