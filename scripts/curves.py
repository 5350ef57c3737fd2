"""Reading the curves that a run leaves behind."""

import csv
from pathlib import Path


def read_curve(file: Path, column: str) -> list[tuple[int, float]]:
    """(step, value) of the rows of a metrics.csv that have a value in `column`."""
    if not file.is_file():
        return []
    with file.open(newline="", encoding="utf-8") as opened:
        rows = [(row.get("step"), row.get(column)) for row in csv.DictReader(opened)]
    return [(int(step), float(value)) for step, value in rows if step and value]
