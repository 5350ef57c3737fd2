"""`fourfold reproduce --list`: every table, its tiers, and how much of each has been obtained."""

import json
from collections.abc import Sequence
from pathlib import Path

from fourfold.papers.tables import Table


def show_tables(tables: Sequence[Table], out: Path) -> None:
    """Print one line a table."""
    width = max(len(table.name) for table in tables)
    for table in tables:
        tiers = ", ".join(f"{tier} {state(table, tier, out)}" for tier in table.obtainable)
        print(f"{table.name:<{width}}  {table.title}")
        print(f"{'':<{width}}    {len(table.rows)} rows; {tiers or 'printed numbers only, as yet'}")


def state(table: Table, tier: str, out: Path) -> str:
    """How many of a tier's cells are in the results, such as 12/40."""
    n = len(table.cells(tier))
    try:
        file = out / table.name / tier / "table.json"
        cells = json.loads(file.read_text(encoding="utf-8"))["cells"]
        return f"{sum(bool(cell['values']) for cell in cells)}/{n}"
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        return f"0/{n}"
