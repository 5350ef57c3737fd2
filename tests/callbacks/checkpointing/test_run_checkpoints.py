import warnings
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from fourfold.callbacks.checkpointing import run_checkpoints
from fourfold.callbacks.checkpointing.run_checkpoints import RunCheckpoints
from fourfold.errors import InputError


class FakeTrainer(SimpleNamespace):
    """The attributes of a Trainer that the callback uses."""

    def __init__(self, **attributes: Any) -> None:
        defaults: dict[str, Any] = {
            "accumulating": False,
            "validation_next": False,
            "fit_loop": SimpleNamespace(
                epoch_loop=SimpleNamespace(batch_progress=SimpleNamespace(is_last_batch=False))
            ),
            "datamodule": None,
            "state": SimpleNamespace(fn="fit"),
            "global_step": 0,
            "max_steps": -1,
            "max_epochs": -1,
            "current_epoch": 0,
            "should_stop": False,
            "sanity_checking": False,
            "is_global_zero": True,
            "callback_metrics": {},
            "saved": [],
        }
        super().__init__(**{**defaults, **attributes})

    def save_checkpoint(self, file: Path) -> None:
        self.saved.append((file.name, self.global_step))
        file.write_text(str(self.global_step))


@pytest.fixture(autouse=True)
def _fake_internals(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_checkpoints, "is_accumulating", lambda trainer: trainer.accumulating)
    monkeypatch.setattr(run_checkpoints, "will_validate", lambda trainer: trainer.validation_next)
    monkeypatch.setattr(run_checkpoints, "can_stop_early", lambda trainer: True)
    monkeypatch.setattr(run_checkpoints, "write_metrics_row", lambda trainer: None)


def validate(saver: RunCheckpoints, trainer: Any, step: int, **metrics: float) -> None:
    trainer.global_step = step
    trainer.callback_metrics = {f"val/{k}": torch.tensor(v) for k, v in metrics.items()}
    saver.on_validation_end(trainer, None)  # type: ignore[arg-type]


def batch_end(saver: RunCheckpoints, trainer: Any, step: int) -> None:
    trainer.global_step = step
    saver.on_train_batch_end(trainer, None, None, None, 0)  # type: ignore[arg-type]


def test_two_best_checkpoints_are_kept(tmp_path: Path) -> None:
    saver = RunCheckpoints(tmp_path, save_top_k=2)
    trainer = FakeTrainer()
    for step, bleu in enumerate([3.0, 1.0, 5.0, 4.0, float("nan"), 2.0], 1):
        validate(saver, trainer, step, bleu=bleu, loss=1.0)
    assert {file.name for file in tmp_path.iterdir()} == {
        "step=00000003.ckpt",
        "step=00000004.ckpt",
        "best.ckpt",
    }
    assert saver.best.read_text() == "3"
    assert saver.scores == {"step=00000003.ckpt": 5.0, "step=00000004.ckpt": 4.0}


@pytest.mark.parametrize(
    ("options", "metrics", "best"),
    [
        ({}, {"loss": [2.0, 1.0, 3.0]}, 2),
        ({}, {"loss": [2.0, 1.0, 3.0], "top1": [0.1, 0.2, 0.3]}, 3),
        ({"monitor": "val/loss"}, {"loss": [2.0, 1.0, 3.0], "top1": [0.1, 0.2, 0.3]}, 2),
        ({"monitor": "val/ppl_byte"}, {"ppl_byte": [9.0, 3.0, 4.0]}, 2),
        ({"monitor": "val/loss", "mode": "max"}, {"loss": [2.0, 1.0, 3.0]}, 3),
        ({}, {"bleu": [0.0, 0.0, 0.0]}, 3),  # of equal scores, the latest
    ],
)
def test_monitor_and_mode_select_best_checkpoint(
    options: dict[str, str], metrics: dict[str, list[float]], best: int, tmp_path: Path
) -> None:
    saver = RunCheckpoints(tmp_path, **options)  # type: ignore[arg-type]
    trainer = FakeTrainer()
    for step in range(3):
        validate(saver, trainer, step + 1, **{name: x[step] for name, x in metrics.items()})
    assert saver.best.read_text() == str(best)
    assert len(list(tmp_path.glob("step=*"))) == 1


@pytest.mark.parametrize(
    ("change", "warns"),
    [
        ({}, True),
        ({"save_top_k": 0}, False),
        ({"tests_on_val": False}, False),
        ({"enable_validation": False}, False),
    ],
)
def test_warning_if_best_checkpoint_is_selected_on_test_data(
    change: dict[str, Any], warns: bool, tmp_path: Path
) -> None:
    saver = RunCheckpoints(tmp_path, save_top_k=change.get("save_top_k", 1))
    data = SimpleNamespace(tests_on_val=change.get("tests_on_val", True))
    trainer: Any = FakeTrainer(datamodule=data, enable_validation=True)
    vars(trainer).update({key: x for key, x in change.items() if key in vars(trainer)})
    with warnings.catch_warnings(record=True) as caught:
        saver.on_fit_start(trainer, None)  # type: ignore[arg-type]
    messages = [str(warning.message) for warning in caught]
    assert len(messages) == warns
    assert all(message.startswith("val and test are the same data") for message in messages)


