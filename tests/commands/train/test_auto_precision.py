"""`trainer.precision: auto` in fit, resume, validate, plan, records and inference."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from fourfold.commands.train.config_files import fingerprints
from fourfold.core.precision import SPEEDUP_VARIABLE

Run = Callable[..., Any]
AUTO = "--trainer.precision=auto"


def recorded(folder: Path) -> tuple[str, str | None]:
    config = yaml.safe_load((folder / "config.yaml").read_text())
    return config["trainer"]["precision"], config["auto_precision"]


def test_auto_is_recorded_kept_on_resume_and_chosen_again_for_an_evaluation(
    run: Run, configs: dict[str, Path], here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    call = ["fit", "--config", configs["lm"], "--run_dir", "r", AUTO]
    monkeypatch.setenv(SPEEDUP_VARIABLE, "2.5")
    result = run(*call, "--trainer.max_steps=2")
    assert result.code == 0, result.err
    assert result.out.count("trainer.precision auto: bf16-mixed") == 1
    assert "2.5 times as fast" in result.out
    assert recorded(here / "r") == ("bf16-mixed", "bf16-mixed")

    monkeypatch.setenv(SPEEDUP_VARIABLE, "0.02")  # another processor
    result = run(*call, "--trainer.max_steps=4")
    assert result.code == 0, result.err
    assert "on cpu, bf16-mixed" in result.out
    assert "was started with bf16-mixed and keeps it, although 32-true is faster" in result.err
    assert "0.02 times as fast" in result.err
    config = here / "r" / "config.yaml"
    result = run("fit", "--config", config, "--run_dir=r", "--trainer.max_steps=5")
    assert "on cpu, bf16-mixed" in result.out
    assert "trainer.precision bf16-mixed is slow" in result.err

    assert "trainer.precision auto: 32-true" in run("validate", "--run_dir=r").out
    explicit = run("validate", "--run_dir=r", "--trainer.precision=bf16-mixed")
    assert "auto" not in explicit.out
    assert "trainer.precision bf16-mixed is slow" in explicit.err


def test_explicit_precision_is_recorded_as_such(
    run: Run, configs: dict[str, Path], here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(SPEEDUP_VARIABLE, "0.02")
    call = ["fit", "--config", configs["lm"], "--run_dir=r", "--trainer.max_steps=1"]
    result = run(*call, "--trainer.precision=bf16")
    assert result.code == 0, result.err
    assert result.err.count("trainer.precision bf16-mixed is slow") == 1
    assert recorded(here / "r") == ("bf16", None)
    assert "auto" not in run("validate", "--run_dir=r").out


def test_run_without_a_precision_is_evaluated_without_auto(
    run: Run, configs: dict[str, Path], here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(SPEEDUP_VARIABLE, "2.5")
    result = run("fit", "--config", configs["lm"], "--run_dir=r", "--trainer.max_steps=1")
    assert result.code == 0, result.err
    assert recorded(here / "r") == (None, None)
    result = run("validate", "--run_dir=r", "--trainer.max_steps=1")
    assert result.code == 0, result.err
    assert "auto" not in result.out
    # The same run continues with its own config.
    result = run("fit", "--run_dir=r", "--trainer.max_steps=2")
    assert "trained to step 2" in result.out


def test_plan_shows_the_choice(
    run: Run, configs: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    for speedup, chosen in (("2", "bf16-mixed"), ("0.5", "32-true")):
        monkeypatch.setenv(SPEEDUP_VARIABLE, speedup)
        out = run("plan", "--config", configs["lm"], AUTO).out
        assert f"memory, {chosen} (auto), one device" in out


def test_hash_of_a_config_does_not_depend_on_the_choice(tmp_path: Path) -> None:
    hashes = {}
    for name in ("", "precision: auto, ", "precision: bf16-mixed, "):
        file = tmp_path / "config.yaml"
        file.write_text(f"trainer: {{{name}max_steps: 3}}\n")
        hashes[name] = fingerprints(["--config", str(file)])[str(file)]
    assert hashes[""] == hashes["precision: auto, "] != hashes["precision: bf16-mixed, "]


def test_recipes_for_a_cpu_name_no_precision_that_a_cpu_may_be_slow_at(root: Path) -> None:
    files = list((root / "configs").rglob("*.yaml"))
    trainers = {file: yaml.safe_load(file.read_text()).get("trainer") or {} for file in files}
    named = {
        file: trainer["precision"]
        for file, trainer in trainers.items()
        if trainer.get("accelerator") == "cpu" and "precision" in trainer
    }
    assert len(named) >= 20
    assert set(named.values()) == {"auto"}
