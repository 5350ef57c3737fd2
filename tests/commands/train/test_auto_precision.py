"""`trainer.precision: auto` in fit, resume, validate, plan, records and inference."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from fourfold.commands.config_files import fingerprints
from fourfold.core import precision

Run = Callable[..., Any]
AUTO = "--trainer.precision=auto"


def flags(patch: pytest.MonkeyPatch, flag: str | None) -> None:
    """Let the CPU have a flag of `BF16_FLAGS`, or none."""
    patch.setattr(precision, "cpu_flag", lambda: flag)


def recorded(folder: Path) -> tuple[str, str | None]:
    config = yaml.safe_load((folder / "config.yaml").read_text())
    return config["trainer"]["precision"], config["auto_precision"]


def test_auto_is_recorded_kept_on_resume_and_chosen_again_for_an_evaluation(
    run: Run, configs: dict[str, Path], here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    call = ["fit", "--config", configs["lm"], "--run_dir", "r", AUTO]
    flags(monkeypatch, "amx_bf16")
    result = run(*call, "--trainer.max_steps=2")
    assert result.code == 0, result.err
    assert result.out.count("trainer.precision auto: bf16-mixed") == 1
    assert "since this CPU multiplies bf16 natively (amx_bf16)" in result.out
    assert recorded(here / "r") == ("bf16-mixed", "bf16-mixed")

    flags(monkeypatch, None)  # another processor
    result = run(*call, "--trainer.max_steps=4")
    assert result.code == 0, result.err
    assert "on cpu, bf16-mixed" in result.out
    assert "auto: bf16-mixed, as when the training was started" in result.out
    assert "bf16-mixed is slow: this CPU does not multiply bf16 natively" in result.err
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
    flags(monkeypatch, None)
    call = ["fit", "--config", configs["lm"], "--run_dir=r", "--trainer.max_steps=1"]
    result = run(*call, "--trainer.precision=bf16")
    assert result.code == 0, result.err
    assert result.err.count("trainer.precision bf16-mixed is slow") == 1
    assert recorded(here / "r") == ("bf16", None)
    assert "auto" not in run("validate", "--run_dir=r").out


def test_run_without_a_precision_is_evaluated_without_auto(
    run: Run, configs: dict[str, Path], here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flags(monkeypatch, "amx_bf16")
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
    for flag, chosen in (("avx512_bf16", "bf16-mixed"), (None, "32-true")):
        flags(monkeypatch, flag)
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
