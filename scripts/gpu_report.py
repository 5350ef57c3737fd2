"""What `scripts/gpu_suite.sh` found, as one JSON file and one page.

    python scripts/gpu_report.py OUT

OUT holds parts.csv and a folder for each benchmark; it gets suite.json and README.md.
"""

import csv
import json
import sys
from pathlib import Path
from typing import Any

BY_TIMEOUT = (124, 137)


def read(out: Path) -> dict[str, Any]:
    """Parts with their exit codes and seconds, and the JSON of each benchmark by its name."""
    with (out / "parts.csv").open(newline="") as file:
        parts = [
            {"part": row["part"], "code": int(row["code"]), "seconds": int(row["seconds"])}
            for row in csv.DictReader(file)
        ]
    found = {f.parent.name: json.loads(f.read_text()) for f in sorted(out.glob("*/bench.json"))}
    return {"parts": parts, "bench": found}


def page(suite: dict[str, Any], out: Path) -> str:
    """Which parts ran, and the tables of those that wrote one."""
    lines = ["# The GPU suite", "", "`sh scripts/gpu_suite.sh OUT`.", ""]
    lines += ["| part | ended | seconds |", "| --- | --- | ---: |"]
    for part in suite["parts"]:
        code = part["code"]
        ended = {0: "well"}.get(code, "out of time" if code in BY_TIMEOUT else f"exit code {code}")
        lines.append(f"| {part['part']} | {ended} | {part['seconds']} |")
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
