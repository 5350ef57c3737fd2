"""Files of a reproduced table: Markdown page, CSV, JSON, plot and provenance.

The files are OUT/PAPER/TABLE/TIER/{table.md, table.csv, table.json, table.png, provenance.json},
and statements.csv with the verdicts on the published effects, if the table has any.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fourfold.atomic_files import write_atomically
from fourfold.commands.metrics_report import to_json
from fourfold.json_files import read_json
from fourfold.reproduce import load_tables, statements
from fourfold.reproduce.cells import Cell
from fourfold.reproduce.plot import draw
from fourfold.reproduce.rank_correlation import compare_orders
from fourfold.reproduce.report import as_csv, content, markdown
from fourfold.reproduce.tables import Table


def write(
    table: Table, tier: str, cells: Sequence[Cell], provenance: dict[str, Any], out: Path
) -> str:
    """Write the files of a table, each atomically, and return the text to print.

    An existing provenance.json with the same runs and data hashes is kept. In this case, table.md
    shows the command and date of the existing file.
    """
    order = compare_orders(table, cells) if tier != "exact" else []
    paper = load_tables.papers()[table.name.partition("/")[0]]
    page = markdown(paper, table, tier, cells, order)
    folder = out / table.name / tier
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "provenance.json"
    previous = read_json(file, optional=True)
    current = json.loads(_json(provenance))  # the values that later commands will read
    if "runs" in previous and all(previous.get(k) == current.get(k) for k in ("runs", "data")):
        provenance = previous
    write_atomically(file, _json(provenance))  # first, because later commands read it
    write_atomically(folder / "table.md", with_provenance(page, provenance))
    write_atomically(folder / "table.csv", as_csv(table, cells))
    write_atomically(folder / "table.json", _json(content(table, tier, cells, order)))
    if judged := statements.judge(table, tier, cells):
        write_atomically(folder / "statements.csv", statements.as_csv(table, judged))
    draw(table, cells, folder / "table.png")
    return f"{page}\nwrote {folder}\n"


def with_provenance(page: str, provenance: dict[str, Any]) -> str:
    """Return the page of a table with a line that has command, commit and date of the results."""
    commit = provenance["machine"].get("commit", "unknown")
    return (
        f"{page}\n`{provenance['command']}`, commit {commit}, {provenance['finished']}; hardware,"
        " versions, data and runs are in provenance.json.\n"
    )


def _json(content: Any) -> str:
    """Format a value as JSON text with a final newline; NaN and infinities become strings."""
    return json.dumps(to_json(content), indent=1, allow_nan=False, ensure_ascii=False) + "\n"
