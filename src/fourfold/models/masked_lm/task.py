"""Masked language modelling task (BERT), with a next-sentence loss if the model has such a head.

Shapes: B sequences, T tokens, D width of the model, N masked tokens of the batch.
"""

import math
from dataclasses import dataclass
from typing import Any

import torch.nn.functional as F
from torch import Tensor

from fourfold.data.loading.batches import MaskedBatch
from fourfold.loggers.media import Media, Table
from fourfold.loggers.samples import self_attention
from fourfold.losses import IGNORE_INDEX, linear_cross_entropy, token_scores, upcast_fp32
from fourfold.metrics import Mean, Perplexity
from fourfold.models import MaskedLM, MaskedLMConfig
from fourfold.optim import OptimizerConfig
from fourfold.schedules import ScheduleConfig
from fourfold.training.task import Task


@dataclass(eq=False, repr=False)
class MaskedLanguageModeling(Task[MaskedLM, MaskedBatch]):
    """Masked language modelling, evaluated by perplexity and accuracy of the masked tokens.

    Source: Devlin et al. 2018, section 3.1.

    Args:
        optimizer: Options of the optimizer; the default is BERT's (appendix A.2).
        schedule: Options of the schedule; the default is BERT's: 10,000 steps of warm-up, then
            linear decay to 0.
        z_loss: Factor of the z-loss in training, see `linear_cross_entropy`. train/loss includes
            the z-loss; the metrics of evaluation do not.
    """

    model_class = MaskedLM
    batch_class = MaskedBatch

    config: MaskedLMConfig = MaskedLMConfig()
    optimizer: OptimizerConfig = OptimizerConfig(lr=1e-4, eps=1e-6)
    schedule: ScheduleConfig = ScheduleConfig(name="linear", warmup_steps=10000)
    z_loss: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        self.ppl = Perplexity()
        self.next_correct = Mean()

    def _encode(self, batch: MaskedBatch) -> tuple[Tensor, tuple[Any, ...]]:
        """Return the hidden states (B, T, D), and arguments of the loss at the N masked positions.

        The arguments are the input (N, D) of the output matrix, the matrix (V, D), its bias or
        None, and the original tokens (N,).
        """
        h = self.model.encode(
            batch.ids, segments=batch.segments, mask=batch.mask, documents=batch.documents
        )
        positions = masked_positions(batch)
        output = self.model.head.output(h.flatten(0, 1)[positions])
        return h, (*output, batch.targets.flatten()[positions])

    def step(self, batch: MaskedBatch) -> tuple[Tensor, int]:
        """Return the loss, summed over the masked tokens, and the number of masked tokens.

        If the model has a next-sentence head and the batch has sentence pairs, the next-sentence
        loss is added. BERT adds the mean cross-entropy of the masked tokens and the mean next-
        sentence loss of the pairs. Here the next-sentence loss of a pair is weighted by the number
        of masked tokens in the pair, so that the number of masked tokens normalizes both losses.
        The result equals BERT's if all pairs have the same number of masked tokens.
        """
        h, output = self._encode(batch)
        loss = linear_cross_entropy(*output, z_loss=self.z_loss, normalizer=1.0)
        if batch.is_next is not None and self.model.next_sentence is not None:
            logits = upcast_fp32(self.model.next_sentence_logits(h))
            weights = (batch.targets != IGNORE_INDEX).sum(1).to(logits.dtype)  # (B,)
            loss = loss + F.cross_entropy(logits, batch.is_next, reduction="none") @ weights
        return loss, len(output[-1])

    def update_metrics(self, batch: MaskedBatch, split: str) -> None:
        h, output = self._encode(batch)
        if len(output[-1]):
            self.ppl.update(*token_scores(*output), output[-1])
        if batch.is_next is not None and self.model.next_sentence is not None:
            logits = self.model.next_sentence_logits(h)
            self.next_correct.update((logits.argmax(-1) == batch.is_next).sum(), len(logits))

    def compute_metrics(self, split: str) -> dict[str, Any]:
        """Return loss, accuracy, ppl_token and, for pairs, next_sentence_accuracy by name."""
        metrics: dict[str, Any] = self.ppl.compute()
        # The condition depends on the model only, so that all ranks take part in `compute`.
        if self.model.next_sentence is not None:
            accuracy = self.next_correct.compute()
            if not math.isnan(accuracy):  # there are pairs
                metrics["next_sentence_accuracy"] = accuracy
        return metrics

    def sample_outputs(self, batch: MaskedBatch, split: str) -> dict[str, Media]:
        """Build "samples", a table of masked texts, and "attention" of the shortest text."""
        tokenizer = self.tokenizer
        masked = batch.targets != IGNORE_INDEX
        predicted = self.predict_step(batch, 0)
        # Some targets are kept or replaced by random tokens; the table shows each target as masked.
        mask_id = tokenizer.unk_id if tokenizer.mask_id is None else tokenizer.mask_id
        inputs = batch.ids.masked_fill(masked, mask_id)
        rows = []
        for i, positions in enumerate(masked):
            real = inputs[i] if batch.mask is None else inputs[i, batch.mask[i]]
            text = tokenizer.backend.decode(real.tolist(), skip_special_tokens=False)
            columns = [
                " ".join(tokenizer.decode([token]) for token in ids[i, positions].tolist())
                for ids in (batch.targets, predicted)
            ]
            rows.append([text, *columns])
        # The positions are those of all rows.
        forward = lambda row: self._encode(row._replace(target_positions=None))  # noqa: E731
        attention = self_attention(self, batch, forward)
        return {"samples": Table(["text", "masked", "predicted"], rows), "attention": attention}

    def predict_step(self, batch: MaskedBatch, batch_idx: int) -> Tensor:
        """Return the ids (B, T) with the most probable token at each masked position."""
        _, output = self._encode(batch)
        predicted = batch.ids.flatten().clone()
        predicted[masked_positions(batch)] = token_scores(*output)[1]
        return predicted.view_as(batch.ids)


def masked_positions(batch: MaskedBatch) -> Tensor:
    """Return the indices (N,) of the masked tokens in the flattened batch of B * T tokens.

    Usually the DataModule has computed them on the CPU, since `nonzero` waits for a GPU.
    """
    if batch.target_positions is not None:
        return batch.target_positions
    return (batch.targets.flatten() != IGNORE_INDEX).nonzero().squeeze(1)
