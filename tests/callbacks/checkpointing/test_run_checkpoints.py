from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from fourfold.callbacks.checkpoints import Checkpoints
from fourfold.core.errors import InputError


class FakeTrainer(SimpleNamespace):
    """What the callback asks of a Trainer."""

    def __init__(self, **more: Any) -> None:
        loop = SimpleNamespace(
            _should_accumulate=lambda: False,
            _should_check_val_fx=lambda fetcher: False,
            _skip_next_val=False,
            batch_progress=SimpleNamespace(is_last_batch=False),
        )
        self.fit_loop = SimpleNamespace(
            epoch_loop=loop, _data_fetcher=object(), _can_stop_early=True
        )
        more = {"datamodule": SimpleNamespace(splits={"train": None, "val": None}), **more}
        self.state, self.loggers = SimpleNamespace(fn="fit"), []
        self._logger_connector = SimpleNamespace(update_train_step_metrics=lambda: None)
        super().__init__(
            global_step=0, max_steps=-1, max_epochs=-1, should_stop=False, current_epoch=0,
            sanity_checking=False, is_global_zero=True, callback_metrics={}, saved=[], **more,
        )  # fmt: skip

    def save_checkpoint(self, file: Path) -> None:
        self.saved.append((file.name, self.global_step))
        file.write_text(str(self.global_step))


def validate(saver: Checkpoints, trainer: Any, step: int, **metrics: float) -> None:
    trainer.global_step = step
    trainer.callback_metrics = {f"val/{k}": torch.tensor(v) for k, v in metrics.items()}
    saver.on_validation_end(trainer, None)  # type: ignore[arg-type]


def batch_end(saver: Checkpoints, trainer: Any, step: int) -> None:
    trainer.global_step = step
    saver.on_train_batch_end(trainer, None, None, None, 0)  # type: ignore[arg-type]


def test_the_best_two_of_a_metric_that_grows(tmp_path: Path) -> None:
    saver, trainer = Checkpoints(tmp_path, keep_best=2), FakeTrainer()
    for step, bleu in enumerate([3.0, 1.0, 5.0, 4.0, float("nan"), 2.0], 1):
        validate(saver, trainer, step, bleu=bleu, loss=1.0)
    assert {file.name for file in tmp_path.iterdir()} == {
        "step=00000003.ckpt", "step=00000004.ckpt", "best.ckpt",
    }  # fmt: skip
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
        ({}, {"bleu": [0.0, 0.0, 0.0]}, 3),  # of equals the latest
    ],
)
def test_what_best_means(
    options: dict[str, str], metrics: dict[str, list[float]], best: int, tmp_path: Path
) -> None:
    saver, trainer = Checkpoints(tmp_path, **options), FakeTrainer()  # type: ignore[arg-type]
    for step in range(3):
        validate(saver, trainer, step + 1, **{name: x[step] for name, x in metrics.items()})
    assert saver.best.read_text() == str(best)
    assert len(list(tmp_path.glob("step=*"))) == 1


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({}, True),
        ({"keep_best": 0}, False),
        ({"tests_on_val": False}, False),
        ({"enable_validation": False}, False),
        ({"is_global_zero": False}, False),
    ],
)
def test_a_best_that_is_chosen_on_the_test_is_said(
    change: dict[str, Any], said: bool, tmp_path: Path, capsys: Any
) -> None:
    saver = Checkpoints(tmp_path, keep_best=change.get("keep_best", 1))
    data = SimpleNamespace(tests_on_val=change.get("tests_on_val", True))
    trainer: Any = FakeTrainer(datamodule=data, enable_validation=True)
    vars(trainer).update({key: x for key, x in change.items() if key in vars(trainer)})
    saver.on_fit_start(trainer, None)  # type: ignore[arg-type]
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.count("\n") == said
    assert ("val and test are the same data" in printed.err) == said
    assert ("--checkpoint.keep_best 0" in printed.err) == said


