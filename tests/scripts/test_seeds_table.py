"""Tests of the table over several seeds."""

import json
from pathlib import Path
from typing import Any

from scripts import seeds_table

COMMAND = "fourfold seeds --from /some/one/here/model --run_dir r"


def write(folder: Path, **metrics: Any) -> None:
    folder.mkdir(parents=True)
    content = {name.replace("_", "/", 1): entry for name, entry in metrics.items()}
    (folder / "seeds.json").write_text(json.dumps({**content, "run": {"command": COMMAND}}))


def entry(*values: float) -> dict[str, Any]:
    mean = sum(values) / len(values)
    std = 0.01 if len(values) > 1 else "nan"
    return {"mean": mean, "std": std, "best": max(values), "seeds": dict(enumerate(values))}


def test_table_has_a_row_for_each_task_and_metric(tmp_path: Path) -> None:
    write(tmp_path / "pretrained/CoLA", test_mcc=entry(0.4, 0.5))
    write(tmp_path / "pretrained/MRPC", test_f1=entry(0.9), test_accuracy=entry(0.85))
    write(tmp_path / "random/MRPC", test_f1=entry(0.8), test_accuracy=entry(0.7))
    found = seeds_table.read(tmp_path)
    assert seeds_table.table(found).split("\n")[2:] == [
        "| MRPC | f1 | 0.900 (1) | 0.800 (1) |",
        "| MRPC | accuracy | 0.850 (1) | 0.700 (1) |",
        "| CoLA | mcc | 0.450 ± 0.010 (2) | - |",
    ]
    assert (
        found["pretrained"]["MRPC"]["run"]["command"] == "fourfold seeds --from model --run_dir r"
    )


def test_rows_are_sorted_by_number_of_labels(tmp_path: Path) -> None:
    for n in ("20000", "100", "1000"):
        write(tmp_path / "scratch" / n, test_accuracy=entry(0.5, 0.6))
    found = seeds_table.read(tmp_path)
    assert seeds_table.rows_of(found) == ["100", "1000", "20000"]
    seeds_table.plot(found, tmp_path / "x.png")
    assert (tmp_path / "x.png").stat().st_size > 1000
