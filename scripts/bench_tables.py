"""Combines the reports of scripts/bench_laptop.sh into tables, one row per case.

    python scripts/bench_tables.py OUT

The tables are inserted into OUT/README.md between two marks; text outside of them is kept.
"""

import json
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from scripts.benchmarks.measurements import Spread  # noqa: E402
from scripts.benchmarks.workloads import FOURFOLD  # noqa: E402

BEGIN = "<!-- tables -->"
END = "<!-- end of tables -->"
Measurement = dict[str, Any]


def read_reports(out: Path) -> dict[str, dict[str, Any]]:
    """Read the bench.json of each folder, by the name of the folder."""
    files = sorted(out.glob("*/bench.json"))
    return {file.parent.name: json.loads(file.read_text()) for file in files}


def format_reports(reports: dict[str, dict[str, Any]]) -> str:
    """Format a section for each report, with a table for each workload."""
    sections = []
    for name, report in reports.items():
        settings = report["settings"]
        measurements = report["measurements"]
        sections.append(
            f"## {name}\n\n`{settings['precision']}`, size {settings['size']}, {settings['rounds']}"
            f" rounds, commit {report['machine']['commit']}: [full report]({name}/bench.md)."
        )
        for workload in dict.fromkeys(m["workload"] for m in measurements):
            sections.append(table([m for m in measurements if m["workload"] == workload]))
    return "\n\n".join(sections)


def table(measurements: list[Measurement]) -> str:
    """Format fourfold's values and utilization, and the ratio of each other contender."""
    others = [c for c in dict.fromkeys(m["contender"] for m in measurements) if c != FOURFOLD]
    limit = next((m["limit"] for m in measurements if m.get("utilization")), None)
    heads = [measurements[0]["workload"], FOURFOLD]
    heads += [f"of the {limit}"] if limit else []
    heads += others
    lines = [heads, ["---", *["---:"] * (len(heads) - 1)]]
    cases: dict[tuple[Any, ...], dict[str, Measurement]] = {}
    for measurement in measurements:
        key = tuple(measurement.get(name) for name in ("family", "case", "axis_value", "unit"))
        cases.setdefault(key, {})[measurement["contender"]] = measurement
    for (*names, unit), by_contender in cases.items():
        reference = by_contender.get(FOURFOLD, {})
        value = f"{format_spread(reference, 'values', digits=4)} {unit}"
        cells = [" ".join(str(name) for name in names if name is not None)]
        cells.append(value if reference.get("values") else "-")
        if limit:
            cells.append(format_spread(reference, "utilization", 100.0, unit=" %"))
        cells += [format_spread(by_contender.get(name, {}), "ratios") for name in others]
        lines.append(cells)
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def format_spread(
    measurement: Measurement, name: str, factor: float = 1.0, digits: int = 3, unit: str = ""
) -> str:
    """Format the median, and minimum and maximum if there are several values."""
    values = [factor * x for x in measurement.get(name) or []]
    if not values:
        return measurement.get("note") or "-"
    spread = Spread.of(values)
    median, *limits = (
        f"{float(f'{x:.{digits}g}'):,g}" for x in (spread.median, spread.least, spread.greatest)
    )
    return f"{median}{unit} [{', '.join(limits)}]" if len(values) > 1 else f"{median}{unit}"


def insert(page: Path, content: str) -> None:
    """Replace the text between the two marks of a page, which must contain them."""
    before, begin, rest = page.read_text(encoding="utf-8").partition(BEGIN)
    _, end, after = rest.partition(END)
    assert begin, f"{page} has no {BEGIN}"
    assert end, f"{page} has no {END}"
    page.write_text(f"{before}{BEGIN}\n\n{content}\n\n{END}{after}", encoding="utf-8")
    print(f"wrote {page}")


def main() -> int:
    out = Path(sys.argv[1])
    page = out / "README.md"
    if not page.is_file():
        page.write_text(f"# Benchmarks\n\n{BEGIN}\n{END}\n")
    insert(page, format_reports(read_reports(out)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
