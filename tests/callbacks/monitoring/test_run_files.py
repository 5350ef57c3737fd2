from pathlib import Path
from types import SimpleNamespace
from typing import Any

from fourfold.callbacks.monitoring.run_files import RunFiles


def start_training(folder: Path, config: str, step: int = 0, is_global_zero: bool = True) -> None:
    trainer: Any = SimpleNamespace(is_global_zero=is_global_zero, global_step=step)
    module: Any = SimpleNamespace(artifacts={"tokenizer": "{}"})
    RunFiles(folder, config).on_train_start(trainer, module)


def test_config_of_a_resumed_run_has_a_number(tmp_path: Path) -> None:
    run = tmp_path / "run"
    start_training(run, "a: 1")
    assert {file.name for file in run.iterdir()} == {"config.yaml", "tokenizer.json"}
    for step in (5, 8):
        start_training(run, f"a: {step}", step)
    assert (run / "config.yaml").read_text() == "a: 1"
    assert (run / "config_resume_1.yaml").read_text() == "a: 5"
    assert (run / "config_resume_2.yaml").read_text() == "a: 8"


def test_run_that_starts_from_scratch_replaces_its_config(tmp_path: Path) -> None:
    start_training(tmp_path, "a: 1")
    start_training(tmp_path, "a: 2")
    assert (tmp_path / "config.yaml").read_text() == "a: 2"


def test_other_ranks_write_nothing(tmp_path: Path) -> None:
    start_training(tmp_path, "a: 1", is_global_zero=False)
    assert not list(tmp_path.iterdir())
