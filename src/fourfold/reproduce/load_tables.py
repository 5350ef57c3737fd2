"""Reads the papers' YAML files, and finds tables by the names that are typed."""

from collections.abc import Iterator
from difflib import get_close_matches
from functools import cache
from importlib import resources
from typing import Any

import yaml

from fourfold.core.errors import InputError
from fourfold.papers.tables import (
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

ROW_KEYS = ("title", "setup", *RECIPES)  # of a row, besides its columns


@cache
def papers() -> dict[str, Paper]:
    """All papers of the package, by name.

    Raises:
        InputError: A file is not what it should be.
    """
    files = sorted(
        (f for f in resources.files("fourfold.papers").iterdir() if f.name.endswith(".yaml")),
        key=lambda f: f.name,
    )
    return {
        f.name.removesuffix(".yaml"): read_paper(f.name, f.read_text(encoding="utf-8"))
        for f in files
    }


def read_paper(file: str, text: str) -> Paper:
    """One file.

    Raises:
        InputError: Names file, table and key.
    """
    typed = yaml.safe_load(text)
    as_printed = yaml.load(text, Loader=yaml.BaseLoader)  # "5.00" is not 5.0
    if not isinstance(typed, dict) or not isinstance(typed.get("tables"), dict):
        raise InputError(f"{file}: tables is missing")
    name = file.removesuffix(".yaml")
    sources = typed.get("sources") or {}
    tables = {
        key: _table(f"{name}/{key}", content, as_printed["tables"][key], sources)
        for key, content in typed["tables"].items()
    }
    above = {key: value for key, value in typed.items() if key != "tables"}
    paper: Paper = make(Paper, file, above, name=name, tables=tables)
    return paper


def _table(name: str, content: Any, printed: Any, sources: dict[str, str]) -> Table:
    if not isinstance(content, dict) or not content.get("columns") or not content.get("rows"):
        raise InputError(f"{name}: columns and rows are needed")
    optional: dict[str, Any] = {"setting": "", "note": "", "tiers": {}, "reasons": [], "setup": {}}
    optional |= {"source": [], "confirmed": False}  # of a table of which nothing is printed
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
        str(key): _row(f"{name}, row {key}", str(key), row, printed["rows"][str(key)], content,
                       shared)
        for key, row in content["rows"].items()
    }  # fmt: skip
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
            raise InputError(f"{where}: {key} must be a mapping, not {str(named)[:60]!r}")
        parts[key] = {p: make(Recipe, f"{where}, {p}", recipe) for p, recipe in named.items()}
    tier: Tier = make(Tier, where, {**given, **parts} if parts else given)
    if not tier.config and (tier.columns or not tier.parts):
        raise InputError(f"{where}: config is missing")
    return tier


def _row(
    where: str, name: str, row: Any, printed: Any, table: dict[str, Any], shared: dict[str, Any]
) -> Row:
    columns, tiers = table["columns"], table["tiers"]
    for key in row:
        if key not in (*columns, *ROW_KEYS):
            raise InputError(f"{where}: {key} is neither a column nor a tier")
        if key in RECIPES and key not in tiers:
            raise InputError(f"{where}: the table has no tier {key}")
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
    """Nested mappings, what `change` says in place of what `base` says."""
    if not isinstance(base, dict) or not isinstance(change, dict):
        return change
    return base | {key: merged(base.get(key), value) for key, value in change.items()}


def _check(table: Table, sources: dict[str, str]) -> None:
    """Raise InputError where names point at nothing."""

    def known(kind: str, names: list[str], words: Any) -> None:
        for word in names:
            if word not in words:
                raise InputError(f"{table.name}: there is no {kind} {word}")

    if not table.source and any(row.printed for row in table.rows.values()):
        raise InputError(f"{table.name}: source is missing")
    known("source", table.source, sources)
    known("tier", list(table.tiers), RECIPES)
    for tier in table.tiers.values():
        known("column", list(tier.metrics), table.columns)
        known("tier", [tier.like] if tier.like else [], table.tiers)
    for reason in table.reasons:
        known("source", reason.source, sources)
        known("row", reason.rows, table.rows)
        known("column", reason.columns, table.columns)
        known("rounding", [reason.rounding], ("nearest", "down"))


def all_tables() -> Iterator[Table]:
    """Every table of every paper."""
    for paper in papers().values():
        yield from paper.tables.values()


def find_tables(names: list[str]) -> list[Table]:
    """The tables that are meant by PAPER/TABLE, PAPER or all.

    Raises:
        InputError: There is no such table; names those that there are.
    """
    tables = {table.name: table for table in all_tables()}
    found: dict[str, Table] = {}
    for name in names:
        hits = {n: t for n, t in tables.items() if name in ("all", n, n.partition("/")[0])}
        if not hits:
            words = [*tables, *papers()]
            close = get_close_matches(name, words, n=1)
            same = [n for n in tables if n.startswith(name.partition("/")[0] + "/")]
            meant = f"did you mean {close[0]}? " if close else ""
            raise InputError(
                f"there is no table {name}; {meant}Known are {', '.join(same or papers())}"
                + ("" if same else " (`fourfold reproduce --list` shows their tables)")
            )
        found |= hits
    return list(found.values())
