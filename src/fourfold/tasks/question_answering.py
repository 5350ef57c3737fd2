"""Where in a text the answer to a question stands (SQuAD).

Shapes: B windows, T tokens.
"""

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from fourfold.callbacks.media import Media, Table
from fourfold.data.batch import SpanBatch
from fourfold.losses import exact
from fourfold.metrics import Answer, AnswerScores, Mean
from fourfold.models import SpanExtractor, SpanExtractorConfig
from fourfold.optim import OptimizerConfig
from fourfold.schedules import ScheduleConfig
from fourfold.tasks.base import Task
from fourfold.tasks.window import count_of


class QuestionAnswering(Task):
    """Learns where an answer begins and ends; is tested by EM and F1 by the rules of SQuAD.

    Args:
        config: The model.
        optimizer: Default: the rate that BERT's README gives for SQuAD; the paper's is 5e-5
            (Devlin 2018, 4.2).
        schedule: Default: linear to 0.
        max_answer: Most tokens of an answer.
        n_best: How many answers `predict` writes for a question.
        start: `init_from` and `tuning` of `Task`.
    """

    model_class = SpanExtractor
    batch_class = SpanBatch
    config_class = SpanExtractorConfig
    config: SpanExtractorConfig

    def __init__(
        self,
        config: SpanExtractorConfig = SpanExtractorConfig(),  # noqa: B008  (frozen)
        optimizer: OptimizerConfig = OptimizerConfig(lr=3e-5, eps=1e-6),  # noqa: B008
        schedule: ScheduleConfig = ScheduleConfig(name="linear"),  # noqa: B008
        max_answer: int = 30,
        n_best: int = 20,
        **start: Any,
    ) -> None:
        super().__init__(config, optimizer, schedule, max_answer=max_answer, n_best=n_best, **start)
        self.max_answer, self.n_best = max_answer, n_best
        self.loss, self.scores = Mean(), AnswerScores()

    def setup(self, stage: str) -> None:
        """Take from the data whether a question may have no answer."""
        super().setup(stage)
        self.scores.may_be_none = self.artifacts["may_be_none"]

    def size(self, batch: SpanBatch) -> int:
        """Places in the batch, padding included."""
        return batch.ids.numel()

    def logits(self, batch: SpanBatch) -> tuple[Tensor, Tensor]:
        """Of start and end, each (B, T) in fp32; -inf at padding."""
        segments = batch.segments if self.config.n_segments > 1 else None
        logits: Tensor = self.model(batch.ids, segments, batch.mask)
        logits = exact(logits)
        start, end = logits.masked_fill(~batch.mask.unsqueeze(-1), -torch.inf).unbind(-1)
        return start, end

    def step(self, batch: SpanBatch) -> tuple[Tensor, Tensor]:
        """Mean of the cross-entropies of the answer's first and last token."""
        losses = self._losses(batch, *self.logits(batch))
        return losses.sum(), count_of(len(losses), losses)

    def _losses(self, batch: SpanBatch, start: Tensor, end: Tensor) -> Tensor:
        """(B,) of logits (B, T)."""
        first = F.cross_entropy(start, batch.starts, reduction="none")
        return (first + F.cross_entropy(end, batch.ends, reduction="none")) / 2

    def evaluate(self, batch: SpanBatch, split: str) -> None:
        """Loss, and the best answer of each window."""
        start, end = self.logits(batch)
        # Windows without the answer are no targets, unless none may be given.
        kept = batch.starts >= (0 if self.scores.may_be_none else 1)
        if kept.any():
            self.loss.update(self._losses(batch, start, end)[kept].sum(), kept.sum())
        data = self.trainer.datamodule.questions(split)  # type: ignore[attr-defined]
        found = self.answers(batch, start, end, data, 1)
        windows = [data.windows[row] for row in batch.index.tolist()]
        self.scores.update([(w.question, w.number) for w in windows], [a[0] for a in found])

    def answers(
        self, batch: SpanBatch, start: Tensor, end: Tensor, data: Any, n_best: int
    ) -> list[list[Answer]]:
        """The best spans of each window by its logits (B, T), over all that may be one."""
        width = start.shape[1]
        places = torch.arange(width, device=start.device)
        length = places[None, :] - places[:, None] + 1
        allowed = (length >= 1) & (length <= self.max_answer)  # (T, T)
        allowed = allowed & batch.context[:, :, None] & batch.context[:, None, :]
        scores = (start[:, :, None] + end[:, None, :]).masked_fill(~allowed, -torch.inf)
        best = scores.flatten(1).topk(min(n_best, width * width))  # (B, n)
        # At once, and not row by row.
        values, spans, nulls = (
            x.tolist() for x in (best.values, best.indices, start[:, 0] + end[:, 0])
        )
        found = []
        for i, row in enumerate(batch.index.tolist()):
            window = data.windows[row]
            context = data.questions[window.question].context
            null, pairs = nulls[i], zip(values[i], spans[i], strict=True)
            texts = [
                (score, window.text(context, *divmod(place, width)))
                for score, place in pairs
                if score > -torch.inf
            ]
            found.append([Answer(score, text, null) for score, text in texts]
                         or [Answer(-torch.inf, "", null)])  # fmt: skip
        return found

    def results(self, split: str) -> dict[str, Any]:
        """loss, exact_match and f1."""
        data = self.trainer.datamodule.questions(split)  # type: ignore[attr-defined]
        scores = self.scores.compute([question.answers for question in data.questions])
        results = {"loss": self.loss.compute(), **scores}
        self.loss.reset()
        self.scores.reset()
        return results

    def predict_step(self, batch: SpanBatch, batch_idx: int) -> list[tuple[int, list[Answer]]]:
        """Each question's number, and the best answers in a window of its context."""
        data = self.trainer.datamodule.questions("test")  # type: ignore[attr-defined]
        found = self.answers(batch, *self.logits(batch), data, self.n_best)
        rows = [data.windows[row].question for row in batch.index.tolist()]
        return list(zip(rows, found, strict=True))

    def show(self, batch: SpanBatch, split: str) -> dict[str, Media]:
        """The first windows of contexts: question, true answers, and what the window gives."""
        data = self.trainer.datamodule.questions(split)  # type: ignore[attr-defined]
        found = self.answers(batch, *self.logits(batch), data, 1)
        asked = [data.questions[data.windows[row].question] for row in batch.index.tolist()]
        rows = [
            [question.text, "\n".join(question.answers), best[0].text]
            for question, best in zip(asked, found, strict=True)
        ]
        return {"samples": Table(["question", "true", "predicted"], rows)}

    def merge_predictions(self, outputs: list[Any]) -> dict[str, list[dict[str, Any]]]:
        """For each question's id its best answers over all windows, the best first.

        No answer, where that may be given, is an empty text with the least score of any window.
        """
        data = self.trainer.datamodule.questions("test")  # type: ignore[attr-defined]
        scores: dict[int, dict[str, float]] = {}
        nulls: dict[int, float] = {}
        for question, answers in (pair for part in outputs for pair in part):
            mine = scores.setdefault(question, {})
            for answer in answers:
                mine[answer.text] = max(mine.get(answer.text, -math.inf), answer.score)
                nulls[question] = min(nulls.get(question, math.inf), answer.null)
        merged = {}
        for question, mine in sorted(scores.items()):
            mine.pop("", None)  # of a window without any place for an answer
            if self.scores.may_be_none:
                mine[""] = nulls[question]
            best = sorted(mine.items(), key=lambda item: item[1], reverse=True)[: self.n_best]
            answers = [{"text": text, "score": score} for text, score in best]
            merged[data.questions[question].id] = answers
        return merged
