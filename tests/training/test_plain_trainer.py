"""Tasks and DataModules of fourfold with a Trainer of the user, without `fourfold fit`."""

import copy
import itertools
import random
import warnings
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning import Callback, LightningDataModule, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger, TensorBoardLogger
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch.utils.data import DataLoader, DistributedSampler, IterableDataset

from fourfold.callbacks.checkpointing import exact_resume
from fourfold.data import SyntheticSequenceData
from fourfold.data.loading.batches import CausalBatch
from fourfold.loggers.metrics_csv import MetricsCSVLogger
from fourfold.models import CausalLMConfig
from fourfold.optim import OptimizerConfig
from fourfold.schedules import ScheduleConfig
from fourfold.tasks import CausalLanguageModeling
from tests.fixtures.processes import together
from tests.fixtures.tiny_tasks import FLAT, SMALL

QUIET: dict[str, Any] = {"enable_progress_bar": False, "enable_model_summary": False}
SIZES: dict[str, Any] = {**SMALL, "dropout": 0.2, "max_len": 32}


def make_task(**options: Any) -> CausalLanguageModeling:
    config = CausalLMConfig(**SIZES, vocab_size=options.pop("vocab_size", None))
    schedule = ScheduleConfig(name="cosine", warmup_steps=2, total_steps=20)
    return CausalLanguageModeling(config, OptimizerConfig(lr=1e-2), schedule)


def make_data() -> SyntheticSequenceData:
    """Seven batches of four examples an epoch."""
    return SyntheticSequenceData("copy", length=5, train_rows=28, eval_rows=8, batch_size=4)


class Record(Callback):
    """Keep the batches and the starts of epochs; the counters of epochs at the end."""

    def __init__(self) -> None:
        self.events: list[Any] = []
        self.counts: Any = None

    def on_train_epoch_start(self, trainer: Trainer, pl_module: Any) -> None:
        self.events.append(("epoch", trainer.current_epoch))

    def on_train_batch_start(self, trainer: Trainer, pl_module: Any, batch: Any, i: int) -> None:
        self.events.append((batch.epoch, batch.position, i, trainer.current_epoch))

    def on_train_end(self, trainer: Trainer, pl_module: Any) -> None:
        self.counts = copy.deepcopy(trainer.fit_loop.epoch_progress.state_dict())


def train(
    folder: Path, checkpoint: Path | None, options: dict[str, Any], **saver: Any
) -> dict[str, Any]:
    """Train with a plain Trainer; other random numbers in a resumed run must not matter."""
    torch.manual_seed(0 if checkpoint is None else 7)
    saving = ModelCheckpoint(folder, filename="{step}-{epoch}", **saver)
    record = Record()
    trainer = Trainer(
        **QUIET, **options, accelerator="cpu", logger=False, callbacks=[record, saving]
    )
    task = make_task()
    trainer.fit(task, make_data(), ckpt_path=checkpoint)
    return {
        "weights": copy.deepcopy(task.state_dict()),
        "optimizer": copy.deepcopy(trainer.optimizers[0].state_dict()),
        "schedule": trainer.lr_scheduler_configs[0].scheduler.state_dict(),
        "step": trainer.global_step,
        "epochs": record.counts,
        "events": record.events,
    }


SAVERS: list[dict[str, Any]] = [
    {"every_n_train_steps": 1, "save_top_k": -1},
    {"every_n_train_steps": 3, "save_top_k": -1, "save_last": True},
    {"every_n_epochs": 1, "save_top_k": -1},
    {"every_n_epochs": 1, "save_top_k": -1, "save_on_train_epoch_end": True},
    {},
    {"monitor": "val/loss", "save_top_k": -1},
    {"monitor": "val/loss", "save_top_k": -1, "every_n_train_steps": 2},
    {"monitor": "train/loss", "save_top_k": -1, "every_n_train_steps": 2},
    {"train_time_interval": timedelta(0), "save_top_k": -1},
]
LENGTHS: list[dict[str, Any]] = [
    {"max_steps": 17},
    {"max_epochs": 3},
    {"max_epochs": 2, "max_steps": 9},
]
VALIDATIONS: list[dict[str, Any]] = [
    {},
    {"limit_val_batches": 0},
    {"val_check_interval": 2},
    {"val_check_interval": 0.5},
    {"check_val_every_n_epoch": 2},
    {"val_check_interval": 4, "check_val_every_n_epoch": None},
]
STEPS: list[dict[str, Any]] = [{}, {"accumulate_grad_batches": 2}, {"accumulate_grad_batches": 3}]
EPOCHS: list[dict[str, Any]] = [
    {},
    {},
    {"limit_train_batches": 5},
    {"overfit_batches": 4},
    {"reload_dataloaders_every_n_epochs": 1},
]
SETTINGS = list(itertools.product(SAVERS, LENGTHS, VALIDATIONS, STEPS, EPOCHS))
LOST = "in the middle of gradient accumulation"


