"""Tests of scripts/kill_test.py with two kills; a hundred kills are a slow test."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from scripts.kill_cases import DAMAGES, SETTINGS, cases, damage, tasks
from scripts.kill_test import unequal

ROOT = Path(__file__).resolve().parents[2]


def run(*options: object) -> str:
    script = ROOT / "scripts/kill_test.py"
    result = subprocess.run(
        [sys.executable, script, *map(str, options)], capture_output=True, text=True, cwd=ROOT
    )
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


@pytest.mark.slow
def test_two_killed_trainings_resume_exactly(tmp_path: Path) -> None:
    out = run(
        "--kills=2",
        "--each=1",
        "--only=all combined",
        "--work",
        tmp_path / "work",
        "--out",
        tmp_path,
    )
    assert "2 of 2 were bitwise equal" in out
    assert len((tmp_path / "kills.csv").read_text().splitlines()) == 3
    assert "| 1 of 1 |" in (tmp_path / "table.md").read_text()


@pytest.mark.slow
def test_two_killed_trainings_resume_beside_damaged_files(tmp_path: Path) -> None:
    out = run("--kills=2", "--each=2", "--damage", "--only=causal LM", "--work", tmp_path / "work")
    assert "2 of 2 were bitwise equal" in out


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_a_hundred_killed_trainings_resume_exactly(tmp_path: Path) -> None:
    assert "100 of 100 were bitwise equal" in run("--work", tmp_path)


def test_fifty_cases_cover_all_tasks_and_settings(tmp_path: Path) -> None:
    selected = cases(tmp_path, 50)
    assert {case.task for case in selected} == set(tasks(tmp_path))
    assert {case.setting for case in selected} == set(SETTINGS)
    assert len({(case.task, case.setting) for case in selected}) == 50


@pytest.mark.parametrize("way", DAMAGES)
def test_damage_leaves_hard_links_intact(way: str, tmp_path: Path) -> None:
    file, link = tmp_path / "last.ckpt", tmp_path / "best.ckpt"
    torch.save({"global_step": 1}, file)
    link.hardlink_to(file)
    intact = file.read_bytes()
    damage(tmp_path, "last.ckpt", way)
    assert link.read_bytes() == intact
    assert file.is_dir() if way == "directory" else file.read_bytes() != intact


def test_comparison_detects_a_single_bit() -> None:
    a = {"w": torch.tensor([0.0, 1.0]), "n": [1, {"x": "y"}]}
    assert not unequal(a, {"w": torch.tensor([0.0, 1.0]), "n": [1, {"x": "y"}]})
    nan = {"w": torch.tensor([float("nan")]), "n": float("nan")}
    assert not unequal(nan, {"w": torch.tensor([float("nan")]), "n": float("nan")})
    for other, path in (
        ({**a, "w": torch.tensor([-0.0, 1.0])}, ".w"),
        ({**a, "w": torch.tensor([0.0, 1.0]).double()}, ".w"),
        ({**a, "n": [1, {"x": "z"}]}, ".n.1.x"),
        ({**a, "n": [1]}, ".n"),
        ({**a, "m": 1}, "keys"),
    ):
        assert path in unequal(a, other)
