"""LengthBucketedOrder and RepeatedAugmentationOrder: rows of each epoch, bounds, determinism."""

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fourfold.data import ImageData
from fourfold.data.loading.batches import ImageBatch
from fourfold.data.loading.length_bucketing import (
    ROWS_PER_REPEAT_GROUP,
    LengthBucketedOrder,
    RepeatedAugmentationOrder,
)
from fourfold.data.loading.sampler import EpochSampler
from fourfold.data.vision.eval_transforms import TransformConfig
from fourfold.errors import InputError

lengths_of_rows = st.lists(st.integers(1, 40), min_size=1, max_size=80).map(np.array)


@given(lengths_of_rows, st.integers(40, 200), st.integers(1, 9), st.integers(0, 3), st.booleans())
@settings(max_examples=60, deadline=None)
def test_each_row_comes_once_and_batches_keep_their_bounds(
    lengths: np.ndarray, max_tokens: int, max_rows: int, epoch: int, shuffle: bool
) -> None:
    order = LengthBucketedOrder(
        lengths, max_tokens=max_tokens, max_rows=max_rows, seed=1, shuffle=shuffle
    )
    batches = order.batches(epoch)
    assert sorted(np.concatenate(batches).tolist()) == list(range(len(lengths)))
    assert len(batches) == order.n_batches
    for batch in batches:
        assert 0 < len(batch) <= max_rows
        assert len(batch) * lengths[batch].max() <= max_tokens


@given(lengths_of_rows, st.integers(0, 3))
@settings(max_examples=30, deadline=None)
def test_no_batch_could_hold_one_more_row(lengths: np.ndarray, epoch: int) -> None:
    batches = LengthBucketedOrder(lengths, max_tokens=80, shuffle=False).batches(epoch)
    for batch, following in itertools.pairwise(batches):
        assert (len(batch) + 1) * lengths[following].min() > 80


def test_order_depends_on_seed_and_epoch_only() -> None:
    lengths = np.repeat([3, 5, 9], 30)

    def batches(seed: int, epoch: int) -> list[list[int]]:
        order = LengthBucketedOrder(lengths, max_rows=7, seed=seed)
        return [batch.tolist() for batch in order.batches(epoch)]

    assert batches(1, 4) == batches(1, 4)
    assert batches(1, 4) != batches(1, 5)
    assert batches(1, 4) != batches(2, 4)
    # Epochs differ in the content of the batches, not only in their order.
    assert {frozenset(b) for b in batches(1, 4)} != {frozenset(b) for b in batches(1, 5)}


def test_evaluation_order_is_equal_in_every_epoch() -> None:
    order = LengthBucketedOrder(np.ones(10), max_rows=3, shuffle=False)
    expected = [[0, 1, 2], [3, 4, 5], [6, 7, 8], [9]]
    assert [batch.tolist() for batch in order.batches(7)] == expected


