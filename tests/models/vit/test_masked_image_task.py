"""Masked image modelling: loss, choice of the visible patches, pictures, resume, fine-tuning."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from lightning import Trainer

from fourfold.callbacks.monitoring.sample_logging import LogSamples
from fourfold.cli import main
from fourfold.data import ImageData, MaskedImageData
from fourfold.data.vision.eval_transforms import TransformConfig
from fourfold.errors import InputError
from fourfold.models import ViTConfig
from fourfold.tasks import ImageClassification, MaskedImageModeling
from tests.fixtures.tiny_tasks import FLAT, SGD, SMALL, masked_images

RANDOM = TransformConfig(train_crop="pad_crop", flip=True)


def trainer(folder: Path, **options: Any) -> Trainer:
    return Trainer(
        max_steps=1,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        default_root_dir=folder,
        enable_progress_bar=False,
        enable_model_summary=False,
        limit_val_batches=0,
        use_distributed_sampler=False,
        **options,
    )


def built(normalize: bool = True) -> tuple[MaskedImageModeling, Any]:
    """Return a task with a model, and a batch of three digits."""
    task, data = masked_images(Path())
    task = MaskedImageModeling(task.config, SGD, FLAT, normalize_pixels=normalize)
    task.configure_model()
    return task, data.split("train").batch(np.array([3, 40, 7]), 0, 0)


@pytest.mark.parametrize("normalize", [True, False])
def test_loss_is_the_error_of_the_masked_pixels(normalize: bool) -> None:
    task, batch = built(normalize)
    loss, count = task.step(batch)
    assert count == 3 * 12
    predicted = task.model(batch.images, visible=batch.visible)
    expected = 0.0
    for i in range(3):
        for n in set(range(16)) - set(batch.visible[i].tolist()):
            y, x = 2 * (n // 4), 2 * (n % 4)
            pixels = batch.images[i, 0, y : y + 2, x : x + 2].flatten().tolist()
            if normalize:
                mean = sum(pixels) / 4
                variance = sum((p - mean) ** 2 for p in pixels) / 3
                pixels = [(p - mean) / (variance + 1e-6) ** 0.5 for p in pixels]
            differences = [p - q for p, q in zip(predicted[i, n].tolist(), pixels, strict=True)]
            expected += sum(d**2 for d in differences) / 4
    assert loss.item() == pytest.approx(expected, rel=1e-5)


def test_visible_patches_depend_on_seed_epoch_and_row_only() -> None:
    def visible(rows: list[int], epoch: int = 0, **options: Any) -> Any:
        data = MaskedImageData(patch_size=2, transform=RANDOM, **options)
        batch: Any = data.split("train").batch(np.array(rows), epoch, 0)
        assert batch.visible.shape == (len(rows), 4)
        assert (batch.visible.diff(dim=1) > 0).all()
        return batch.visible

    together = visible([5, 9, 700])
    assert torch.equal(together[1:2], visible([9], batch_size=2))
    assert torch.equal(together[[2, 0]], visible([700, 5]))
    assert not torch.equal(together, visible([5, 9, 700], epoch=1))
    assert not torch.equal(together, visible([5, 9, 700], seed=1))
    counts = visible(list(range(1000))).flatten().bincount(minlength=16)
    assert (counts - 250).abs().max() < 60  # 4.4 standard deviations


def test_images_are_those_of_image_classification() -> None:
    batches: list[Any] = [
        data.split("train").batch(np.array([3, 8]), 2, 0)
        for data in (
            ImageData(transform=RANDOM, seed=4),
            MaskedImageData(transform=RANDOM, seed=4, patch_size=4),
        )
    ]
    assert torch.equal(batches[0].images, batches[1].images)
    assert torch.equal(batches[0].rows, batches[1].rows)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"patch_size": 4, "mask_ratio": 0.8}, "at least one of 4 patches visible .* got 0.8"),
    ],
)
def test_impossible_masks_are_rejected(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        MaskedImageData(**options).setup()


def test_other_patches_than_those_of_the_model_are_rejected(tmp_path: Path) -> None:
    task, _ = masked_images(tmp_path)
    with pytest.raises(InputError, match="patch_size must be 4, as in the data, got 2"):
        trainer(tmp_path).fit(task, MaskedImageData(patch_size=4))


@torch.no_grad()
def test_reconstructions_keep_the_visible_patches(tmp_path: Path) -> None:
    task, batch = built()
    rows, images = task.predict_step(batch, 0)
    assert rows.tolist() == [3, 40, 7]
    own, found = task.model.patchify(batch.images), task.model.patchify(images)
    is_visible = torch.zeros(3, 16, dtype=torch.bool).scatter(1, batch.visible, True)
    assert torch.equal(own[is_visible], found[is_visible])
    # A prediction of 0 means the mean of the patch.
    task.model.pixels.weight.zero_()
    task.model.pixels.bias.zero_()
    patches = task.model.patchify(task.predict_step(batch, 0)[1])
    means = own.mean(-1, keepdim=True).expand_as(own)
    torch.testing.assert_close(patches[~is_visible], means[~is_visible])
    assert (task.sample_outputs(batch, "val")["images"].save(tmp_path, "images")[0]).is_file()


def test_a_test_saves_pictures(tmp_path: Path) -> None:
    task, data = masked_images(tmp_path)
    trainer(tmp_path, callbacks=[LogSamples(tmp_path)]).test(task, data, verbose=False)
    assert [file.name for file in (tmp_path / "test").iterdir()] == ["images.png"]
    assert 0 < task.summary["test/loss"] < 10


def test_a_vit_starts_from_the_encoder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Learned positions start from those of the encoder, too."""
    task, data = masked_images(tmp_path)
    fitted = trainer(tmp_path)
    fitted.fit(task, data)
    fitted.save_checkpoint(tmp_path / "mae.ckpt")
    capsys.readouterr()
    config = ViTConfig(**SMALL, image_size=8, patch_size=2, n_channels=1, n_classes=None)
    frozen = replace(SGD, lr=1e-12)
    classifier = ImageClassification(config, frozen, FLAT, init_from=str(tmp_path / "mae.ckpt"))
    trainer(tmp_path).fit(classifier, ImageData())
    said = capsys.readouterr().out
    assert "loaded    stack.blocks.0.attn.q.weight (16, 16)" in said
    assert "left out  decoder_stack.blocks.0.attn.q.weight" in said
    assert "new       heads.0.weight (10, 16)" in said
    source = task.model.state_dict()
    for name, weight in classifier.model.state_dict().items():
        if name.startswith(("stack.", "embed.p")) and name in source:
            torch.testing.assert_close(weight, source[name], rtol=0, atol=1e-9)
    positions = classifier.model.get_parameter("embed.positions.weight")[1:]
    assert task.model.embed.positions is not None
    torch.testing.assert_close(positions, task.model.embed.positions.weight, rtol=0, atol=1e-9)


def test_a_resumed_run_ends_with_the_same_weights(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    call = ["fit", "--config", "mae/tiny", "--model.schedule.total_steps", "200"]
    call += ["--log_samples", "false", "--tensorboard", "false", "--trainer.limit_val_batches", "0"]
    for run, steps in (("whole", 30), ("halves", 11), ("halves", 30)):  # 20 steps are an epoch
        assert main([*call, "--run_dir", run, "--trainer.max_steps", str(steps)]) == 0
    whole, halves = (
        torch.load(tmp_path / run / "checkpoints/last.ckpt", weights_only=True)
        for run in ("whole", "halves")
    )
    assert whole["global_step"] == halves["global_step"] == 30
    torch.testing.assert_close(halves["state_dict"], whole["state_dict"], rtol=0, atol=0)