def test_nothing_is_kept_before_training_or_when_unwanted(tmp_path: Path) -> None:
    before = FakeTrainer()
    before.sanity_checking = True
    validate(Checkpoints(tmp_path), before, 1, loss=1.0)
    validate(Checkpoints(tmp_path, keep_best=0), FakeTrainer(), 1, loss=1.0)
    validate(Checkpoints(tmp_path), FakeTrainer(), 1, other=1.0)  # nothing to go by
    assert not list(tmp_path.iterdir())
    with pytest.raises(InputError, match=r"monitor is val/blue, but validation gives val/loss"):
        validate(Checkpoints(tmp_path, monitor="val/blue"), before, 1, loss=1.0)


def test_last_by_steps_and_once_a_step(tmp_path: Path) -> None:
    saver, trainer = Checkpoints(tmp_path, every_n_steps=2), FakeTrainer()
    for step in (0, 1, 1, 2, 2, 3, 4):  # batches of one step share its number
        batch_end(saver, trainer, step)
    assert trainer.saved == [("last.ckpt", 2), ("last.ckpt", 4)]


def test_last_is_not_saved_while_a_gradient_is_accumulated(tmp_path: Path) -> None:
    saver, trainer = Checkpoints(tmp_path, every_n_steps=1), FakeTrainer()
    trainer.fit_loop.epoch_loop._should_accumulate = lambda: True
    batch_end(saver, trainer, 1)
    assert trainer.saved == []


def test_last_where_a_run_ends_inside_an_epoch(tmp_path: Path) -> None:
    saver, trainer = Checkpoints(tmp_path), FakeTrainer()
    trainer.max_steps = 3
    for step in (1, 2, 3):
        batch_end(saver, trainer, step)
    assert trainer.saved == [("last.ckpt", 3)]
    # Lightning calls these as if the epoch were over; the place in the data would be lost.
    saver.on_train_epoch_end(trainer, None)  # type: ignore[arg-type]
    saver.on_train_end(trainer, None)  # type: ignore[arg-type]
    assert trainer.saved == [("last.ckpt", 3)]


def test_last_by_epochs(tmp_path: Path) -> None:
    saver, trainer = Checkpoints(tmp_path, every_n_epochs=2, every_n_steps=10), FakeTrainer()
    trainer.fit_loop.epoch_loop.batch_progress.is_last_batch = True
    for trainer.current_epoch in range(4):
        batch_end(saver, trainer, trainer.global_step + 10)
        # Not twice for one step: where the epoch is due its end alone saves.
        assert (("last.ckpt", trainer.global_step) in trainer.saved) is (
            trainer.current_epoch in (0, 2)
        )
        saver.on_train_epoch_end(trainer, None)  # type: ignore[arg-type]
    assert trainer.saved == [("last.ckpt", step) for step in (10, 20, 30, 40)]


def test_scores_survive_a_resume_and_deleted_files_do_not_count(tmp_path: Path) -> None:
    saver, trainer = Checkpoints(tmp_path, keep_best=2), FakeTrainer()
    for step, loss in enumerate([3.0, 2.0], 1):
        validate(saver, trainer, step, loss=loss)
    state = torch.load(_saved(saver.state_dict(), tmp_path), weights_only=True)
    (tmp_path / "step=00000002.ckpt").unlink()
    resumed = Checkpoints(tmp_path, keep_best=2)
    resumed.load_state_dict(state)
    assert resumed.scores == {"step=00000001.ckpt": 3.0}


def _saved(content: dict[str, Any], folder: Path) -> Path:
    torch.save(content, folder / "state")
    return folder / "state"


def test_a_file_system_without_links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*names: object) -> None:
        raise OSError("no links here")

    monkeypatch.setattr("os.link", refuse)
    saver = Checkpoints(tmp_path)
    validate(saver, FakeTrainer(), 1, loss=1.0)
    assert saver.best.read_text() == "1"
