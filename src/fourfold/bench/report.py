"""Rows to read: Markdown tables, and JSON with every measurement."""

import json
from collections.abc import Sequence
from dataclasses import asdict
from itertools import groupby
from pathlib import Path
from typing import Any

from fourfold.bench.clock import Spread
from fourfold.bench.plot import draw_plot
from fourfold.bench.rows import Row
from fourfold.bench.shapes import SIZES, WRITING, Settings

TITLES = {
    "train": "Training step: forward, loss, backward, fused AdamW",
    "evaluate": "Evaluation step: the loss without gradients",
    "memory": "Peak memory of a training step, a process each",
    "greedy": "Greedy decoding, the same weights",
    "beam": "Beam search, the same weights",
    "sentences": "Training on real sentences: batches of like lengths against random ones",
    "growth": "Growth of a training step",
}
COLUMNS = ("family", "what", "x", "way", "parameters", "value", "times ours", "share", "note")


def line(row: Row) -> str:
    """One row on one line, while others are still measured."""
    cells = _cells(row)
    named = (f"{cells[name]} {UNITS.get(name, '')}".strip() for name in COLUMNS if cells[name])
    return f"{row.work}: " + ", ".join(named)


UNITS = {"parameters": "parameters", "times ours": "times ours"}


def _cells(row: Row) -> dict[str, str]:
    value = f"{Spread.of(row.values).text()} {row.unit}" if row.values else ""
    share = ""
    if row.shares:
        found = Spread.of(row.shares)
        share = f"{found.text(100, 1)} % of {row.ceiling}"
    return {
        "family": row.family,
        "what": row.what,
        "x": "" if row.x is None else f"{row.x:,}",
        "way": row.way,
        "parameters": "" if row.parameters is None else f"{row.parameters:,}",
        "value": value,
        "times ours": Spread.of(row.ratios).text() if row.ratios else "",
        "share": share,
        "note": row.note,
    }


def markdown(rows: Sequence[Row], machine: dict[str, Any], settings: Settings) -> str:
    """The whole report: how it was measured, then a table for each work."""
    parts = [heading(machine, settings)]
    for work, found in groupby(rows, lambda row: row.work):
        parts.append(f"## {TITLES[work]}\n\n{table(list(found))}")
    return "\n\n".join(parts) + "\n"


def table(rows: Sequence[Row]) -> str:
    """Rows of one work, without the columns that are empty in all of them."""
    cells = [_cells(row) for row in rows]
    names = [name for name in COLUMNS if any(cell[name] for cell in cells)]
    lines = [names, ["---"] * len(names), *([cell[name] for name in names] for cell in cells)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def heading(machine: dict[str, Any], settings: Settings) -> str:
    """On what, of which shapes, and how to read it."""
    shapes = ", ".join(
        f"{family} {s.d_model} wide, {s.n_layers} layers, {s.n_heads} heads, {s.n_out:,} out,"
        f" batch {s.batch} x {s.length}"
        for family, s in SIZES[settings.size].items()
        if family in settings.families
    )
    writing = WRITING[settings.size]
    lines = [
        f"# fourfold bench, size {settings.size}",
        "",
        ", ".join(f"{name} {value}" for name, value in machine.items() if value is not None),
        "",
        f"Precision {settings.precision}, dropout {settings.dropout:g}, {settings.rounds} rounds;"
        f" {shapes}; greedy decoding of {writing.new} tokens after {writing.prompt}.",
        "",
        "All ways take turns, each in a process of its own, in another order each round. A value"
        " is the median [least, greatest] over the rounds; `times ours` is that of the ratios taken"
        " round by round, always against fourfold as it runs unasked: above 1 it is ahead.",
    ]
    return "\n".join(lines)


def content(rows: Sequence[Row], machine: dict[str, Any], settings: Settings) -> str:
    """Everything, as JSON."""
    said = asdict(settings)
    said["nanogpt"] = said["nanogpt"] is not None  # not where it lies
    shapes = {family: asdict(shape) for family, shape in SIZES[settings.size].items()}
    whole = {
        "machine": machine,
        "settings": said,
        "shapes": shapes,
        "rows": [{k: v for k, v in asdict(row).items() if v not in (None, "", (), [])}
                 for row in rows],
    }  # fmt: skip
    return json.dumps(whole, indent=1) + "\n"


def write(rows: Sequence[Row], machine: dict[str, Any], settings: Settings, out: Path) -> None:
    """bench.md, bench.json and bench.png in a directory."""
    (out / "bench.md").write_text(markdown(rows, machine, settings), encoding="utf-8")
    (out / "bench.json").write_text(content(rows, machine, settings), encoding="utf-8")
    draw_plot(rows, out / "bench.png")
