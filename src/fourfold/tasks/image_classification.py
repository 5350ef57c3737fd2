"""Image classification with a Vision Transformer (ViT, DeiT)."""

from typing import Any

import torch
from torch import Tensor, nn
from torchmetrics.classification import MulticlassAccuracy, MulticlassConfusionMatrix

from fourfold.callbacks.media import Gallery, Media, Table
from fourfold.core.config import check_word
from fourfold.data.batch import ImageBatch
from fourfold.losses import DISTILLATIONS, classification_loss, distillation_loss
from fourfold.metrics import Mean
from fourfold.models import ViT, ViTConfig
from fourfold.models.attention_maps import attention_maps
from fourfold.optim import OptimizerConfig, check_range
from fourfold.schedules import ScheduleConfig
from fourfold.tasks.base import Task
from fourfold.tasks.showing import class_rows, layers
from fourfold.tasks.teacher import Teacher
from fourfold.tasks.window import count_of

CONFUSED = 5000  # classes; the matrix has as many numbers as their square


class ImageClassification(Task):
    """Learns classes of images; is tested by top-1 and top-5 accuracy and a confusion matrix.

    Args:
        config: The model.
        optimizer: Default: DeiT's AdamW at batch 1,024.
        schedule: Default: linear warm-up, then cosine.
        label_smoothing: Spread evenly over all classes (DeiT: 0.1).
        teacher: A trained classifier, run directory or checkpoint, from which the last head learns
            while the first one learns from the labels; without a distillation token they are one.
        distillation: hard or soft, see `distillation_loss`.
        teacher_weight: Of what the teacher teaches; the labels have the rest (DeiT: 0.5 hard, 0.1
            soft).
        temperature: Of soft distillation (DeiT: 3).
        start: `init_from` and `tuning` of `Task`.
    """

    model_class = ViT
    batch_class = ImageBatch
    config_class = ViTConfig
    config: ViTConfig
    unit = "images"
    from_data = ("n_classes",)
    exact = ("n_classes",)

    def __init__(
        self,
        config: ViTConfig = ViTConfig(),  # noqa: B008  (frozen)
        optimizer: OptimizerConfig = OptimizerConfig(  # noqa: B008
            lr=1e-3, weight_decay=0.05, decay="linear"
        ),
        schedule: ScheduleConfig = ScheduleConfig(name="cosine", min_lr=1e-5),  # noqa: B008
        label_smoothing: float = 0.0,
        teacher: str | None = None,
        distillation: str = "hard",
        teacher_weight: float = 0.5,
        temperature: float = 3.0,
        **start: Any,
    ) -> None:
        check_range("label_smoothing", label_smoothing, least=0.0, below=1.0)
        check_word("distillation", distillation, DISTILLATIONS)
        check_range("teacher_weight", teacher_weight, above=0.0, below=1.0)
        check_range("temperature", temperature, above=0.0)
        super().__init__(
            config, optimizer, schedule, label_smoothing=label_smoothing, teacher=teacher,
            distillation=distillation, teacher_weight=teacher_weight, temperature=temperature,
            **start,
        )  # fmt: skip
        self.label_smoothing, self.teacher_path = label_smoothing, teacher
        self.distillation, self.temperature = distillation, temperature
        self.teacher_weight = teacher_weight
        self.teacher: Teacher | None = None

    def configure_model(self) -> None:
        """Build the model, and the metrics that need the number of classes."""
        if self.model is not None:
            return
        super().configure_model()
        k = self.config.n_classes
        assert k is not None  # the model is built
        top5 = MulticlassAccuracy(k, top_k=min(5, k), average="micro")
        self.loss, self.top1, self.top5 = Mean(), MulticlassAccuracy(k, average="micro"), top5
        self.confusion: MulticlassConfusionMatrix | None = None
        names = ("class", "distillation") if getattr(self.config, "distillation", False) else ()
        self.by_head: Any = nn.ModuleDict(
            {name: MulticlassAccuracy(k, average="micro") for name in names}
        )

    def on_fit_start(self) -> None:
        """Fetch the teacher: only a training needs it.

        Raises:
            InputError: As of `Teacher`.
        """
        if self.teacher_path is not None:
            self.teacher = Teacher(self.teacher_path, self.artifacts)

    def on_test_start(self) -> None:
        """Make the confusion matrix, which of many classes is large, and only a test reports."""
        k = self.config.n_classes
        assert k is not None  # the model is built
        if k <= CONFUSED:
            self.confusion = MulticlassConfusionMatrix(k).to(self.device)

    def heads(self, images: Tensor) -> list[Tensor]:
        """Logits (B, K) of each head, whose mean classifies."""
        logits: list[Tensor] = self.model.logits(self.model.encode(images))
        return logits

    def size(self, batch: ImageBatch) -> int:
        """Images in the batch."""
        return len(batch.images)

    def step(self, batch: ImageBatch) -> tuple[Tensor, Tensor]:
        """Cross-entropy of the class, hard or mixed, and of what a teacher says."""
        heads = self.heads(batch.images)
        own = heads[0] if self.teacher else torch.stack(heads).mean(0)
        loss = classification_loss(
            own, batch.labels, label_smoothing=self.label_smoothing, normalizer=1.0
        )
        if self.teacher:
            said = self.teacher(batch.images)
            taught = distillation_loss(heads[-1], said, self.distillation, self.temperature)
            loss = (1.0 - self.teacher_weight) * loss + self.teacher_weight * taught
        return loss, count_of(len(batch.images), loss)

    def evaluate(self, batch: ImageBatch, split: str) -> None:
        """Loss without smoothing, accuracies, and of a test the confusion matrix."""
        heads = self.heads(batch.images)
        logits = torch.stack(heads).mean(0).float()
        self.loss.update(classification_loss(logits, batch.labels, normalizer=1.0), len(logits))
        for metric in (self.top1, self.top5, self.confusion):
            if metric is not None:
                metric.update(logits, batch.labels)
        for metric, one in zip(self.by_head.values(), heads, strict=False):
            metric.update(one.float(), batch.labels)

    def results(self, split: str) -> dict[str, Any]:
        """loss, top1, top5 (top-k with k = K for fewer classes); of a test rows of true classes.

        Of two heads also top1_class and top1_distillation, of each alone.
        """
        results: dict[str, Any] = {
            "loss": self.loss.compute(),
            "top1": self.top1.compute().item(),
            "top5": self.top5.compute().item(),
            **{f"top1_{name}": metric.compute().item() for name, metric in self.by_head.items()},
        }
        if self.confusion is not None:
            results["confusion"] = self.confusion.compute().tolist()
            self.confusion = None
        for metric in (self.loss, self.top1, self.top5, *self.by_head.values()):
            metric.reset()
        return results

    def show(self, batch: ImageBatch, split: str) -> dict[str, Media]:
        """The first images with their classes, and what the layers look at in the first of them."""
        names = self.artifacts["class_names"]
        rows = class_rows(names, batch.labels, self.predict_step(batch, 0))
        captions = [true if true == guess else f"{guess}\nnot {true}" for true, guess, _ in rows]
        maps = attention_maps(self.model, "attn", lambda: self.model(batch.images[:1]))
        media: dict[str, Media] = {
            "samples": Table(["true", "predicted", "probability"], rows),
            "images": Gallery(list(batch.images), captions),
        }
        if maps:  # not of a network without attention
            # From the class token, or from all patches where there is none, to the patches.
            first, side = self.model.n_prefix, self.config.image_size // self.config.patch_size
            seen = [(x[:1] if first else x).mean(0)[first:].view(side, side) for x in maps]
            media["attention"] = layers(seen, [], [])
        return media

    def predict_step(self, batch: ImageBatch, batch_idx: int) -> Tensor:
        """Class probabilities (B, K)."""
        return self.model(batch.images).float().softmax(-1)
