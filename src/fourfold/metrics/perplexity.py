"""Metric of language models: loss, accuracy, and perplexity per token, per word and per byte."""

import math

from torch import Tensor

from fourfold.losses import IGNORE_INDEX
from fourfold.metrics.base import BatchSums


class Perplexity(BatchSums):
    """Loss, accuracy, and perplexity per token, per word and per byte.

    A perplexity is exp(nll / n). Here nll is the total negative log-likelihood in nats, and n is
    the number of tokens, words or bytes. Perplexities per token are comparable only between models
    with the same tokenizer. Perplexities per word and per byte of the raw text are comparable
    between all models.

    Example:
        >>> import torch
        >>> metric = Perplexity()
        >>> nll = torch.full((2,), math.log(8.0))
        >>> metric.update(nll, torch.tensor([5, 3]), torch.tensor([5, 7]), n_words=1, n_bytes=6)
        >>> {name: round(value, 3) for name, value in metric.compute().items()}
        {'loss': 2.079, 'accuracy': 0.5, 'ppl_token': 8.0, 'ppl_word': 64.0, 'ppl_byte': 2.0}
    """

    def update(  # type: ignore[override]
        self, nll: Tensor, predictions: Tensor, targets: Tensor, n_words: int = 0, n_bytes: int = 0
    ) -> None:
        """Add the tokens of a batch.

        Args:
            nll: Negative log-likelihood of each target in nats, (N,); 0 where there is no target.
            predictions: Most likely tokens (N,).
            targets: Target tokens (N,); `IGNORE_INDEX` where there is no target.
            n_words: Number of words in the text of the targets; 0 if unknown.
            n_bytes: Number of UTF-8 bytes in the text of the targets; 0 if unknown.
        """
        # No prediction is `IGNORE_INDEX`, which is negative.
        correct = (predictions == targets).sum()
        n_tokens = (targets != IGNORE_INDEX).sum()
        super().update(nll.double().sum(), n_tokens, n_words, n_bytes, correct)

    def compute(self) -> dict[str, float]:  # type: ignore[override]
        """Return the scores by name: loss, accuracy, ppl_token, ppl_word and ppl_byte.

        The loss is the mean negative log-likelihood per target. The accuracy is the share of
        targets that are the most likely token. A perplexity is left out if the number of tokens,
        words or bytes by which it divides is 0.
        """
        nll, n_tokens, n_words, n_bytes, n_correct = super().compute() or [0.0] * 5
        result = {"loss": nll / max(1.0, n_tokens), "accuracy": n_correct / max(1.0, n_tokens)}
        for name, count in {"token": n_tokens, "word": n_words, "byte": n_bytes}.items():
            if count:
                exponent = nll / count
                # exp would raise an OverflowError, which would stop the training.
                result[f"ppl_{name}"] = math.exp(exponent) if exponent < 700 else math.inf
        return result
