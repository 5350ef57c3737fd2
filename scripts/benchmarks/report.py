"""Benchmark reports: Markdown tables, and JSON with every measurement."""

import json
from collections.abc import Sequence
from dataclasses import asdict
from itertools import groupby
from pathlib import Path
from typing import Any

from scripts.benchmarks.measurements import Spread
from scripts.benchmarks.train_steps import Measurement
from scripts.benchmarks.workloads import GREEDY_DECODING, SIZES, Settings

TITLES = {
    "train": "Training step: forward, loss, backward, fused AdamW",
    "evaluate": "Evaluation step: loss without gradients",
    "memory": "Peak memory of a training step",
    "greedy": "Greedy decoding with the same weights",
    "beam": "Beam search with the same weights",
    "score": "Scores of minimal pairs with the same weights",
}
RATIO = "relative to fourfold"
SHARE = "share of the limit"
COLUMNS = ("family", "case", "contender", "parameters", "value", RATIO, SHARE, "note")


def summary_line(measurement: Measurement) -> str:
    """Format one measurement as a line, for progress messages."""
    cells = _cells(measurement)
    for name in ("parameters", RATIO):
        cells[name] = cells[name] and f"{cells[name]} {name}"
    return f"{measurement.workload}: " + ", ".join(filter(None, cells.values()))


def _cells(measurement: Measurement) -> dict[str, str]:
    value = ""
    if measurement.values:
        value = f"{Spread.of(measurement.values).text()} {measurement.unit}"
    utilization = ""
    if measurement.utilization:
        spread = Spread.of(measurement.utilization)
        utilization = f"{spread.text(100, 1)} % of {measurement.limit}"
    n_parameters = measurement.n_parameters
    return {
        "family": measurement.family,
        "case": measurement.case,
        "contender": measurement.contender,
        "parameters": "" if n_parameters is None else f"{n_parameters:,}",
        "value": value,
        RATIO: Spread.of(measurement.ratios).text() if measurement.ratios else "",
        SHARE: utilization,
        "note": measurement.note,
    }


def markdown(
    measurements: Sequence[Measurement], machine: dict[str, Any], settings: Settings
) -> str:
    """Format the report: description of machine and method, then one table per workload."""
    sections = [heading(machine, settings)]
    titles = list(TITLES)
    measurements = sorted(measurements, key=lambda measurement: titles.index(measurement.workload))
    for workload, group in groupby(measurements, lambda measurement: measurement.workload):
        sections.append(f"## {TITLES[workload]}\n\n{table(list(group))}")
    return "\n\n".join(sections) + "\n"


def table(measurements: Sequence[Measurement]) -> str:
    """Format measurements of one workload, without columns that are empty in all rows."""
    rows = [_cells(measurement) for measurement in measurements]
    names = [name for name in COLUMNS if any(row[name] for row in rows)]
    lines = [names, ["---"] * len(names), *([row[name] for name in names] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def heading(machine: dict[str, Any], settings: Settings) -> str:
    """Describe the machine, the shapes and the method."""
    shapes = ", ".join(
        f"{family} of width {shape.d_model}, {shape.n_layers} layers, {shape.n_heads} heads,"
        f" {shape.n_out:,} outputs, batch {shape.batch} x {shape.length}"
        for family, shape in SIZES[settings.size].items()
        if family in settings.families
    )
    greedy = GREEDY_DECODING[settings.size]
    lines = [
        f"# Benchmark, size {settings.size}",
        "",
        ", ".join(f"{name} {value}" for name, value in machine.items() if value is not None),
        "",
        f"Precision {settings.precision}, dropout {settings.dropout:g}, {settings.rounds} rounds;"
        f" {shapes}; greedy decoding of {greedy.max_new_tokens} tokens after {greedy.prompt_len}.",
        "",
        "All contenders are measured once per round, in random order; in training and evaluation,"
        " each in its own process."
        f" A value is median [minimum, maximum] over the rounds. `{RATIO}` is the ratio to"
        " uncompiled fourfold in the same round; above 1, fourfold is faster or smaller."
        f" `{SHARE}` is the rate of fourfold's operations in the time of the contender, relative to"
        " that of torch.mm at the shape of the model's feed-forward layer in the same round; in"
        " decoding, the rate at which the weights are read, relative to that of a copy.",
    ]
    return "\n".join(lines)


def to_json(
    measurements: Sequence[Measurement], machine: dict[str, Any], settings: Settings
) -> str:
    """Format everything as JSON, without empty fields."""
    options = asdict(settings)
    options["nanogpt"] = settings.nanogpt is not None  # the path is private
    content = {
        "machine": machine,
        "settings": options,
        "shapes": {family: asdict(shape) for family, shape in SIZES[settings.size].items()},
        "measurements": [
            {k: v for k, v in asdict(measurement).items() if v not in (None, "", (), [])}
            for measurement in measurements
        ],
    }
    return json.dumps(content, indent=1) + "\n"


def write_report(
    measurements: Sequence[Measurement], machine: dict[str, Any], settings: Settings, out: Path
) -> list[Path]:
    """Write bench.md and bench.json to a directory, and return the files."""
    texts = {
        out / "bench.md": markdown(measurements, machine, settings),
        out / "bench.json": to_json(measurements, machine, settings),
    }
    for file, text in texts.items():
        file.write_text(text, encoding="utf-8")
    return list(texts)
