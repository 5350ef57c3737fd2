"""Tables of Bishop's ladder: list, exact values, and trainings of a row."""

import json
from pathlib import Path
from typing import Any

import pytest

from fourfold.cli import main
from fourfold.reproduce.load_tables import find_tables


def cells(folder: Path) -> dict[tuple[str, str], float]:
    content = json.loads((folder / "table.json").read_text())
    return {(c["row"], c["column"]): c["values"][0] for c in content["cells"]}


def test_the_exact_part_of_the_ladder(tmp_path: Path, capsys: Any) -> None:
    assert main(["reproduce", "bishop", "--out", str(tmp_path)]) == 0
    ladder = cells(tmp_path / "bishop/ladder/exact")
    rungs = ["none", "projections", "heads", "norm", "full", "layers", "layers_12"]
    counts = [ladder[rung, "params"] for rung in rungs]
    assert counts == sorted(counts)
    assert ladder["none", "params"] == 69 * 32 * 2 + 8 * 32
    assert ladder["post_norm", "params"] + 64 == ladder["norm", "params"]  # the last norm
    properties = cells(tmp_path / "bishop/properties/exact")
    assert {r for r, c in properties if properties[r, "equivariance"] > 1e-12} == set()
    scores = cells(tmp_path / "bishop/scores/exact")
    assert scores["unscaled_512", "entropy"] < 0.2 < 2.3 < scores["scaled_512", "entropy"]
    capsys.readouterr()
    assert main(["reproduce", "bishop/ladder", "--list", "--out", str(tmp_path)]) == 0
    n_rows = len({row for row, _ in ladder})
    assert f"exact {n_rows}/{n_rows}, laptop 0/" in capsys.readouterr().out


def test_a_rung_has_four_trainings(root: Path, monkeypatch: Any, capsys: Any) -> None:
    monkeypatch.chdir(root)
    command = ["reproduce", "bishop/ladder", "--tier", "laptop", "--rows", "heads", "--commands"]
    assert main(command) == 0
    fits = [
        line for line in capsys.readouterr().out.splitlines() if line.startswith("fourfold fit")
    ]
    assert len(fits) == 4
    assert all("--model.init_args.config.rung heads" in line for line in fits)
    unordered = ["config.positions none" in line for line in fits]
    assert unordered == [False, True, False, True]


@pytest.mark.parametrize("name", ["layers_12", "layers_12_post", "head_64", "head_256_unscaled"])
def test_deep_and_wide_rows_are_language_models_only(name: str) -> None:
    (table,) = find_tables(["bishop/ladder"])
    changes = table.rows[name].runs["laptop"]
    assert table.tiers["laptop"].columns_of(changes) == ["loss"]
    config = (table.rows[name].setup or {})["config"]
    assert changes["config"].items() <= config.items()


def test_setup_of_each_row_is_the_config_of_its_training(root: Path) -> None:
    import yaml

    (table,) = find_tables(["bishop/ladder"])
    recipe = yaml.safe_load((root / "configs/bishop/laptop_shakespeare_char.yaml").read_text())
    base = recipe["model"]["init_args"]["config"]
    for row in table.rows_of("laptop"):
        changes = row.runs["laptop"]
        trained = base | changes.get("each", {}).get("config", {}) | changes.get("config", {})
        for key, value in (row.setup or {})["config"].items():
            assert key == "vocab_size" or trained[key] == value, (row.name, key)
