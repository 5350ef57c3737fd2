"""Queue of the parts of scripts/gpu_parts.csv, which scripts/gpu_suite.sh runs.

Parts of the kind `together` start at the same time, those of the kind `alone` follow one after
another, and those of the kind `beside` run on cores of their own during the latter. The folder of
a part receives its output and record.json with the exit code, the seconds and the hash of its
sources; a part that has succeeded with the same sources is skipped. gpu.md lists all parts.
"""

import argparse
import csv
import hashlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
TABLE = ROOT / "scripts/gpu_parts.csv"
KINDS = ("together", "alone", "beside")
EXIT_CODES = {0: "passed", 124: "timeout", 137: "timeout"}


@dataclass(frozen=True)
class Part:
    """Row of the table: a shell command, its limit in seconds, and the paths that it measures."""

    name: str
    limit: int
    kind: str
    issue: str
    sources: str
    command: str

    @property
    def key(self) -> str:
        """Hash of the command and of the contents of all sources."""
        found = hashlib.sha256(self.command.encode())
        for pattern in self.sources.split():
            for path in sorted(ROOT.glob(pattern)):
                for file in sorted(path.rglob("*.py")) if path.is_dir() else [path]:
                    found.update(file.relative_to(ROOT).as_posix().encode() + file.read_bytes())
        return found.hexdigest()[:16]

    def is_done(self, *folders: Path) -> bool:
        """Return True if the part has succeeded with the same sources."""
        records = [record(folder / self.name) for folder in folders]
        return any(r.get("key") == self.key and r["code"] == 0 for r in records)


def record(folder: Path) -> dict[str, Any]:
    """Read the record of a part; empty if it has not run."""
    file = folder / "record.json"
    return dict(json.loads(file.read_text())) if file.is_file() else {}


def read_parts(file: Path) -> list[Part]:
    """Read the table."""
    with file.open(encoding="utf-8", newline="") as rows:
        return [Part(**{**row, "limit": int(row["limit"])}) for row in csv.DictReader(rows)]


def run(part: Part, out: Path, end: float) -> None:
    """Run a part if it can end in time, and write its record."""
    if time.monotonic() + part.limit > end:
        print(f"{part.name}: postponed, may take {part.limit} s", flush=True)
        return
    folder = out / part.name
    folder.mkdir(parents=True, exist_ok=True)
    began = time.monotonic()
    with (folder / "log.txt").open("w") as log:
        command = ["timeout", "-k", "10", str(part.limit), "sh", "-c", part.command]
        environment = {**os.environ, "OUT": str(folder)}
        code = subprocess.run(
            command, stdout=log, stderr=subprocess.STDOUT, cwd=ROOT, env=environment
        ).returncode
    seconds = round(time.monotonic() - began)
    found = {"key": part.key, "code": code, "seconds": seconds, "device": device()}
    (folder / "record.json").write_text(json.dumps(found) + "\n")
    print(f"{part.name}: {EXIT_CODES.get(code, f'exit code {code}')} after {seconds} s", flush=True)


def device() -> str:
    """Return the name of the GPU, or of the machine without one."""
    command = ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"]
    try:
        return subprocess.run(command, capture_output=True, text=True).stdout.strip()
    except FileNotFoundError:
        return "no GPU"


def page(parts: Sequence[Part], out: Path) -> str:
    """Format the state of each part, and the tables of the benchmarks."""
    lines = ["# GPU suite", "", "Parts of `scripts/gpu_parts.csv`, as `sh scripts/gpu_suite.sh`"]
    lines[-1] += " runs them."
    lines += ["", "| part | issue | result | seconds | device |", "|---|---|---|---:|---|"]
    for part in parts:
        found = record(out / part.name)
        code = found.get("code")
        state = "not run" if code is None else EXIT_CODES.get(code, f"exit code {code}")
        if found and found["key"] != part.key:
            state += ", other sources"
        rest = f"{found.get('seconds', '')} | {found.get('device', '')}"
        lines.append(f"| {part.name} | {part.issue} | {state} | {rest} |")
    tables = [out / part.name / "bench.md" for part in parts]
    return "\n".join(lines) + "\n" + "".join(f"\n#{f.read_text()}" for f in tables if f.is_file())


def main(argv: Sequence[str]) -> int:
    """Run all parts that are due, as far as the budget allows."""
    parser = argparse.ArgumentParser(prog="sh scripts/gpu_suite.sh", allow_abbrev=False)
    parser.add_argument("--budget", type=float, default=840, help="seconds (default: %(default)s)")
    parser.add_argument("--out", type=Path, default=ROOT / "results/gpu")
    parser.add_argument("--parts", nargs="+", help="only these (default: all)")
    options = parser.parse_args(argv)
    end = time.monotonic() + options.budget
    out: Path = options.out.absolute()
    parts = read_parts(TABLE)
    known = (out, ROOT / "results/gpu")
    due = [p for p in parts if p.name in (options.parts or p.name) and not p.is_done(*known)]
    groups = {kind: [part for part in due if part.kind == kind] for kind in KINDS}
    with ThreadPoolExecutor(max(1, len(groups["together"]))) as pool:
        list(pool.map(lambda part: run(part, out, end), groups["together"]))
    with ThreadPoolExecutor(2) as pool:
        one_by_one = (groups["alone"], groups["beside"])
        list(pool.map(lambda group: [run(part, out, end) for part in group], one_by_one))
    out.mkdir(parents=True, exist_ok=True)
    (out / "gpu.md").write_text(page(parts, out))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
