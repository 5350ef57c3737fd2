"""Tables of what `scripts/bench_laptop.sh` measured, peers beside each other, put into a page.

    python scripts/bench_tables.py OUT

OUT/README.md keeps its prose; what stands between its two marks is made anew.
"""

import json
import sys
from pathlib import Path
from typing import Any

from fourfold.bench.clock import Spread
from fourfold.bench.shapes import OURS

BEGIN, END = "<!-- tables -->", "<!-- end of tables -->"
Row = dict[str, Any]


def read(out: Path) -> dict[str, dict[str, Any]]:
    """The JSON of each part by its name."""
    return {f.parent.name: json.loads(f.read_text()) for f in sorted(out.glob("*/bench.json"))}


def tables(parts: dict[str, dict[str, Any]]) -> str:
    """For each part and work, a line for each of our measurements and a column for each peer."""
    pieces = []
    for name, part in parts.items():
        about, settings = part["machine"], part["settings"]
        pieces.append(
            f"## {name}\n\n`{settings['precision']}`, size {settings['size']}, {settings['rounds']}"
            f" rounds, commit {about['commit']}: [all of it]({name}/bench.md)."
        )
        for work in dict.fromkeys(row["work"] for row in part["rows"]):
            pieces.append(table([row for row in part["rows"] if row["work"] == work]))
    return "\n\n".join(pieces)


def table(rows: list[Row]) -> str:
    """Ours in its unit and as a share of its ceiling, then each way's time or bytes by ours."""
    ways = [way for way in dict.fromkeys(row["way"] for row in rows) if way != OURS]
    ceiling = next((row["ceiling"] for row in rows if row.get("shares")), None)
    heads = [rows[0]["work"], "ours", *([f"of the {ceiling}"] if ceiling else []), *ways]
    lines = [heads, ["---", *["---:"] * (len(heads) - 1)]]
    groups: dict[tuple[Any, ...], dict[str, Row]] = {}
    for row in rows:
        key = tuple(row.get(part) for part in ("family", "what", "x", "unit"))
        groups.setdefault(key, {})[row["way"]] = row
    for (family, what, x, unit), found in groups.items():
        mine = found.get(OURS, {})
        cells = [" ".join(str(part) for part in (family, what, x) if part is not None)]
        cells.append(f"{spread(mine, 'values', 1.0, 4)} {unit}" if mine.get("values") else "-")
        if ceiling:
            cells.append(spread(mine, "shares", 100.0, 3, " %"))
        cells += [spread(found.get(way, {}), "ratios") for way in ways]
        lines.append(cells)
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def spread(row: Row, name: str, factor: float = 1.0, digits: int = 3, unit: str = "") -> str:
    """The median, with the least and the greatest where there are several."""
    values = [factor * x for x in row.get(name) or []]
    if not values:
        return row.get("note") or "-"
    found = Spread.of(values)
    middle, *ends = (
        f"{float(f'{x:.{digits}g}'):,g}" for x in (found.median, found.least, found.greatest)
    )
    return f"{middle}{unit} [{', '.join(ends)}]" if len(values) > 1 else f"{middle}{unit}"


def put(page: Path, content: str) -> None:
    """Write what stands between the two marks of a page, which must have them."""
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
    put(page, tables(read(out)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
