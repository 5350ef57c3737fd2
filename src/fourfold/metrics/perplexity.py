"""Perplexity per token, per word and per byte, with loss and accuracy."""

import math

from torch import Tensor

from fourfold.metrics.base import BatchSums


class Perplexity(BatchSums):
    """Perplexity exp(total nll / number of units) per token, per word and per byte.

    The negative log-likelihood (nll) is measured in nats. Perplexities per token are comparable
    only between models with the same tokenizer. Perplexities per word and per byte of the raw text
    are comparable between all models.

    Example:
        >>> import torch
        >>> metric = Perplexity()
        >>> metric.update(torch.tensor(2 * math.log(8.0)), 2, 1, 6, torch.tensor(1))
        >>> {name: round(value, 3) for name, value in metric.compute().items()}
        {'loss': 2.079, 'accuracy': 0.5, 'ppl_token': 8.0, 'ppl_word': 64.0, 'ppl_byte': 2.0}
    """

    def update(  # type: ignore[override]
        self, nll: Tensor, n_tokens: Tensor | int, n_words: int, n_bytes: int, n_correct: Tensor
    ) -> None:
        """Add the summed nll of a text in nats, and the size of the text.

        Args:
            nll: Negative log-likelihood in nats, summed over the tokens.
            n_tokens: Number of target tokens.
            n_words: Number of words in the text of the targets.
            n_bytes: Number of UTF-8 bytes in that text.
            n_correct: Number of tokens whose prediction is right.
        """
        super().update(nll, n_tokens, n_words, n_bytes, n_correct)

    def compute(self) -> dict[str, float]:  # type: ignore[override]
        """Return loss, accuracy, and ppl_token, ppl_word and ppl_byte if the unit was counted."""
        nll, n_tokens, n_words, n_bytes, n_correct = super().compute() or [0.0] * 5
        result = {"loss": nll / max(1.0, n_tokens), "accuracy": n_correct / max(1.0, n_tokens)}
        for name, count in {"token": n_tokens, "word": n_words, "byte": n_bytes}.items():
            if count:
                exponent = nll / count
                # exp would raise an OverflowError, which would stop the training.
                result[f"ppl_{name}"] = math.exp(exponent) if exponent < 700 else math.inf
        return result
