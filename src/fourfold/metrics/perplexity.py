"""Perplexity, per what."""

import math

from torch import Tensor

from fourfold.metrics.sums import Sums


class Perplexity(Sums):
    """exp(total nll / number of units) per token, per word and per byte of the same text.

    Per what matters: one model has a different perplexity for each tokenizer, but only one per
    byte (field: "GPT-2 perplexities do not match"). Words and bytes are those of the raw text.
    """

    def update(  # type: ignore[override]
        self, nll: Tensor, n_tokens: Tensor | int, n_words: int, n_bytes: int, n_correct: Tensor
    ) -> None:
        """Add the summed nll in nats of some text, and how much text it was."""
        super().update(nll, n_tokens, n_words, n_bytes, n_correct)

    def compute(self) -> dict[str, float]:  # type: ignore[override]
        """loss, accuracy, and ppl_token, ppl_word and ppl_byte where such were counted."""
        nll, n_tokens, n_words, n_bytes, n_correct = super().compute() or [0.0] * 5
        result = {"loss": nll / max(1.0, n_tokens), "accuracy": n_correct / max(1.0, n_tokens)}
        for name, count in {"token": n_tokens, "word": n_words, "byte": n_bytes}.items():
            if count:
                # A model this bad overflows a float; infinity says so and stops nothing.
                exponent = nll / count
                result[f"ppl_{name}"] = math.exp(exponent) if exponent < 700 else math.inf
        return result