def check_resumes(seed: int, folder: Path, n_settings: int) -> int:
    """Resume from random checkpoints of runs with random settings; return the number of resumes.

    Every third run resumes once more, from a checkpoint of the resumed run.
    """
    rng = random.Random(seed)
    n_resumes = 0
    for number, (saver, *parts) in enumerate(rng.sample(SETTINGS, n_settings)):
        options = {name: value for part in parts for name, value in part.items()}
        if saver.get("monitor") == "train/loss":
            # After a resume, Lightning rejects a validation before the first complete step.
            options.pop("accumulate_grad_batches", None)
        runs = [folder / f"{number}-{i}" for i in range(3)]
        whole = train(runs[0], None, options, **saver)
        for old, new in itertools.pairwise(runs[: 2 + (number % 3 == 0)]):
            files = sorted(old.glob("*.ckpt"))
            if not files:
                break
            file = rng.choice(files)
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                resumed = train(new, file, options, **saver)
            messages = [str(warning.message) for warning in caught]
            assert not any("not resumable" in message for message in messages)
            if any(LOST in message for message in messages):
                # A validation between two steps, which therefore saved no multiple.
                assert "accumulate_grad_batches" in options
                assert any("val" in name for name in (*options, saver.get("monitor", "val")))
                break
            n_resumes += 1
            batches = len(resumed["events"])
            if batches:  # the run was not complete
                for key in ("epochs", "step"):
                    assert resumed[key] == whole[key], (key, saver, options, file.name)
                assert resumed["events"] == whole["events"][-batches:], (saver, options, file.name)
            for key in ("weights", "optimizer", "schedule"):
                torch.testing.assert_close(
                    resumed[key], whole[key], rtol=0, atol=0, msg=f"{key} {saver} {options} {file}"
                )
    return n_resumes


def test_every_resume_of_a_plain_trainer_is_exact(tmp_path: Path) -> None:
    assert check_resumes(0, tmp_path, n_settings=18) > 8


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1, 5))
def test_every_resume_is_exact_with_more_settings(seed: int, tmp_path: Path) -> None:
    assert check_resumes(seed, tmp_path, n_settings=150) > 75


# Several devices.


def run_on_ranks(
    world: int, folder: Path, checkpoint: Path | None, *, sampler: bool, max_steps: int = 9
) -> Callable[[int], None]:
    """Return the work of a rank: training with validations of different lengths on the ranks."""

    def work(rank: int) -> None:
        torch.manual_seed(0 if checkpoint is None else 7)
        record = Record()
        saving = ModelCheckpoint(
            folder,
            filename="{step}",
            every_n_train_steps=1,
            save_top_k=-1,
            enable_version_counter=False,
        )
        trainer = Trainer(
            **QUIET,
            accelerator="cpu",
            devices=world,
            strategy="ddp",
            max_steps=max_steps,
            logger=False,
            callbacks=[record, saving],
            use_distributed_sampler=sampler,
            val_check_interval=2,
        )
        task = make_task()
        data = SyntheticSequenceData("copy", length=5, train_rows=30, eval_rows=9, batch_size=3)
        trainer.fit(task, data, ckpt_path=checkpoint)
        found = {"weights": task.state_dict(), "val": task.summary, "events": record.events}
        torch.save(found, folder / f"{rank}.pt")

    return work


