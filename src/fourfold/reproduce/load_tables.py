"""Loading of the published tables from YAML, lookup by name, and the list of all tables."""

import json
from collections.abc import Iterator, Sequence
from difflib import get_close_matches
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

import yaml

from fourfold.errors import InputError
from fourfold.reproduce.tables import (
    RECIPES,
    Column,
    Paper,
    Printed,
    Reason,
    Recipe,
    Row,
    Table,
    Tier,
    make,
)

ROW_KEYS = ("title", "setup", *RECIPES)  # keys of a row in addition to its columns


@cache
def papers() -> dict[str, Paper]:
    """Load all papers of the package by name.

    Raises:
        InputError: A file is invalid.
    """
    files = sorted(
        (
            f
            for f in (resources.files("fourfold.reproduce") / "data").iterdir()
            if f.name.endswith(".yaml")
        ),
        key=lambda f: f.name,
    )
    return {
        f.name.removesuffix(".yaml"): read_paper(f.name, f.read_text(encoding="utf-8"))
        for f in files
    }


def read_paper(file: str, text: str) -> Paper:
    """Parse one YAML file.

    Args:
        file: Name of the file.
        text: Content of the file.

    Raises:
        InputError: The content is invalid; the message names the file, table and key.
    """
    typed = yaml.safe_load(text)
    as_printed = yaml.load(text, Loader=yaml.BaseLoader)  # keeps "5.00" as text
    if not isinstance(typed, dict) or not isinstance(typed.get("tables"), dict):
        raise InputError("the key tables is missing", file=file)
    name = file.removesuffix(".yaml")
    sources = typed.get("sources") or {}
    tables = {
        key: _table(f"{name}/{key}", content, as_printed["tables"][key], sources)
        for key, content in typed["tables"].items()
    }
    attributes = {key: value for key, value in typed.items() if key != "tables"}
    paper: Paper = make(Paper, file, attributes, name=name, tables=tables)
    return paper


def _table(name: str, content: Any, printed: Any, sources: dict[str, str]) -> Table:
    if not isinstance(content, dict) or not content.get("columns") or not content.get("rows"):
        raise InputError("must have columns and rows", option=name)
    optional: dict[str, Any] = {"setting": "", "note": "", "tiers": {}, "reasons": [], "setup": {}}
    optional |= {"source": [], "confirmed": False}  # of a table without printed numbers
    content = {**optional, **content}
    shared = content.pop("setup")
    content["columns"] = {
        key: make(Column, f"{name}, column {key}", value)
        for key, value in content["columns"].items()
    }
    content["tiers"] = {
        key: _tier(f"{name}, tier {key}", value) for key, value in content["tiers"].items()
    }
    content["rows"] = {
        (row_name := str(key)): _row(
            f"{name}, row {key}", row_name, row, printed["rows"][row_name], content, shared
        )
        for key, row in content["rows"].items()
    }
    content["reasons"] = [
        make(Reason, f"{name}, reason {number}", reason)
        for number, reason in enumerate(content["reasons"], 1)
    ]
    table: Table = make(Table, name, content, name=name)
    _check(table, sources)
    return table


def _tier(where: str, given: Any) -> Tier:
    parts: dict[str, dict[str, Recipe]] = {}
    for key in ("then", "also") if isinstance(given, dict) else ():
        named = given.get(key) or {}
        if not isinstance(named, dict):
            raise InputError(
                f"must be a mapping, got {str(named)[:60]!r}", option=f"{where}: {key}"
            )
        parts[key] = {p: make(Recipe, f"{where}, {p}", recipe) for p, recipe in named.items()}
    tier: Tier = make(Tier, where, {**given, **parts} if parts else given)
    if not tier.config and (tier.columns or not tier.parts):
        raise InputError("must have a config", option=where)
    return tier


def _row(
    where: str, name: str, row: Any, printed: Any, table: dict[str, Any], shared: dict[str, Any]
) -> Row:
    columns, tiers = table["columns"], table["tiers"]
    for key in row:
        if key not in (*columns, *ROW_KEYS):
            raise InputError(
                f"has the key {key}, which is neither a column nor a tier", option=where
            )
        if key in RECIPES and key not in tiers:
            raise InputError(f"has the key {key}, but the table has no such tier", option=where)
    own = row.get("setup")
    runs = {name: row.get(name, row.get(tier.like)) for name, tier in tiers.items()}
    return Row(
        name=name,
        title=str(row.get("title", name)),
        printed={c: Printed(printed[c]) for c in columns if row.get(c) is not None},
        setup=None if own is None else merged(shared, own),
        runs={name: changes for name, changes in runs.items() if changes is not None},
    )


def merged(base: Any, change: Any) -> Any:
    """Merge nested mappings; values of `change` replace those of `base`."""
    if not isinstance(base, dict) or not isinstance(change, dict):
        return change
    return base | {key: merged(base.get(key), value) for key, value in change.items()}


def _check(table: Table, sources: dict[str, str]) -> None:
    """Raise InputError if a table refers to an unknown source, row, column or tier."""

    def check_names(kind: str, names: list[str], known: Any) -> None:
        for name in names:
            if name not in known:
                raise InputError(f"refers to the unknown {kind} {name}", option=table.name)

    if not table.source and any(row.printed for row in table.rows.values()):
        raise InputError("must have a source", option=table.name)
    check_names("source", table.source, sources)
    check_names("tier", list(table.tiers), RECIPES)
    for tier in table.tiers.values():
        check_names("column", list(tier.metrics), table.columns)
        check_names("tier", [tier.like] if tier.like else [], table.tiers)
    for reason in table.reasons:
        check_names("source", reason.source, sources)
        check_names("row", reason.rows, table.rows)
        check_names("column", reason.columns, table.columns)
        check_names("rounding", [reason.rounding], ("nearest", "down"))


def all_tables() -> Iterator[Table]:
    """Iterate over all tables of all papers."""
    for paper in papers().values():
        yield from paper.tables.values()


def find_tables(names: list[str]) -> list[Table]:
    """Return the tables named by PAPER/TABLE, PAPER or "all".

    Raises:
        InputError: A name is unknown; the message lists the known ones.
    """
    tables = {table.name: table for table in all_tables()}
    selected: dict[str, Table] = {}
    for name in names:
        matches = {n: t for n, t in tables.items() if name in ("all", n, n.partition("/")[0])}
        if not matches:
            close = get_close_matches(name, [*tables, *papers()], n=1)
            of_paper = [n for n in tables if n.startswith(name.partition("/")[0] + "/")]
            hint = f"; did you mean {close[0]}?" if close else "; --list shows all tables"
            raise InputError(
                f"must be one of {', '.join(of_paper or papers())}, got {name}{hint}",
                option="TABLE",
            )
        selected |= matches
    return list(selected.values())


def list_tables(tables: Sequence[Table], out: Path) -> None:
    """Print two lines per table: its title, and the number of rows and finished cells by tier."""
    width = max(len(table.name) for table in tables)
    for table in tables:
        tiers = ", ".join(f"{tier} {progress(table, tier, out)}" for tier in table.obtainable)
        print(f"{table.name:<{width}}  {table.title}")
        print(f"{'':<{width}}    {len(table.rows)} rows; {tiers or 'printed numbers only'}")


def progress(table: Table, tier: str, out: Path) -> str:
    """Format the number of a tier's cells that have a result, such as 12/40."""
    total = len(table.cells(tier))
    try:
        file = out / table.name / tier / "table.json"
        cells = json.loads(file.read_text(encoding="utf-8"))["cells"]
        return f"{sum(bool(cell['values']) for cell in cells)}/{total}"
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        return f"0/{total}"
