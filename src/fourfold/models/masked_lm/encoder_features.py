"""Base classes of encoders with a task head, and the modules ScalarMix and BiLSTM.

The input of the head is made of the hidden states of one or more layers. The hidden states of
several layers are summed or concatenated, as in ELMo (Peters et al. 2018) and BERT (Devlin et al.
2018, section 5.3). A bidirectional LSTM may process the result before the head. Parameters
have the same names as in `MaskedLM` and `CausalLM`, so that the weights of a `MaskedLM` or
`CausalLM` can be loaded. Shapes: B batch, T tokens, D model width, I input width of an LSTM, H
units of an LSTM in each direction.
"""

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from fourfold.errors import InputError
from fourfold.models.masked_lm.model import MaskedLM, MaskedLMConfig


@dataclass(frozen=True)
class EncoderConfig(MaskedLMConfig):
    """Config of an encoder with a task head.

    The config also selects the hidden states that the task head gets. The inherited field `head`,
    which builds the vocabulary head of a masked LM, is False.

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

    def __post_init__(self) -> None:
        super().__post_init__()
        # A list in a file becomes a tuple here; a frozen dataclass allows no plain assignment.
        object.__setattr__(self, "feature_layers", tuple(self.feature_layers))
        layers = self.feature_layers
        if not layers or not all(-1 <= layer <= self.n_layers for layer in layers):
            raise InputError(
                f"must be numbers from 0 to n_layers ({self.n_layers}), or -1 for the last layer,"
                f" got {list(layers)}",
                option="feature_layers",
            )


class EncoderWithHead(MaskedLM):
    """Base class of encoders with the head of a downstream task.

    A subclass builds a head for inputs of width `self.width` and implements `logits`.

    Attributes:
        width: Width of the input of the head.
    """

    config: EncoderConfig

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__(config)
        self.causal = config.causal
        n_layers = len(config.feature_layers)
        is_sum = config.feature_mix == "sum"
        self.layer_sum = ScalarMix(n_layers) if is_sum and n_layers > 1 else None
        width = config.d_model if is_sum else config.d_model * n_layers
        units = config.lstm_width
        self.lstm = BiLSTM(width, units, config.lstm_layers) if units else None
        self.width = 2 * units or width

    def forward(
        self,
        ids: Tensor,
        segments: Tensor | None = None,
        mask: Tensor | None = None,
        documents: Tensor | None = None,
    ) -> Tensor:
        """Compute the logits of the task head, whose shape depends on the subclass."""
        return self.logits(self.hidden(ids, segments, mask, documents), mask)

    def hidden(
        self,
        ids: Tensor,
        segments: Tensor | None = None,
        mask: Tensor | None = None,
        documents: Tensor | None = None,
    ) -> Tensor:
        """Compute the input of the task head.

        Returns:
            Tensor (B, T, `self.width`): the hidden states of the layers in `feature_layers`, summed
            or concatenated. With a BiLSTM, the output of the BiLSTM for these states.
        """
        states: list[Tensor] = []
        with ExitStack() as hooks:
            if self.config.feature_layers != (-1,):
                for module in (self.embed, *self.stack.blocks):
                    hook = module.register_forward_hook(lambda module, args, y: states.append(y))
                    hooks.enter_context(hook)
            h = self.encode(ids, segments, mask, documents)
        if states:
            states[-1] = h  # the output of the last block after the final norm
            chosen = [states[layer] for layer in self.config.feature_layers]
            h = torch.cat(chosen, -1) if self.layer_sum is None else self.layer_sum(chosen)
        return h if self.lstm is None else self.lstm(h, mask)

    def logits(self, h: Tensor, mask: Tensor | None = None) -> Tensor:
        """Map hidden states to logits, whose shape depends on the subclass."""
        raise NotImplementedError


class ScalarMix(nn.Module):
    """Weighted sum of the hidden states h_i of several layers: s * sum_i softmax(w)_i * h_i.

    The scale s and the weights w are learned (Peters et al. 2018, eq. 1).

    Args:
        n_layers: Number of layers.
    """

    def __init__(self, n_layers: int) -> None:
        super().__init__()
        self.weights = nn.Parameter(torch.zeros(n_layers))
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, states: Sequence[Tensor]) -> Tensor:
        """Compute the weighted sum of the hidden states of several layers.

        Args:
            states: Hidden states (B, T, D) of each of the `n_layers` layers.

        Returns:
            Weighted sum (B, T, D).
        """
        shares = self.weights.softmax(0) * self.scale
        return torch.stack(list(states), -1) @ shares.to(states[0].dtype)


class BiLSTM(nn.Module):
    """Bidirectional LSTM that skips padding, initialised by torch: U(-1/sqrt(H), 1/sqrt(H)).

    Args:
        d_in: Input width I.
        width: Number of units H in each direction.
        n_layers: Number of layers. The input of a layer is the output of both directions of the
            layer before it.
    """

    def __init__(self, d_in: int, width: int, n_layers: int) -> None:
        super().__init__()
        self.lstm = nn.LSTM(d_in, width, n_layers, batch_first=True, bidirectional=True)

    def forward(self, h: Tensor, mask: Tensor | None) -> Tensor:
        """Run the LSTM over hidden states.

        Returns:
            Output of the last layer (B, T, 2 H), 0 at padding.
        """
        if mask is None:
            return self.lstm(h)[0]
        assert not (mask[:, 1:] & ~mask[:, :-1]).any(), "padding on the left"
        packed = pack_padded_sequence(h, mask.sum(1).cpu(), batch_first=True, enforce_sorted=False)
        return pad_packed_sequence(self.lstm(packed)[0], True, total_length=h.shape[1])[0]
