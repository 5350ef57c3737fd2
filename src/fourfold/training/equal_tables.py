"""Check that all ranks derive the same tables, such as class names, from the data."""

import hashlib
from collections.abc import Mapping
from typing import Any

from lightning import LightningDataModule, Trainer

from fourfold.errors import InputError
from fourfold.metrics.base import gather_objects


def artifacts_of(datamodule: LightningDataModule | None) -> dict[str, Any]:
    """Return the artifacts of a DataModule by name; none without the method `artifacts`."""
    artifacts = getattr(datamodule, "artifacts", None)
    return dict(artifacts()) if callable(artifacts) else {}


def table_digests(artifacts: dict[str, Any], splits: Mapping[str, Any]) -> dict[str, str]:
    """Return a hash of each artifact of a DataModule, and of the batch order of each split."""
    tables = {f"{name} split": x.order.fingerprint() for name, x in splits.items()} | artifacts
    return {name: hashlib.blake2b(ascii(x).encode()).hexdigest() for name, x in tables.items()}


def check_equal_tables(trainer: Trainer, artifacts: dict[str, Any], datamodule: Any) -> None:
    """Raise InputError on every rank if a table of the data differs between two ranks.

    All ranks must call this function.
    """
    if trainer.world_size == 1:
        return
    first, *others = gather_objects(table_digests(artifacts, getattr(datamodule, "splits", {})))
    for rank, other in enumerate(others, start=1):
        if differing := [name for name in first | other if first.get(name) != other.get(name)]:
            message = f"must be equal on all ranks, but rank {rank} has another {differing[0]} than"
            raise InputError(f"{message} rank 0", option="the data")
