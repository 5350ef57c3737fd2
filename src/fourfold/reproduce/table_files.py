"""A table that was obtained, put where results are kept.

OUT/PAPER/TABLE/TIER/  table.md  table.csv  table.json  table.png  provenance.json
"""

import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fourfold.commands.results import plain
from fourfold.core.errors import InputError
from fourfold.files import write_whole
from fourfold.papers.cells import Cell
from fourfold.papers.order import compare_orders
from fourfold.papers.plot import draw
from fourfold.papers.report import as_csv, content, markdown
from fourfold.papers.tables import Paper, Table


def write(
    paper: Paper,
    table: Table,
    tier: str,
    cells: Sequence[Cell],
    provenance: dict[str, Any],
    out: Path,
) -> str:
    """Write all files, each whole or as it was before; returns the page, to be printed.

    The runs come first: they are what the next command goes by. Where they are those that were
    written before, so is how they were obtained.
    """
    order = compare_orders(table, cells) if tier != "exact" else []
    page = markdown(paper, table, tier, cells, order)
    folder = out / table.name / tier
    folder.mkdir(parents=True, exist_ok=True)
    text, record = _json(provenance), folder / "provenance.json"
    if "runs" in provenance and record.exists():
        with reading(record):
            before, now = json.loads(record.read_text(encoding="utf-8")), json.loads(text)
            if all(before.get(key) == now.get(key) for key in ("runs", "outdated", "data")):
                text, provenance = _json(before), before
    write_whole(record, text)
    write_whole(folder / "table.md", with_trace(page, provenance))
    write_whole(folder / "table.csv", as_csv(table, cells))
    write_whole(folder / "table.json", _json(content(table, tier, cells, order)))
    draw(table, cells, folder / "table.png")
    return f"{page}\nwrote {folder}\n"


def check_folder(out: Path, table: Table, tier: str) -> None:
    """What hours of training find must not be lost for want of a directory.

    Raises:
        InputError: A file stands in its place, or nobody may write there.
    """
    folder = out / table.name / tier
    there = next(place for place in (folder, *folder.parents) if place.exists())
    if not there.is_dir() or not os.access(there, os.W_OK):
        raise InputError(f"--out {out}: {there} is no directory that can be written to")


@contextmanager
def reading(file: Path) -> Iterator[None]:
    """Whatever is wrong in a record that is read here, in one sentence.

    Raises:
        InputError: The file is damaged.
    """
    try:
        yield
    except (ValueError, KeyError, TypeError, AttributeError, IndexError) as error:
        raise InputError(f"{file} is damaged ({error}): remove it, or restore it") from None


def kept_runs(file: Path) -> list[tuple[dict[str, Any], dict[str, str]]]:
    """The runs that earlier commands wrote down in provenance.json; none if there is no such file.

    Each with the hashes of the data it learned from, by name: also those that do not count any
    more, since data or recipes have changed.

    Raises:
        InputError: The file is damaged.
    """
    if not file.exists():
        return []
    with reading(file):
        about = json.loads(file.read_text(encoding="utf-8"))
        data = dict(about.get("data", {}))
        outdated = [(run, dict(run.pop("data"))) for run in about.get("outdated", [])]
        return [(dict(run), data) for run in about["runs"]] + outdated


def with_trace(page: str, provenance: dict[str, Any]) -> str:
    """A table's page, and below it how it was obtained."""
    commit = provenance["machine"].get("commit", "unknown")
    return (
        f"{page}\n`{provenance['command']}`, commit {commit}, {provenance['finished']}; hardware,"
        " versions, data and runs are in provenance.json.\n"
    )


def _json(content: Any) -> str:
    return json.dumps(plain(content), indent=1, allow_nan=False, ensure_ascii=False) + "\n"
