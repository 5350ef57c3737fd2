"""Differences between the rows of a reproduced table, with intervals over the seeds.

    python scripts/seed_differences.py results/luong2015/multi30k/laptop BASE [--out FILE]

For each row that shares two or more seeds with BASE, the differences of the values with the same
seed are averaged. The 95 % interval is that of Student's t distribution. It contains the variation
over seeds, and not the choice of the test examples (see scripts/bleu_differences.py). The file
seed_differences.csv is written into the folder of the table.
"""

import argparse
import csv
import json
import statistics
import sys
from pathlib import Path
from typing import Any

from scipy.stats import t

HEADINGS = ("column", "row", "base", "seeds", "difference", "low", "high")


def differences(cells: list[dict[str, Any]], base: str) -> list[tuple[Any, ...]]:
    """Compute a line for each column and row of the cells of table.json, as in `HEADINGS`."""
    by_seed = {
        (cell["column"], cell["row"]): dict(zip(cell["seeds"], cell["values"], strict=True))
        for cell in cells
        if cell["seeds"]
    }
    lines: list[tuple[Any, ...]] = []
    for (column, row), values in by_seed.items():
        of_base = by_seed.get((column, base), {})
        paired = [value - of_base[seed] for seed, value in values.items() if seed in of_base]
        if row != base and len(paired) > 1:
            mean = statistics.mean(paired)
            half = statistics.stdev(paired) / len(paired) ** 0.5 * t.ppf(0.975, len(paired) - 1)
            shown = (round(float(value), 3) for value in (mean, mean - half, mean + half))
            lines.append((column, row, base, len(paired), *shown))
    return sorted(lines, key=lambda line: line[0])  # a stable sort keeps the order of the rows


def main() -> int:
    """Read table.json of a folder, and write and print the differences."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("folder", type=Path, help="folder with table.json")
    parser.add_argument("base", help="row that the other rows are compared with")
    parser.add_argument("--out", type=Path, help="default: seed_differences.csv in the folder")
    options = parser.parse_args()
    cells = json.loads((options.folder / "table.json").read_text(encoding="utf-8"))["cells"]
    if options.base not in {cell["row"] for cell in cells}:
        parser.error(f"the table has no row {options.base}")
    out = options.out or options.folder / "seed_differences.csv"
    with out.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([HEADINGS, *differences(cells, options.base)])
    print(out.read_text(encoding="utf-8"), end="")
    return 0


if __name__ == "__main__":
    sys.exit(main())
