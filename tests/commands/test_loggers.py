import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fourfold.commands.loggers import wandb_mode
from fourfold.core.errors import InputError

Run = Callable[..., Any]


@pytest.fixture
def no_account(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("WANDB_MODE", raising=False)
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))


def test_modes(no_account: None, monkeypatch: pytest.MonkeyPatch) -> None:
    assert [wandb_mode(mode) for mode in ("off", "offline", "auto")] == ["off", "offline", "off"]
    with pytest.raises(InputError, match="online needs a key"):
        wandb_mode("online")
    monkeypatch.setenv("WANDB_API_KEY", "x" * 40)
    assert wandb_mode("online") == wandb_mode("auto") == "online"


def test_a_key_of_wandb_login_counts(no_account: None, tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    (home / ".netrc").write_text("machine api.wandb.ai login user password key")
    (home / ".netrc").chmod(0o600)
    assert wandb_mode("auto") == "online"


def test_without_the_package(no_account: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fourfold.commands.loggers.find_spec", lambda name: None)
    assert wandb_mode("off") == "off"
    with pytest.raises(InputError, match=r"pip install 'fourfold\[wandb\]'"):
        wandb_mode("offline")


def test_an_offline_run_keeps_its_identity(
    no_account: None, run: Run, configs: dict[str, Path], here: Path
) -> None:
    wandb = pytest.importorskip("wandb")
    call = ["fit", "--config", configs["vit"], "--run_dir=mine", "--wandb=offline"]
    result = run(*call, "--wandb_project=papers", "--trainer.max_steps=2")
    assert result.code == 0, result.err
    identity = json.loads((here / "mine/wandb.json").read_text())
    assert (identity["project"], identity["name"]) == ("papers", "mine")
    wandb.finish()  # as the end of the process does
    assert run(*call, "--trainer.max_steps=4").code == 0
    wandb.finish()
    assert json.loads((here / "mine/wandb.json").read_text()) == identity
    files = list((here / "mine/wandb").glob("offline-run-*/run-*.wandb"))
    assert len(files) >= 1
    assert {file.stem for file in files} == {f"run-{identity['id']}"}
    assert (here / "mine/metrics.csv").is_file()


def test_tensorboard(run: Run, configs: dict[str, Path], here: Path) -> None:
    pytest.importorskip("tensorboard")
    call = ["fit", "--config", configs["vit"], "--trainer.max_steps=2", "--run_dir=r"]
    assert run(*call, "--tensorboard=true").code == 0
    assert list((here / "r/tensorboard").glob("events.*"))
    assert (here / "r/metrics.csv").is_file()
