"""Summary of the results of scripts/gpu_suite.sh as one JSON file and one Markdown page.

    python scripts/gpu_report.py OUT

OUT contains parts.csv and a folder for each benchmark; it receives suite.json and README.md.
"""

import csv
import json
import sys
from pathlib import Path
from typing import Any

TIMEOUT_CODES = (124, 137)


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
    lines = ["# GPU suite", "", "`sh scripts/gpu_suite.sh OUT`.", ""]
    lines += ["| part | result | seconds |", "| --- | --- | ---: |"]
    for part in suite["parts"]:
        code = part["code"]
        result = {0: "passed"}.get(
            code, "timeout" if code in TIMEOUT_CODES else f"exit code {code}"
        )
        lines.append(f"| {part['part']} | {result} | {part['seconds']} |")
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
