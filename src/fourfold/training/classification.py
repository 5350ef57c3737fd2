"""ClassificationTask: base class of the tasks of classification, with weights of the classes.

Shapes: B examples (or words), K classes.
"""

import math
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from fourfold.core.validation import check_absent, check_range
from fourfold.errors import InputError
from fourfold.losses import IGNORE_INDEX, upcast_fp32
from fourfold.training.equal_tables import artifacts_of
from fourfold.training.task import BatchT, ModelT, Task


@dataclass(eq=False, repr=False)
class ClassificationTask(Task[ModelT, BatchT]):
    """Base class of the tasks that assign one class or several labels to an example or a word.

    With one class and numbers as labels, the model predicts a number (regression). If the artifacts
    of the DataModule have `multi_label`, an example has any number of the K labels, and each is
    predicted for itself.

    Args:
        label_smoothing: Probability mass that is spread evenly over all classes; ignored in
            regression, and with several labels per example.
        class_weights: Factors on the loss of the K classes in training, as a list of numbers, or
            "balanced": n / (K n_k), where n_k of the n training labels are of class k (as in
            scikit-learn). The loss is then the weighted mean. With several labels per example, the
            factor is that of the examples that have the label (`pos_weight` of torch), and
            "balanced" is the number of examples without it, divided by the number with it.
    """

    inferred_from_data: ClassVar[tuple[str, ...]] = ("vocab_size", "n_classes")
    must_equal_data: ClassVar[tuple[str, ...]] = ("n_classes",)

    label_smoothing: float = field(default=0.0, kw_only=True)
    class_weights: list[float] | Literal["balanced"] | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        check_range("label_smoothing", self.label_smoothing, minimum=0.0, below=1.0)
        super().__post_init__()
        self._weights: Tensor | None = None  # (K,)

    @cached_property
    def is_multi_label(self) -> bool:
        """True if an example has any number of labels."""
        # Not only from `self.artifacts`: an averaging callback builds the model before `setup`.
        return bool((artifacts_of(self.datamodule) or self.artifacts).get("multi_label"))

    def on_fit_start(self) -> None:
        """Compute the weights of the classes.

        Raises:
            InputError: The model is trained, and the number of labels per example has changed; the
                weights are invalid, or given for a regression; or "balanced" has no weight for a
                class, since no example of the training data has it, or all of them have the label.
        """
        if self.artifacts and bool(self.artifacts.get("multi_label")) != self.is_multi_label:
            message = "gives another multi_label than the data that the model was trained on"
            raise InputError(message, option="--data")
        weights, n_classes = self.class_weights, self.config.n_classes  # type: ignore[attr-defined]
        if n_classes == 1:
            check_absent("a regression or a single class", class_weights=weights)
        if weights == "balanced":
            weights = self._balanced_weights(n_classes)
        self._weights = None
        if weights is not None:
            valid = [isinstance(x, int | float) and 0 <= x < math.inf for x in weights]
            if len(weights) != n_classes or not all(valid) or not any(weights):
                needed = f"must be {n_classes} finite numbers from 0, one for each class"
                message = f"{needed} and one of them above 0, got {weights}"
                raise InputError(message, option="model.class_weights")
            self._weights = torch.tensor(weights, dtype=torch.float64)

    def _balanced_weights(self, n_classes: int) -> list[float]:
        """Return weights that are inversely proportional to the number of examples of a class."""
        labels = getattr(getattr(self.datamodule, "splits", {}).get("train"), "labels", None)
        if labels is None:
            message = "must be a list: the data have no labels"
            raise InputError(message, option="model.class_weights")
        labels = torch.as_tensor(getattr(labels, "ids", labels))  # those of words are ragged
        if self.is_multi_label:
            counts = labels.double().sum(0)
            weights = (len(labels) - counts) / counts
        else:
            counts = torch.bincount(labels[labels != IGNORE_INDEX], minlength=n_classes).double()
            weights = counts.sum() / (n_classes * counts)
        for k, weight in enumerate(weights.tolist()):
            if weight in (0, math.inf):  # a factor of 0 would leave a label without a loss
                number, name = "no" if weight else "every", self.artifacts["class_names"][k]
                message = f"must be a list: {number} example has the label {name}"
                raise InputError(message, option="model.class_weights")
        return weights.tolist()

    def logits(self, batch: BatchT) -> Tensor:
        """Compute the logits (..., K) of a batch."""
        raise NotImplementedError

    def step(self, batch: BatchT) -> tuple[Tensor, Tensor]:
        """Return the sum of the losses, and that of their divisors (`class_loss`)."""
        return self.summed_loss(self.logits(batch), batch.labels)  # type: ignore[attr-defined]

    def summed_loss(self, logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """Compute the loss of a batch as `class_loss` does, and the sum of its divisors."""
        loss, divisors = self.class_loss(logits, labels)
        return loss, divisors.sum()

    def class_loss(self, logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """Compute the loss of logits (..., K), summed over the batch, and its divisors (B,).

        The loss is the binary cross-entropy of each label if an example has several labels, the
        squared error if K is 1 and labels are floating-point numbers, and otherwise the
        cross-entropy, in fp32 or fp64. An example adds to the divisor of a step the number of
        labels K, 1, or the weight of its class, and 0 if its label is `IGNORE_INDEX`. Only training
        uses weights and label smoothing.
        """
        logits = upcast_fp32(logits).flatten(0, -2)  # (B, K)
        weights = self._weights if self.training else None
        if weights is not None:
            weights = self._weights = weights.to(logits)  # a copy in the first step only
        ones = logits.new_ones(len(logits))
        if self.is_multi_label:
            loss = partial(F.binary_cross_entropy_with_logits, pos_weight=weights, reduction="sum")
            return loss(logits, labels.to(logits)), ones * logits.shape[-1]
        if labels.is_floating_point():  # numbers, or the classes of mixed images
            labels = labels.to(logits)
            if logits.shape[-1] == 1:
                return F.mse_loss(logits.flatten(), labels, reduction="sum"), ones
            # Not a matrix product, which autocast would compute in bf16.
            divisors = ones if weights is None else (labels * weights).sum(1)
        else:
            labels = labels.flatten()
            divisors = ones if weights is None else weights[labels.clamp(min=0)]
            divisors = divisors * (labels != IGNORE_INDEX)
        smoothing = self.label_smoothing if self.training else 0.0
        cross_entropy = partial(F.cross_entropy, label_smoothing=smoothing, reduction="sum")
        return cross_entropy(logits, labels, weights), divisors
