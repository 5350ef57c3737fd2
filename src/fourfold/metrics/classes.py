"""Scores of classes and of numbers, one for each row."""

import math

import numpy as np
import torch
from torch import Tensor
from torchmetrics import Metric

from fourfold.metrics.by_row import gather
from fourfold.metrics.correlation import correlation, ranks


class ClassScores(Metric):
    """Accuracy, F1 and Matthews' correlation of K classes, all from one confusion matrix.

    F1 is that of class 1 where there are two classes (GLUE's MRPC and QQP), and the mean over the
    classes (macro) of more. What is divided by 0 is 0, as in scikit-learn.

    Args:
        n_classes: K.
    """

    full_state_update = False
    confusion: Tensor

    def __init__(self, n_classes: int) -> None:
        super().__init__()
        # Whole numbers: with a -true precision Lightning makes the others of 8 bits or 11.
        zero = torch.zeros(n_classes, n_classes, dtype=torch.long)
        self.add_state("confusion", default=zero, dist_reduce_fx="sum")

    def update(self, logits: Tensor, labels: Tensor) -> None:
        """Add logits (B, K) and classes (B,)."""
        k = len(self.confusion)
        cells = torch.bincount(labels * k + logits.argmax(-1), minlength=k * k)
        self.confusion += cells.view(k, k)

    def counts(self) -> list[list[int]]:
        """How often each true class (rows) was taken for each class (columns), on all devices."""
        with self.sync_context():
            found: list[list[int]] = self.confusion.tolist()
        return found

    def compute(self) -> dict[str, float]:
        """accuracy, f1 (f1_macro of more than two classes) and matthews (Gorodkin 2004 of more)."""
        table = self.confusion.cpu().double()
        total, correct = table.sum(), table.diag().sum()
        true, guessed = table.sum(1), table.sum(0)
        f1 = 2 * table.diag() / (true + guessed).clamp(min=1)
        spread = (total**2 - guessed.square().sum()) * (total**2 - true.square().sum())
        matthews = (correct * total - true @ guessed) / spread.sqrt() if spread > 0 else 0.0
        two = len(table) == 2
        return {
            "accuracy": float(correct / total.clamp(min=1)),
            "f1" if two else "f1_macro": float(f1[1] if two else f1.mean()),
            "matthews": float(matthews),
        }


class NumberScores(Metric):
    """Pearson's and Spearman's correlation of predicted and true numbers (GLUE's STS-B)."""

    full_state_update = False
    pairs: list[Tensor]

    def __init__(self) -> None:
        super().__init__()
        self.pairs = []

    def update(self, predictions: Tensor, labels: Tensor) -> None:
        """Add numbers (B, 1) or (B,) and labels (B,)."""
        self.pairs.append(torch.stack([predictions.flatten().double(), labels.double()], dim=1))

    def reset(self) -> None:
        """Forget all numbers."""
        super().reset()
        self.pairs = []

    def compute(self) -> dict[str, float]:
        """pearson and spearman; equal numbers share their rank.

        0 where one side does not vary, nan where a number is none.
        """
        mine = torch.cat(self.pairs).tolist() if self.pairs else []
        # In an order of their own, so that sums do not depend on who had which.
        pairs = np.array(sorted(pair for part in gather(mine) for pair in part), np.float64)
        if not np.isfinite(pairs).all():
            return {"pearson": math.nan, "spearman": math.nan}
        found = {
            "pearson": correlation(*pairs.T),
            "spearman": correlation(*map(ranks, pairs.T)),
        }
        return {name: 0.0 if math.isnan(value) else value for name, value in found.items()}
