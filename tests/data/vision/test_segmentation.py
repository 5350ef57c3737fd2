"""Pictures with masks: sources, common random transforms, void pixels, and invalid files."""

import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from fourfold.data import SegmentationData
from fourfold.data.vision.eval_transforms import TransformConfig
from fourfold.errors import InputError
from fourfold.losses import IGNORE_INDEX

NAMES = ["red", "green", "blue"]
COLOURS = 255 * np.eye(3, dtype=np.uint8)
SIZE = (20, 30)
RANDOM: dict[str, Any] = {"train_crop": "random_resized_crop", "scale_min": 0.3, "flip": True}


def write(folder: Path, n: int, seed: int, size: tuple[int, int] = SIZE) -> None:
    """Write n pictures whose colours are the classes of their masks, in blocks, with void 7."""
    rng = np.random.default_rng(seed)
    for name in ("images", "masks"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    for i in range(n):
        blocks = rng.integers(0, 3, (2, 3))
        mask = np.kron(blocks, np.ones((size[0] // 2, size[1] // 3), int)).astype(np.uint8)
        Image.fromarray(COLOURS[mask]).save(folder / f"images/{i}.png")
        mask[0, 0] = 7
        Image.fromarray(mask).save(folder / f"masks/{i}.png")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for seed, split in enumerate(("train", "val")):
        write(tmp_path / split, 9, seed)
    return tmp_path


def data(folder: Path, batch_size: int = 4, seed: int = 0, **transform: Any) -> SegmentationData:
    config = TransformConfig(size=SIZE, **transform)
    options: dict[str, Any] = {"classes": NAMES, "ignore_index": 7, "batch_size": batch_size}
    return SegmentationData(str(folder), transform=config, seed=seed, **options)


def batch_of(
    module: SegmentationData, rows: list[int], epoch: int = 0, split: str = "train"
) -> Any:
    dataset = module.split(split)
    dataset.prepare()
    return dataset.batch(np.array(rows), epoch, 0)


@pytest.mark.parametrize("cache", ["memory", "none"])
@pytest.mark.parametrize(
    "transform", [RANDOM, {"train_crop": "pad_crop", "flip": True}, {"flip": True}, {}]
)
def test_picture_and_mask_are_changed_by_the_same_numbers(
    folder: Path, transform: dict[str, Any], cache: Any
) -> None:
    """The most intense colour of a pixel is its class, except at edges that interpolation blurs."""
    module = data(folder, **transform)
    module.cache = cache
    n_flipped = 0
    for epoch in range(4):
        batch = batch_of(module, list(range(9)), epoch)
        masks = torch.stack(batch.masks)
        assert masks.shape == (9, *SIZE)
        assert masks.dtype == torch.long
        has_class = masks != IGNORE_INDEX
        right = batch.images.argmax(1)[has_class] == masks[has_class]
        assert right.float().mean() > 0.97
        assert set(masks[has_class].unique().tolist()) == {0, 1, 2}
        assert (batch.images[..., 0, 0][masks[:, 0, 0] == IGNORE_INDEX]).numel() or transform
        n_flipped += int((masks[:, 0, -1] == IGNORE_INDEX).sum())
        if transform.get("train_crop") == "pad_crop":  # padding has no class, and the mean colour
            empty = batch.images.abs().amax(1) < 0.01
            assert empty.any()
            assert not has_class[empty].any()
    assert (n_flipped > 0) == bool(transform)


def test_random_numbers_depend_on_seed_epoch_and_row_only(folder: Path) -> None:
    def masks(rows: list[int], epoch: int = 0, **options: Any) -> torch.Tensor:
        return torch.stack(batch_of(data(folder, **RANDOM, **options), rows, epoch).masks)

    together = masks([0, 4, 8])
    torch.manual_seed(9)
    assert torch.equal(together[[1]], masks([4], batch_size=1))
    assert torch.equal(together[[2, 0]], masks([8, 0]))
    assert not torch.equal(together, masks([0, 4, 8], epoch=1))
    assert not torch.equal(together, masks([0, 4, 8], seed=1))
    state = torch.get_rng_state()
    masks([1])
    assert torch.equal(state, torch.get_rng_state())


def test_workers_make_the_same_batches(folder: Path) -> None:
    batches = []
    for workers in (0, 2):
        module = data(folder, **RANDOM)
        module.num_workers = workers
        batches.append(list(module.train_dataloader()))
    for one, other in zip(*batches, strict=True):
        assert torch.equal(one.images, other.images)
        assert torch.equal(torch.stack(one.masks), torch.stack(other.masks))


def test_masks_keep_their_size_in_evaluation(folder: Path) -> None:
    write(folder / "test", 1, 5, (8, 12))
    write(folder / "test/more", 1, 6, (40, 30))
    for name in ("images", "masks"):
        (folder / f"test/more/{name}/0.png").rename(folder / f"test/{name}/1.png")
    batch = batch_of(data(folder, **RANDOM), [0, 1], split="test")
    assert batch.images.shape == (2, 3, *SIZE)
    assert [tuple(mask.shape) for mask in batch.masks] == [(8, 12), (40, 30)]
    assert batch.masks[1][0, 0] == IGNORE_INDEX
    # The complete picture is shown: its corners have the classes of the corners of the mask.
    corners = batch.images[1].argmax(0)[[0, -1, -1], [-1, 0, -1]]
    assert torch.equal(corners, batch.masks[1][[0, -1, -1], [-1, 0, -1]])


def test_a_zip_archive_equals_a_folder(folder: Path, tmp_path: Path) -> None:
    other = tmp_path / "zipped"
    other.mkdir()
    for split in ("train", "val"):
        with zipfile.ZipFile(other / f"{split}.zip", "w") as archive:
            for file in sorted((folder / split).rglob("*.png"), reverse=True):
                archive.write(file, file.relative_to(folder / split))
    for split in ("train", "val", "test"):
        one, two = (batch_of(data(place), [0, 5], split=split) for place in (folder, other))
        assert torch.equal(one.images, two.images)
        assert all(map(torch.equal, one.masks, two.masks))
    assert data(other).split("train").location(3).endswith("train.zip/images/3.png")
    assert data(folder).tests_on_val is False  # before the data are read
    module = data(folder)
    module.setup()
    assert module.tests_on_val


def test_splits_are_held_out_as_in_image_classification(folder: Path) -> None:
    for file in (folder / "val").rglob("*.png"):
        file.unlink()
    for name in ("images", "masks", ""):
        (folder / "val" / name).rmdir()
    module = data(folder)
    module.val_fraction = module.test_fraction = 0.25
    module.setup()
    sizes = {name: len(split) for name, split in module.splits.items()}
    assert sizes == {"train": 5, "val": 2, "test": 2}
    for row in range(2):  # each picture keeps its mask
        batch = batch_of(module, [row], split="val")
        has_class = batch.masks[0] != IGNORE_INDEX
        assert torch.equal(batch.images[0].argmax(0)[has_class], batch.masks[0][has_class])


def test_digits_have_the_class_of_their_label() -> None:
    module = SegmentationData(n_train=500)
    batch = batch_of(module, list(range(500)))
    labels = module.split("train").images.images.labels  # type: ignore[attr-defined]
    assert module.n_classes == 11
    assert len(labels) >= 500
    for image, mask in zip(batch.images, batch.masks, strict=True):
        assert len(mask.unique()) == 2
        assert mask.min() == 0
        assert image[0][mask > 0].min() > image[0][mask == 0].max()


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (np.full(SIZE, 3), r"masks/0.png: must be 0 to 2 or data.ignore_index, 7, got 3"),
        (
            np.zeros((20, 29)),
            r"must be uint8 of shape \(1, 20, 30\).* got torch.uint8 \(1, 20, 29\)",
        ),
        (
            np.zeros((*SIZE, 3)),
            r"of shape \(1, 20, 30\), as the picture, got torch.uint8 \(3, 20, 30\)",
        ),
        (b"", "masks/0.png: the image cannot be read"),
        (None, "0 must be in the folders images and masks"),
    ],
)
def test_invalid_masks_are_rejected(folder: Path, damage: Any, message: str) -> None:
    file = folder / "train/masks/0.png"
    file.unlink()
    if isinstance(damage, bytes):
        file.write_bytes(damage)
    elif damage is not None:
        Image.fromarray(damage.astype(np.uint8)).save(file)
    with pytest.raises(InputError, match=message):
        batch_of(data(folder), [0])


def test_impossible_options_are_rejected(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"data.transform must have no aa"):
        data(folder, mixup=0.1)
    with pytest.raises(InputError, match=r"data.classes 1 to 255 names"):
        SegmentationData(str(folder)).setup()
    for name, value in (("ignore_index", 256), ("ignore_index", -100)):
        with pytest.raises(InputError, match=f"{name} must"):
            SegmentationData(str(folder), classes=NAMES, **{name: value})
    Image.new("L", SIZE[::-1], 255).save(folder / "train/masks/0.png")  # not the void class, 7
    with pytest.raises(InputError, match=r"0 to 2 or data.ignore_index, 7, got 255"):
        batch_of(data(folder), [0])
    (folder / "train/images/notes.txt").write_text("no picture")
    data(folder).setup()
    Image.new("RGB", SIZE[::-1]).save(folder / "train/images/0.jpg")
    with pytest.raises(InputError, match="two files in images have the same name"):
        data(folder).setup()
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match="must have a folder or archive train"):
        data(tmp_path / "empty").setup()
