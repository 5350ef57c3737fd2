"""Token classification task: named entities (W-NUT, CoNLL) and parts of speech.

A row of a batch is a sentence, or a chunk of a sentence that is too long for the model.
Shapes: B rows, T tokens, K classes.
"""

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from fourfold.data.loading.batches import TokenBatch
from fourfold.loggers.media import Media, Table
from fourfold.loggers.samples import self_attention
from fourfold.losses import IGNORE_INDEX, upcast_fp32
from fourfold.metrics import EntityScores
from fourfold.models import TokenClassifier, TokenClassifierConfig
from fourfold.optim import OptimizerConfig
from fourfold.schedules import ScheduleConfig
from fourfold.training.classification import ClassificationTask

ChunkId = tuple[int, int]  # index of a sentence in the split, index of a chunk in the sentence


@dataclass(eq=False, repr=False)
class TokenClassification(ClassificationTask[TokenClassifier, TokenBatch]):
    """Classification of each word of a sentence, evaluated by the F1 of entities.

    A word is classified at its first token. The dataset of a split must have the
    attribute `chunk_keys`, the `ChunkId` of each row: the index of the sentence in the split, and
    the index of the chunk in the sentence.

    Args:
        optimizer: Options of the optimizer; the default is BERT's for fine-tuning (Devlin et al.
            2018, appendix A.3).
        schedule: Options of the schedule; the default is linear decay to 0.
    """

    model_class = TokenClassifier
    batch_class = TokenBatch

    config: TokenClassifierConfig = TokenClassifierConfig()
    optimizer: OptimizerConfig = OptimizerConfig(lr=5e-5, eps=1e-6)
    schedule: ScheduleConfig = ScheduleConfig(name="linear")

    def __post_init__(self) -> None:
        super().__post_init__()
        self.scores = EntityScores()

    def logits(self, batch: TokenBatch) -> Tensor:
        """Compute the class logits (B, T, K) of each token, in fp32."""
        return upcast_fp32(self.model(batch.ids, mask=batch.mask))

    def update_metrics(self, batch: TokenBatch, split: str) -> None:
        logits = self.logits(batch)
        self.eval_loss.update(*self.summed_loss(logits, batch.labels))
        chunks = self.datamodule.split(split).chunk_keys
        true = self._tags(batch, batch.labels)
        predicted = self._tags(batch, logits.argmax(-1))
        self.scores.update([chunks[row] for row in batch.rows.tolist()], true, predicted)

    def _tags(self, batch: TokenBatch, classes: Tensor) -> list[list[str]]:
        """Return the names of classes (B, T) at the words of each row of a batch."""
        names = self.artifacts["class_names"]
        # The batch is copied to the CPU at once, rather than row by row.
        is_word = (batch.labels != IGNORE_INDEX).cpu()
        return [
            [names[k] for k in row[words].tolist()]
            for row, words in zip(classes.cpu(), is_word, strict=True)
        ]

    def compute_metrics(self, split: str) -> dict[str, Any]:
        """Return the loss, precision, recall and f1 of entities, and the accuracy of words by name.

        A test adds the F1 of each entity type and the confusion matrix of words. If the tags are
        parts of speech, there are no metrics of entities.
        """
        metrics = {"loss": self.eval_loss.compute(), **self.scores.compute()}
        if split == "test":
            return metrics | {"confusion": self.scores.confusion(self.artifacts["class_names"])}
        return {name: x for name, x in metrics.items() if not name.startswith("f1_")}

    def sample_outputs(self, batch: TokenBatch, split: str) -> dict[str, Media]:
        """Build "samples", a table of tags, and "attention", the maps of the shortest text."""
        texts = self.tokenizer.decode_batch(batch.ids.tolist())
        true = map(" ".join, self._tags(batch, batch.labels))
        predicted = map(" ".join, self._tags(batch, self.logits(batch).argmax(-1)))
        rows = [list(row) for row in zip(texts, true, predicted, strict=True)]
        attention = self_attention(self, batch, self.logits)
        return {"samples": Table(["text", "true", "predicted"], rows), "attention": attention}

    def predict_step(self, batch: TokenBatch, batch_idx: int) -> list[tuple[ChunkId, str]]:
        """Return, for each row, its `ChunkId` and the predicted tags of its words, one text."""
        chunks = self.datamodule.split("test").chunk_keys
        texts = map(" ".join, self._tags(batch, self.logits(batch).argmax(-1)))
        return [(chunks[row], text) for row, text in zip(batch.rows.tolist(), texts, strict=True)]
