"""Differences between the rows of a reproduced table, with intervals over the seeds.

    python scripts/seed_differences.py results/luong2015/multi30k/laptop BASE [--out FILE]
        [--speeds SPEEDS.csv --longer ROW FACTOR]

For each row that shares two or more seeds with BASE, the differences of the values with the same
seed are averaged. The 95 % interval is that of Student's t distribution. It contains the variation
over seeds, and not the choice of the test examples (see scripts/bleu_differences.py). The file
seed_differences.csv is written into the folder of the table.

With --speeds, a file of scripts/bench_rows.py, the rows are compared at equal training time, and
the file is equal_time.csv. ROW is the base with FACTOR times as many steps. A row whose steps take
t times as long as those of the base is compared with the base at t times as many steps, on the
straight line through BASE and ROW. The last column is t. A column without a training of its name
in SPEEDS.csv is left out.
"""

import argparse
import csv
import json
import statistics
import sys
from pathlib import Path
from typing import Any

from fourfold.reproduce.statements import interval

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
            numbers = (statistics.mean(paired), *interval(paired))
            shown = (round(float(value), 3) for value in numbers)
            lines.append((column, row, base, len(paired), *shown))
    return sorted(lines, key=lambda line: line[0])  # a stable sort keeps the order of the rows


def at_equal_time(
    cells: list[dict[str, Any]], base: str, longer: str, factor: float, speeds: dict[str, float]
) -> list[dict[str, Any]]:
    """Subtract from each value what the base would gain if it trained as long as the row.

    Args:
        cells: Cells of table.json.
        base: Name of the base.
        longer: Row of the base with more steps.
        factor: Number of steps of `longer` relative to `base`.
        speeds: Tokens or images per second of each row and column, by names such as "base causal".
    """
    values = {
        (cell["column"], cell["row"], seed): value
        for cell in cells
        for seed, value in zip(cell["seeds"], cell["values"], strict=True)
    }
    shifted: dict[tuple[str, str, float], dict[int, float]] = {}
    for (column, row, seed), value in values.items():
        last = values.get((column, longer, seed))
        speed = speeds.get(f"{row} {column}")
        if last is not None and speed is not None and row != longer:
            gain = (last - values[column, base, seed]) / (factor - 1)
            time = speeds[f"{base} {column}"] / speed
            shifted.setdefault((column, row, time), {})[seed] = value - gain * (time - 1)
    return [
        {"column": column, "row": row, "time": time, "seeds": [*found], "values": [*found.values()]}
        for (column, row, time), found in shifted.items()
    ]


def main() -> int:
    """Read table.json of a folder, and write and print the differences."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("folder", type=Path, help="folder with table.json")
    parser.add_argument("base", help="row that the other rows are compared with")
    parser.add_argument("--out", type=Path, help="default: a file in the folder")
    parser.add_argument("--speeds", type=Path, help="file of scripts/bench_rows.py")
    parser.add_argument("--longer", nargs=2, metavar=("ROW", "FACTOR"), help="for --speeds")
    options = parser.parse_args()
    cells = json.loads((options.folder / "table.json").read_text(encoding="utf-8"))["cells"]
    if options.base not in {cell["row"] for cell in cells}:
        parser.error(f"the table has no row {options.base}")
    name = "seed_differences.csv"
    if options.speeds:
        with options.speeds.open(newline="", encoding="utf-8") as file:
            speeds = {line["row"]: float(line["median"]) for line in csv.DictReader(file)}
        longer, factor = options.longer
        cells = at_equal_time(cells, options.base, longer, float(factor), speeds)
        name = "equal_time.csv"
    out = options.out or options.folder / name
    lines = [HEADINGS, *differences(cells, options.base)]
    if options.speeds:
        times = {(cell["column"], cell["row"]): round(cell["time"], 2) for cell in cells}
        lines = [(*line, times.get(line[:2], "time")) for line in lines]
    with out.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows(lines)
    print(out.read_text(encoding="utf-8"), end="")
    return 0


if __name__ == "__main__":
    sys.exit(main())
