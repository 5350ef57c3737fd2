from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from fourfold.data.loading.counter_rng import bits, unit
from fourfold.data.loading.length_bucketing import LengthBucketedOrder
from fourfold.data.vision.augment import Augmentation, MixupCutmix, pad_and_crop
from fourfold.data.vision.eval_transforms import TransformConfig

EVERYTHING: dict[str, Any] = {
    "flip": True,
    "aa": "rand-m9-n2",
    "color_jitter": 0.3,
    "reprob": 0.5,
}


def noise(*shape: int) -> Tensor:
    return torch.randint(0, 256, shape, dtype=torch.uint8)


def unnormalized(**options: Any) -> TransformConfig:
    """Options without normalization, so that pixel values can be recognized."""
    return TransformConfig(mean=(0.0,), std=(1.0,), **options)


def test_seeds_differ_between_images_epochs_seeds_and_streams() -> None:
    index = np.arange(2000)
    blocks = [bits(s, e, index, 5) for s, e in ((0, 0), (0, 1), (1, 0), (1, 1))]
    assert len(np.unique(np.concatenate(blocks))) == 4 * blocks[0].size
    assert np.array_equal(bits(0, 0, index[[7, 3]], 5), blocks[0][[7, 3]])


def test_seeds_are_uniform_and_independent() -> None:
    draws = unit(bits(3, 5, np.arange(20000), 5))
    assert abs(draws.mean(0) - 0.5).max() < 0.01
    assert abs(draws.var(0) - 1 / 12).max() < 0.002
    off_diagonal = np.corrcoef(draws.T) - np.eye(draws.shape[1])
    assert abs(off_diagonal).max() < 0.03
    assert abs(np.corrcoef(draws[1:, 0], draws[:-1, 0])[0, 1]) < 0.03


def test_pad_and_crop_equals_a_loop() -> None:
    images = noise(40, 3, 6, 5)
    padding = 2
    rows, columns = torch.randint(0, 5, (40,)), torch.randint(0, 5, (40,))
    expected = torch.zeros_like(images)
    for b in range(40):
        for y in range(6):
            for x in range(5):
                i, j = y + int(rows[b]) - padding, x + int(columns[b]) - padding
                if 0 <= i < 6 and 0 <= j < 5:
                    expected[b, :, y, x] = images[b, :, i, j]
    assert torch.equal(pad_and_crop(images, padding, rows, columns), expected)


def test_pad_crop_and_flip_take_every_offset() -> None:
    """One white pixel reaches each of 3x3 positions and their mirror images, and is never lost."""
    image = torch.zeros(1, 8, 8, dtype=torch.uint8)
    image[0, 3, 3] = 255
    augment = Augmentation(unnormalized(train_crop="pad_crop", flip=True), 8, 1, seed=0)
    changed = augment(image.expand(900, 1, 8, 8), 0, np.arange(900))
    assert (changed.flatten(1).sum(1) == 1).all()
    positions = changed.flatten(1).argmax(1)
    rows, columns = positions // 8, positions % 8
    assert set(rows.tolist()) == {2, 3, 4}
    assert set(columns.tolist()) == {2, 3, 4, 5}  # mirrored, 3 becomes 4
    counts = torch.bincount(rows)[2:]
    assert counts.min() > 240
    assert abs((columns == 5).float().mean() - 1 / 6) < 0.05


@pytest.mark.parametrize("crop", ["none", "pad_crop", "random_resized_crop"])
@pytest.mark.parametrize("n_channels", [1, 3])
def test_image_depends_only_on_seed_epoch_and_row(crop: str, n_channels: int) -> None:
    """Other images of the batch, stacking and the global random state have no influence."""
    augment = Augmentation(TransformConfig(train_crop=crop, **EVERYTHING), 16, n_channels, seed=3)
    pixels, index = noise(6, n_channels, 20, 20), np.array([11, 5, 900, 2, 44, 45])
    whole = augment(pixels, 4, index)
    assert whole.shape == (6, n_channels, 16, 16)
    assert whole.isfinite().all()
    state = torch.get_rng_state()
    order = [3, 0, 5]
    part = augment([pixels[i] for i in order], 4, index[order])
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(part, whole[order])
    for other in (augment(pixels, 5, index), augment(pixels, 4, index + 1)):
        assert all(not torch.equal(a, b) for a, b in zip(other, whole, strict=True))


@pytest.mark.parametrize(
    "options",
    [
        {"train_crop": "pad_crop"},
        {"train_crop": "random_resized_crop"},
        {"flip": True},
        {"aa": "rand-m9-n2"},
        {"aa": "cifar10"},
        {"color_jitter": 0.4},
        {"reprob": 1.0},
    ],
)
def test_every_option_changes_images(options: dict[str, Any]) -> None:
    pixels, index = noise(32, 3, 16, 16), np.arange(32)
    same = Augmentation(TransformConfig(), 16, 3, seed=0)(pixels, 0, index)
    changed = Augmentation(TransformConfig(**options), 16, 3, seed=0)(pixels, 0, index)
    assert sum(not torch.equal(a, b) for a, b in zip(same, changed, strict=True)) > 10


def test_without_options_images_are_unchanged() -> None:
    pixels = noise(4, 3, 16, 16)
    images = Augmentation(unnormalized(), 16, 3, seed=0)(pixels, 0, np.arange(4))
    torch.testing.assert_close(images * 255, pixels.float())


