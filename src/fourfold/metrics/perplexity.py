"""Metric of language models: loss, accuracy, and perplexity per token, per word and per byte."""

import math

from torch import Tensor

from fourfold.losses import IGNORE_INDEX, sum_dtype
from fourfold.metrics.base import BatchSums


class Perplexity(BatchSums):
    """Loss, accuracy, and perplexity per token, per word and per byte.

    A perplexity is exp(nll / n). Here nll is the total negative log-likelihood in nats, and n is
    the number of tokens, words or bytes. Perplexities per token are comparable only between models
    with the same tokenizer. Perplexities per word and per byte of the raw text are comparable
    between all models.
    """

    def update(  # type: ignore[override]
        self, nll: Tensor, predictions: Tensor, targets: Tensor, n_words: int = 0, n_bytes: int = 0
    ) -> None:
        """Add N tokens of a batch; without a target, nll is 0 and the target `IGNORE_INDEX`."""
        # No prediction is `IGNORE_INDEX`, which is negative.
        correct = (predictions == targets).sum()
        n_tokens = (targets != IGNORE_INDEX).sum()
        super().update(nll.sum(dtype=sum_dtype(nll.device)), n_tokens, n_words, n_bytes, correct)

    def compute(self) -> dict[str, float]:  # type: ignore[override]
        """Return loss, accuracy, ppl_token, ppl_word and ppl_byte by name, if their n is not 0."""
        nll, n_tokens, n_words, n_bytes, n_correct = super().compute() or [0.0] * 5
        result = {"loss": nll / max(1.0, n_tokens), "accuracy": n_correct / max(1.0, n_tokens)}
        for name, count in {"token": n_tokens, "word": n_words, "byte": n_bytes}.items():
            if count:
                exponent = nll / count
                # exp would raise an OverflowError, which would stop the training.
                result[f"ppl_{name}"] = math.exp(exponent) if exponent < 700 else math.inf
        return result
