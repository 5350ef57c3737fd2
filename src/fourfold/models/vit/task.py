"""Image classification task with a Vision Transformer (ViT) and knowledge distillation (DeiT).

Shapes: B images, C channels, K classes.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torchmetrics.classification import MulticlassAccuracy, MulticlassConfusionMatrix

from fourfold.core.validation import check_choice
from fourfold.data.loading.batches import ImageBatch
from fourfold.errors import InputError
from fourfold.loggers.media import ImageGrid, Media, Table
from fourfold.loggers.samples import layer_maps, prediction_rows
from fourfold.losses import DISTILLATION_TYPES, distillation_loss, probabilities
from fourfold.metrics import MultiLabelScores, RegressionScores
from fourfold.models import ViT, ViTConfig
from fourfold.optim import OptimizerConfig
from fourfold.schedules import ScheduleConfig
from fourfold.training.classification import ClassificationTask

MAX_CONFUSION_CLASSES = 5000  # the confusion matrix has the square of this number of entries
# Artifacts that teacher and student must share, since both see the same pixels.
SHARED_ARTIFACTS = ("class_names", "image_size", "n_channels", "mean", "std")


def read_teacher(path: str, artifacts: Mapping[str, Any]) -> Callable[[Tensor], Tensor]:
    """Read a frozen image classifier, and return a function from images to its logits (B, K).

    Args:
        path: Path of the classifier, in any format that `fourfold.load` accepts.
        artifacts: Artifacts of the student's data, such as class names and image size.

    Raises:
        InputError: There is no such checkpoint, or the model has other classes or another
            preprocessing than the student's data.
    """
    from fourfold.checkpoints.load import read_model
    from fourfold.checkpoints.schema import as_list

    model = read_model(path)
    for name in SHARED_ARTIFACTS:
        theirs, ours = as_list(model.artifacts.get(name)), as_list(artifacts.get(name))
        is_float = name in ("mean", "std") and theirs
        # Mean and standard deviation may have been rounded to fp32.
        if theirs != ours and not (is_float and np.allclose(theirs, ours, atol=1e-6)):
            message = f"must have the {name} of the data, {ours}, but {path} has {theirs}"
            raise InputError(message, option="model.teacher")
    model.requires_grad_(False)

    # A function, and no module, whose weights would become part of the student's state dict.
    @torch.no_grad()
    def logits(images: Tensor) -> Tensor:
        model.to(images.device)
        return model(images.to(model.dtype))

    return logits


@dataclass(eq=False, repr=False)
class ImageClassification(ClassificationTask[ViT, ImageBatch]):
    """Image classification, evaluated by top-1 and top-5 accuracy and a confusion matrix.

    Several labels per image are evaluated by mean average precision and F1. A model with one class
    predicts a number (regression), evaluated as in `SequenceClassification`.

    Source: Dosovitskiy et al. 2020; Touvron et al. 2020 (DeiT).

    Args:
        optimizer: Options of the optimizer; the default is DeiT's AdamW for a batch of 1,024.
        schedule: Options of the schedule; the default is linear warm-up, then cosine decay.
        teacher: Path of a trained classifier, in any format that `fourfold.load` accepts. The last
            head of the model is trained on the teacher's predictions, and the first head on the
            labels. A model without a distillation token has one head, which is trained on
            predictions and labels. None trains on the labels only.
        distillation: Kind of the loss against the teacher's predictions, hard or soft; see
            `distillation_loss`.
        teacher_weight: Weight w of the loss against the teacher's predictions. The weight of the
            loss against the labels is 1 - w. DeiT has w = 0.5 for hard and 0.1 for soft.
        temperature: Temperature of soft distillation (DeiT: 3).

    Example:
        >>> config = ViTConfig(d_model=16, n_layers=1, n_heads=2, image_size=8, n_classes=3)
        >>> task = ImageClassification(config, distillation="warm")
        Traceback (most recent call last):
            ...
        fourfold.errors.InputError: distillation must be one of hard, soft, got 'warm'
    """

    model_class = ViT
    batch_class = ImageBatch
    unit = "images"
    inferred_from_data = ("n_classes", "image_size", "n_channels")
    must_equal_data = inferred_from_data

    config: ViTConfig = ViTConfig()
    optimizer: OptimizerConfig = OptimizerConfig(
        lr=1e-3, weight_decay=0.05, weight_decay_params="linear"
    )
    schedule: ScheduleConfig = ScheduleConfig(name="cosine", min_lr=1e-5)
    teacher: str | None = None
    distillation: str = "hard"
    teacher_weight: float = 0.5
    temperature: float = 3.0

    def __post_init__(self) -> None:
        check_choice("distillation", self.distillation, DISTILLATION_TYPES)
        super().__post_init__()
        self.scores: Any = nn.ModuleDict()
        self.teacher_model: Callable[[Tensor], Tensor] | None = None

    def configure_model(self) -> None:
        """Build the model, and the metrics for its number of classes."""
        if self.model is None:
            super().configure_model()
            n_classes: Any = self.config.n_classes  # not None, since the model is built
            names = {"top1": 1, "top5": min(5, n_classes)}
            scores = MultiLabelScores(n_classes) if self.is_multi_label else RegressionScores()
            if self.is_multi_label or n_classes == 1:
                names, self.scores["all"] = {}, scores
            elif getattr(self.config, "distillation", False):
                names |= {"top1_class": 1, "top1_distillation": 1}
            for name, k in names.items():
                self.scores[name] = MulticlassAccuracy(n_classes, top_k=k, average="micro")

    def on_fit_start(self) -> None:
        """Compute the weights of the classes, and load the teacher."""
        super().on_fit_start()
        if self.teacher is not None:
            if self.class_weights is not None or "top1" not in self.scores:
                raise InputError("needs images of one class, unweighted", option="model.teacher")
            self.teacher_model = read_teacher(self.teacher, self.artifacts)

    def on_test_start(self) -> None:
        """Create a confusion matrix, unless there are more than MAX_CONFUSION_CLASSES classes."""
        n_classes: Any = self.config.n_classes
        if "top1" in self.scores and n_classes <= MAX_CONFUSION_CLASSES:
            self.scores["confusion"] = MulticlassConfusionMatrix(n_classes).to(self.device)

    def on_test_end(self) -> None:
        """Delete the confusion matrix."""
        self.scores = nn.ModuleDict({k: x for k, x in self.scores.items() if k != "confusion"})

    def head_logits(self, images: Tensor) -> list[Tensor]:
        """Compute the logits (B, K) of each head, whose mean is the prediction of the model."""
        return self.model.logits_per_head(self.model.hidden(images))

    def step(self, batch: ImageBatch) -> tuple[Tensor, Tensor]:
        """Return the sum of the losses, and that of their divisors (`ClassificationTask`).

        With a teacher, the loss is the weighted mean of two losses: one against the labels, and one
        against the teacher's predictions.
        """
        heads = self.head_logits(batch.images)
        logits = heads[0] if self.teacher_model else torch.stack(heads).mean(0)
        loss, divisors = self.class_loss(logits, batch.labels)
        if self.teacher_model:
            targets = self.teacher_model(batch.images)
            distilled = distillation_loss(heads[-1], targets, self.distillation, self.temperature)
            loss = (1.0 - self.teacher_weight) * loss + self.teacher_weight * distilled
        return loss, divisors.sum()

    def update_metrics(self, batch: ImageBatch, split: str) -> None:
        heads = self.head_logits(batch.images)
        logits = torch.stack(heads).mean(0).float()
        self.eval_loss.update(*self.summed_loss(logits, batch.labels))
        outputs = {"top1_class": heads[0], "top1_distillation": heads[-1]}
        for name, metric in self.scores.items():
            metric.update(outputs.get(name, logits).float(), batch.labels)

    def compute_metrics(self, split: str) -> dict[str, Any]:
        """Return the loss and the accuracies by name; a test may add the confusion matrix.

        top1 and top5 are accuracies from 0 to 1; with five classes or fewer, top5 is 1. A model
        with a distillation token also has the top-1 accuracies of its two heads, top1_class and
        top1_distillation. The rows of the confusion matrix are the true classes. Several labels per
        image have the scores of `MultiLabelScores`, and a regression those of `RegressionScores`.
        """
        found = {name: metric.compute() for name, metric in self.scores.items()}
        scores = found.get("all") or {name: x.tolist() for name, x in found.items()}
        return {"loss": self.eval_loss.compute(), **scores}

    def sample_outputs(self, batch: ImageBatch, split: str) -> dict[str, Media]:
        """Build "samples", a table of predictions, "images", and "attention" of the first image."""
        from fourfold.analysis.attention_maps import mean_maps

        names = self.artifacts["class_names"]
        rows = prediction_rows(names, batch.labels, self.predict_step(batch, 0))
        captions = [x if x == predicted else f"{predicted}\nnot {x}" for x, predicted, *_ in rows]
        location = self.datamodule.split(split).location
        files = [
            [location(row), *cells] for row, cells in zip(batch.rows.tolist(), rows, strict=True)
        ]
        media: dict[str, Media] = {
            "samples": Table(["file", "true", "predicted", "probability"][: len(files[0])], files),
            "images": ImageGrid(list(batch.images), captions),
        }
        maps = mean_maps(self.model, "attn", lambda: self.model(batch.images[:1]))
        if maps:  # a ResNet has none
            n_prefix = self.model.n_prefix
            grid = self.model.embed.grid
            # Attention of the class token to the patches; without one, the mean of all patches.
            seen = [(x[:1] if n_prefix else x).mean(0)[n_prefix:].view(grid) for x in maps]
            query = "the class token" if n_prefix else "all patches (mean)"
            media["attention"] = layer_maps(seen, [], [])._replace(
                image=batch.images[0],
                title=f"attention of {query} to each patch, mean over heads; {captions[0]}",
            )
        return media

    def predict_step(self, batch: ImageBatch, batch_idx: int) -> Tensor:
        """Return class probabilities (B, K) in fp32, or values (B, 1) of a regression."""
        return probabilities(self.model(batch.images), self.is_multi_label)