def test_magnitude_10_rotates_by_30_degrees() -> None:
    transform: Any = Augmentation(TransformConfig(aa="rand-m10-n2"), 16, 3, seed=0).per_image
    policy = transform.transforms[0]
    angles = policy._AUGMENTATION_SPACE["Rotate"][0](policy.num_magnitude_bins, 16, 16)
    assert float(angles[policy.magnitude]) == 30.0


NEXT = torch.tensor([1, 0, 3, 2, 5, 4, 7, 6])


def mixed(config: TransformConfig, epoch: int = 1) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    images, labels = torch.rand(8, 3, 16, 16), torch.arange(8)
    pairs = np.array([0, 0, 1, 1, 2, 2, 3, 3])
    return images, labels, *MixupCutmix(config, 8, seed=1)(images, labels, NEXT, pairs, epoch)


@pytest.mark.parametrize("epoch", range(1, 6))
def test_mixup_mixes_pixels_and_labels_equally(epoch: int) -> None:
    images, labels, soft, targets = mixed(TransformConfig(mixup=0.8), epoch)
    torch.testing.assert_close(targets.sum(1), torch.ones(8))
    lam = targets[torch.arange(8), labels]
    assert torch.equal(lam, lam[NEXT])  # equal within a pair, different between pairs
    assert len(lam.unique()) == 4
    torch.testing.assert_close(soft, torch.einsum("bk,kchw->bchw", targets, images))


@pytest.mark.parametrize("epoch", range(1, 6))
def test_cutmix_labels_are_shares_of_the_area(epoch: int) -> None:
    images, labels, soft, targets = mixed(TransformConfig(cutmix=1.0), epoch)
    torch.testing.assert_close(targets.sum(1), torch.ones(8))
    for b in range(8):
        own = (soft[b] == images[b]).all(0)
        torch.testing.assert_close(targets[b, labels[b]], own.float().mean())
        # The other pixels are one rectangle of the partner.
        assert (soft[b] == images[NEXT[b]]).all(0).logical_xor(own).all()
        rows, columns = (~own).any(1), (~own).any(0)
        assert (~own).sum() == rows.sum() * columns.sum()


def test_mix_of_a_pair_does_not_depend_on_batches() -> None:
    images, labels = torch.rand(8, 3, 16, 16), torch.arange(8)
    pairs = np.array([0, 0, 1, 1, 2, 2, 3, 3])
    mix = MixupCutmix(TransformConfig(mixup=0.8, cutmix=1.0), 8, seed=1)
    first = mix(images, labels, NEXT, pairs, 2)
    state = torch.get_rng_state()
    half = mix(images[4:], labels[4:], NEXT[:4], pairs[4:], 2)
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(a[4:], b) for a, b in zip(first, half, strict=True))
    # A row whose partner is in another batch.
    alone = mix(images[2:4], labels[2:4], torch.tensor([1]), pairs[2:3], 2)
    assert all(torch.equal(a[2:3], b) for a, b in zip(first, alone, strict=True))
    other = MixupCutmix(TransformConfig(mixup=0.8, cutmix=1.0), 8, seed=2)
    for changed in (
        mix(images, labels, NEXT, pairs, 3),
        mix(images, labels, NEXT, pairs + 4, 2),
        other(images, labels, NEXT, pairs, 2),
    ):
        assert not torch.equal(changed[1], first[1])


def test_switch_is_the_probability_of_cutmix() -> None:
    images, labels = torch.rand(2, 1, 8, 8).repeat(400, 1, 1, 1), torch.arange(2).repeat(400)
    partners, pairs = torch.arange(800) ^ 1, np.arange(800) // 2

    def share_of_cutmix(switch: float) -> float:
        mix = MixupCutmix(TransformConfig(mixup=1.0, cutmix=1.0, mixup_switch=switch), 2, seed=0)
        # CutMix copies each pixel from one of two images, MixUp interpolates.
        soft = mix(images, labels, partners, pairs, 0)[0]
        cut = ((soft == images) | (soft == images[partners])).flatten(1).all(1)
        return float(cut.float().mean())

    assert share_of_cutmix(0.0) == 0
    assert share_of_cutmix(1.0) == 1
    assert abs(share_of_cutmix(0.3) - 0.3) < 0.07


def test_mixup_coefficients_follow_the_beta_distribution() -> None:
    images, labels, alone = torch.rand(3000, 1, 1, 1), torch.arange(3000) % 2, torch.arange(3000)
    for alpha in (0.2, 1.0):
        mix = MixupCutmix(TransformConfig(mixup=alpha), 2, seed=0)
        targets = mix(images, labels, alone ^ 1, alone.numpy() // 2, 0)[1]
        lam = targets[alone, labels][::2]
        assert abs(lam.mean() - 0.5) < 0.04
        assert abs(lam.var() - 1 / (4 * (2 * alpha + 1))) < 0.02


def test_neighbors_in_the_order_are_partners() -> None:
    plan = LengthBucketedOrder(np.ones(9), max_rows=4, seed=3)
    order = np.concatenate(plan.batches(2))
    partners = plan.mix_partners(order, 2)
    assert partners[:8].tolist() == order[NEXT.numpy()].tolist()
    assert partners[8] == order[8]  # left over, and its own partner
    assert plan.mix_partners(order[5:6], 2).tolist() == order[4:5].tolist()
