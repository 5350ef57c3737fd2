"""ClassificationTask: base class of the tasks of classification, with weights of the classes.

Shapes: B examples (or words), K classes.
"""

from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from fourfold.core.validation import check_absent, check_range
from fourfold.errors import InputError
from fourfold.losses import IGNORE_INDEX, classification_loss, upcast_fp32
from fourfold.metrics import Mean
from fourfold.training.equal_tables import artifacts_of
from fourfold.training.task import BatchT, ModelT, Task


@dataclass(eq=False, repr=False)
class ClassificationTask(Task[ModelT, BatchT]):
    """Base class of the tasks that assign one class or several labels to an example or a word.

    With one class, the model predicts a number (regression). If the artifacts of the DataModule
    have `multi_label`, an example has any number of the K labels, and each is predicted for itself.

    Args:
        label_smoothing: Probability mass that is spread evenly over all classes; ignored in
            regression, and with several labels per example.
        class_weights: Factors on the loss of the K classes in training, as a list of numbers, or
            "balanced": n / (K n_k), where n_k of the n training labels are of class k (as in
            scikit-learn). The loss is then the weighted mean. With several labels per example, the
            factor is that of the examples that have the label (`pos_weight` of torch), and
            "balanced" is the number of examples without it, divided by the number with it.
    """

    label_smoothing: float = field(default=0.0, kw_only=True)
    class_weights: list[float] | Literal["balanced"] | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        check_range("label_smoothing", self.label_smoothing, minimum=0.0, below=1.0)
        super().__post_init__()
        self.loss = Mean()
        self._weights: Tensor | None = None  # (K,)

    @cached_property
    def is_multi_label(self) -> bool:
        """True if an example has any number of labels."""
        # Not only from `self.artifacts`: an averaging callback builds the model before `setup`.
        return bool((artifacts_of(self.datamodule) or self.artifacts).get("multi_label"))

    def on_fit_start(self) -> None:
        """Compute the weights of the classes.

        Raises:
            InputError: There are not K weights, a class has no example in the training data, or the
                task is a regression.
        """
        weights, n_classes = self.class_weights, self.config.n_classes  # type: ignore[attr-defined]
        if n_classes == 1:
            check_absent("a regression", class_weights=weights)
        if weights == "balanced":
            weights = self._balanced_weights(n_classes)
        if weights is not None and len(weights) != n_classes:
            message = f"must be {n_classes} numbers, one for each class, got {len(weights)}"
            raise InputError(message, option="model.class_weights")
        self._weights = None if weights is None else torch.tensor(weights, dtype=torch.float64)

    def _balanced_weights(self, n_classes: int) -> list[float]:
        """Return weights that are inversely proportional to the number of examples of a class."""
        labels = getattr(getattr(self.datamodule, "splits", {}).get("train"), "labels", None)
        if labels is None:
            raise InputError(
                "must be a list: the data have no labels", option="model.class_weights"
            )
        labels = torch.as_tensor(getattr(labels, "ids", labels))  # those of words are ragged
        if self.is_multi_label:
            counts = labels.double().sum(0)
            weights = (len(labels) - counts) / counts
        else:
            counts = torch.bincount(labels[labels != IGNORE_INDEX], minlength=n_classes).double()
            weights = counts.sum() / (n_classes * counts)
        if not counts.all():
            name = self.artifacts["class_names"][int(counts.argmin())]
            raise InputError(f"must be a list: no label is {name}", option="model.class_weights")
        return weights.tolist()

    def class_loss(self, logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """Compute the loss of logits (B, K), summed over the batch, and its divisors (B,).

        The loss is the binary cross-entropy of each label if an example has several labels, the
        squared error if K is 1, and otherwise the cross-entropy. An example adds to the divisor of
        a step the number of labels K, 1, or the weight of its class. Only training uses weights
        and label smoothing.
        """
        logits = upcast_fp32(logits)
        weights = self._weights if self.training else None
        if weights is not None:
            weights = self._weights = weights.to(logits)  # a copy in the first step only
        divisors = logits.new_ones(len(labels))
        if self.is_multi_label:
            loss = partial(F.binary_cross_entropy_with_logits, pos_weight=weights, reduction="sum")
            return loss(logits, labels.to(logits.dtype)), divisors * logits.shape[-1]
        if logits.shape[-1] == 1:
            return F.mse_loss(
                logits.squeeze(-1), labels.to(logits.dtype), reduction="sum"
            ), divisors
        if weights is not None:  # floating-point labels are those of mixed images
            is_mixed = labels.is_floating_point()
            divisors = labels.to(weights) @ weights if is_mixed else weights[labels.clamp(min=0)]
        smoothing = self.label_smoothing if self.training else 0.0
        options: Any = {"weights": weights, "normalizer": 1.0, "label_smoothing": smoothing}
        return classification_loss(logits, labels, **options), divisors
