"""An encoder of which a head reads: all that the heads of downstream tasks have in common.

The names of what it shares with `MaskedLM` and `CausalLM` are the same, so that weights of one fit
the other. Shapes: B batch, T tokens, D model width.
"""

from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from fourfold.core.config import check_positive, check_word
from fourfold.core.errors import InputError
from fourfold.models.features import BiLSTM, LayerSum, layer_states
from fourfold.models.masked_lm import MaskedLM, MaskedLMConfig


@dataclass(frozen=True)
class ReaderConfig(MaskedLMConfig):
    """An encoder without a vocabulary, and what a head reads of it.

    Args:
        causal: Whether a token sees those before it alone, as in a causal LM that this begins with.
        layers: Whose states are read: 0 are the embeddings, 1 is the first layer, -1 the last.
        mix: Of several layers: sum (with learned weights) or concat (side by side).
        lstm: Units in each direction of a BiLSTM between the encoder and the head; 0 for none.
        lstm_layers: Of the BiLSTM.
    """

    head: bool = False
    causal: bool = False
    layers: tuple[int, ...] = (-1,)
    mix: str = "sum"
    lstm: int = 0
    lstm_layers: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        check_word("mix", self.mix, ("sum", "concat"))
        check_positive("lstm_layers", self.lstm_layers)
        object.__setattr__(self, "layers", tuple(self.layers))  # a list, out of a file
        if not self.layers or not all(-1 <= i <= self.n_layers for i in self.layers):
            raise InputError(
                f"layers is {self.layers}, but must be numbers from 0 to n_layers"
                f" ({self.n_layers}), or -1 for the last"
            )
        if self.lstm < 0:
            raise InputError(f"lstm is {self.lstm}, but must not be negative")


class Reader(MaskedLM):
    """An encoder without a vocabulary, whose states a head reads.

    A head is as wide as `self.width`, and is built by the subclass.
    """

    config: ReaderConfig

    def __init__(self, config: ReaderConfig) -> None:
        super().__init__(config)
        self.causal = config.causal
        n, beside = len(config.layers), config.mix == "concat"
        self.layer_sum = None if beside or n == 1 else LayerSum(n)
        width = config.d_model * (n if beside else 1)
        self.lstm = BiLSTM(width, config.lstm, config.lstm_layers) if config.lstm else None
        self.width = 2 * config.lstm or width

    def forward(
        self,
        ids: Tensor,
        segments: Tensor | None = None,
        mask: Tensor | None = None,
        documents: Tensor | None = None,
    ) -> Tensor:
        """What the head reads; arguments as `MaskedLM.encode`."""
        h = self.features(ids, segments, mask, documents)
        return self.read(h if self.lstm is None else self.lstm(h, mask), mask)

    def features(
        self,
        ids: Tensor,
        segments: Tensor | None = None,
        mask: Tensor | None = None,
        documents: Tensor | None = None,
    ) -> Tensor:
        """States of the chosen layers, (B, T, D) or side by side; arguments as `encode`."""
        if self.config.layers == (-1,):
            return self.encode(ids, segments, mask, documents)
        run = partial(self.encode, ids, segments, mask, documents)
        states = layer_states(self.embed, self.stack, run)
        chosen = [states[layer] for layer in self.config.layers]
        return torch.cat(chosen, -1) if self.layer_sum is None else self.layer_sum(chosen)

    def read(self, h: Tensor, mask: Tensor | None) -> Tensor:
        """Hidden states (B, T, D), of which `mask` (B, T) are real, to logits."""
        raise NotImplementedError
