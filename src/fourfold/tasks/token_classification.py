"""Words and their classes: entities (W-NUT, CoNLL), parts of speech."""

from typing import Any

import torch.nn.functional as F
from torch import Tensor

from fourfold.callbacks.media import Media, Table
from fourfold.data.batch import TokenBatch
from fourfold.losses import IGNORED, exact
from fourfold.metrics import Mean, TagScores
from fourfold.models import TokenClassifier, TokenClassifierConfig
from fourfold.optim import OptimizerConfig
from fourfold.schedules import ScheduleConfig
from fourfold.tasks.base import Task
from fourfold.tasks.showing import self_attention


class TokenClassification(Task):
    """Learns a class of each word; is tested by the F1 of entities.

    Args:
        config: The model.
        optimizer: Default: BERT's for fine-tuning (Devlin 2018, appendix A.3).
        schedule: Default: linear to 0.
        start: `init_from` and `tuning` of `Task`.
    """

    model_class = TokenClassifier
    batch_class = TokenBatch
    config_class = TokenClassifierConfig
    config: TokenClassifierConfig
    from_data = ("vocab_size", "n_classes")
    exact = ("n_classes",)

    def __init__(
        self,
        config: TokenClassifierConfig = TokenClassifierConfig(),  # noqa: B008  (frozen)
        optimizer: OptimizerConfig = OptimizerConfig(lr=5e-5, eps=1e-6),  # noqa: B008
        schedule: ScheduleConfig = ScheduleConfig(name="linear"),  # noqa: B008
        **start: Any,
    ) -> None:
        super().__init__(config, optimizer, schedule, **start)
        self.loss, self.scores = Mean(), TagScores()

    def size(self, batch: TokenBatch) -> int:
        """Places in the batch, padding included."""
        return batch.ids.numel()

    def logits(self, batch: TokenBatch) -> Tensor:
        """(B, T, K) in fp32."""
        logits: Tensor = self.model(batch.ids, None, batch.mask)
        return exact(logits)

    def step(self, batch: TokenBatch) -> tuple[Tensor, Tensor]:
        """Cross-entropy at the first token of each word."""
        loss = F.cross_entropy(
            self.logits(batch).flatten(0, 1), batch.labels.flatten(),
            ignore_index=IGNORED, reduction="sum",
        )  # fmt: skip
        return loss, (batch.labels != IGNORED).sum()

    def evaluate(self, batch: TokenBatch, split: str) -> None:
        """Loss, and the tags of each row."""
        logits, at_words = self.logits(batch), batch.labels != IGNORED
        losses = F.cross_entropy(logits[at_words], batch.labels[at_words], reduction="sum")
        self.loss.update(losses, at_words.sum())
        tags = self.artifacts["class_names"]
        names = self.trainer.datamodule.names(split)  # type: ignore[attr-defined]
        rows = [names[row] for row in batch.index.tolist()]
        words = at_words.cpu()  # at once, and not row by row
        true, guessed = (
            [[tags[k] for k in row[here].tolist()] for row, here in zip(x, words, strict=True)]
            for x in (batch.labels.cpu(), logits.argmax(-1).cpu())
        )
        self.scores.update(rows, true, guessed)

    def results(self, split: str) -> dict[str, Any]:
        """loss, precision, recall and f1 of entities, accuracy of words; in a test f1 of types."""
        results = {"loss": self.loss.compute(), **self.scores.compute()}
        if split == "test":
            results["confusion"] = self.scores.confusion(self.artifacts["class_names"])
        else:
            results = {k: v for k, v in results.items() if not k.startswith("f1_")}
        self.loss.reset()
        self.scores.reset()
        return results

    def show(self, batch: TokenBatch, split: str) -> dict[str, Media]:
        """The first texts with their tags, and the attention in the shortest."""
        tags, texts = self.artifacts["class_names"], self.tokenizer.decode_batch(batch.ids.tolist())
        guessed = self.logits(batch).argmax(-1)
        rows = [
            [text, *(" ".join(tags[k] for k in x[true != IGNORED].tolist()) for x in (true, guess))]
            for text, true, guess in zip(texts, batch.labels, guessed, strict=True)
        ]
        attention = self_attention(self.model, self.tokenizer, batch, self.logits)
        return {"samples": Table(["text", "true", "predicted"], rows), "attention": attention}

    def predict_step(self, batch: TokenBatch, batch_idx: int) -> list[tuple[tuple[int, int], str]]:
        """Sentence and piece of each row, and the tags of its words with blanks between."""
        tags, at_words = self.artifacts["class_names"], batch.labels != IGNORED
        guessed = self.logits(batch).argmax(-1)
        names = self.trainer.datamodule.names("test")  # type: ignore[attr-defined]
        return [
            (names[row], " ".join(tags[k] for k in classes[here].tolist()))
            for row, classes, here in zip(batch.index.tolist(), guessed, at_words, strict=True)
        ]
