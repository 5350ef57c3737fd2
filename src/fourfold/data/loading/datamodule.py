"""ResumableDataModule and BatchedDataset: base classes of DataModules and of their datasets."""

import os
import signal
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import fields, is_dataclass
from functools import cached_property
from typing import Any, ClassVar, Literal, NamedTuple, get_origin

import numpy as np
import torch
from lightning import LightningDataModule
from torch.utils.data import DataLoader, Dataset

from fourfold.core.validation import check_positive, check_range, check_type
from fourfold.data.loading.length_bucketing import LengthBucketedOrder
from fourfold.data.loading.sampler import EpochSampler, Position, SampleKey
from fourfold.errors import InputError


class BatchedDataset(Dataset[Any]):
    """Dataset of one split that returns complete batches instead of single examples.

    Padding, masking and cropping are then array operations on a whole batch. A row is an example,
    such as a sentence, an image or a block of tokens. Subclasses set `order` and implement `batch`.

    Attributes:
        order: Division of the rows into the batches of each epoch.
    """

    order: LengthBucketedOrder

    def __len__(self) -> int:
        return self.order.n_rows

    @cached_property
    def has_static_shape(self) -> bool:
        """True if all batches, except perhaps the last, have the same shape.

        `torch.compile` may then compile without dynamic shapes.
        """
        return self.order.equal_lengths

    @cached_property
    def max_length(self) -> int:
        """Number of tokens of the longest example."""
        return int(self.order.lengths.max(initial=0))

    def prepare(self) -> None:
        """Prepare data that worker processes share, such as a cache, before the workers start."""

    @abstractmethod
    def batch(self, rows: np.ndarray, epoch: int, position: int) -> NamedTuple:
        """Return a batch of the examples `rows` (B,); `epoch` and `position` are its last fields.

        Random masks or crops must depend only on the arguments and a seed. Then any process returns
        the same batch at any time, which exact resume relies on. `position` is the number of
        batches (micro-batches) of the epoch that all ranks together have processed after this
        batch.
        """

    def __getitems__(self, keys: Sequence[SampleKey]) -> NamedTuple:
        # torch's DataLoader passes the keys of one batch to this method.
        rows = np.array([key.row for key in keys], dtype=np.int64)
        return self.batch(rows, keys[0].epoch, keys[0].position)


def identity(batch: Any) -> Any:
    """Return the batch, as a function that worker processes can unpickle."""
    return batch


def _outlive_sigterm(worker: int) -> None:
    """Let a worker process serve 30 more seconds after a first SIGTERM."""

    # A scheduler sends the signal to all processes of a training, whose first process then finishes
    # its step, perhaps its validation, and saves a checkpoint.
    def handle(*_: Any) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.alarm(30)

    signal.signal(signal.SIGTERM, handle)


