"""Summary of the results of scripts/benchmarks/gpu_suite.sh as one JSON file and one Markdown page.

    python scripts/benchmarks/gpu_report.py OUT

OUT contains parts.csv and a folder for each benchmark; it receives suite.json and README.md.
"""

import csv
import json
import sys
from pathlib import Path
from typing import Any


def read(out: Path) -> dict[str, Any]:
    """Read exit code and seconds of each part, and the JSON of each benchmark."""
    with (out / "parts.csv").open(newline="") as file:
        parts = [
            {"part": row["part"], "code": int(row["code"]), "seconds": int(row["seconds"])}
            for row in csv.DictReader(file)
        ]
    found = {f.parent.name: json.loads(f.read_text()) for f in sorted(out.glob("*/bench.json"))}
    return {"parts": parts, "bench": found}


def page(suite: dict[str, Any], out: Path) -> str:
    """Format the state of each part, and the tables of the benchmarks."""
    lines = ["# GPU suite", "", "`sh scripts/benchmarks/gpu_suite.sh OUT`.", ""]
    lines += ["| part | result | seconds |", "| --- | --- | ---: |"]
    known = {0: "passed", 124: "timeout", 137: "timeout"}
    for name, code, seconds in (part.values() for part in suite["parts"]):
        lines.append(f"| {name} | {known.get(code, f'exit code {code}')} | {seconds} |")
    tables = (out / name / "bench.md" for name in suite["bench"])
    return "\n".join(lines) + "\n" + "".join(f"\n#{file.read_text()}" for file in tables)


def main() -> int:
    out = Path(sys.argv[1])
    suite = read(out)
    (out / "suite.json").write_text(json.dumps(suite, indent=1) + "\n")
    (out / "README.md").write_text(page(suite, out))
    print(f"wrote {out / 'suite.json'} and README.md")
    return 0


if __name__ == "__main__":
    sys.exit(main())
