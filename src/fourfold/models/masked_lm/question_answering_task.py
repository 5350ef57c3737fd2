"""Extractive question answering task: prediction of the answer's span in a context (SQuAD).

A context that is too long for the model is divided into overlapping windows.
Shapes: B context windows, T tokens, N best spans.
"""

from dataclasses import dataclass
from itertools import chain
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from fourfold.data.loading.batches import SpanBatch
from fourfold.loggers.media import Media, Table
from fourfold.losses import upcast_fp32
from fourfold.metrics import Answer, SquadScores
from fourfold.metrics.squad import rank_answers
from fourfold.models import SpanExtractor, SpanExtractorConfig
from fourfold.optim import OptimizerConfig
from fourfold.schedules import ScheduleConfig
from fourfold.training.task import Task


@dataclass(eq=False, repr=False)
class QuestionAnswering(Task[SpanExtractor, SpanBatch]):
    """Extractive question answering, evaluated by exact match and F1 as in SQuAD.

    The dataset of a split must have the attributes `questions` and `windows` (parts of contexts),
    as in `fourfold.data.QuestionData`.

    Args:
        optimizer: Options of the optimizer; the default learning rate, 3e-5, is that of the README
            of BERT's code for SQuAD. The paper has 5e-5 (Devlin et al. 2018, section 4.2).
        schedule: Options of the schedule; the default is linear decay to 0.
        max_answer_length: Largest number of tokens in an answer.
        n_best_size: Largest number of answers that `predict` writes for each question.
    """

    model_class = SpanExtractor
    batch_class = SpanBatch

    config: SpanExtractorConfig = SpanExtractorConfig()
    optimizer: OptimizerConfig = OptimizerConfig(lr=3e-5, eps=1e-6)
    schedule: ScheduleConfig = ScheduleConfig(name="linear")
    max_answer_length: int = 30
    n_best_size: int = 20

    def __post_init__(self) -> None:
        super().__post_init__()
        self.scores = SquadScores()

    def setup(self, stage: str) -> None:
        """Store the artifacts of the DataModule.

        The artifact `allow_no_answer` is True if questions may have no answer, as in SQuAD 2.0.
        """
        super().setup(stage)
        self.scores.allow_no_answer = self.artifacts["allow_no_answer"]

    def logits(self, batch: SpanBatch) -> tuple[Tensor, Tensor]:
        """Return the start and end logits (B, T) of each token in fp32, -inf at padding."""
        segments = batch.segments if self.config.n_segments > 1 else None
        logits = upcast_fp32(self.model(batch.ids, segments=segments, mask=batch.mask))
        start, end = logits.masked_fill(~batch.mask.unsqueeze(-1), -torch.inf).unbind(-1)
        return start, end

    def step(self, batch: SpanBatch) -> tuple[Tensor, int]:
        """Return the loss, summed over the context windows, and the number of windows."""
        losses = self._losses(batch, *self.logits(batch))
        return losses.sum(), len(losses)

    def _losses(self, batch: SpanBatch, start: Tensor, end: Tensor) -> Tensor:
        """Return the mean (B,) of the cross-entropies of start and end logits of each window."""
        start_loss = F.cross_entropy(start, batch.starts, reduction="none")
        return (start_loss + F.cross_entropy(end, batch.ends, reduction="none")) / 2

    def update_metrics(self, batch: SpanBatch, split: str) -> None:
        start, end = self.logits(batch)
        # Windows without the answer are no targets, unless a question may have no answer.
        kept = batch.starts >= (0 if self.scores.allow_no_answer else 1)
        if kept.any():
            self.eval_loss.update(self._losses(batch, start, end)[kept].sum(), kept.sum())
        data = self.datamodule.split(split)
        windows = [data.windows[row] for row in batch.rows.tolist()]
        answers = [best for (best,) in self.best_answers(batch, start, end, data, 1)]
        self.scores.update([(w.question, w.number) for w in windows], answers)

    def best_answers(
        self, batch: SpanBatch, start: Tensor, end: Tensor, data: Any, n_best: int
    ) -> list[list[Answer]]:
        """Find the answers with the largest sums of start and end logit in each window.

        Args:
            batch: The batch.
            start: Logits (B, T) of each token as the first token of the answer.
            end: Logits (B, T) of each token as the last token of the answer.
            data: Dataset of the split.
            n_best: Largest number of answers for each window.

        Returns:
            For each of the B windows, a list of its answers, the best first. If no answer is
            possible in a window, its only answer is the empty text with score -inf.
        """
        width = start.shape[1]
        # Spans whose last token is not before the first token, of at most max_answer_length tokens.
        allowed = torch.ones(width, width, dtype=torch.bool, device=start.device)
        allowed = allowed.triu().tril(self.max_answer_length - 1)  # (T, T)
        allowed = allowed & batch.context[:, :, None] & batch.context[:, None, :]
        scores = (start[:, :, None] + end[:, None, :]).masked_fill(~allowed, -torch.inf)
        best = scores.flatten(1).topk(min(n_best, width * width))  # (B, N)
        # Complete tensors are copied to the CPU, rather than row by row.
        columns = (batch.rows, best.values, best.indices, start[:, 0] + end[:, 0])
        answers = []
        for row, values, spans, null in zip(*(x.tolist() for x in columns), strict=True):
            window = data.windows[row]
            context = data.questions[window.question].context
            found = [
                Answer(score, window.text(context, *divmod(span, width)), null)
                for score, span in zip(values, spans, strict=True)
                if score > -torch.inf
            ]
            answers.append(found or [Answer(-torch.inf, "", null)])
        return answers

    def compute_metrics(self, split: str) -> dict[str, Any]:
        """Return loss, exact_match and f1 by name; the last two are means over questions."""
        data = self.datamodule.split(split)
        scores = self.scores.compute([question.answers for question in data.questions])
        return {"loss": self.eval_loss.compute(), **scores}

    def predict_step(self, batch: SpanBatch, batch_idx: int) -> list[tuple[int, Answer]]:
        """Return up to `n_best_size` pairs of question index and answer for each window."""
        data = self.datamodule.split("test")
        answers = self.best_answers(batch, *self.logits(batch), data, self.n_best_size)
        return [
            (data.windows[row].question, answer)
            for row, of_window in zip(batch.rows.tolist(), answers, strict=True)
            for answer in of_window
        ]

    def sample_outputs(self, batch: SpanBatch, split: str) -> dict[str, Media]:
        """Build "samples", a table of questions with true and predicted answers."""
        data = self.datamodule.split(split)
        answers = self.best_answers(batch, *self.logits(batch), data, 1)
        rows: list[list[Any]] = []
        for row, (best,) in zip(batch.rows.tolist(), answers, strict=True):
            question = data.questions[data.windows[row].question]
            rows.append([question.text, "\n".join(question.answers), best.text])
        return {"samples": Table(["question", "true", "predicted"], rows)}

    def merge_predictions(self, outputs: list[Any]) -> dict[str, list[dict[str, Any]]]:
        """Merge the answers from all windows of each question.

        Args:
            outputs: Outputs of `predict_step` for all batches.

        Returns:
            Dictionary from the id of each question to the list of its answers, the best first. An
            answer is a dictionary with the keys `text` (empty for "no answer") and `score` (sum of
            the start and end logits).
        """
        questions = self.datamodule.split("test").questions
        ranked = rank_answers(chain.from_iterable(outputs), self.scores.allow_no_answer)
        return {
            questions[number].id: [
                {"text": text, "score": score} for text, score in best[: self.n_best_size]
            ]
            for number, best in ranked.items()
        }
