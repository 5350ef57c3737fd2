"""Loading of published tables from YAML, lookup by name, and a listing of their progress."""

import json
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from fourfold.core.validation import check_choice
from fourfold.reproduce.tables import (
    Column,
    Paper,
    Reason,
    Recipe,
    Row,
    Statement,
    T,
    Table,
    Tier,
    make,
)

DATA = Path(__file__).with_name("data")


@cache
def papers() -> dict[str, Paper]:
    """Load all papers of the package.

    Raises:
        InputError: A file is invalid.
    """
    files = sorted(DATA.glob("*.yaml"))
    return {file.stem: read_paper(file.name, file.read_text(encoding="utf-8")) for file in files}


def read_paper(file: str, text: str) -> Paper:
    """Parse the YAML file of one paper.

    Raises:
        InputError: A key is missing or unknown. The message names the file, table and key.
    """
    content = yaml.safe_load(text)
    as_printed = yaml.load(text, Loader=yaml.BaseLoader)  # keeps "5.00" as text
    name = file.removesuffix(".yaml")
    tables = {
        key: _table(f"{name}/{key}", table, as_printed["tables"][key]["rows"])
        for key, table in content.pop("tables").items()
    }
    return make(Paper, file, content, name=name, tables=tables)


def _table(name: str, content: dict[str, Any], printed: dict[str, Any]) -> Table:
    """Create a table from its YAML content, which is changed; `printed` are its rows as text."""
    shared = content.pop("setup", {})

    def made(cls: type[T], kind: str, entries: dict[str, Any]) -> dict[str, T]:
        return {key: make(cls, f"{name}, {kind}{key}", entries[key]) for key in entries}

    columns = made(Column, "column ", content["columns"])
    with_parts = {
        tier: given
        | {key: made(Recipe, f"tier {tier}, ", given.get(key, {})) for key in ("then", "also")}
        for tier, given in content.get("tiers", {}).items()
    }
    tiers = made(Tier, "tier ", with_parts)
    known = (*columns, *tiers, "title", "setup")
    rows = {}
    for (key, texts), row in zip(printed.items(), content["rows"].values(), strict=True):
        for field in row:
            check_choice(f"{name}, row {key}: key", field, known)
        changes = {tier: row.get(tier, row.get(recipe.like)) for tier, recipe in tiers.items()}
        rows[key] = Row(
            name=key,
            title=str(row.get("title", key)),
            printed={c: texts[c] for c in columns if row.get(c) is not None},
            setup=merged(shared, row.get("setup")),
            runs={tier: change for tier, change in changes.items() if change is not None},
        )
    reasons = [make(Reason, f"{name}, reasons", reason) for reason in content.get("reasons", ())]
    content |= {"columns": columns, "tiers": tiers, "rows": rows, "reasons": reasons}
    content["statements"] = made(Statement, "statement ", content.get("statements", {}))
    return make(Table, name, content, name=name)


def merged(base: Any, change: Any) -> Any:
    """Merge two nested dicts recursively; values of `change` replace those of `base`.

    The arguments are not changed. The result is `change` if one of the arguments is not a dict.

    Example:
        >>> merged({"a": {"b": 1, "c": 2}}, {"a": {"b": 3}})
        {'a': {'b': 3, 'c': 2}}
    """
    if not isinstance(base, dict) or not isinstance(change, dict):
        return change
    return base | {key: merged(base.get(key), value) for key, value in change.items()}


def find_tables(names: list[str]) -> list[Table]:
    """Convert names (PAPER/TABLE, PAPER or "all") to tables, each table once.

    Raises:
        InputError: A name is unknown. The message lists the known names.
    """
    tables = {table.name: table for paper in papers().values() for table in paper.tables.values()}
    for name in names:
        check_choice("TABLE", name, (*papers(), "all", *tables))
    chosen = (n for name in names for n in tables if name in ("all", n, n.partition("/")[0]))
    return [tables[name] for name in dict.fromkeys(chosen)]


def list_tables(tables: Sequence[Table], out: Path) -> None:
    """Print name, title and rows of each table, and the finished cells of each of its tiers."""
    width = max(len(table.name) for table in tables)
    for table in tables:
        tiers = []
        for tier in table.obtainable:
            file = out / table.name / tier / "table.json"
            cells = json.loads(file.read_text(encoding="utf-8"))["cells"] if file.exists() else ()
            finished = sum(bool(cell["values"]) for cell in cells)
            tiers.append(f"{tier} {finished}/{len(table.cells(tier))}")
        progress = ", ".join(tiers) or "printed numbers only"
        print(f"{table.name:<{width}}  {table.title}")
        print(f"{'':<{width}}    {len(table.rows)} rows; {progress}")
