"""Semantic segmentation task: a class for each pixel.

Shapes: B images, C channels, K classes.
"""

import math
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from fourfold.data.loading.batches import SegmentationBatch
from fourfold.losses import IGNORE_INDEX, upcast_fp32
from fourfold.metrics.classification import SegmentationScores
from fourfold.models import Segmenter, SegmenterConfig
from fourfold.optim import OptimizerConfig
from fourfold.schedules import ScheduleConfig
from fourfold.training.task import Task


@dataclass(eq=False, repr=False)
class SemanticSegmentation(Task[Segmenter, SegmentationBatch]):
    """Semantic segmentation, evaluated by the mean intersection over union (mIoU) of the classes.

    Source: Oquab et al. 2023 (DINOv2), section 7.4, for the linear head. Logits of the patches are
    interpolated to the size of the mask. The loss is the mean cross-entropy over all pixels with a
    class. With `tuning.freeze: all`, only the head is trained. `fourfold predict` writes the mask
    of each picture as a PNG file, whose pixels are the numbers of the classes.
    """

    model_class = Segmenter
    batch_class = SegmentationBatch
    unit = "images"
    inferred_from_data = ("n_classes", "image_size", "n_channels")
    must_equal_data = inferred_from_data

    config: SegmenterConfig = SegmenterConfig()
    optimizer: OptimizerConfig = OptimizerConfig(
        lr=1e-3, weight_decay=0.05, weight_decay_params="linear"
    )
    schedule: ScheduleConfig = ScheduleConfig(name="cosine", min_lr=0.0)

    def configure_model(self) -> None:
        """Build the model, and the metric for its number of classes."""
        if self.model is None:
            super().configure_model()
            n_classes: Any = self.config.n_classes  # not None, since the model is built
            self.scores: Any = SegmentationScores(n_classes, IGNORE_INDEX)

    def pixel_logits(self, batch: SegmentationBatch) -> list[Tensor]:
        """Return the logits (1, K, height, width) of each image, at the size of its mask."""
        logits = upcast_fp32(self.model(batch.images)).split(1)
        pairs = zip(logits, batch.masks, strict=True)
        return [F.interpolate(x, tuple(mask.shape), mode="bilinear") for x, mask in pairs]

    def step(self, batch: SegmentationBatch) -> tuple[Tensor, Tensor]:
        """Return the loss, summed over the pixels that have a class, and their number."""
        return summed_loss(self.pixel_logits(batch), batch.masks)

    def update_metrics(self, batch: SegmentationBatch, split: str) -> None:
        logits = self.pixel_logits(batch)
        self.eval_loss.update(*summed_loss(logits, batch.masks))
        for x, mask in zip(logits, batch.masks, strict=True):
            self.scores.update(x.argmax(1), mask[None])

    def compute_metrics(self, split: str) -> dict[str, Any]:
        """Return the loss and the scores of `SegmentationScores`; a test adds the IoU by class.

        A test also adds the confusion matrix, whose rows are the true classes.
        """
        scores = dict(self.scores.compute())  # a copy, since torchmetrics keeps the result
        by_class = zip(self.artifacts["class_names"], scores.pop("iou"), strict=True)
        if split == "test":
            scores |= {f"iou_{name}": x for name, x in by_class if not math.isnan(x)}
            scores["confusion"] = self.scores.counts()
        return {"loss": self.eval_loss.compute(), **scores}

    def predict_step(self, batch: SegmentationBatch, batch_idx: int) -> dict[int, Tensor]:
        """Return the classes (height, width) uint8 of the pixels of each image, by its row."""
        masks = (x[0].argmax(0).byte().cpu() for x in self.pixel_logits(batch))
        return dict(zip(batch.rows.tolist(), masks, strict=True))


def summed_loss(logits: list[Tensor], masks: list[Tensor]) -> tuple[Tensor, Tensor]:
    """Return the cross-entropy, summed over the pixels that have a class, and their number."""
    options: Any = {"ignore_index": IGNORE_INDEX, "reduction": "sum"}
    pairs = zip(logits, masks, strict=True)
    losses = [F.cross_entropy(x, mask[None], **options) for x, mask in pairs]
    counts = [(mask != IGNORE_INDEX).sum() for mask in masks]
    return torch.stack(losses).sum(), torch.stack(counts).sum()
