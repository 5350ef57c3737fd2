"""Private attributes of Lightning behave as `fourfold.lightning_internals` expects."""

import signal
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from io import StringIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from lightning import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import EMAWeightAveraging
from lightning.pytorch.loggers import CSVLogger, WandbLogger
from lightning.pytorch.loggers.logger import DummyLogger
from lightning.pytorch.strategies import (
    ModelParallelStrategy,
    model_parallel,
)
from lightning.pytorch.trainer.states import RunningStage
from torch import Tensor, nn
from torch.utils.data import DataLoader, IterableDataset

from fourfold.lightning_internals import (
    EpochProgressBar,
    attached_trainer,
    average_tensors,
    can_stop_early,
    clear_restart_flags,
    divide_evaluation_exactly,
    dump_checkpoint,
    is_accumulating,
    is_last_evaluation_batch,
    is_logged,
    log_completed_steps,
    log_step_metrics,
    remove_wandb_init_argument,
    set_average_device,
    set_data_parallel_size,
    set_signal_handlers,
    take_wandb_run,
    training_epoch_is_done,
    will_validate,
)


class Model(LightningModule):
    """One weight, trained on four batches an epoch; counts its batches and validations."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(1))
        self.events: list[str] = []

    def training_step(self, batch: Tensor, batch_idx: int) -> Tensor:
        self.events.append("train")
        loss = (self.weight - batch).square().mean()
        self.log("loss", loss)
        return loss

    def validation_step(self, batch: Tensor, batch_idx: int) -> None:
        self.events.append("val")

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1)

    def train_dataloader(self) -> DataLoader[Tensor]:
        return DataLoader(torch.ones(4, 1))  # type: ignore[arg-type]

    def val_dataloader(self) -> DataLoader[Tensor]:
        return DataLoader(torch.ones(1, 1))  # type: ignore[arg-type]


class Record(Callback):
    """Calls a function after each training batch and keeps its results."""

    def __init__(self, function: Callable[[Trainer], Any]) -> None:
        self.function = function
        self.results: list[Any] = []

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        self.results.append(self.function(trainer))


def test_progress_bar_names_the_epoch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setattr("sys.stdout", terminal := StringIO())
    monkeypatch.setattr(terminal, "isatty", lambda: True)
    bar = EpochProgressBar()
    options = {"accelerator": "cpu", "max_steps": 5, "logger": CSVLogger(tmp_path)}
    Trainer(**options, callbacks=[bar], default_root_dir=tmp_path).fit(Model())  # type: ignore[arg-type]
    shown = terminal.getvalue()
    assert "Epoch 1 " in shown
    assert "Epoch 2 " in shown
    assert "/-2" not in shown
    assert "v_num" not in shown


class ListLogger(DummyLogger):
    """Keeps the step numbers of logged metrics."""

    def __init__(self) -> None:
        super().__init__()
        self.steps: list[int | None] = []

    def log_metrics(self, metrics: Any, step: int | None = None) -> None:  # type: ignore[override]
        self.steps.append(step)


def make_trainer(folder: Path, **options: Any) -> Trainer:
    defaults: dict[str, Any] = {
        "accelerator": "cpu",
        "max_epochs": 1,
        "num_sanity_val_steps": 0,
        "limit_val_batches": 0,
        "log_every_n_steps": 1,
        "logger": False,
        "default_root_dir": folder,
        "enable_checkpointing": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
    }
    return Trainer(**{**defaults, **options})


def record(folder: Path, function: Callable[[Trainer], Any], **options: Any) -> list[Any]:
    """Values of `function` after each batch of one training."""
    callback = Record(function)
    make_trainer(folder, callbacks=[callback], **options).fit(Model())
    return callback.results


def test_attached_trainer(tmp_path: Path) -> None:
    model = Model()
    assert attached_trainer(model) is None
    trainer = make_trainer(tmp_path)
    trainer.fit(model)
    assert attached_trainer(model) is trainer


def test_is_accumulating(tmp_path: Path) -> None:
    assert record(tmp_path, is_accumulating) == [False] * 4
    # The last batch of an epoch always completes a step.
    results = record(tmp_path, is_accumulating, accumulate_grad_batches=3)
    assert results == [True, True, False, False]


def test_training_epoch_is_done(tmp_path: Path) -> None:
    assert record(tmp_path, training_epoch_is_done) == [False, False, False, True]
    assert record(tmp_path, training_epoch_is_done, max_steps=2) == [False, True]


def test_will_validate_predicts_validation(tmp_path: Path) -> None:
    callback = Record(will_validate)
    model = Model()
    options: dict[str, Any] = {"val_check_interval": 2, "limit_val_batches": 1}
    make_trainer(tmp_path, callbacks=[callback], **options).fit(model)
    assert callback.results == [False, True, False, True]
    assert model.events == ["train", "train", "val", "train", "train", "val"]


def test_will_validate_is_false_after_resuming_from_validation(tmp_path: Path) -> None:
    """A checkpoint saved during a validation is resumed behind that validation."""

    class SaveInValidation(Callback):
        def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
            if trainer.global_step == 2:
                trainer.save_checkpoint(tmp_path / "a.ckpt")

    options: dict[str, Any] = {"val_check_interval": 2, "limit_val_batches": 1}
    make_trainer(tmp_path, callbacks=[SaveInValidation()], **options).fit(Model())
    model = Model()
    callback = Record(will_validate)
    trainer = make_trainer(tmp_path, callbacks=[callback], **options)
    trainer.fit(model, ckpt_path=tmp_path / "a.ckpt")
    assert model.events == ["train", "train", "val"]
    assert callback.results == [False, True]


def test_can_stop_early(tmp_path: Path) -> None:
    results = record(tmp_path, can_stop_early, min_steps=3, min_epochs=0)
    assert results == [False, False, True, True]


class Without(IterableDataset[Tensor]):
    """Dataset without a length."""

    def __init__(self, rows: int) -> None:
        self.rows = rows

    def __iter__(self) -> Iterator[Tensor]:
        return iter(torch.ones(self.rows, 1))


@pytest.mark.parametrize("limit", [1.0, 3, 8])
def test_is_last_evaluation_batch(tmp_path: Path, limit: float) -> None:
    class Evaluated(Model):
        def test_step(self, batch: Tensor, batch_idx: int, dataloader_idx: int = 0) -> None:
            results.append(is_last_evaluation_batch(self.trainer))

        def predict_step(self, batch: Tensor, batch_idx: int, dataloader_idx: int = 0) -> None:
            results.append(is_last_evaluation_batch(self.trainer))

    results: list[bool] = []
    loaders = [DataLoader(Without(4)), DataLoader(torch.ones(2, 1)), DataLoader(Without(3))]  # type: ignore[arg-type]
    trainer = make_trainer(tmp_path, limit_test_batches=limit, limit_predict_batches=limit)
    for run in (trainer.test, trainer.predict):
        results.clear()
        run(Evaluated(), loaders)
        # Lightning does not know the end of a dataset without a length before the limit.
        assert (
            results == {1.0: [False] * 8 + [True], 3: [False] * 7 + [True], 8: [False] * 9}[limit]
        )


@pytest.mark.parametrize("clear", [False, True])
def test_clear_restart_flags(tmp_path: Path, clear: bool) -> None:
    """With `max_steps`, Lightning skips the epoch after a checkpoint of an epoch's end."""

    class Save(Callback):
        def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
            trainer.save_checkpoint(tmp_path / "a.ckpt")

    class Clear(Callback):
        def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
            loop = trainer.fit_loop
            assert loop.restarted_on_epoch_end
            if clear:
                loop.epoch_progress.increment_completed()
                loop.reset_restart_stage()
                clear_restart_flags(trainer)

    options: dict[str, Any] = {"max_epochs": -1}
    make_trainer(tmp_path, callbacks=[Save()], max_steps=4, **options).fit(Model())
    model = Model()
    epochs = Record(lambda trainer: trainer.current_epoch)
    trainer = make_trainer(tmp_path, callbacks=[Clear(), epochs], max_steps=8, **options)
    trainer.fit(model, ckpt_path=tmp_path / "a.ckpt")
    assert (epochs.results == [1] * 4) is clear


