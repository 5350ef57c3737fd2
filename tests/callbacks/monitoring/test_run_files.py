from pathlib import Path
from types import SimpleNamespace
from typing import Any

from fourfold.callbacks.monitoring.run_files import RunFiles


def start_training(folder: Path, config: str, step: int = 0, is_global_zero: bool = True) -> None:
    trainer: Any = SimpleNamespace(is_global_zero=is_global_zero, global_step=step)
    module: Any = SimpleNamespace(artifacts={"tokenizer": "{}"})
    RunFiles(folder, config).on_train_start(trainer, module)


def test_config_is_that_of_the_last_start_and_earlier_ones_are_kept(tmp_path: Path) -> None:
    run = tmp_path / "run"
    start_training(run, "a: 1")
    start_training(run, "a: 1", step=3)  # the same options
    assert {file.name for file in run.iterdir()} == {"config.yaml", "tokenizer.json"}
    start_training(run, "a: 5", step=5)
    start_training(run, "a: 6", step=5)  # no checkpoint was saved with a: 5
    start_training(run, "a: 8", step=8)
    assert (run / "config.yaml").read_text() == "a: 8"
    assert (run / "config_until_step=5.yaml").read_text() == "a: 1"
    assert (run / "config_until_step=8.yaml").read_text() == "a: 6"


def test_run_that_starts_from_scratch_replaces_its_config(tmp_path: Path) -> None:
    start_training(tmp_path, "a: 1")
    start_training(tmp_path, "a: 2")
    assert (tmp_path / "config.yaml").read_text() == "a: 2"


def test_other_ranks_write_nothing(tmp_path: Path) -> None:
    start_training(tmp_path, "a: 1", is_global_zero=False)
    assert not list(tmp_path.iterdir())
