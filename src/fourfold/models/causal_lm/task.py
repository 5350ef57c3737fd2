"""Causal language modelling task (GPT, GPT-2).

Shapes: B sequences, T tokens, D width of the model.
"""

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from fourfold.data.loading.batches import CausalBatch
from fourfold.loggers.media import Media, Table
from fourfold.loggers.samples import self_attention
from fourfold.losses import IGNORE_INDEX, linear_cross_entropy, sum_dtype, token_scores
from fourfold.metrics import Perplexity
from fourfold.metrics.base import BatchSums
from fourfold.models import CausalLM, CausalLMConfig
from fourfold.optim import OptimizerConfig
from fourfold.schedules import ScheduleConfig
from fourfold.training.task import Task

MAX_PROMPT_TOKENS = 32  # of a logged sample


@dataclass(eq=False, repr=False)
class CausalLanguageModeling(Task[CausalLM, CausalBatch]):
    """Causal language modelling, evaluated by perplexity per token, word and byte.

    Source: Radford et al. 2018, section 3.1.

    Args:
        optimizer: Options of the optimizer; the default is nanoGPT's AdamW.
        schedule: Options of the schedule; the default is linear warm-up, then cosine decay to a
            tenth of the learning rate.
        z_loss: Factor of the z-loss in training, see `linear_cross_entropy`. train/loss includes
            the z-loss; the metrics of evaluation do not.

    Example:
        >>> import torch
        >>> config = CausalLMConfig(d_model=16, n_layers=1, n_heads=2, vocab_size=10)
        >>> task = CausalLanguageModeling(config)
        >>> task.configure_model()
        >>> ids = torch.tensor([[1, 5, 7, 2]])
        >>> loss, n_targets = task.step(CausalBatch(ids[:, :-1], ids[:, 1:]))
        >>> loss.shape, int(n_targets)
        (torch.Size([]), 3)
    """

    model_class = CausalLM
    batch_class = CausalBatch

    config: CausalLMConfig = CausalLMConfig()
    optimizer: OptimizerConfig = OptimizerConfig(lr=6e-4, betas=(0.9, 0.95), weight_decay=0.1)
    schedule: ScheduleConfig = ScheduleConfig(name="cosine", warmup_steps=2000, min_lr=6e-5)
    z_loss: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        self.ppl = Perplexity()
        self.exact = BatchSums()
        self.masked_ppl = Perplexity()  # of the masked rows of the objective hybrid

    def _output(self, batch: CausalBatch) -> tuple[Tensor, Tensor, Tensor | None, Tensor]:
        """Return hidden states (B * T, D), output matrix, bias or None, and targets (B * T,)."""
        given: Any = {} if batch.prefix is None else {"prefix": batch.prefix}
        h = self.model.hidden(batch.ids, documents=batch.documents, **given)
        return *self.model.head.output(h.flatten(0, 1)), batch.targets.flatten()

    def step(self, batch: CausalBatch) -> tuple[Tensor, Tensor]:
        """Return the weighted sum of the losses of all targets, and the sum of the weights."""
        output = self._output(batch)
        weights = _target_weights(batch)
        terms: Any = {"z_loss": self.z_loss, "logit_cap": self.model.head.logit_cap}
        loss = linear_cross_entropy(*output, weights=weights, normalizer=1.0, **terms)
        count = output[-1] != IGNORE_INDEX
        if weights is None:
            return loss, count.sum()
        return loss, (count * weights).sum(dtype=sum_dtype(loss.device))

    def update_metrics(self, batch: CausalBatch, split: str) -> None:
        output = self._output(batch)
        nll, best = token_scores(*output, logit_cap=self.model.head.logit_cap)
        if (weights := _target_weights(batch)) is not None:
            assert batch.prefix is not None
            is_masked = batch.prefix.any(1, keepdim=True)  # (B, 1)
            for metric, own in ((self.ppl, ~is_masked), (self.masked_ppl, is_masked)):
                targets = batch.targets.masked_fill(~own, IGNORE_INDEX).flatten()
                metric.update(nll.masked_fill(targets == IGNORE_INDEX, 0.0), best, targets)
            weights = weights.masked_fill(output[-1] == IGNORE_INDEX, 0.0)
            weights = weights.to(sum_dtype(nll.device))
            self.eval_loss.update((nll * weights).sum(), weights.sum())
            return
        self.ppl.update(nll, best, output[-1], batch.n_words, batch.n_bytes)
        if getattr(self.datamodule, "has_answers", False):
            correct = (best == output[-1]) | (output[-1] == IGNORE_INDEX)
            self.exact.update(correct.view_as(batch.targets).all(dim=1).sum(), len(batch.targets))

    def compute_metrics(self, split: str) -> dict[str, Any]:
        """Return the metrics loss, accuracy, ppl_token, ppl_word and ppl_byte by name.

        With the objective hybrid, they are loss (weighted as in training), and loss, accuracy and
        ppl_token of each type of rows, such as causal_loss and masked_loss.

        If the data does not count words or bytes, ppl_word or ppl_byte is missing. For
        `SyntheticSequenceData`, there is also exact_match, the share of sequences in which every
        target is the most likely token. Greedy search generates the targets of these sequences.
        """
        if getattr(self.datamodule, "has_masked_rows", False):
            types = {"causal": self.ppl.compute(), "masked": self.masked_ppl.compute()}
            found = {name: own for name, own in types.items() if "ppl_token" in own}
            parts = {f"{name}_{k}": x for name, own in found.items() for k, x in own.items()}
            return {"loss": self.eval_loss.compute()} | parts
        exact = self.exact.compute() if getattr(self.datamodule, "has_answers", False) else []
        return self.ppl.compute() | ({"exact_match": exact[0] / exact[1]} if exact else {})

    def sample_outputs(self, batch: CausalBatch, split: str) -> dict[str, Media]:
        """Build "samples", a table of continuations, and "attention", maps of the shortest example.

        The prompt of an example is its first half, but at most MAX_PROMPT_TOKENS tokens. True and
        generated continuation have as many tokens as the prompt.
        """
        from fourfold.generation import generate

        half = max(1, min(batch.ids.shape[1] // 2, MAX_PROMPT_TOKENS))
        prompt = batch.ids[:, :half]
        rest = batch.ids[:, half : 2 * half]
        # With a seed, the random numbers do not come from torch's generator. The training therefore
        # does not depend on these samples.
        options: Any = {"temperature": 0.8, "top_p": 0.95, "seed": 0, "num_return_sequences": 1}
        ids = generate(self.model, prompt, max_new_tokens=half, **options)
        texts = [self.tokenizer.decode_batch(x.tolist()) for x in (prompt, rest, ids[:, half:])]
        rows = [list(row) for row in zip(*texts, strict=True)]

        attention = self_attention(self, batch, self._output)
        table = Table(["prompt", "continuation", "generated"], rows)
        return {"samples": table, "attention": attention}

    def predict_step(self, batch: CausalBatch, batch_idx: int) -> Tensor:
        """Compute the negative log-likelihood (B, T) of each target in nats, 0 without a target."""
        scores = token_scores(*self._output(batch), logit_cap=self.model.head.logit_cap)
        return scores[0].view_as(batch.targets)


def _target_weights(batch: CausalBatch) -> Tensor | None:
    """Return the factor (B * T,) on the loss of each target, or None if all are 1."""
    if batch.weights is None:
        return None
    return batch.weights[:, None].expand_as(batch.targets).flatten()