def test_a_plain_trainer_on_two_devices_resumes_exactly(tmp_path: Path) -> None:
    """Lightning's default `use_distributed_sampler=True` leaves our DataModules alone."""
    found = {}
    for name, sampler, checkpoint in (
        ("default", True, None),
        ("off", False, None),
        ("resumed", True, tmp_path / "default/step=7.ckpt"),
    ):
        folder = tmp_path / name
        folder.mkdir()
        work = run_on_ranks(2, folder, checkpoint, sampler=sampler)
        ended = together(2, work, folder)
        assert [end.code for end in ended] == [0, 0], ended
        found[name] = [torch.load(folder / f"{rank}.pt") for rank in (0, 1)]
    for name in ("off", "resumed"):
        for rank in (0, 1):
            expected, got = found["default"][rank], found[name][rank]
            torch.testing.assert_close(got["weights"], expected["weights"], rtol=0, atol=0)
            assert got["val"] == expected["val"]
            assert got["events"] == expected["events"][-len(got["events"]) :]


# DataModules of a user.


def collate(rows: list[torch.Tensor]) -> CausalBatch:
    ids = torch.stack(rows)
    return CausalBatch(ids, ids.roll(-1, 1), n_bytes=ids.numel(), n_words=1)


def make_loader(rows: Any, **options: Any) -> DataLoader[Any]:
    return DataLoader(rows, batch_size=2, collate_fn=collate, **options)


class PlainData(LightningDataModule):
    """Batches of random ids; the DataLoaders are given as a function of the rows of a split."""

    def __init__(self, rows: int = 12, loader: Callable[[Any], Any] | None = None) -> None:
        super().__init__()
        self.rows = torch.randint(11, (rows, 6), generator=torch.Generator().manual_seed(0))
        self.make_loader = loader or make_loader

    def train_dataloader(self) -> Any:
        return make_loader(self.rows)

    def val_dataloader(self) -> Any:
        return self.make_loader(self.rows)

    test_dataloader = val_dataloader


def test_plain_data_give_one_warning(tmp_path: Path) -> None:
    """Lightning's own warning is hidden for this training only."""
    exact_resume._warn_of_plain_data.cache_clear()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for checkpoint in (None, tmp_path / "step=2.ckpt"):
            saving = ModelCheckpoint(
                tmp_path, filename="{step}", every_n_train_steps=2, save_top_k=-1
            )
            trainer = Trainer(
                **QUIET, max_steps=4, accelerator="cpu", logger=False, callbacks=[saving]
            )
            trainer.fit(make_task(vocab_size=11), PlainData(), ckpt_path=checkpoint)
        messages = [str(warning.message) for warning in caught]
        assert sum("restarts its last epoch" in message for message in messages) == 1
        assert not any("not resumable" in message for message in messages)
        warnings.warn("your dataloader is not resumable", stacklevel=1)
        assert "not resumable" in str(caught[-1].message)


def make_stream(rows: Any) -> DataLoader[Any]:
    class Stream(IterableDataset[Any]):
        def __iter__(self) -> Any:
            return iter(rows)

    return make_loader(Stream())


LOADERS: dict[str, tuple[Callable[[Any], Any], bool]] = {  # and whether the rows can be divided
    "in order": (make_loader, True),
    "shuffled": (lambda rows: make_loader(rows, shuffle=True), True),
    "sampler": (lambda rows: make_loader(rows, sampler=list(range(len(rows)))[::-1]), True),
    "several": (lambda rows: [make_loader(rows[:4]), make_loader(rows[4:])], True),
    "stream": (make_stream, False),
    "one row": (lambda rows: make_loader(rows[:1]), False),
    "own sampler": (
        lambda rows: make_loader(rows, sampler=DistributedSampler(rows, shuffle=False)),
        False,
    ),
}


def evaluate(world: int, name: str, folder: Path) -> Callable[[int], None]:
    """Return the work of a rank: a training with a validation, and a test, of 11 rows."""

    def work(rank: int) -> None:
        task = make_task(vocab_size=11)
        data = PlainData(11, LOADERS[name][0])
        options: dict[str, Any] = {"accelerator": "cpu", "devices": world, "logger": False}
        options |= {"strategy": "ddp" if world > 1 else "auto", "enable_checkpointing": False}
        found = []
        for action in ("validate", "fit", "test"):
            torch.manual_seed(0)
            trainer = Trainer(**QUIET, **options, max_steps=2, val_check_interval=1)
            if action == "fit":
                trainer.fit(task, data)
                continue  # the weights depend on the number of devices
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                task.configure_model()
                task.load_state_dict(torch.load(folder / "weights.pt"))
                getattr(trainer, action)(task, data, verbose=False)
            said = any("more than once" in str(warning.message) for warning in caught)
            found.append(({k.partition("/")[2]: x for k, x in task.summary.items()}, said))
        torch.save(found, folder / f"{world}-{rank}-{name}.pt")

    return work


