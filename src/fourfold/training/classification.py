"""ClassificationTask: base class of the tasks of classification, with weights of the classes.

Shapes: B examples (or words), K classes.
"""

from dataclasses import dataclass, field
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from fourfold.core.validation import check_range
from fourfold.errors import InputError
from fourfold.losses import IGNORE_INDEX, classification_loss, upcast_fp32
from fourfold.training.equal_tables import artifacts_of
from fourfold.training.task import BatchT, ModelT, Task


@dataclass(eq=False, repr=False)
class ClassificationTask(Task[ModelT, BatchT]):
    """Base class of the tasks that assign one class or several labels to an example or a word.

    With one class, the model predicts a number (regression). If the artifacts of the DataModule
    have `multi_label`, an example has any number of the K labels, and each is predicted for itself.

    Args:
        class_weights: Factors on the loss of the K classes in training, as a list of numbers, or
            "balanced": n / (K n_k), where n_k of the n training labels are of class k (as in
            scikit-learn). The loss is then the weighted mean. With several labels per example, the
            factor is that of the examples that have the label (`pos_weight` of torch), and
            "balanced" is the number of examples without it, divided by the number with it.

    Attributes:
        is_multi_label: True if an example has any number of labels.
    """

    class_weights: list[float] | Literal["balanced"] | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        for weight in self.class_weights if isinstance(self.class_weights, list) else ():
            check_range("class_weights", weight, minimum=0.0)
        super().__post_init__()
        self.is_multi_label = False
        self._weights: Tensor | None = None  # (K,)

    def configure_model(self) -> None:
        """Build the model, and note whether examples have several labels."""
        if self.model is None:
            super().configure_model()
            # Not only from `self.artifacts`: an averaging callback builds the model before `setup`.
            artifacts = artifacts_of(self.datamodule) or self.artifacts
            self.is_multi_label = bool(artifacts.get("multi_label"))

    def on_fit_start(self) -> None:
        """Compute the weights of the classes.

        Raises:
            InputError: There are not K weights, a class has no example in the training data, or the
                task is a regression.
        """
        if self.is_multi_label and getattr(self, "label_smoothing", None):
            raise InputError("must be 0 with several labels", option="model.label_smoothing")
        n_classes: Any = self.config.n_classes  # type: ignore[attr-defined]
        if self.class_weights is None:
            return
        if n_classes == 1:
            raise InputError("must be None for a regression", option="model.class_weights")
        weights = self.class_weights
        if weights == "balanced":
            weights = self._balanced_weights(n_classes)
        if len(weights) != n_classes:
            message = f"must be {n_classes} numbers, one for each class, got {len(weights)}"
            raise InputError(message, option="model.class_weights")
        self._weights = torch.tensor(weights, dtype=torch.float64)

    def _balanced_weights(self, n_classes: int) -> list[float]:
        """Return weights that are inversely proportional to the number of examples of a class."""
        data = self.datamodule
        labels = getattr(data.split("train"), "labels", None) if hasattr(data, "split") else None
        if labels is None:
            message = "must be a list of numbers, since the training data have no attribute labels"
            raise InputError(message, option="model.class_weights")
        labels = torch.as_tensor(getattr(labels, "ids", labels))  # those of words are ragged
        if self.is_multi_label:
            counts = labels.double().sum(0)
            weights = (len(labels) - counts) / counts
        else:
            labels = labels[labels != IGNORE_INDEX]
            counts = torch.bincount(labels, minlength=n_classes).double()
            weights = len(labels) / (n_classes * counts)
        if not counts.all():
            name = self.artifacts.get("class_names", range(n_classes))[int(counts.argmin())]
            message = f"must be a list of numbers: the class {name} has no training example"
            raise InputError(message, option="model.class_weights")
        return weights.tolist()

    def class_loss(self, logits: Tensor, labels: Tensor, label_smoothing: float = 0.0) -> Tensor:
        """Compute the loss of logits (B, K), summed over the batch, with weights in training.

        It is the squared error if K is 1, the binary cross-entropy of each label if an example has
        several labels, and otherwise the cross-entropy.
        """
        logits = upcast_fp32(logits)
        options: Any = {"reduction": "sum"}
        if self.is_multi_label:
            options["pos_weight"] = self.weights_like(logits)
            return F.binary_cross_entropy_with_logits(logits, labels.to(logits.dtype), **options)
        if logits.shape[-1] == 1:
            return F.mse_loss(logits.squeeze(-1), labels.to(logits.dtype), **options)
        options = {"weights": self.weights_like(logits), "normalizer": 1.0}
        return classification_loss(logits, labels, label_smoothing=label_smoothing, **options)

    def divisors(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Return what each example adds to the divisor of the loss of a step, (B,) in fp32 or fp64.

        This is 1, the number of labels K, or the weight of the class of the example.
        """
        logits = upcast_fp32(logits)
        weights = self.weights_like(logits)
        if self.is_multi_label or weights is None:
            number = logits.shape[-1] if self.is_multi_label else 1
            return logits.new_full(labels.shape[:1], number)
        if labels.is_floating_point():  # of mixed images
            return labels.to(weights.dtype) @ weights
        return weights[labels.clamp(min=0)]

    def weights_like(self, logits: Tensor) -> Tensor | None:
        """Return the weights on the device of the logits; None in evaluation."""
        if self._weights is None or not self.training:
            return None
        self._weights = self._weights.to(logits)  # a copy in the first step only
        return self._weights
