"""Perplexity, per what."""

import math

import torch
from torch import Tensor
from torchmetrics import Metric


class Perplexity(Metric):
    """exp(total nll / number of units) per token, per word and per byte of the same text.

    Per what matters: one model has a different perplexity for each tokenizer, but only one per
    byte (field: "GPT-2 perplexities do not match"). Words and bytes are those of the raw text.
    """

    full_state_update = False
    nll: Tensor
    tokens: Tensor
    words: Tensor
    bytes: Tensor
    correct: Tensor

    def __init__(self) -> None:
        super().__init__()
        for name in ("nll", "tokens", "words", "bytes", "correct"):
            zero = torch.zeros((), dtype=torch.float64)
            self.add_state(name, default=zero, dist_reduce_fx="sum")

    def update(
        self, nll: Tensor, n_tokens: Tensor, n_words: int, n_bytes: int, n_correct: Tensor
    ) -> None:
        """Add the summed nll in nats of some text, and how much text it was."""
        self.nll += nll.double()
        self.tokens += n_tokens
        self.words += n_words
        self.bytes += n_bytes
        self.correct += n_correct

    def compute(self) -> dict[str, float]:
        """loss, accuracy, ppl_token and, where words and bytes were counted, those too."""
        nll, tokens = self.nll.item(), max(1.0, self.tokens.item())
        result = {"loss": nll / tokens, "accuracy": self.correct.item() / tokens}
        units = {"token": tokens, "word": self.words.item(), "byte": self.bytes.item()}
        for name, count in units.items():
            if count:
                # A model this bad overflows a float; infinity says so and stops nothing.
                exponent = nll / count
                result[f"ppl_{name}"] = math.exp(exponent) if exponent < 700 else math.inf
        return result
