"""Masked language modelling, with BERT's next-sentence task if the model has its head."""

from typing import Any

import torch.nn.functional as F
from torch import Tensor

from fourfold.callbacks.media import Media, Table
from fourfold.data.batch import MaskedBatch
from fourfold.losses import IGNORED, exact, linear_cross_entropy, token_scores
from fourfold.metrics import Perplexity
from fourfold.models import MaskedLM, MaskedLMConfig
from fourfold.optim import OptimizerConfig
from fourfold.schedules import ScheduleConfig
from fourfold.tasks.base import Task
from fourfold.tasks.showing import self_attention
from fourfold.tasks.window import count_of


class MaskedLanguageModeling(Task):
    """Learns to fill in hidden tokens; is tested by their perplexity and accuracy.

    Vocabulary logits are only ever made at masked places.

    Args:
        config: The model.
        optimizer: Default: BERT's (appendix A.2).
        schedule: Default: BERT's: 10,000 steps of warm-up, then linear to 0.
        start: `init_from` and `tuning` of `Task`.
    """

    model_class = MaskedLM
    batch_class = MaskedBatch
    config_class = MaskedLMConfig

    def __init__(
        self,
        config: MaskedLMConfig = MaskedLMConfig(),  # noqa: B008  (frozen)
        optimizer: OptimizerConfig = OptimizerConfig(lr=1e-4, eps=1e-6),  # noqa: B008
        schedule: ScheduleConfig = ScheduleConfig(name="linear", warmup_steps=10000),  # noqa: B008
        **start: Any,
    ) -> None:
        super().__init__(config, optimizer, schedule, **start)
        self.ppl, self.next_ppl = Perplexity(), Perplexity()

    def size(self, batch: MaskedBatch) -> int:
        """Places in the batch, padding included."""
        return batch.ids.numel()

    def _encode(self, batch: MaskedBatch) -> tuple[Tensor, tuple[Tensor, Tensor, Tensor | None]]:
        """Hidden states (B, T, D), and the vocabulary head's parts at the masked places alone."""
        h = self.model.encode(batch.ids, batch.segments, batch.mask, batch.documents)
        return h, self.model.head.output(h.flatten(0, 1)[_places(batch)])

    def step(self, batch: MaskedBatch) -> tuple[Tensor, Tensor]:
        """Cross-entropy at masked places, plus the next-sentence loss when pairs are given.

        BERT adds two means. Here a pair counts as often as it has masked tokens, so that one count
        normalises both, and a row weighs the same in whatever micro-batch it is; where all rows
        have as many masked tokens it is BERT's sum.
        """
        h, output = self._encode(batch)
        targets = batch.targets.flatten()[_places(batch)]
        loss = linear_cross_entropy(*output, targets, normalizer=1.0)
        if batch.is_next is not None and self.model.next_sentence is not None:
            logits = exact(self.model.next_sentence_logits(h))
            weights = (batch.targets != IGNORED).sum(1).to(logits.dtype)  # (B,)
            loss = loss + F.cross_entropy(logits, batch.is_next, reduction="none") @ weights
        return loss, count_of(len(targets), h)

    def evaluate(self, batch: MaskedBatch, split: str) -> None:
        """Likelihood and accuracy at masked places, and of the next sentence."""
        h, output = self._encode(batch)
        targets = batch.targets.flatten()[_places(batch)]
        if len(targets):
            nll, prediction = token_scores(*output, targets)
            correct = (prediction == targets).sum()
            self.ppl.update(nll.double().sum(), len(targets), 0, 0, correct)
        if batch.is_next is not None and self.model.next_sentence is not None:
            logits = self.model.next_sentence_logits(h).float()
            nll = F.cross_entropy(logits, batch.is_next, reduction="sum")
            correct = (logits.argmax(-1) == batch.is_next).sum()
            self.next_ppl.update(nll, len(logits), 0, 0, correct)

    def results(self, split: str) -> dict[str, Any]:
        """loss, accuracy and ppl_token of masked tokens; next_sentence_accuracy where trained."""
        results: dict[str, Any] = self.ppl.compute()
        if self.model.next_sentence is not None:  # asked of the model, which all ranks have alike
            following = self.next_ppl.compute()
            if "ppl_token" in following:  # there were pairs
                results["next_sentence_accuracy"] = following["accuracy"]
        self.ppl.reset()
        self.next_ppl.reset()
        return results

    def show(self, batch: MaskedBatch, split: str) -> dict[str, Media]:
        """The first rows with their hidden places, what is hidden there and what is filled in."""
        places, filled = batch.targets != IGNORED, self.predict_step(batch, 0)
        words = self.tokenizer
        # Some hidden tokens are left as they are, or are another one: here all look the same.
        read = batch.ids.masked_fill(
            places, words.unk_id if words.mask_id is None else words.mask_id
        )
        rows = []
        for i, here in enumerate(places):
            real = read[i] if batch.mask is None else read[i, batch.mask[i]]
            text = words.core.decode(real.tolist(), skip_special_tokens=False)
            pairs = [[words.decode([k]) for k in ids[i, here].tolist()]
                     for ids in (batch.targets, filled)]  # fmt: skip
            rows.append([text, *(" ".join(pair) for pair in pairs)])
        attention = self_attention(
            self.model, words, batch,
            lambda row: self.model.encode(row.ids, row.segments, row.mask, row.documents),
        )  # fmt: skip
        return {"samples": Table(["text", "hidden", "filled"], rows), "attention": attention}

    def predict_step(self, batch: MaskedBatch, batch_idx: int) -> Tensor:
        """`ids` (B, T) with the most likely token at each masked place."""
        _, output = self._encode(batch)
        places, filled = _places(batch), batch.ids.flatten().clone()
        filled[places] = token_scores(*output, batch.targets.flatten()[places])[1]
        return filled.view_as(batch.ids)


def _places(batch: MaskedBatch) -> Tensor:
    """(N,) where targets are among the B T places; asked of a device, it would have to wait."""
    if batch.places is not None:
        return batch.places
    return (batch.targets.flatten() != IGNORED).nonzero().squeeze(1)
