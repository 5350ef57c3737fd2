"""Tasks of classification or regression of sentences, sentence pairs (GLUE) and documents.

Shapes: B sentences, pairs or documents, T tokens, K classes, D width of the model.
"""

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from fourfold.data.loading.batches import SequenceBatch
from fourfold.loggers.media import Media, Table
from fourfold.loggers.samples import prediction_rows, self_attention
from fourfold.losses import probabilities, upcast_fp32
from fourfold.metrics import ClassificationScores, MultiLabelScores, RegressionScores
from fourfold.models import SequenceClassifier, SequenceClassifierConfig
from fourfold.optim import OptimizerConfig
from fourfold.schedules import ScheduleConfig
from fourfold.training.classification import ClassificationTask


@dataclass(eq=False, repr=False)
class SequenceClassification(ClassificationTask[SequenceClassifier, SequenceBatch]):
    """Classification or regression of sentences or sentence pairs with an encoder.

    A model with one class is a regression model, which predicts one value. Classification is
    evaluated by accuracy, F1 and Matthews correlation, several labels per example by mean average
    precision and F1, and regression by Pearson and Spearman correlation and mean absolute error.

    Args:
        optimizer: Options of the optimizer; the default is BERT's for fine-tuning (Devlin et al.
            2018, appendix A.3).
        schedule: Options of the schedule; the default is linear decay to 0.
    """

    model_class = SequenceClassifier
    batch_class = SequenceBatch

    config: SequenceClassifierConfig = SequenceClassifierConfig()
    optimizer: OptimizerConfig = OptimizerConfig(lr=3e-5, eps=1e-6)
    schedule: ScheduleConfig = ScheduleConfig(name="linear")

    def configure_model(self) -> None:
        """Build the model, and the metrics for its number of classes."""
        if self.model is None:
            super().configure_model()
            n_classes: Any = self.config.n_classes  # not None, since the model is built
            scores = RegressionScores() if n_classes == 1 else ClassificationScores(n_classes)
            self.scores: Any = MultiLabelScores(n_classes) if self.is_multi_label else scores

    def logits(self, batch: SequenceBatch) -> Tensor:
        """Compute the logits (B, K) in fp32. For regression, K is 1 and the logit is the value."""
        segments = batch.segments if self.config.n_segments > 1 else None
        return upcast_fp32(self.model(batch.ids, segments=segments, mask=batch.mask))

    def update_metrics(self, batch: SequenceBatch, split: str) -> None:
        logits = self.logits(batch)
        self.eval_loss.update(*self.summed_loss(logits, batch.labels))
        self.scores.update(logits, batch.labels)

    def compute_metrics(self, split: str) -> dict[str, Any]:
        """Return the loss and the scores by name; a test of a classifier adds confusion."""
        metrics: dict[str, Any] = {"loss": self.eval_loss.compute(), **self.scores.compute()}
        if split == "test" and isinstance(self.scores, ClassificationScores):
            metrics["confusion"] = self.scores.counts()
        return metrics

    def sample_outputs(self, batch: SequenceBatch, split: str) -> dict[str, Media]:
        """Build "samples", a table of labels, and "attention", the maps of the shortest text."""
        texts = self.tokenizer.decode_batch(batch.ids.tolist())
        attention = self_attention(self, batch, self.logits)
        return {"samples": self._table(texts, batch), "attention": attention}

    def _table(self, texts: list[str], batch: Any) -> Table:
        """Build a table of texts with true and predicted labels, or values for regression."""
        names = self.artifacts.get("class_names")
        labels = prediction_rows(names, batch.labels, self.predict_step(batch, 0))
        columns = ["text", "true", "predicted", "probability"][: 1 + len(labels[0])]
        return Table(columns, [[text, *row] for text, row in zip(texts, labels, strict=True)])

    def predict_step(self, batch: SequenceBatch, batch_idx: int) -> Tensor:
        """Return class probabilities (B, K), or values (B, 1) if the model has one class."""
        return probabilities(self.logits(batch), self.is_multi_label)