def test_dump_checkpoint(tmp_path: Path) -> None:
    model = Model()
    trainer = make_trainer(tmp_path)
    trainer.fit(model)
    checkpoint = dump_checkpoint(trainer, weights_only=True)
    assert torch.equal(checkpoint["state_dict"]["weight"], model.weight)
    assert {"loops", "epoch", "global_step"} <= checkpoint.keys()
    assert "optimizer_states" not in checkpoint
    assert "optimizer_states" in dump_checkpoint(trainer, weights_only=False)


def test_is_logged_in_the_logged_steps(tmp_path: Path) -> None:
    logger = ListLogger()
    options: dict[str, Any] = {"accumulate_grad_batches": 2, "max_epochs": 2}
    results = record(tmp_path, is_logged, logger=logger, log_every_n_steps=2, **options)
    assert results == [False, False, True, True] * 2
    assert logger.steps == [1, 3]
    assert not any(record(tmp_path, is_logged, log_every_n_steps=2, **options))


def test_log_step_metrics_to_some_loggers(tmp_path: Path) -> None:
    loggers = [ListLogger(), ListLogger()]
    steps: list[Any] = []

    def log_to_first(trainer: Trainer) -> None:
        log_step_metrics(trainer, loggers[:1])
        assert trainer.loggers == loggers
        steps.append([logger.steps[:] for logger in loggers])

    record(tmp_path, log_to_first, logger=loggers, max_steps=2)
    assert steps == [[[0], []], [[0, 0, 1], [0]]]
    assert [logger.steps for logger in loggers] == [[0, 0, 1, 1], [0, 1]]


