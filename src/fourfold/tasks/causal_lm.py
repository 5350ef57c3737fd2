"""Causal language modelling (GPT, GPT-2)."""

from typing import Any

from torch import Tensor

from fourfold.callbacks.media import Media, Table
from fourfold.data.batch import CausalBatch
from fourfold.generation import generate
from fourfold.losses import IGNORED, linear_cross_entropy, token_scores
from fourfold.metrics import Perplexity
from fourfold.models import CausalLM, CausalLMConfig
from fourfold.optim import OptimizerConfig
from fourfold.schedules import ScheduleConfig
from fourfold.tasks.base import Task
from fourfold.tasks.showing import self_attention


class CausalLanguageModeling(Task):
    """Learns to predict the next token; is tested by perplexity per token, word and byte.

    Args:
        config: The model.
        optimizer: Default: nanoGPT's AdamW.
        schedule: Default: linear warm-up, then cosine to a tenth.
        start: `init_from` and `tuning` of `Task`.
    """

    model_class = CausalLM
    batch_class = CausalBatch
    config_class = CausalLMConfig

    def __init__(
        self,
        config: CausalLMConfig = CausalLMConfig(),  # noqa: B008  (frozen)
        optimizer: OptimizerConfig = OptimizerConfig(  # noqa: B008
            lr=6e-4, betas=(0.9, 0.95), weight_decay=0.1
        ),
        schedule: ScheduleConfig = ScheduleConfig(  # noqa: B008
            name="cosine", warmup_steps=2000, min_lr=6e-5
        ),
        **start: Any,
    ) -> None:
        super().__init__(config, optimizer, schedule, **start)
        self.ppl = Perplexity()

    def size(self, batch: CausalBatch) -> int:
        """Tokens in the batch."""
        return batch.ids.numel()

    def _output(self, batch: CausalBatch) -> tuple[Tensor, Tensor, Tensor | None, Tensor]:
        h = self.model.hidden(batch.ids, documents=batch.documents)
        return *self.model.head.output(h.flatten(0, 1)), batch.targets.flatten()

    def step(self, batch: CausalBatch) -> tuple[Tensor, Tensor]:
        """Cross-entropy of each next token."""
        h, weight, bias, targets = self._output(batch)
        loss = linear_cross_entropy(h, weight, bias, targets, normalizer=1.0)
        return loss, (targets != IGNORED).sum()

    def evaluate(self, batch: CausalBatch, split: str) -> None:
        """Likelihood of all targets, and how much raw text they are."""
        h, weight, bias, targets = self._output(batch)
        nll, prediction = token_scores(h, weight, bias, targets)
        valid = targets != IGNORED
        correct = ((prediction == targets) & valid).sum()
        self.ppl.update(nll.double().sum(), valid.sum(), batch.n_words, batch.n_bytes, correct)

    def results(self, split: str) -> dict[str, Any]:
        """loss, accuracy, ppl_token, ppl_word, ppl_byte."""
        results = self.ppl.compute()
        self.ppl.reset()
        return results

    def show(self, batch: CausalBatch, split: str) -> dict[str, Media]:
        """The beginning of the first rows, how the model goes on and how the text does."""
        half = max(1, min(batch.ids.shape[1] // 2, 32))
        prompt, rest = batch.ids[:, :half], batch.ids[:, half : 2 * half]
        # Drawn with numbers that are made from the prompt, not taken out of torch's generator.
        ids = generate(self.model, prompt, max_new=half, temperature=0.8, top_p=0.95, seed=0)
        texts = [self.tokenizer.decode_batch(x.tolist()) for x in (prompt, rest, ids[:, half:])]
        rows = [list(row) for row in zip(*texts, strict=True)]
        attention = self_attention(
            self.model, self.tokenizer, batch,
            lambda row: self.model.hidden(row.ids, documents=row.documents),
        )  # fmt: skip
        return {"samples": Table(["text", "goes on", "generated"], rows), "attention": attention}

    def predict_step(self, batch: CausalBatch, batch_idx: int) -> Tensor:
        """Each target's negative log-likelihood in nats, (B, T); 0 where there is none."""
        nll, _ = token_scores(*self._output(batch))
        return nll.view_as(batch.targets)
