"""What all DataModules share: loaders over a plan, and the place a checkpoint resumes at."""

from __future__ import annotations

import os
import warnings
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from lightning import LightningDataModule
from torch.utils.data import DataLoader, Dataset

from fourfold.core.errors import InputError
from fourfold.data.sampler import EpochSampler, Key, Order, Plan


class BatchDataset(Dataset[Any]):
    """A split that makes whole batches, so that padding, masking and cropping are array operations.

    Subclasses set `plan` and write `batch`, whose randomness may depend on nothing but its
    arguments and a seed: then the same batch comes out in any process, at any time.
    """

    plan: Order

    def __len__(self) -> int:
        return self.plan.n_rows

    @property
    def has_one_shape(self) -> bool:
        """Whether all batches but the last are of one shape, for which one graph is compiled."""
        return self.plan.even

    @property
    def longest(self) -> int:
        """Tokens of the longest row."""
        assert isinstance(self.plan, Plan)  # other orders do not know lengths, their splits do
        return int(self.plan.lengths.max(initial=0))

    @abstractmethod
    def batch(self, index: np.ndarray, epoch: int, position: int) -> NamedTuple:
        """The batch of rows `index`, carrying `epoch` and `position`."""

    def __getitem__(self, key: Key) -> NamedTuple:
        return self.__getitems__([key])

    def __getitems__(self, keys: Sequence[Key]) -> NamedTuple:
        index = np.array([key.row for key in keys], dtype=np.int64)
        return self.batch(index, keys[0].epoch, keys[0].position)


def batch_sizes(train: int, other: int | None) -> dict[str, int]:
    """Rows of a batch of training and of the "other" splits, by default equally many.

    Raises:
        InputError: one of them is below 1.
    """
    for name, size in (("batch_size", train), ("eval_batch_size", other)):
        if size is not None and size < 1:
            raise InputError(f"{name} must be at least 1, not {size}.")
    return {"train": train, "other": train if other is None else other}


def _as_is(batch: Any) -> Any:
    return batch