def test_log_step_metrics_to_all_loggers(tmp_path: Path) -> None:
    loggers = [ListLogger(), ListLogger()]
    record(tmp_path, log_step_metrics, logger=loggers, max_steps=1)
    assert [logger.steps for logger in loggers] == [[0, 0], [0, 0]]


def test_wandb_logger(tmp_path: Path) -> None:
    pytest.importorskip("wandb", reason="needs the package wandb")

    logger = WandbLogger(save_dir=tmp_path, offline=True, notes="text")
    assert take_wandb_run(logger) is None
    remove_wandb_init_argument(logger, "notes")
    remove_wandb_init_argument(logger, "absent")
    run = logger.experiment
    assert take_wandb_run(logger) is run
    assert run.notes is None
    run.finish()
    assert take_wandb_run(logger) is None


def test_set_average_device(tmp_path: Path) -> None:
    meta = torch.device("meta")
    callback = EMAWeightAveraging()
    set_average_device(callback, meta)
    model = Model()
    callback.setup(make_trainer(tmp_path), model, "fit")
    averaged: Any = vars(callback)["_average_model"]
    assert averaged.module.weight.device == meta
    chosen = EMAWeightAveraging(device="cpu")
    set_average_device(chosen, meta)
    chosen.setup(make_trainer(tmp_path), model, "fit")
    assert vars(chosen)["_average_model"].module.weight.device == torch.device("cpu")


def test_average_tensors() -> None:
    """Lightning averages the copies after an optimizer step."""
    model = Model()
    model.register_buffer("count", torch.zeros(1))
    callback = EMAWeightAveraging(decay=0.5, use_buffers=False)
    average = average_tensors(callback, model)
    trainer: Any = SimpleNamespace(global_step=0)
    for weight in (2.0, 4.0):
        nn.init.constant_(model.weight, weight)
        nn.init.constant_(model.count, weight)
        trainer.global_step += 1
        callback.on_train_batch_end(trainer, model, None, None, 0)
    assert [x.item() for x in average.module.parameters()] == [3]
    assert [x.item() for x in average.module.buffers()] == [4]


