"""Files of a reproduced table: pages, plot and provenance.

The files are OUT/PAPER/TABLE/TIER/{table.md, table.csv, table.json, table.png, provenance.json}.
"""

import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fourfold.atomic_files import write_atomically
from fourfold.commands.train.metrics_report import to_json
from fourfold.errors import InputError
from fourfold.reproduce.cells import Cell
from fourfold.reproduce.plot import draw
from fourfold.reproduce.rank_correlation import compare_orders
from fourfold.reproduce.report import as_csv, content, markdown
from fourfold.reproduce.tables import Paper, Table


def write(
    paper: Paper,
    table: Table,
    tier: str,
    cells: Sequence[Cell],
    provenance: dict[str, Any],
    out: Path,
) -> str:
    """Write all files of a table atomically; return the page as text.

    provenance.json is written first, because later commands read the finished runs from it. If it
    would contain the same runs as before, the previous command and date are kept.
    """
    order = compare_orders(table, cells) if tier != "exact" else []
    page = markdown(paper, table, tier, cells, order)
    folder = out / table.name / tier
    folder.mkdir(parents=True, exist_ok=True)
    text = _json(provenance)
    record = folder / "provenance.json"
    if "runs" in provenance and record.exists():
        with raise_if_damaged(record):
            previous = json.loads(record.read_text(encoding="utf-8"))
            current = json.loads(text)
            if all(previous.get(key) == current.get(key) for key in ("runs", "outdated", "data")):
                text = _json(previous)
                provenance = previous
    write_atomically(record, text)
    write_atomically(folder / "table.md", with_provenance(page, provenance))
    write_atomically(folder / "table.csv", as_csv(table, cells))
    write_atomically(folder / "table.json", _json(content(table, tier, cells, order)))
    draw(table, cells, folder / "table.png")
    return f"{page}\nwrote {folder}\n"


def check_folder(out: Path, table: Table, tier: str) -> None:
    """Raise InputError, before any training starts, if the table's folder cannot be written."""
    folder = out / table.name / tier
    existing = next(path for path in (folder, *folder.parents) if path.exists())
    if not existing.is_dir() or not os.access(existing, os.W_OK):
        raise InputError(
            f"must be a writable directory, got {out} ({existing} is not one)", option="--out"
        )


@contextmanager
def raise_if_damaged(file: Path) -> Iterator[None]:
    """Convert any error while a provenance file is read to an InputError that names the file."""
    try:
        yield
    except (ValueError, KeyError, TypeError, AttributeError, IndexError) as error:
        message = f"the record is damaged ({error}); remove or restore it"
        raise InputError(message, file=file) from None


def recorded_runs(file: Path) -> list[tuple[dict[str, Any], dict[str, str]]]:
    """Return the runs recorded in a provenance file, each with the hashes of its data by name.

    Outdated runs, whose data or recipes have changed since, are included. The list is empty if
    there is no such file.

    Raises:
        InputError: The file is damaged.
    """
    if not file.exists():
        return []
    with raise_if_damaged(file):
        about = json.loads(file.read_text(encoding="utf-8"))
        data = dict(about.get("data", {}))
        outdated = [(run, dict(run.pop("data"))) for run in about.get("outdated", [])]
        return [(dict(run), data) for run in about["runs"]] + outdated


def with_provenance(page: str, provenance: dict[str, Any]) -> str:
    """Append the command, commit and date to the page of a table."""
    commit = provenance["machine"].get("commit", "unknown")
    return (
        f"{page}\n`{provenance['command']}`, commit {commit}, {provenance['finished']}; hardware,"
        " versions, data and runs are in provenance.json.\n"
    )


def _json(content: Any) -> str:
    return json.dumps(to_json(content), indent=1, allow_nan=False, ensure_ascii=False) + "\n"
