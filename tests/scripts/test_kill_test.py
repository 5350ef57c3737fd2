"""A sample of `scripts/kill_test.py`; all hundred kills are slow."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from scripts.kill_cases import SETTINGS, cases, tasks
from scripts.kill_test import unequal

ROOT = Path(__file__).resolve().parents[2]


def run(*options: object) -> str:
    script = ROOT / "scripts/kill_test.py"
    result = subprocess.run(
        [sys.executable, script, *map(str, options)], capture_output=True, text=True, cwd=ROOT
    )
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


def test_a_sample(tmp_path: Path) -> None:
    out = run("--kills=2", "--each=1", "--only=all of it", "--work", tmp_path / "work",
              "--out", tmp_path)  # fmt: skip
    assert "2 of 2 ended bitwise the same" in out
    assert len((tmp_path / "kills.csv").read_text().splitlines()) == 3
    assert "| 1 of 1 |" in (tmp_path / "table.md").read_text()


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_a_hundred(tmp_path: Path) -> None:
    assert "100 of 100 ended bitwise the same" in run("--work", tmp_path)


def test_fifty_cases_meet_every_task_and_every_setting(tmp_path: Path) -> None:
    chosen = cases(tmp_path, 50)
    assert {case.task for case in chosen} == set(tasks(tmp_path))
    assert {case.setting for case in chosen} == set(SETTINGS)
    assert len({(case.task, case.setting) for case in chosen}) == 50


def test_one_bit_is_a_difference() -> None:
    a = {"w": torch.tensor([0.0, 1.0]), "n": [1, {"x": "y"}]}
    assert not unequal(a, {"w": torch.tensor([0.0, 1.0]), "n": [1, {"x": "y"}]})
    nan = {"w": torch.tensor([float("nan")]), "n": float("nan")}
    assert not unequal(nan, {"w": torch.tensor([float("nan")]), "n": float("nan")})
    for other, place in (
        ({**a, "w": torch.tensor([-0.0, 1.0])}, ".w"),
        ({**a, "w": torch.tensor([0.0, 1.0]).double()}, ".w"),
        ({**a, "n": [1, {"x": "z"}]}, ".n.1.x"),
        ({**a, "n": [1]}, ".n"),
        ({**a, "m": 1}, "keys"),
    ):
        assert place in unequal(a, other)