@pytest.mark.parametrize(
    ("lengths", "bounds", "message"),
    [
        ([], {"max_rows": 2}, "lengths must have at least one element"),
        ([1], {"max_rows": 0}, "max_rows must be at least 1, got 0"),
        ([4, 90, 5], {"max_tokens": 80}, "max_tokens must be at least the 90 tokens of row 1"),
    ],
)
def test_invalid_orders_are_rejected(
    lengths: list[int], bounds: dict[str, int], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        LengthBucketedOrder(np.array(lengths), **bounds)


def test_fingerprint_depends_on_data_bounds_and_seed() -> None:
    base = LengthBucketedOrder(np.array([1, 2, 3]), max_rows=2).fingerprint()
    assert base == LengthBucketedOrder(np.array([1, 2, 3]), max_rows=2).fingerprint()
    others = [
        LengthBucketedOrder(np.array([1, 3, 2]), max_rows=2),
        LengthBucketedOrder(np.array([1, 2, 3]), max_rows=3),
        LengthBucketedOrder(np.array([1, 2, 3]), max_rows=2, seed=1),
        LengthBucketedOrder(np.array([1, 2, 3]), max_rows=2, max_tokens=9),
    ]
    assert base not in {order.fingerprint() for order in others}


def rows_in(order: LengthBucketedOrder, epoch: int) -> np.ndarray:
    return np.concatenate(order.batches(epoch))


@pytest.mark.parametrize("n_rows", [1, 2, 7, 47, 48, 49, 1000])
@pytest.mark.parametrize("repeats", [1, 2, 3, 5])
def test_repeated_augmentation_keeps_the_length_of_an_epoch(n_rows: int, repeats: int) -> None:
    order = RepeatedAugmentationOrder(n_rows, repeats, max_rows=8)
    assert order.n_batches == LengthBucketedOrder(np.ones(n_rows), max_rows=8).n_batches
    for epoch in range(3):
        numbers = rows_in(order, epoch)
        assert len(numbers) == n_rows
        assert len(set(numbers.tolist())) == n_rows  # each copy comes once
        rows, copies = np.unique(numbers % n_rows, return_counts=True)
        n_sampled = -(-n_rows // repeats)
        assert len(rows) in (n_sampled, n_sampled + (repeats > 1))
        assert (copies <= repeats).all()
        assert (copies < repeats).sum() <= len(rows) * repeats - n_rows


def test_repeated_augmentation_samples_all_rows_equally_often() -> None:
    order = RepeatedAugmentationOrder(300, 3, max_rows=50)
    numbers = np.concatenate([rows_in(order, epoch) for epoch in range(400)])
    counts = np.bincount(numbers % 300, minlength=300)
    assert counts.mean() == 400
    # 4.5 standard deviations of three times a binomial with 400 trials and p = 1/3.
    assert abs(counts - 400).max() < 4.5 * 400**0.5 * 2**0.5


def test_copies_of_a_row_fall_into_one_global_batch() -> None:
    order = RepeatedAugmentationOrder(30_000, 3, max_rows=128)
    rows = rows_in(order, 4) % 30_000
    positions = np.arange(len(rows))
    first = np.full(30_000, len(rows))
    np.minimum.at(first, rows, positions)
    assert (positions - first[rows]).max() < 3 * ROWS_PER_REPEAT_GROUP
    # Only copies at the boundary of a global batch of 1,024 are divided between two.
    n_groups = len(np.unique(rows * 100 + positions // 1024))
    assert 10_000 < n_groups < 10_500


@pytest.mark.parametrize("n_rows", [49, 100, 141, 30_000])
def test_no_row_is_mixed_with_its_copy(n_rows: int) -> None:
    order = RepeatedAugmentationOrder(n_rows, 3, max_rows=128)
    for epoch in range(40):
        rows = rows_in(order, epoch)
        partners = order.mix_partners(rows, epoch)
        has_partner = partners != rows
        assert (~has_partner).sum() <= 1  # the last of an odd number
        assert (partners % n_rows != rows % n_rows)[has_partner].all()
        assert (order.mix_partners(partners, epoch) == rows).all()


def test_repeated_augmentation_depends_on_seed_and_epoch_only() -> None:
    order = RepeatedAugmentationOrder(100, 3, max_rows=8, seed=5)
    for max_rows in (2, 4, 100):
        other = RepeatedAugmentationOrder(100, 3, max_rows=max_rows, seed=5)
        assert (rows_in(other, 2) == rows_in(order, 2)).all()
    assert (rows_in(order, 1) != rows_in(order, 2)).any()
    other = RepeatedAugmentationOrder(100, 3, max_rows=8, seed=6)
    assert (rows_in(other, 2) != rows_in(order, 2)).any()
    orders = [RepeatedAugmentationOrder(100, k, max_rows=8, seed=5) for k in (2, 3, 4)]
    fingerprints = {order.fingerprint() for order in orders}
    fingerprints.add(LengthBucketedOrder(np.ones(100), max_rows=8, seed=5).fingerprint())
    assert len(fingerprints) == 4


@pytest.mark.parametrize("world_size", [1, 2, 3, 8])
def test_copies_are_divided_among_ranks(world_size: int) -> None:
    order = RepeatedAugmentationOrder(101, 3, max_rows=4)
    ranks = [
        list(EpochSampler(order, rank=rank, world_size=world_size)) for rank in range(world_size)
    ]
    assert len({len(batches) for batches in ranks}) == 1
    rows = [key.row for batches in ranks for batch in batches for key in batch]
    assert sorted(rows) == sorted(rows_in(order, 0).tolist())


AUGMENTED = TransformConfig(
    train_crop="pad_crop", flip=True, aa="rand-m9-n2", mixup=0.8, cutmix=1.0
)


def train_batches(**options: Any) -> list[ImageBatch]:
    return list(ImageData(batch_size=64, **options).train_dataloader())


def test_each_copy_is_augmented_differently() -> None:
    data = ImageData(batch_size=64, transform=TransformConfig(train_crop="pad_crop"), aug_repeats=3)
    images = data.split("train").images
    by_row: dict[int, list[torch.Tensor]] = {}
    for batch in data.train_dataloader():
        assert batch.rows.max() < len(images)
        assert torch.equal(batch.labels, images.labels[batch.rows])
        for row, image in zip(batch.rows.tolist(), batch.images, strict=True):
            by_row.setdefault(row, []).append(image)
    assert max(map(len, by_row.values())) == 3
    equal = [torch.equal(copies[0], copies[1]) for copies in by_row.values() if len(copies) > 1]
    assert sum(equal) / len(equal) < 0.25  # nine shifts, so one in nine by chance


def test_copies_without_augmentation_equal_the_image() -> None:
    images = {
        row: image
        for batch in train_batches()
        for row, image in zip(batch.rows.tolist(), batch.images, strict=True)
    }
    for batch in train_batches(aug_repeats=3):
        for row, image in zip(batch.rows.tolist(), batch.images, strict=True):
            assert torch.equal(image, images[row])


def test_repeated_batches_do_not_depend_on_workers() -> None:
    expected = train_batches(transform=AUGMENTED, aug_repeats=3)
    batches = train_batches(transform=AUGMENTED, aug_repeats=3, num_workers=2)
    for a, b in zip(expected, batches, strict=True):
        assert torch.equal(a.images, b.images)
        assert torch.equal(a.labels, b.labels)
        assert torch.equal(a.rows, b.rows)


def test_evaluation_has_no_repeats() -> None:
    data = ImageData(batch_size=64, aug_repeats=3)
    rows = torch.cat([batch.rows for batch in data.val_dataloader()])
    assert rows.tolist() == list(range(len(data.split("val").images)))


def test_aug_repeats_below_one_is_rejected() -> None:
    with pytest.raises(InputError, match="aug_repeats must be at least 1"):
        ImageData(aug_repeats=0)


def test_resumed_training_with_repeats_ends_with_equal_weights(root: Path, tmp_path: Path) -> None:
    from fourfold.cli import main

    weights = []
    for name, stops in (("uninterrupted", ("6",)), ("resumed", ("2", "5", "6"))):
        for steps in stops:
            command = f"fit --config {root}/configs/deit/tiny.yaml --run_dir {tmp_path / name}"
            data = f"--trainer.max_steps {steps} --data.init_args.aug_repeats 3 --tensorboard false"
            device = "--trainer.accelerator cpu --trainer.devices 1 --trainer.max_epochs -1"
            saving = "--trainer.limit_val_batches 1 --checkpoint.every_n_steps 1"
            schedule = "--model.init_args.schedule.name constant"
            assert main(f"{command} {data} {device} {saving} {schedule}".split()) == 0
        checkpoint = torch.load(tmp_path / name / "checkpoints/last.ckpt", weights_only=True)
        weights.append(checkpoint["state_dict"])
    assert all(torch.equal(tensor, weights[1][name]) for name, tensor in weights[0].items())