class EpochData(LightningDataModule):
    """Base of the DataModules: subclasses `build` the splits, order and resuming are done here.

    Needs `use_distributed_sampler=False` in the Trainer, since the sampler knows rank and world
    size itself.

    Args:
        seed: decides order, masking and cropping, together with the epoch.
        num_workers: processes that prepare batches; the batches do not depend on it.
    """

    batch_class: ClassVar[type]  # what `batch` of its splits gives
    parts: Mapping[str, Any] = MappingProxyType({})  # what each split is, where a user names it

    def __init__(self, seed: int = 0, num_workers: int = 0) -> None:
        super().__init__()
        if seed < 0:
            raise InputError(f"The data seed must not be negative, but is {seed}.")
        if num_workers < 0:
            raise InputError(f"num_workers is {num_workers}, but must not be negative.")
        self.seed = seed
        self.num_workers = num_workers
        self.splits: dict[str, BatchDataset] = {}
        self.consumed = (0, 0)
        self._start: tuple[int, int] | None = None

    @abstractmethod
    def build(self) -> dict[str, BatchDataset]:
        """Reads the data; returns the splits that exist among "train", "val" and "test"."""

    @abstractmethod
    def artifacts(self) -> dict[str, Any]:
        """Plain values that inference needs beside the model."""

    @property
    def tests_on_val(self) -> bool:
        """Whether the test split is the validation split once more."""
        val, test = (self.parts.get(name) for name in ("val", "test"))
        # Of one fraction each split holds out its own rows.
        return val is not None and not isinstance(val, float) and val == test

    def setup(self, stage: str | None = None) -> None:
        """Builds the splits once; nothing is kept if that fails."""
        if not self.splits:
            self.splits = self.build()

    def split(self, name: str) -> BatchDataset:
        """The split called `name`.

        Raises:
            InputError: the data have no such split.
        """
        self.setup()
        if name not in self.splits:
            raise InputError(
                f"{type(self).__name__} has no {name!r} split:"
                f" give `{name}` in the data section of the config."
            )
        return self.splits[name]

    def n_train_batches(self) -> int:
        """Batches each rank takes in an epoch."""
        return len(EpochSampler(self.split("train").plan, world=self._place()[1]))

    def _place(self) -> tuple[int, int]:
        return (self.trainer.global_rank, self.trainer.world_size) if self.trainer else (0, 1)

    def _limit(self) -> int | None:
        """Steps of an epoch, where `limit_train_batches` says so."""
        limit = self.trainer.limit_train_batches if self.trainer else 1.0
        if limit == 1.0 and isinstance(limit, float):
            return None
        return limit if isinstance(limit, int) else int(self.n_train_batches() * limit)

    def _loader(self, name: str, start: tuple[int, int] = (0, 0)) -> DataLoader[Any]:
        dataset = self.split(name)
        rank, world = self._place()
        if len(dataset) < world:
            raise InputError(
                f"The {name} split has {len(dataset)} rows, fewer than the {world} processes:"
                " use fewer devices."
            )
        # `overfit_batches` wants the same few batches again and again.
        still = name != "train" or bool(getattr(self.trainer, "overfit_batches", 0))
        steps = self._limit() if name == "train" else None
        sampler = EpochSampler(
            dataset.plan, rank=rank, world=world, start=start, steps=steps, still=still
        )
        if self.num_workers:
            # Said out loud, or tokenizers prints a warning for every forked worker (which never
            # calls it).
            os.environ.setdefault("TOKENIZERS_PARALLELISM", "true")
        return DataLoader(
            dataset,
            batch_sampler=sampler,
            num_workers=self.num_workers,
            collate_fn=_as_is,
            pin_memory=torch.cuda.is_available(),
            persistent_workers=self.num_workers > 0,
        )

    def train_dataloader(self) -> DataLoader[Any]:
        """The training batches, from the restored place on.

        Raises:
            InputError: a checkpoint is being resumed that does not say where in these data it was.
        """
        trainer = self.trainer
        if trainer and trainer.ckpt_path and trainer.state.fn == "fit" and self._start is None:
            raise InputError(
                f"The checkpoint {trainer.ckpt_path} holds no place in {type(self).__qualname__},"
                " so training cannot be resumed exactly: it was made with other data."
            )
        # Lightning cannot know that this loader resumes.
        warnings.filterwarnings("ignore", message=".*your dataloader is not resumable.*")
        return self._loader("train", self._start or (0, 0))

    def val_dataloader(self) -> DataLoader[Any] | list[Any]:
        """The validation batches, none if there is no such split."""
        self.setup()
        return self._loader("val") if "val" in self.splits else []

    def test_dataloader(self) -> DataLoader[Any]:
        """The test batches."""
        return self._loader("test")

    def predict_dataloader(self) -> DataLoader[Any]:
        """The test batches."""
        return self._loader("test")

    def set_consumed(self, epoch: int, position: int) -> None:
        """Notes the place that the last finished training batch carries."""
        self.consumed = (epoch, position)

    def state_dict(self) -> dict[str, Any]:
        """The place in the data, with what must be the same for it to mean the same."""
        epoch, position = self.consumed
        plan = self.split("train").plan.fingerprint()
        return {"epoch": epoch, "position": position, "seed": self.seed, "plan": plan}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Takes up the place of a checkpoint.

        Raises:
            InputError: the seed, the data or the batch sizes are not those of the checkpoint.
        """
        if self.trainer is not None and self.trainer.state.fn != "fit":
            return  # evaluation starts at the beginning, on whatever data
        if state_dict["seed"] != self.seed:
            raise InputError(
                f"The checkpoint was trained with data seed {state_dict['seed']}, not {self.seed}:"
                " resume with the same seed."
            )
        if state_dict["plan"] != self.split("train").plan.fingerprint():
            raise InputError(
                "The run was trained with other training data, or with batches of another size:"
                " give the data options that it was made with, or another --run_dir."
            )
        self.consumed = self._start = (state_dict["epoch"], state_dict["position"])

    def teardown(self, stage: str) -> None:
        """Forgets the restored place: the next `fit` starts afresh unless it resumes too."""
        if stage == "fit":
            self._start = None
