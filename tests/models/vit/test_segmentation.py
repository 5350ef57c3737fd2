"""Semantic segmentation: loss, mIoU, start from other models, frozen encoder, PNG files, resume."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from lightning import Trainer
from PIL import Image
from sklearn.metrics import jaccard_score

import fourfold
from fourfold.callbacks.monitoring.predictions import PredictionWriter
from fourfold.cli import main
from fourfold.data import ImageData, SegmentationData
from fourfold.data.loading.batches import SegmentationBatch
from fourfold.data.vision.eval_transforms import TransformConfig
from fourfold.errors import InputError
from fourfold.finetuning.config import TuningConfig
from fourfold.losses import IGNORE_INDEX
from fourfold.metrics.classification import SegmentationScores
from fourfold.models import Segmenter, SegmenterConfig, ViT, ViTConfig
from fourfold.tasks import SemanticSegmentation
from tests.data.vision.test_segmentation import NAMES, SIZE, write
from tests.fixtures.tiny_tasks import FLAT, SGD, SMALL, masked_images

OFF = ["--log_samples", "false", "--tensorboard", "false"]


def config(**options: Any) -> SegmenterConfig:
    shape = {**SMALL, "image_size": (8, 12), "patch_size": 4, "n_channels": 1, "n_classes": 3}
    return SegmenterConfig(**shape | options)


def fit(task: Any, data: Any, folder: Path, **options: Any) -> Trainer:
    off: dict[str, Any] = {"logger": False, "enable_checkpointing": False, "limit_val_batches": 0}
    off |= {"enable_progress_bar": False, "enable_model_summary": False, "accelerator": "cpu"}
    trainer = Trainer(max_steps=1, default_root_dir=folder, **off, **options)
    trainer.fit(task, data)
    return trainer


def test_loss_and_scores_are_those_of_single_pixels() -> None:
    torch.manual_seed(0)
    task = SemanticSegmentation(config(head_norm="none"), SGD, FLAT)
    task.configure_model()
    task.artifacts = {"class_names": ["a", "b", "c"]}
    task.model.head[1].weight.data.normal_()
    masks = [torch.randint(0, 3, (8, 12)), torch.randint(0, 3, (5, 20))]
    masks[0][:3] = IGNORE_INDEX
    batch = SegmentationBatch(torch.randn(2, 1, 8, 12), masks, torch.tensor([4, 1]))
    loss, count = task.step(batch)
    assert count == 60 + 100
    total, predicted = 0.0, []
    logits = task.model(batch.images)
    assert logits.shape == (2, 3, 2, 3)
    for x, mask in zip(logits, masks, strict=True):
        height, width = mask.shape
        for i, j in np.ndindex(height, width):
            # Pixel centres, in units of patches; clamped at the centres of the outer patches.
            y = min(max((i + 0.5) * 2 / height - 0.5, 0), 1)
            z = min(max((j + 0.5) * 3 / width - 0.5, 0), 2)
            r, c = int(y), int(z)
            rows = ((r, 1 - y + r), (min(r + 1, 1), y - r))
            columns = ((c, 1 - z + c), (min(c + 1, 2), z - c))
            pixel = sum(a * b * x[:, m, n] for m, a in rows for n, b in columns)
            if mask[i, j] != IGNORE_INDEX:
                total += F.cross_entropy(pixel, mask[i, j]).item()  # type: ignore[arg-type]
                predicted.append((int(mask[i, j]), int(pixel.argmax())))  # type: ignore[union-attr]
    assert loss.item() == pytest.approx(total, rel=1e-4)
    task.update_metrics(batch, "test")
    found = task.compute_metrics("test")
    assert found["loss"] == pytest.approx(total / 160, rel=1e-4)
    iou = jaccard_score(*zip(*predicted, strict=True), average=None)
    assert [found[f"iou_{name}"] for name in "abc"] == pytest.approx(iou.tolist())
    assert float(found["mean_iou"]) == pytest.approx(iou.mean())
    accuracy = np.mean([a == b for a, b in predicted])
    assert float(found["pixel_accuracy"]) == pytest.approx(accuracy)
    assert np.sum(found["confusion"]) == 160
    assert "iou_a" not in task.compute_metrics("val")
    masks = task.predict_step(batch, 0)
    assert {row: mask.shape for row, mask in masks.items()} == {4: (8, 12), 1: (5, 20)}


def test_absent_classes_do_not_count() -> None:
    scores = SegmentationScores(4, IGNORE_INDEX)
    scores.update(torch.tensor([[0, 1, 1]]), torch.tensor([[0, 1, IGNORE_INDEX]]))
    found = scores.compute()
    assert found["mean_iou"] == 1.0
    assert [np.isnan(x) for x in found["iou"]] == [False, False, True, True]
    scores.update(torch.tensor([[2]]), torch.tensor([[0]]))  # predicted only
    assert scores.compute()["iou"][:3] == [0.5, 1.0, 0.0]


@pytest.mark.parametrize("pool", ["cls", "mean", "cls_mean"])
def test_logits_are_linear_in_the_patches(pool: Any) -> None:
    model = Segmenter(config(pool=pool, positions="none", n_registers=2 * (pool != "mean"))).eval()
    model.head[1].weight.data.normal_()
    x = torch.randn(2, 1, 8, 12)
    h = model.encode(x)[:, model.n_prefix :]
    expected = h @ model.head[1].weight[:, :, 0, 0].T / (1 + 1e-5) ** 0.5 + model.head[1].bias
    torch.testing.assert_close(model(x).flatten(2).mT, expected)


def test_a_segmenter_starts_from_a_model_of_another_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A ViT with a class token and registers (DINOv2), at another image size."""
    monkeypatch.chdir(tmp_path)
    for split in ("train", "val"):
        write(tmp_path / "data" / split, 4, 0)
    options = {**SMALL, "image_size": 12, "patch_size": 2, "n_classes": 5, "pool": "cls_mean"}
    source = ViT(ViTConfig(**options, n_registers=2, prefix_positions="class", layer_scale=0.5))
    source.embed.positions.weight.data.normal_()  # type: ignore[union-attr]
    fourfold.save(source, tmp_path / "source")
    call = ["fit", "--model", "SemanticSegmentation", "--model.init_from", "source", *OFF]
    call += ["--data", "SegmentationData", "--data.source", "data", "--data.ignore_index", "7"]
    call += ["--data.classes", str(NAMES), "--data.transform.size", "[20, 30]", "--run_dir", "run"]
    call += ["--model.config.image_size", "[20, 30]", "--model.tuning.freeze", "all"]
    assert main([*call, "--trainer.max_steps", "2"]) == 0
    said = capsys.readouterr().out
    assert "resized   embed.positions.weight (37, 16)" in said
    assert "new       head.1.weight (3, 16, 1, 1)" in said
    model = fourfold.load(tmp_path / "run")
    assert isinstance(model, Segmenter)
    assert (model.n_prefix, model.embed.grid) == (3, (10, 15))
    for name, weight in source.state_dict().items():
        if not name.startswith("heads") and "positions" not in name:
            assert torch.equal(model.state_dict()[name], weight), name
    assert model.head[0].running_mean.abs().max() > 0  # type: ignore[operator, union-attr]
    assert model.head[1].weight.std() > 0
    old, new = source.embed.positions.weight, model.embed.positions.weight  # type: ignore[union-attr]
    grid = old[1:].T.reshape(1, 16, 6, 6)  # type: ignore[index]
    wanted = F.interpolate(grid, (10, 15), mode="bicubic", antialias=True)
    torch.testing.assert_close(new[1:], wanted[0].flatten(1).T)  # type: ignore[index]


