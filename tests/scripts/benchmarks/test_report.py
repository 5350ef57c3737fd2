"""Tests of the benchmark reports."""

import json
from pathlib import Path

from scripts.benchmarks.report import markdown, summary_line, to_json, write_report
from scripts.benchmarks.train_steps import Measurement
from scripts.benchmarks.workloads import Settings

MEASUREMENTS = [
    Measurement(
        "train",
        "vit",
        "fourfold",
        "ms per step",
        values=[2.0, 1.0],
        ratios=[1.0, 1.0],
        utilization=[0.5, 0.6],
        limit="feed-forward product",
        n_parameters=1234,
    ),
    Measurement("train", "vit", "timm", "ms per step", note="not installed"),
    Measurement("memory", "causal_lm", "fourfold", "MiB", "case 1", [3.0], [1.0]),
]
SETTINGS = Settings(size="tiny", nanogpt="/private/model.py")
MACHINE = {"processor": "a processor", "gpu": None, "threads": 1}


def test_tables_omit_empty_columns() -> None:
    text = markdown(MEASUREMENTS, MACHINE, SETTINGS)
    assert "processor a processor, threads 1\n" in text
    head = "| family | contender | parameters | value | relative to fourfold | share of the limit"
    assert f"{head} | note |" in text
    assert (
        "| vit | fourfold | 1,234 | 1.50 [1.00, 2.00] ms per step | 1.00 [1.00, 1.00]"
        " | 55.0 [50.0, 60.0] % of feed-forward product |  |"
    ) in text
    assert "| vit | timm |  |  |  |  | not installed |" in text
    assert "| causal_lm | case 1 | fourfold | 3.00 [3.00, 3.00] MiB |" in text


def test_summary_line_names_the_contender() -> None:
    assert summary_line(MEASUREMENTS[1]) == "train: vit, timm, not installed"
    assert "1,234 parameters" in summary_line(MEASUREMENTS[0])


def test_json_contains_every_measurement_but_no_path() -> None:
    content = json.loads(to_json(MEASUREMENTS, MACHINE, SETTINGS))
    assert content["measurements"][0]["values"] == [2.0, 1.0]
    assert content["measurements"][1] == {
        "workload": "train",
        "family": "vit",
        "contender": "timm",
        "unit": "ms per step",
        "note": "not installed",
    }
    assert content["settings"]["nanogpt"] is True
    assert "private" not in json.dumps(content)


def test_report_consists_of_two_files(tmp_path: Path) -> None:
    files = write_report(MEASUREMENTS, MACHINE, SETTINGS, tmp_path)
    assert sorted(files) == sorted(tmp_path.iterdir())
    assert sorted(file.name for file in files) == ["bench.json", "bench.md"]
