"""Encoders with a task head, and their features: mixed layers and a BiLSTM.

The input of the head is the last hidden states, or those of other layers, summed or concatenated,
as in ELMo (Peters et al. 2018) and BERT (Devlin et al. 2018, section 5.3), and optionally the
output of a bidirectional LSTM on them. Parameters have the same names as in `MaskedLM`
and `CausalLM`, so that their weights can be loaded. Shapes: B batch, T tokens, D model width, H
units of an LSTM in each direction.
"""

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from fourfold.errors import InputError
from fourfold.layers.padded_rnn import run_padded
from fourfold.models.masked_lm.model import MaskedLM, MaskedLMConfig


@dataclass(frozen=True)
class FeatureConfig(MaskedLMConfig):
    """Config of an encoder with a task head, without the vocabulary head of a masked LM.

    Args:
        causal: Use a causal mask, for an encoder that starts from the weights of a causal LM.
        feature_layers: Indices of the layers whose hidden states the head gets. 0 is the embedding,
            1 the first layer, and -1 the last layer.
        feature_mix: Combination of the hidden states of several layers: sum (with learned weights)
            or concat (concatenation).
        lstm_width: Number of units in each direction of a BiLSTM between encoder and head; 0 for no
            BiLSTM.
        lstm_layers: Number of layers of the BiLSTM.
    """

    head: bool = False
    causal: bool = False
    feature_layers: tuple[int, ...] = (-1,)
    feature_mix: Literal["sum", "concat"] = "sum"
    lstm_width: int = 0
    lstm_layers: int = 1
    ranges: ClassVar = {"lstm_width": {"minimum": 0, "maximum": 2**20}}

    def __post_init__(self) -> None:
        super().__post_init__()
        # A list in a file becomes a tuple here; a frozen dataclass allows no plain assignment.
        object.__setattr__(self, "feature_layers", tuple(self.feature_layers))
        layers = self.feature_layers
        if not layers or not all(-1 <= layer <= self.n_layers for layer in layers):
            message = f"must be numbers from 0 to n_layers ({self.n_layers}), or -1 for the last"
            raise InputError(f"{message} layer, got {list(layers)}", option="feature_layers")


class EncoderWithFeatures(MaskedLM):
    """Base class of encoders with the head of a downstream task.

    A subclass builds a head for inputs of width `self.width` and implements `logits`.

    Attributes:
        width: Width of the input of the head.
    """

    config: FeatureConfig

    def __init__(self, config: FeatureConfig) -> None:
        super().__init__(config)
        self.causal = config.causal
        n_layers = len(config.feature_layers)
        is_sum = config.feature_mix == "sum"
        self.layer_sum = ScalarMix(n_layers) if is_sum and n_layers > 1 else None
        width = config.d_model if is_sum else config.d_model * n_layers
        units = config.lstm_width
        self.lstm = BiLSTM(width, units, config.lstm_layers) if units else None
        self.width = 2 * units or width

    def forward(self, ids: Tensor, *, mask: Tensor | None = None, **options: Any) -> Tensor:
        """Compute the logits of the task head, whose shape depends on the subclass."""
        return self.logits(self.hidden(ids, mask=mask, **options), mask)

    def logits(self, h: Tensor, mask: Tensor | None = None) -> Tensor:
        """Map the result (B, T, `self.width`) of `hidden` to logits of a shape of the subclass."""
        raise NotImplementedError

    def hidden(self, ids: Tensor, *, mask: Tensor | None = None, **options: Any) -> Tensor:
        """Compute the input (B, T, `self.width`) of the task head, with the options of `encode`."""
        states: list[Tensor] = []
        with ExitStack() as hooks:
            if self.config.feature_layers != (-1,):
                for module in (self.embed, *self.stack.blocks):
                    hook = module.register_forward_hook(lambda module, args, y: states.append(y))
                    hooks.enter_context(hook)
            h = self.encode(ids, mask=mask, **options)
        if states:
            states[-1] = h  # the output of the last block after the final norm
            chosen = [states[layer] for layer in self.config.feature_layers]
            h = torch.cat(chosen, -1) if self.layer_sum is None else self.layer_sum(chosen)
        return h if self.lstm is None else self.lstm(h, mask)


class ScalarMix(nn.Module):
    """Weighted sum of the hidden states h_i of several layers: s * sum_i softmax(w)_i * h_i.

    The scale s and the weights w are learned (Peters et al. 2018, eq. 1).
    """

    def __init__(self, n_layers: int) -> None:
        super().__init__()
        self.weights = nn.Parameter(torch.zeros(n_layers))
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, states: Sequence[Tensor]) -> Tensor:
        """Compute the weighted sum (B, T, D) of the hidden states (B, T, D) of each layer."""
        shares = self.weights.softmax(0) * self.scale
        return torch.stack(list(states), -1) @ shares.to(states[0].dtype)


class BiLSTM(nn.Module):
    """Bidirectional LSTM that skips padding, initialised by torch: U(-1/sqrt(H), 1/sqrt(H))."""

    def __init__(self, d_in: int, width: int, n_layers: int) -> None:
        super().__init__()
        self.lstm = nn.LSTM(d_in, width, n_layers, batch_first=True, bidirectional=True)

    def forward(self, h: Tensor, mask: Tensor | None) -> Tensor:
        """Map hidden states (B, T, ...) to outputs (B, T, 2 H), 0 at padding on the right."""
        left = None if mask is None else mask[:, 1:] & ~mask[:, :-1]
        assert left is None or not left.any(), "padding on the left"
        return run_padded(self.lstm, h, None if mask is None else mask.sum(1))[0]
