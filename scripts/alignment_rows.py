"""Alignment error rates of the translation models of a table, each trained for it.

    FOURFOLD_DATA=DATA python scripts/alignment_rows.py OUT.csv [--rows ROW ...] [--steps 2]

The models are rows of luong2015/multi30k. They train on Multi30k joined with the 10,000 aligned
pairs of translation/wmt_aligned_sample, with the options of their first seed and --steps times as
many steps. Their attention is compared with the links of the other 200 pairs of the sample, as
scripts/alignment_error_rate.py describes. A row whose run is finished is not trained again.
"""

import argparse
import csv
import subprocess
import sys
from pathlib import Path

import fourfold
from fourfold.reproduce.load_tables import find_tables
from fourfold.reproduce.runs.plan import plan_runs
from fourfold.reproduce.runs.run import Machine
from fourfold.text_files import read_lines
from scripts.alignment_error_rate import error_rates, read

COLUMNS = ("row", "links", "aer", "precision", "recall")
WITHOUT_ATTENTION = {"none", "reversed", "cho"}
SAMPLE = "translation/wmt_aligned_sample/{part}.{kind}.gz"


def join(out: Path, files: list[str]) -> str:
    """Write the lines of several files to one file and return its path."""
    lines = [line for file in files for line in read_lines(file)]
    out.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return str(out)


def main() -> int:
    """Train the rows one after another, and write the error rates after each of them."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("out", metavar="OUT.csv", type=Path)
    parser.add_argument("--rows", nargs="+", metavar="ROW", help="all that have attention")
    parser.add_argument("--steps", type=int, default=2, help="factor of the steps of the table (2)")
    parser.add_argument("--runs", type=Path, default=Path("runs/alignment"), metavar="DIR")
    options = parser.parse_args()
    options.runs.mkdir(parents=True, exist_ok=True)
    test = {
        kind: join(
            options.runs / f"test.{kind}",
            [SAMPLE.format(part=part, kind=kind) for part in ("valid.100", "test.100")],
        )
        for kind in ("en", "de", "align")
    }
    for lang in ("en", "de"):
        files = [
            f"translation/multi30k/train.{lang}.gz",
            SAMPLE.format(part="train.10k", kind=lang),
        ]
        join(options.runs / f"train.{lang}", files)
    (table,) = find_tables(["luong2015/multi30k"])
    results = []
    for run in plan_runs(table, "laptop", table.rows_of("laptop"), 1, options.runs, Machine()):
        if run.row in WITHOUT_ATTENTION or (options.rows and run.row not in options.rows):
            continue
        folder = options.runs / run.row
        steps = options.steps * int(run.fit[run.fit.index("--trainer.max_steps") + 1])
        command = [sys.executable, "-m", "fourfold", "fit", *run.fit, "--run_dir", str(folder)]
        command += ["--data.init_args.train", str(options.runs / "train.{lang}")]
        command += ["--data.init_args.too_long", "drop"]
        command += ["--trainer.max_steps", str(steps)]
        if not (folder / "finished").exists():
            subprocess.run(command, check=True)
            (folder / "finished").touch()
        rates = error_rates(
            fourfold.load(str(folder / "checkpoints" / "last.ckpt")),
            read(test["en"], test["de"], test["align"], reverse=True, first_index=0),
        )
        for links, scores in rates.items():
            numbers = {key: f"{100 * scores[key]:.2f}" for key in COLUMNS[2:]}
            results.append({"row": run.row, "links": links, **numbers})
        with options.out.open("w", newline="") as file:
            writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
            writer.writeheader()
            writer.writerows(results)
    return 0


if __name__ == "__main__":
    sys.exit(main())