def test_a_segmenter_starts_from_a_masked_autoencoder(tmp_path: Path) -> None:
    task, data = masked_images(tmp_path)
    fit(task, data, tmp_path).save_checkpoint(tmp_path / "mae.ckpt")
    start = config(image_size=8, patch_size=2, n_classes=None)
    options: dict[str, Any] = {"init_from": str(tmp_path / "mae.ckpt")}
    segmentation = SemanticSegmentation(start, replace(SGD, lr=1e-12), FLAT, **options)
    fit(segmentation, SegmentationData(), tmp_path)
    source = task.model.state_dict()
    for name, weight in segmentation.model.state_dict().items():
        if name.startswith(("stack.", "embed.p")) and name in source:
            torch.testing.assert_close(weight, source[name], rtol=0, atol=1e-9)


def test_frozen_layers_keep_their_weights(tmp_path: Path) -> None:
    task = SemanticSegmentation(
        config(image_size=8, patch_size=2, n_classes=None),
        SGD,
        FLAT,
        tuning=TuningConfig(freeze="all"),
    )
    fit(task, SegmentationData(), tmp_path)
    trained = {n for n, p in task.model.named_parameters() if p.requires_grad}
    assert trained == {"head.0.weight", "head.0.bias", "head.1.weight", "head.1.bias"}


def test_other_data_are_rejected(tmp_path: Path) -> None:
    task = SemanticSegmentation(config(), SGD, FLAT)
    with pytest.raises(InputError, match="ImageData makes a ImageBatch"):
        fit(task, ImageData(), tmp_path)


def test_predict_writes_masks(tmp_path: Path) -> None:
    """The files have the names and sizes of the pictures, and hold the predicted classes."""
    for split in ("train", "val"):
        write(tmp_path / split, 5, 0)
    task = SemanticSegmentation(config(image_size=(8, 12), n_channels=3), SGD, FLAT)
    size = TransformConfig(size=(8, 12))
    options: dict[str, Any] = {"classes": NAMES, "ignore_index": 7, "transform": size}
    data = SegmentationData(str(tmp_path), **options, eval_batch_size=3, batch_size=2)
    writer = PredictionWriter(tmp_path)
    fit(task, data, tmp_path, callbacks=[writer]).predict(task, data)
    written = sorted((tmp_path / "predictions").iterdir())
    assert [file.name for file in written] == [f"{i}.png" for i in range(5)]
    model = task.model.eval()
    for row, file in enumerate(written):
        image = Image.open(file)
        assert (image.mode, image.size) == ("P", SIZE[::-1])
        batch: Any = data.split("test").batch(np.array([row]), 0, 0)
        pixels = F.interpolate(model(batch.images), SIZE, mode="bilinear").argmax(1)[0]
        assert torch.equal(torch.from_numpy(np.array(image)).long(), pixels)
        assert len(pixels.unique()) > 1


def test_a_resumed_run_ends_with_the_same_weights(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    call = ["fit", "--config", "segmentation/tiny", "--model.schedule.total_steps", "200", *OFF]
    call += ["--data.transform", "{train_crop: pad_crop, flip: true}"]
    call += ["--trainer.limit_val_batches", "0"]
    for run, steps in (("whole", 26), ("halves", 11), ("halves", 26)):  # 20 steps are an epoch
        assert main([*call, "--run_dir", run, "--trainer.max_steps", str(steps)]) == 0
    whole, halves = (
        torch.load(tmp_path / run / "checkpoints/last.ckpt", weights_only=True)
        for run in ("whole", "halves")
    )
    assert whole["global_step"] == halves["global_step"] == 26
    torch.testing.assert_close(halves["state_dict"], whole["state_dict"], rtol=0, atol=0)
