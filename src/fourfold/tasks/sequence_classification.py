"""Sentences and pairs of sentences: their class, or a number (GLUE)."""

from typing import Any

import torch.nn.functional as F
from torch import Tensor

from fourfold.callbacks.media import Media, Table
from fourfold.data.batch import SequenceBatch
from fourfold.losses import classification_loss, exact
from fourfold.metrics import ClassScores, Mean, NumberScores
from fourfold.models import SequenceClassifier, SequenceClassifierConfig
from fourfold.optim import OptimizerConfig, check_range
from fourfold.schedules import ScheduleConfig
from fourfold.tasks.base import Task
from fourfold.tasks.showing import class_rows, self_attention
from fourfold.tasks.window import count_of


class SequenceClassification(Task):
    """Learns a class, or a number, of a sentence or a pair, mostly from a pre-trained encoder.

    It is tested by accuracy, F1 and Matthews' correlation, or by Pearson's and Spearman's.

    Args:
        config: The model.
        optimizer: Default: BERT's for fine-tuning (Devlin 2018, appendix A.3).
        schedule: Default: linear to 0.
        label_smoothing: Spread evenly over all classes.
        start: `init_from` and `tuning` of `Task`.
    """

    model_class = SequenceClassifier
    batch_class = SequenceBatch
    config_class = SequenceClassifierConfig
    config: SequenceClassifierConfig
    from_data = ("vocab_size", "n_classes")
    exact = ("n_classes",)

    def __init__(
        self,
        config: SequenceClassifierConfig = SequenceClassifierConfig(),  # noqa: B008  (frozen)
        optimizer: OptimizerConfig = OptimizerConfig(lr=3e-5, eps=1e-6),  # noqa: B008
        schedule: ScheduleConfig = ScheduleConfig(name="linear"),  # noqa: B008
        label_smoothing: float = 0.0,
        **start: Any,
    ) -> None:
        check_range("label_smoothing", label_smoothing, least=0.0, below=1.0)
        super().__init__(config, optimizer, schedule, label_smoothing=label_smoothing, **start)
        self.label_smoothing = label_smoothing

    def configure_model(self) -> None:
        """Build the model, and the metrics that need the number of classes."""
        if self.model is None:
            super().configure_model()
            k = self.config.n_classes
            assert k is not None  # the model is built
            self.loss = Mean()
            self.scores = NumberScores() if k == 1 else ClassScores(k)

    def size(self, batch: SequenceBatch) -> int:
        """Places in the batch, padding included."""
        return batch.ids.numel()

    def logits(self, batch: SequenceBatch) -> Tensor:
        """(B, K) in fp32."""
        segments = batch.segments if self.config.n_segments > 1 else None
        logits: Tensor = self.model(batch.ids, segments, batch.mask)
        return exact(logits)

    def step(self, batch: SequenceBatch) -> tuple[Tensor, Tensor]:
        """Cross-entropy of the class, or the squared error of the number."""
        loss = self._loss(self.logits(batch), batch.labels, self.label_smoothing)
        return loss, count_of(len(batch.ids), loss)

    def _loss(self, logits: Tensor, labels: Tensor, smoothing: float = 0.0) -> Tensor:
        """Summed over the batch."""
        if self.config.n_classes == 1:
            return F.mse_loss(logits.squeeze(-1), labels.to(logits.dtype), reduction="sum")
        return classification_loss(logits, labels, label_smoothing=smoothing, normalizer=1.0)

    def evaluate(self, batch: SequenceBatch, split: str) -> None:
        """Loss without smoothing, and the scores."""
        logits = self.logits(batch)
        self.loss.update(self._loss(logits, batch.labels), len(logits))
        self.scores.update(logits, batch.labels)

    def results(self, split: str) -> dict[str, Any]:
        """loss; accuracy, f1 and matthews; or pearson and spearman."""
        results: dict[str, Any] = {"loss": self.loss.compute(), **self.scores.compute()}
        if split == "test" and isinstance(self.scores, ClassScores):
            results["confusion"] = self.scores.counts()
        self.loss.reset()
        self.scores.reset()
        return results

    def show(self, batch: SequenceBatch, split: str) -> dict[str, Media]:
        """The first texts with their classes or numbers, and the attention in the shortest."""
        texts, outputs = (
            self.tokenizer.decode_batch(batch.ids.tolist()),
            self.predict_step(batch, 0),
        )
        if self.config.n_classes == 1:
            columns = ["true", "predicted"]
            found = zip(batch.labels.tolist(), outputs[:, 0].tolist(), strict=True)
            rows = [[true, round(guess, 4)] for true, guess in found]
        else:
            columns = ["true", "predicted", "probability"]
            rows = class_rows(self.artifacts["class_names"], batch.labels, outputs)
        rows = [[text, *row] for text, row in zip(texts, rows, strict=True)]
        attention = self_attention(self.model, self.tokenizer, batch, self.logits)
        return {"samples": Table(["text", *columns], rows), "attention": attention}

    def predict_step(self, batch: SequenceBatch, batch_idx: int) -> Tensor:
        """Class probabilities (B, K), or the number (B, 1)."""
        logits = self.logits(batch)
        return logits if self.config.n_classes == 1 else logits.softmax(-1)
