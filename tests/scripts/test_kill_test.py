"""Tests of scripts/tools/kill_test.py with a few signals; a hundred signals are a slow test."""

import random
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from scripts.tools.kill_cases import DAMAGES, SETTINGS, cases, damage, tasks
from scripts.tools.kill_test import MOMENTS, SIGNALS, difference, draw_plan, unequal

ROOT = Path(__file__).resolve().parents[2]


def run(*options: object) -> str:
    script = ROOT / "scripts/tools/kill_test.py"
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


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_signals_of_all_kinds_to_ranks_and_workers(tmp_path: Path) -> None:
    only = ("--only", "two processes", "two workers")
    assert "8 of 8 were bitwise equal" in run("--kills=8", "--each=4", *only, "--work", tmp_path)


def test_a_hundred_plans_cover_signals_receivers_and_moments(tmp_path: Path) -> None:
    rng = random.Random(0)
    plans = [draw_plan(case, list(SIGNALS), rng) for case in cases(tmp_path, 50) for _ in range(2)]
    assert {plan.signal for plan in plans} == {"KILL", "TERM", "INT"}
    assert {plan.receiver for plan in plans} == {"group", "process", "rank", "worker"}
    assert {plan.moment for plan in plans} == set(MOMENTS)
    assert {draw_plan(case, ["TERM"], rng).signal for case in cases(tmp_path, 9)} == {"TERM"}


def test_only_a_stop_that_saves_may_change_the_previous_checkpoint(tmp_path: Path) -> None:
    for number, folder in enumerate((tmp_path / "a", tmp_path / "b")):
        (folder / "checkpoints").mkdir(parents=True)
        (folder / "config.yaml").write_text("model: 1")
        state = {"RunCheckpoints": {"saved_step": number, "scores": {}}}
        torch.save({"callbacks": state}, folder / "checkpoints/best.ckpt")
        if number:
            torch.save({"global_step": number}, folder / "checkpoints/previous.ckpt")
    assert "previous.ckpt" in difference(tmp_path / "a", tmp_path / "b")
    assert difference(tmp_path / "a", tmp_path / "b", saved_on_stop=True) == ""
    state["RunCheckpoints"]["scores"] = {"step=1.ckpt": 2.0}
    torch.save({"callbacks": state}, tmp_path / "b/checkpoints/best.ckpt")
    assert "scores" in difference(tmp_path / "a", tmp_path / "b", saved_on_stop=True)


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