def test_plain_data_are_evaluated_exactly_or_a_warning_says_so(tmp_path: Path) -> None:
    task = make_task(vocab_size=11)
    task.configure_model()
    torch.save(task.state_dict(), tmp_path / "weights.pt")

    def work(world: int) -> Callable[[int], None]:
        def run(rank: int) -> None:
            for name in names:
                evaluate(world, name, tmp_path)(rank)

        return run

    for world in (1, 2):
        names = [name for name in LOADERS if world > 1 or name != "own sampler"]
        ended = together(world, work(world), tmp_path)
        assert [end.code for end in ended] == [0] * world, ended
    for name, (_, is_divided) in LOADERS.items():
        expected = "in order" if name == "own sampler" else name
        alone = torch.load(tmp_path / f"1-0-{expected}.pt")
        for rank in (0, 1):
            both = torch.load(tmp_path / f"2-{rank}-{name}.pt")
            for (metrics, said), (reference, _) in zip(both, alone, strict=True):
                assert said is (rank == 0 and not is_divided), name
                if is_divided:
                    assert metrics == pytest.approx(reference, rel=1e-6), name


# Outputs and steps.


@pytest.mark.parametrize("accumulation", [1, 3])
def test_outputs_of_a_step_have_a_loss_to_read(accumulation: int) -> None:
    found: list[tuple[float, float]] = []

    class Read(Callback):
        def on_train_batch_end(self, trainer: Trainer, task: Any, outputs: Any, *_: Any) -> None:
            found.append((float(outputs["mean_loss"]), float(outputs["loss"])))

    config = CausalLMConfig(**{**SIZES, "dropout": 0.0, "attn_dropout": 0.0}, vocab_size=11)
    task = CausalLanguageModeling(config, OptimizerConfig(name="sgd", lr=1e-30), FLAT)
    trainer = Trainer(
        **QUIET,
        max_epochs=1,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        limit_val_batches=0,
        callbacks=[Read()],
        accumulate_grad_batches=accumulation,
    )
    trainer.fit(task, PlainData())
    ids = PlainData().rows
    expected = [
        float(torch.nn.functional.cross_entropy(task(x).flatten(0, 1), x.roll(-1, 1).flatten()))
        for x in ids.split(2)
    ]
    assert [mean for mean, _ in found] == pytest.approx(expected, rel=1e-5)
    is_scaled = [loss != pytest.approx(mean, rel=1e-3) for mean, loss in found]
    assert is_scaled == [accumulation > 1] * len(found)


def test_all_loggers_have_the_number_of_completed_steps(tmp_path: Path) -> None:
    class Steps(CSVLogger):
        """Lightning's CSVLogger that keeps what it receives."""

        def log_metrics(self, metrics: Any, step: int | None = None) -> None:  # type: ignore[override]
            seen.append((step, "val/loss" if "val/loss" in metrics else "train/loss"))

    seen: list[tuple[int | None, str]] = []
    ours = MetricsCSVLogger(tmp_path)
    trainer = Trainer(
        **QUIET,
        max_steps=6,
        accelerator="cpu",
        logger=[ours, Steps(tmp_path), TensorBoardLogger(tmp_path, name="", version="board")],
        enable_checkpointing=False,
        log_every_n_steps=2,
        val_check_interval=3,
    )
    trainer.fit(make_task(), make_data())
    expected = [
        *((2, "train/loss"), (3, "val/loss"), (4, "train/loss")),
        *((6, "train/loss"), (6, "val/loss")),
    ]
    assert seen == expected
    rows = [line.split(",")[0] for line in ours.file.read_text().splitlines()[1:]]
    assert rows == [str(step) for step, _ in expected]
    board = EventAccumulator(str(tmp_path / "board"))
    board.Reload()
    for name in ("train/loss", "val/loss"):
        assert [event.step for event in board.Scalars(name)] == [
            s for s, n in expected if n == name
        ]
    trainer.test(make_task(vocab_size=14), make_data(), verbose=False)
    assert seen[-1][0] == 6
