import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fourfold.commands.run_directory import RunDirectory
from fourfold.commands.train.default_loggers import make_loggers, wandb_mode
from fourfold.errors import InputError

Run = Callable[..., Any]


@pytest.fixture
def no_account(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("WANDB_MODE", raising=False)
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))


def test_wandb_mode(no_account: None, monkeypatch: pytest.MonkeyPatch) -> None:
    assert [wandb_mode(mode) for mode in ("off", "offline", "auto")] == ["off", "offline", "off"]
    monkeypatch.setenv("WANDB_API_KEY", "x" * 40)
    assert wandb_mode("online") == wandb_mode("auto") == "online"


def test_wandb_login_provides_the_key(no_account: None, tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    (home / ".netrc").write_text("machine api.wandb.ai login user password key")
    (home / ".netrc").chmod(0o600)
    assert wandb_mode("auto") == "online"


def test_without_the_package(no_account: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fourfold.commands.train.default_loggers.find_spec", lambda name: None)
    assert wandb_mode("off") == "off"
    with pytest.raises(InputError, match=r"pip install 'fourfold\[wandb\]'"):
        wandb_mode("offline")


@pytest.mark.parametrize("content", [b"\x93\xff", b"", b"[]", b"{}"])
def test_damaged_wandb_file_is_rejected(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "wandb.json").write_bytes(content)
    config = {"trainer": {"logger": True}, "tensorboard": False, "wandb": "offline"}
    with pytest.raises(InputError, match=r"wandb\.json: the content is invalid"):
        make_loggers("fit", RunDirectory(tmp_path), config, "")


def test_no_run_is_imported_or_begun_unasked(
    run: Run, configs: dict[str, Path], here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)  # `import wandb` now fails
    call = [
        "--config",
        configs["vit"],
        "--run_dir=r",
        "--log_samples=true",
        "--trainer.max_steps=2",
    ]
    for command in ("fit", "test"):
        result = run(command, *call, "--wandb=off")
        assert result.code == 0, result.err
        assert "could not save samples" not in result.out
    assert not list(here.rglob("*wandb*"))
    assert (here / "r/val/samples.csv").is_file()
    assert (here / "r/test/confusion.png").is_file()


def test_log_samples_can_be_disabled(run: Run, configs: dict[str, Path], here: Path) -> None:
    for command in ("fit", "test"):
        call = [command, "--config", configs["vit"], "--run_dir=r", "--trainer.max_steps=2"]
        assert run(*call, "--log_samples=false").code == 0
    assert not (here / "r/val").exists()
    assert not (here / "r/test").exists()


def test_seeds_form_a_wandb_group(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from fourfold.commands import sweep

    monkeypatch.delenv("WANDB_RUN_GROUP", raising=False)
    groups = []

    def fail(command: str, options: list[str], environment: dict[str, str], log: None) -> int:
        groups.append(environment["WANDB_RUN_GROUP"])
        return 1

    monkeypatch.setattr(sweep.subprocess_runs, "run", fail)
    call = ["seeds", "--seeds", "1", "--run_dir", "runs/mrpc", "--config", "vit/tiny"]
    assert sweep.main(call) == 1
    monkeypatch.setenv("WANDB_RUN_GROUP", "mine")
    assert sweep.main(call) == 1
    assert groups == ["mrpc", "mine"]


def test_tensorboard(run: Run, configs: dict[str, Path], here: Path) -> None:
    pytest.importorskip("tensorboard")
    call = ["fit", "--config", configs["vit"], "--trainer.max_steps=2", "--run_dir=r"]
    assert run(*call, "--tensorboard=true").code == 0
    assert list((here / "r/tensorboard").glob("events.*"))
    assert (here / "r/metrics.csv").is_file()