def test_set_data_parallel_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The device mesh is built from the size that was set."""
    sizes: list[Any] = []

    class Strategy(ModelParallelStrategy):
        def setup_environment(self) -> None:
            set_data_parallel_size(self, 3)
            super().setup_environment()

    def setup_device_mesh(data_parallel_size: int, *others: Any) -> None:
        sizes.append(data_parallel_size)
        raise RuntimeError("the size was recorded")

    monkeypatch.setattr(ModelParallelStrategy, "_setup_distributed", lambda self: None)
    monkeypatch.setattr(model_parallel, "_setup_device_mesh", setup_device_mesh)
    trainer = make_trainer(tmp_path, strategy=Strategy(tensor_parallel_size=1), devices=1)
    with pytest.raises(RuntimeError, match="the size was recorded"):
        trainer.fit(Model())
    assert sizes == [3]


def test_signal_handlers_are_ours_in_fit_and_restored() -> None:
    found = []

    def ours(number: int, frame: object) -> None:
        raise AssertionError

    class Look(Callback):
        def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
            if stage == "fit":
                set_signal_handlers(trainer, {signal.SIGTERM: ours})

        def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
            found.append(signal.getsignal(signal.SIGTERM))

        def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
            found.append(signal.getsignal(signal.SIGTERM))

    before = signal.getsignal(signal.SIGTERM)
    quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
    trainer = Trainer(accelerator="cpu", max_steps=4, callbacks=[Look()], **quiet)  # type: ignore[arg-type]
    trainer.fit(Model())
    assert set(found) == {ours}
    assert signal.getsignal(signal.SIGTERM) == before
    trainer.validate(Model())
    assert found[-1] not in (ours, before)  # Lightning's
    assert signal.getsignal(signal.SIGTERM) == before


def test_loggers_receive_the_number_of_completed_steps() -> None:
    steps: dict[bool, list[int | None]] = {}
    for completed in (False, True):
        seen: list[int | None] = []

        class Steps(DummyLogger):
            def log_metrics(self, metrics: Any, step: int | None = None) -> None:  # type: ignore[override]
                seen.append(step)  # noqa: B023 (used in this round)

        options: dict[str, Any] = {"enable_progress_bar": False, "enable_model_summary": False}
        options |= {"enable_checkpointing": False, "logger": Steps(), "log_every_n_steps": 2}
        trainer = Trainer(**options, max_epochs=1, accelerator="cpu")
        if completed:
            log_completed_steps(trainer)
        trainer.fit(Model())
        steps[completed] = seen
    assert steps == {False: [1, 3], True: [2, 4]}


@pytest.mark.parametrize(("n_rows", "expected"), [(5, [[0, 2, 4], [1, 3]]), (1, [[0], [0]])])
def test_rows_of_an_evaluation_are_divided_without_repetition(
    n_rows: int, expected: list[list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    for rank in (0, 1):
        trainer = Trainer(accelerator="cpu", devices=2, strategy="ddp", logger=False)
        strategy: Any = trainer.strategy
        monkeypatch.setattr(
            type(strategy), "distributed_sampler_kwargs", {"num_replicas": 2, "rank": rank}
        )
        divide_evaluation_exactly(trainer)
        for mode, sizes in ((RunningStage.VALIDATING, None), (RunningStage.TRAINING, 3)):
            loader = DataLoader(list(range(n_rows)), batch_size=1)  # type: ignore[arg-type]
            context = nullcontext()
            if n_rows == 1 and sizes is None and rank == 0:
                context = pytest.warns(UserWarning, match="more than once")  # type: ignore[assignment]
            with context:
                prepared: Any = trainer._data_connector._prepare_dataloader(loader, False, mode)
            if sizes is None:
                assert list(prepared.sampler) == expected[rank]
            elif n_rows == 5:  # as without the function: every rank has the same number of rows
                assert len(list(prepared.sampler)) == sizes
        own = DataLoader([0, 1], batch_sampler=OwnSampler())  # type: ignore[arg-type]
        assert trainer._data_connector._prepare_dataloader(own, True, RunningStage.TRAINING) is own


class OwnSampler(list[Any]):
    """Batch sampler that divides the rows itself."""

    world_size = 2
