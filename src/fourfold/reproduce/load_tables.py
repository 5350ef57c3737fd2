"""Published tables: YAML read into the classes of `tables.py`, lookup, and a list with progress.

A row of a table is one of its lines, a cell is one number, and a tier is one way to obtain cells,
such as computing them without training (see `fourfold.reproduce.tables`).
"""

import json
from collections.abc import Iterator, Sequence
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from fourfold.core.validation import check_choice
from fourfold.errors import InputError
from fourfold.reproduce.tables import (
    Column,
    Paper,
    Reason,
    Recipe,
    Row,
    Table,
    Tier,
    make,
)

DATA = Path(__file__).with_name("data")


@cache
def papers() -> dict[str, Paper]:
    """Load all papers of the package; return them by name of the file without .yaml.

    Raises:
        InputError: A file is invalid.
    """
    files = sorted(DATA.glob("*.yaml"))
    return {file.stem: read_paper(file.name, file.read_text(encoding="utf-8")) for file in files}


def read_paper(file: str, text: str) -> Paper:
    """Parse the YAML file of one paper.

    Args:
        file: Name of the file: the name of the paper followed by .yaml, such as bert2018.yaml.
        text: Content of the file.

    Raises:
        InputError: A key is missing or unknown; the message names the file, table and key.
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
    """Create a table from its YAML content.

    Args:
        name: Name of the table, PAPER/TABLE.
        content: Content of the table, with numbers converted by YAML.
        printed: The `rows` of the same content with all numbers as text, so that "5.00" keeps its
            zeros.
    """
    shared = content.pop("setup", {})
    columns = {
        key: make(Column, f"{name}, column {key}", value)
        for key, value in content["columns"].items()
    }
    tiers = {
        key: _tier(f"{name}, tier {key}", value) for key, value in content.get("tiers", {}).items()
    }
    rows = {
        key: _row(f"{name}, row {key}", key, row, texts, columns, tiers, shared)
        for row, (key, texts) in zip(content["rows"].values(), printed.items(), strict=True)
    }
    reasons = [make(Reason, f"{name}, reasons", reason) for reason in content.get("reasons", ())]
    content |= {"columns": columns, "tiers": tiers, "rows": rows, "reasons": reasons}
    return make(Table, name, content, name=name)


def _tier(where: str, given: dict[str, Any]) -> Tier:
    parts = {
        key: {part: make(Recipe, f"{where}, {part}", recipe) for part, recipe in given[key].items()}
        for key in ("then", "also")
        if key in given
    }
    return make(Tier, where, given | parts)


def _row(
    where: str,
    name: str,
    row: dict[str, Any],
    texts: dict[str, str],
    columns: dict[str, Column],
    tiers: dict[str, Tier],
    shared: dict[str, Any],
) -> Row:
    """Create a row of a table from its YAML content.

    Args:
        where: Location of the row in the file, for messages.
        name: Name of the row.
        row: Content of the row, with numbers converted by YAML.
        texts: The content of the row with all numbers as text.
        columns: Columns of the table by name.
        tiers: Tiers of the table by name.
        shared: Setup of the table, the inputs of the computation that all rows share. The row's
            own setup is merged into it.

    Raises:
        InputError: `row` has an unknown key.
    """
    for key in row:
        check_choice(f"{where}: key", key, (*columns, *tiers, "title", "setup"))
    own = row.get("setup")
    runs = {tier: row.get(tier, row.get(recipes.like)) for tier, recipes in tiers.items()}
    return Row(
        name=name,
        title=str(row.get("title", name)),
        printed={c: texts[c] for c in columns if row.get(c) is not None},
        setup=None if own is None else merged(shared, own),
        runs={tier: changes for tier, changes in runs.items() if changes is not None},
    )


def merged(base: Any, change: Any) -> Any:
    """Merge two nested mappings, so that values of `change` replace those of `base`.

    The arguments are not changed. The result is `change` if one of the arguments is not a mapping.
    """
    if not isinstance(base, dict) or not isinstance(change, dict):
        return change
    return base | {key: merged(base.get(key), value) for key, value in change.items()}


def all_tables() -> Iterator[Table]:
    """Iterate over all tables of all papers."""
    for paper in papers().values():
        yield from paper.tables.values()


def find_tables(names: list[str]) -> list[Table]:
    """Return the tables that some names stand for, without repetition.

    Args:
        names: Names, each of which is PAPER/TABLE, PAPER (all tables of the paper) or "all".

    Raises:
        InputError: A name is unknown; the message lists the known names.
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
    """Print name, title and number of rows of each table, and the progress of each of its tiers.

    Args:
        tables: Tables to list.
        out: Directory of the results, from which the number of finished cells is read.
    """
    width = max(len(table.name) for table in tables)
    for table in tables:
        tiers = ", ".join(f"{tier} {progress(table, tier, out)}" for tier in table.obtainable)
        print(f"{table.name:<{width}}  {table.title}")
        print(f"{'':<{width}}    {len(table.rows)} rows; {tiers or 'printed numbers only'}")


def progress(table: Table, tier: str, out: Path) -> str:
    """Format the progress of a tier, such as "12/40" if 12 of the tier's 40 cells are finished.

    Args:
        table: Table.
        tier: Name of the tier.
        out: Directory of the results, from which the number of finished cells is read.
    """
    file = out / table.name / tier / "table.json"
    cells = json.loads(file.read_text(encoding="utf-8"))["cells"] if file.exists() else ()
    return f"{sum(bool(cell['values']) for cell in cells)}/{len(table.cells(tier))}"