class ResumableDataModule(LightningDataModule):
    """Base class of DataModules whose training resumes at the exact batch after an interruption.

    A subclass sets `batch_class` and implements two methods: `build`, which returns a
    `BatchedDataset` for each split, and `artifacts`. This base class makes the DataLoaders,
    shuffles, divides the batches among the ranks, and saves the position in the data to every
    checkpoint. A callback must call `mark_trained` after each training batch. The tasks of fourfold
    add it to every Trainer, and let the Trainer keep the division among the ranks. The page
    "Python" of the documentation has an example.

    An invalid option raises InputError in the constructor, and data that are missing, corrupted or
    in conflict with an option raise it in `setup`, as in all DataModules of fourfold.

    Args:
        seed: Seed of shuffling, masking and cropping, combined with the number of the epoch.
        num_workers: Number of worker processes that prepare batches, and that encode the text of
            language models; the batches do not depend on it.

    Attributes:
        batch_class: Class of the batches; a task accepts only batches of its own class.
        split_sources: Source of each split, such as a list of files, which `tests_on_val` compares.
        splits: Dataset of each split; empty before `setup`.
        position: Position in the training data after the last trained batch.
    """

    batch_class: ClassVar[type]

    def __init__(self, seed: int = 0, num_workers: int = 0) -> None:
        super().__init__()
        check_range("seed", seed, minimum=0)
        check_range("num_workers", num_workers, minimum=0)
        self.seed = seed
        self.num_workers = num_workers
        self.split_sources: dict[str, Any] = {}
        self.splits: dict[str, BatchedDataset] = {}
        self.position = Position()
        self._resume_from: Position | None = None

    def __setattr__(self, name: str, value: Any) -> None:
        """Set an attribute; a new batch size discards the datasets, which are built again."""
        super().__setattr__(name, value)
        if name in ("batch_size", "max_tokens") and self.__dict__.get("splits"):
            self.splits = {}

    @property
    def batch_sizes(self) -> dict[str, int]:
        """Batch size of each split, in DataModules with the option `eval_batch_size`."""
        options: Any = self
        for name in ("batch_size", "eval_batch_size"):
            check_positive(f"data.{name}", getattr(self, name))
        other = options.batch_size if options.eval_batch_size is None else options.eval_batch_size
        return {"train": options.batch_size, "val": other, "test": other}

    def batch_order(
        self, name: str, lengths: np.ndarray, **bounds: int | None
    ) -> LengthBucketedOrder:
        """Return the order that divides the examples of a split into batches of similar length.

        Args:
            name: Name of the split; only the split "train" is shuffled.
            lengths: (examples,) number of tokens of each example; all ones if no padding is needed.
            bounds: `max_tokens` (maximum number of tokens in a batch, padding included), `max_rows`
                (maximum number of examples in a batch), or both.
        """
        return LengthBucketedOrder(lengths, seed=self.seed, shuffle=name == "train", **bounds)

    @abstractmethod
    def build(self) -> dict[str, BatchedDataset]:
        """Read the data and return the dataset of each split.

        The keys are "train", "val" and "test"; a split that does not exist is left out.
        """

    @abstractmethod
    def artifacts(self) -> dict[str, Any]:
        """Return the values that inference needs besides the model, such as class names.

        Checkpoints store them, so they must be of plain Python types.
        """

    @property
    def tests_on_val(self) -> bool:
        """True if the validation and the test split have the same source, such as the same file.

        Two fractions of the training split, such as 0.1, hold different examples.
        """
        val, test = (self.split_sources.get(name) for name in ("val", "test"))
        return val is not None and not isinstance(val, float) and val == test

    def setup(self, stage: str | None = None) -> None:
        """Build the datasets of all splits at the first call; later calls do nothing.

        Raises:
            InputError: An option has none of its values, or the data are invalid.
        """
        options: Any = fields(self) if is_dataclass(self) else ()
        for option in options:
            if get_origin(option.type) is Literal:
                check_type(f"data.{option.name}", getattr(self, option.name), option.type)
        if not self.splits:
            self.splits = self.build()

    def split(self, name: str) -> BatchedDataset:
        """Return the dataset of a split; the first call reads the data.

        Raises:
            InputError: If the data have no such split.
        """
        self.setup()
        if name not in self.splits:
            message = f"must be given: {type(self).__name__} has no {name} split without it"
            raise InputError(message, option=f"data.{name}")
        return self.splits[name]

    def n_train_batches(self, upto: int | None = None) -> int:
        """Return the number of training batches of each rank in a complete epoch.

        The Trainer's option `limit_train_batches` is ignored. With `upto`, a number of batches of
        all ranks as in `position`, only these are counted.
        """
        sampler = EpochSampler(self.split("train").order, world_size=self._rank_and_size()[1])
        return len(sampler) - (0 if upto is None else sampler.n_steps(upto))

    def _rank_and_size(self) -> tuple[int, int]:
        return (self.trainer.global_rank, self.trainer.world_size) if self.trainer else (0, 1)

    def _max_train_steps(self) -> int:
        """Return the maximum number of steps that the Trainer takes in an epoch.

        An int `limit_train_batches` is a number of batches of each rank, a float a fraction of
        them.
        """
        limit = self.trainer.limit_train_batches if self.trainer else 1.0
        return limit if isinstance(limit, int) else int(self.n_train_batches() * limit)

    def _loader(self, name: str, start: Position) -> DataLoader[Any]:
        dataset = self.split(name)
        dataset.prepare()
        rank, world_size = self._rank_and_size()
        if len(dataset) < world_size:
            message = f"must be at most the {len(dataset)} rows of the {name} split"
            raise InputError(f"{message}, got {world_size} processes", option="trainer.devices")
        overfits = bool(getattr(self.trainer, "overfit_batches", 0))
        sampler = EpochSampler(
            dataset.order,
            rank=rank,
            world_size=world_size,
            start=start,
            max_steps=self._max_train_steps() if name == "train" else None,
            repeat_first_epoch=name != "train" or overfits,
        )
        if self.num_workers:
            # Without a value, `tokenizers` prints a warning for each forked worker.
            os.environ.setdefault("TOKENIZERS_PARALLELISM", "true")
        return DataLoader(
            dataset,
            batch_sampler=sampler,
            num_workers=self.num_workers,
            collate_fn=identity,
            worker_init_fn=_outlive_sigterm,
            pin_memory=torch.cuda.is_available(),
            persistent_workers=self.num_workers > 0,
        )

    def train_dataloader(self) -> DataLoader[Any]:
        """Return the DataLoader of the training batches, at the restored position of a resumed run.

        Raises:
            InputError: If the checkpoint to resume holds no position in these data, because it was
                written with another DataModule.
        """
        trainer = self.trainer
        resumes = trainer and trainer.ckpt_path and trainer.state.fn == "fit"
        if resumes and self._resume_from is None:
            message = f"the checkpoint holds no position in {type(self).__qualname__}: it was"
            message += " written with other data, so its training cannot be resumed exactly"
            raise InputError(message, file=trainer.ckpt_path)  # type: ignore[union-attr]
        return self._loader("train", self._resume_from or Position())

    def val_dataloader(self) -> DataLoader[Any] | list[Any]:
        """Return the DataLoader of the validation batches, or [] if the data have no such split."""
        self.setup()
        return self._loader("val", Position()) if "val" in self.splits else []

    def test_dataloader(self) -> DataLoader[Any]:
        """Return the DataLoader of the test batches."""
        return self._loader("test", Position())

    predict_dataloader = test_dataloader

    def mark_trained(self, epoch: int, position: int) -> None:
        """Record `epoch` and `position` of a batch that has been trained."""
        self.position = Position(epoch, position)

    def state_dict(self) -> dict[str, Any]:
        """Return the state for a checkpoint: `position`, seed, and a hash of the batch order.

        A position is valid only for one seed and batch order.
        """
        order = self.split("train").order.fingerprint()
        return {**self.position._asdict(), "seed": self.seed, "order": order}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore the position in the training data, unless the Trainer evaluates.

        Raises:
            InputError: If seed, training data or batch sizes differ from those of the checkpoint.
        """
        if self.trainer is not None and self.trainer.state.fn != "fit":
            return  # evaluation reads all batches of whatever data it is given
        if state_dict["seed"] != self.seed:
            message = f"must be {state_dict['seed']}, as in the checkpoint to resume, got"
            message += f" {self.seed}; without data.seed, it is seed_everything"
            raise InputError(message, option="data.seed")
        saved = Position(state_dict["epoch"], state_dict["batch"])
        if saved != Position() and state_dict["order"] != self.split("train").order.fingerprint():
            message = "must be those of the checkpoint to resume, got other training data or batch"
            message += " sizes: restore the options of `data`, or set another --run_dir"
            raise InputError(message, option="data")
        self.position = self._resume_from = saved

    def teardown(self, stage: str) -> None:
        """Discard the restored position after a fit; a second fit starts at the first batch."""
        if stage == "fit":
            self._resume_from = None


class HasClasses(ResumableDataModule):
    """Base class of DataModules whose examples have a class, several labels or a number."""

    _class_names: list[str] | None = None

    @property
    def class_names(self) -> list[str]:
        """Names of the K classes, in the order of their numbers; the first access reads the data.

        The list is empty for a regression.
        """
        self.setup()
        return list(self._class_names or [])

    @property
    def n_classes(self) -> int:
        """Number of classes K; 1 for a regression."""
        return 1 if getattr(self, "regression", False) else len(self.class_names)
