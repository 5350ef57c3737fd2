"""Repeated augmentation: which rows an epoch has, how often, and what their copies look like."""

from pathlib import Path

import numpy as np
import pytest
import torch

from fourfold.core.errors import InputError
from fourfold.data import ImageData
from fourfold.data.repeats import TOGETHER, RepeatedPlan
from fourfold.data.sampler import EpochSampler, Plan
from fourfold.data.transforms import TransformConfig


def order(plan: Plan, epoch: int) -> np.ndarray:
    return np.concatenate(plan.batches(epoch))


@pytest.mark.parametrize("n_rows", [1, 2, 7, 47, 48, 49, 1000])
@pytest.mark.parametrize("repeats", [1, 2, 3, 5])
def test_an_epoch_is_as_long_as_ever_with_each_row_that_comes_several_times(
    n_rows: int, repeats: int
) -> None:
    plan = RepeatedPlan(n_rows, repeats, max_rows=8)
    assert plan.n_batches == Plan(np.ones(n_rows), max_rows=8).n_batches
    for epoch in range(3):
        found = order(plan, epoch)
        assert len(found) == n_rows
        assert len(set(found.tolist())) == n_rows  # each copy once
        rows, times = np.unique(found % n_rows, return_counts=True)
        chosen = -(-n_rows // repeats)
        assert len(rows) in (chosen, chosen + (repeats > 1))
        assert (times <= repeats).all()
        assert (times < repeats).sum() <= len(rows) * repeats - n_rows


def test_over_the_epochs_every_row_comes_as_often() -> None:
    plan = RepeatedPlan(300, 3, max_rows=50)
    times = np.bincount(np.concatenate([order(plan, e) for e in range(400)]) % 300, minlength=300)
    assert times.mean() == 400
    assert abs(times - 400).max() < 4.5 * 400**0.5 * 2**0.5  # of 400 draws of one third, thrice


def test_copies_fall_into_one_global_batch_and_never_beside_each_other() -> None:
    plan = RepeatedPlan(30_000, 3, max_rows=128)
    found = order(plan, 4)
    rows = found % 30_000
    where = np.arange(len(rows))
    first = np.full(30_000, len(rows))
    np.minimum.at(first, rows, where)
    assert (where - first[rows]).max() < 3 * TOGETHER
    parts = len(np.unique(rows * 100 + where // 1024))
    assert 10_000 < parts < 10_500  # in two go those at the border of a global batch of 1,024


@pytest.mark.parametrize("n_rows", [49, 100, 141, 30_000])
def test_no_row_is_mixed_with_itself(n_rows: int) -> None:
    plan = RepeatedPlan(n_rows, 3, max_rows=128)
    for epoch in range(40):
        found = order(plan, epoch)
        partners = plan.partners(found, epoch)
        paired = partners != found  # but for one that is left over at the end
        assert (~paired).sum() <= 1
        assert (partners % n_rows != found % n_rows)[paired].all()
        assert (plan.partners(partners, epoch) == found).all()


def test_it_is_a_function_of_seed_and_epoch_and_not_of_the_batches() -> None:
    plan = RepeatedPlan(100, 3, max_rows=8, seed=5)
    for rows in (2, 4, 100):
        other = RepeatedPlan(100, 3, max_rows=rows, seed=5)
        assert (order(other, 2) == order(plan, 2)).all()
    assert (order(plan, 1) != order(plan, 2)).any()
    assert (order(RepeatedPlan(100, 3, max_rows=8, seed=6), 2) != order(plan, 2)).any()
    prints = {RepeatedPlan(100, k, max_rows=8, seed=5).fingerprint() for k in (2, 3, 4)}
    assert len(prints | {Plan(np.ones(100), max_rows=8, seed=5).fingerprint()}) == 4


@pytest.mark.parametrize("world", [1, 2, 3, 8])
def test_ranks_share_the_copies_out(world: int) -> None:
    plan = RepeatedPlan(101, 3, max_rows=4)
    samplers = [EpochSampler(plan, rank=rank, world=world) for rank in range(world)]
    steps = [list(sampler) for sampler in samplers]
    assert len({len(own) for own in steps}) == 1
    seen = [key.row for own in steps for batch in own for key in batch]
    assert sorted(seen) == sorted(order(plan, 0).tolist())


CHANGED = TransformConfig(crop="padded", flip=True, rand_augment=(2, 9), mixup=0.8, cutmix=1.0)


def loaded(repeats: int, transform: TransformConfig, **more: int) -> list:
    data = ImageData(batch_size=64, transform=transform, repeats=repeats, **more)
    return list(data.train_dataloader())


def test_each_copy_is_changed_in_a_way_of_its_own() -> None:
    """Without the flip, which digits cannot take, the shifts alone have 9 places."""
    data = ImageData(batch_size=64, transform=TransformConfig(crop="padded"), repeats=3)
    images = data.split("train").images
    by_row: dict[int, list[torch.Tensor]] = {}
    for batch in data.train_dataloader():
        assert batch.index.max() < len(images)
        assert torch.equal(batch.labels, images.labels[batch.index])
        for row, image in zip(batch.index.tolist(), batch.images, strict=True):
            by_row.setdefault(row, []).append(image)
    assert max(map(len, by_row.values())) == 3
    alike = [torch.equal(found[0], found[1]) for found in by_row.values() if len(found) > 1]
    assert sum(alike) / len(alike) < 0.25  # by chance one in nine


def test_without_changes_the_copies_are_the_image() -> None:
    data = ImageData(batch_size=64, repeats=3)
    plain = {int(b.index[i]): b.images[i] for b in ImageData(batch_size=64).train_dataloader()
             for i in range(len(b.index))}  # fmt: skip
    for batch in data.train_dataloader():
        for row, image in zip(batch.index.tolist(), batch.images, strict=True):
            assert torch.equal(image, plain[row])


def test_workers_change_nothing() -> None:
    alone, helped = loaded(3, CHANGED), loaded(3, CHANGED, num_workers=2)
    for a, b in zip(alone, helped, strict=True):
        assert torch.equal(a.images, b.images)
        assert torch.equal(a.labels, b.labels)
        assert torch.equal(a.index, b.index)


def test_evaluation_repeats_nothing() -> None:
    data = ImageData(batch_size=64, repeats=3)
    rows = torch.cat([batch.index for batch in data.val_dataloader()])
    assert rows.tolist() == list(range(len(data.split("val").images)))


def test_fewer_than_one_is_refused() -> None:
    with pytest.raises(InputError, match="repeats must be at least 1, not 0"):
        ImageData(repeats=0)


def test_a_training_that_is_taken_up_ends_with_the_same_bits(root: Path, tmp_path: Path) -> None:
    from fourfold.cli import main

    ends = []
    for name, stops in (("whole", ("6",)), ("resumed", ("2", "5", "6"))):
        for steps in stops:
            words = f"fit --config {root}/configs/deit/tiny.yaml --run_dir {tmp_path / name}"
            more = f"--trainer.max_steps {steps} --data.init_args.repeats 3 --tensorboard false"
            cpu = "--trainer.accelerator cpu --trainer.devices 1 --trainer.max_epochs -1"
            short = "--trainer.limit_val_batches 1 --checkpoint.every_n_steps 1"
            constant = "--model.init_args.schedule.name constant"
            assert main(f"{words} {more} {cpu} {short} {constant}".split()) == 0
        saved = torch.load(tmp_path / name / "checkpoints/last.ckpt", weights_only=True)
        ends.append(saved["state_dict"])
    assert all(torch.equal(tensor, ends[1][name]) for name, tensor in ends[0].items())