def test_no_best_checkpoint_in_sanity_check_or_without_metric(tmp_path: Path) -> None:
    before = FakeTrainer()
    before.sanity_checking = True
    validate(RunCheckpoints(tmp_path), before, 1, loss=1.0)
    validate(RunCheckpoints(tmp_path, save_top_k=0), FakeTrainer(), 1, loss=1.0)
    validate(RunCheckpoints(tmp_path), FakeTrainer(), 1, other=1.0)  # none of MONITORS
    assert not list(tmp_path.iterdir())
    with pytest.raises(
        InputError, match=r"checkpoint\.monitor must be .*\(val/loss\), got val/blue"
    ):
        validate(RunCheckpoints(tmp_path, monitor="val/blue"), before, 1, loss=1.0)


def test_last_is_saved_once_per_due_step(tmp_path: Path) -> None:
    saver = RunCheckpoints(tmp_path, every_n_steps=2)
    trainer = FakeTrainer()
    for step in (0, 1, 1, 2, 2, 3, 4):  # batches of one step share its number
        batch_end(saver, trainer, step)
    assert trainer.saved == [("last.ckpt", 2), ("last.ckpt", 4)]


def test_last_is_not_saved_during_accumulation(tmp_path: Path) -> None:
    saver = RunCheckpoints(tmp_path, every_n_steps=1)
    trainer = FakeTrainer()
    trainer.accumulating = True
    batch_end(saver, trainer, 1)
    assert trainer.saved == []


def test_stop_waits_for_the_accumulated_gradient(tmp_path: Path) -> None:
    saver = RunCheckpoints(tmp_path)
    trainer = FakeTrainer(accumulating=True, should_stop=True, global_step=4)
    batch_end(saver, trainer, 4)
    assert not trainer.should_stop
    trainer.accumulating = False
    batch_end(saver, trainer, 5)
    assert trainer.should_stop
    assert trainer.saved == [("last.ckpt", 5)]


def test_last_is_saved_after_a_validation_that_follows(tmp_path: Path) -> None:
    saver = RunCheckpoints(tmp_path, every_n_steps=1)
    trainer = FakeTrainer(validation_next=True)
    batch_end(saver, trainer, 1)
    assert trainer.saved == []
    validate(saver, trainer, 1, other=1.0)
    assert trainer.saved == [("last.ckpt", 1)]


def test_last_is_saved_when_a_run_ends_inside_an_epoch(tmp_path: Path) -> None:
    saver = RunCheckpoints(tmp_path)
    trainer = FakeTrainer()
    trainer.max_steps = 3
    for step in (1, 2, 3):
        batch_end(saver, trainer, step)
    assert trainer.saved == [("last.ckpt", 3)]
    # Lightning calls these hooks although the epoch is not complete.
    saver.on_train_epoch_end(trainer, None)  # type: ignore[arg-type]
    saver.on_train_end(trainer, None)  # type: ignore[arg-type]
    assert trainer.saved == [("last.ckpt", 3)]


@pytest.mark.parametrize("every_n_steps", [10, 15])
def test_the_last_batch_of_an_epoch_is_saved_when_the_epoch_is_counted(
    every_n_steps: int, tmp_path: Path
) -> None:
    saver = RunCheckpoints(tmp_path, every_n_epochs=2, every_n_steps=every_n_steps)
    trainer = FakeTrainer(validation_next=True)
    trainer.fit_loop.epoch_loop.batch_progress.is_last_batch = True
    for trainer.current_epoch in range(4):
        n_saved = len(trainer.saved)
        batch_end(saver, trainer, trainer.global_step + 10)
        validate(saver, trainer, trainer.global_step, loss=4.0 - trainer.current_epoch)
        assert len(trainer.saved) == n_saved
        saver.on_train_epoch_end(trainer, None)  # type: ignore[arg-type]
    lasts = [step for name, step in trainer.saved if name == "last.ckpt"]
    assert lasts == ([10, 20, 30, 40] if every_n_steps == 10 else [20, 30, 40])
    assert [step for name, step in trainer.saved if name != "last.ckpt"] == [10, 20, 30, 40]


def test_resume_restores_scores_of_existing_files(tmp_path: Path) -> None:
    saver = RunCheckpoints(tmp_path, save_top_k=2)
    trainer = FakeTrainer()
    for step, loss in enumerate([3.0, 2.0], 1):
        validate(saver, trainer, step, loss=loss)
    state = torch.load(_saved(saver.state_dict(), tmp_path), weights_only=True)
    (tmp_path / "step=00000002.ckpt").unlink()
    resumed = RunCheckpoints(tmp_path, save_top_k=2)
    resumed.load_state_dict(state)
    assert resumed.scores == {"step=00000001.ckpt": 3.0}


def _saved(content: dict[str, Any], folder: Path) -> Path:
    torch.save(content, folder / "state")
    return folder / "state"


def test_best_is_copied_without_hard_links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*names: object) -> None:
        raise OSError("hard links are not supported")

    monkeypatch.setattr("os.link", fail)
    saver = RunCheckpoints(tmp_path)
    validate(saver, FakeTrainer(), 1, loss=1.0)
    assert saver.best.read_text() == "1"
