"""Scores of one class, of several labels and of a number per example, and of pixels (IoU).

Shapes: B examples, K classes or labels.
"""

import math
from typing import Any

import torch
from torch import Tensor
from torchmetrics import MetricCollection
from torchmetrics.classification import (
    MulticlassConfusionMatrix,
    MultilabelAveragePrecision,
    MultilabelF1Score,
)
from torchmetrics.functional.regression import pearson_corrcoef

from fourfold.metrics.base import RowMetric, gather_objects


class ClassificationScores(MulticlassConfusionMatrix):
    """Accuracy, F1 and Matthews correlation (MCC) over all samples, in float64.

    For two classes, F1 is the F1 of class 1, as in GLUE's MRPC and QQP. For more classes, F1 is the
    mean over the classes that occur in truth or prediction, as in torchmetrics and scikit-learn. As
    in scikit-learn, a division by 0 gives 0. In contrast, torchmetrics computes the MCC in float32,
    and it is 1 there if all samples of a binary task are of one class and predicted right.
    """

    def __init__(self, n_classes: int, ignore_index: int | None = None) -> None:
        super().__init__(n_classes, ignore_index=ignore_index, validate_args=False)

    def counts(self) -> list[list[int]]:
        """Return the confusion matrix (K, K) over all ranks; its rows are the true classes."""
        with self.sync_context():
            return self.confmat.tolist()

    def compute(self) -> dict[str, float]:  # type: ignore[override]
        """Return accuracy, mcc (Gorodkin 2004), and f1 or macro_f1 by name."""
        table = self.confmat.cpu().double()
        total = table.sum()
        correct = table.diag().sum()
        true = table.sum(1)
        predicted = table.sum(0)
        f1 = 2 * table.diag() / (true + predicted).clamp(min=1)
        n_occurring = ((true + predicted) > 0).sum().clamp(min=1)
        variances = (total**2 - predicted.square().sum()) * (total**2 - true.square().sum())
        covariance = correct * total - true @ predicted
        is_binary = len(table) == 2
        mean_f1 = f1[1] if is_binary else f1.sum() / n_occurring
        return {
            "accuracy": float(correct / total.clamp(min=1)),
            "f1" if is_binary else "macro_f1": float(mean_f1),
            "mcc": float(covariance / variances.sqrt()) if variances > 0 else 0.0,
        }


class MultiLabelScores(MetricCollection):
    """Mean average precision (map), micro_f1 and macro_f1 of examples with several labels.

    map is the mean of the average precision of all labels, which is 0 for a label that does not
    occur, as in scikit-learn. F1 counts a label as predicted if its probability exceeds 0.5.
    """

    def __init__(self, n_labels: int) -> None:
        metrics: Any = {
            "map": MultilabelAveragePrecision(n_labels, validate_args=False),
            "micro_f1": MultilabelF1Score(n_labels, average="micro", validate_args=False),
            "macro_f1": MultilabelF1Score(n_labels, validate_args=False),
        }
        super().__init__(metrics, compute_groups=False)

    def update(self, logits: Tensor, labels: Tensor) -> None:  # type: ignore[override]
        """Add the logits (B, K) of a batch, and its labels (B, K), 1 or 0."""
        # Probabilities, since torchmetrics takes logits from 0 to 1 for probabilities.
        super().update(logits.float().sigmoid(), labels.long())


class SegmentationScores(ClassificationScores):
    """Intersection over union (IoU) of the classes of pixels, and accuracy.

    The IoU of a class is the number of pixels that have it in truth and prediction, divided by the
    number of those that have it in one of them. The pixels of all images are counted together.
    """

    def compute(self) -> dict[str, Any]:  # type: ignore[override]
        """Return mean_iou, pixel_accuracy and the list iou by class.

        A class that neither occurs nor is predicted has the IoU nan, and the mean leaves it out.
        """
        table = self.confmat.cpu().double()
        correct = table.diag()
        iou = correct / (table.sum(0) + table.sum(1) - correct)  # 0 / 0 is nan
        accuracy = correct.sum() / table.sum()
        return {"mean_iou": iou.nanmean(), "pixel_accuracy": accuracy, "iou": iou.tolist()}


class RegressionScores(RowMetric):
    """Pearson and Spearman correlation, and mean absolute error (mae), of predicted numbers."""

    def update(self, predictions: Tensor, labels: Tensor) -> None:
        """Add the predicted numbers (B, 1) or (B,) and the true numbers (B,) of a batch."""
        self.rows += zip(predictions.flatten().tolist(), labels.tolist(), strict=True)

    def compute(self) -> dict[str, float]:
        """Return pearson, spearman and mae by name.

        The correlations are 0 if all predictions or all labels are equal. All scores are nan if a
        value is not finite.
        """
        # Sorted, so that rounding does not depend on the number of ranks.
        pairs = sorted(pair for rank in gather_objects(self.rows) for pair in rank)
        predictions, labels = torch.tensor(pairs, dtype=torch.float64).view(-1, 2).T
        if not (predictions.isfinite().all() and labels.isfinite().all()):
            return dict.fromkeys(("pearson", "spearman", "mae"), math.nan)
        mae = float((predictions - labels).abs().mean())
        if len(predictions.unique()) < 2 or len(labels.unique()) < 2:
            return {"pearson": 0.0, "spearman": 0.0, "mae": mae}
        ranks = torch.stack([_ranks(predictions), _ranks(labels)])
        return {
            "pearson": float(pearson_corrcoef(predictions, labels)),
            "spearman": float(ranks.corrcoef()[0, 1]),  # torchmetrics adds 1e-6 to the divisor
            "mae": mae,
        }


def _ranks(x: Tensor) -> Tensor:
    """Return the rank of each number of x (n,) in float64; equal numbers share their mean rank."""
    _, group, sizes = x.unique(return_inverse=True, return_counts=True)
    return (sizes.cumsum(0) - (sizes - 1) / 2.0)[group].double()
