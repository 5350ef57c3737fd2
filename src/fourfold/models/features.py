"""What a head reads of an encoder: the states of some of its layers, and a BiLSTM on top of them.

The feature-based use of BERT (Devlin et al. 2018, section 5.3). Shapes: B batch, T tokens, D model
width, I input width, H units of an LSTM in each direction.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence


def layer_states(embed: nn.Module, stack: nn.Module, run: Callable[[], Tensor]) -> list[Tensor]:
    """The states (B, T, D) of all layers, the embeddings first.

    The last ones are what `run` gives: the stack's, after its last norm if it has one.

    Args:
        embed: What enters the stack.
        stack: A `Stack`.
        run: Runs both once.
    """
    states: list[Tensor] = []
    watched = [embed, *stack.blocks]  # type: ignore[misc]
    hooks = [
        module.register_forward_hook(lambda module, args, y: states.append(y)) for module in watched
    ]
    try:
        last = run()
    finally:
        for hook in hooks:
            hook.remove()
    return [*states[:-1], last]


class LayerSum(nn.Module):
    """s times the sum of softmax(w)_i h_i, all learned (Peters et al. 2018, "ELMo", eq. 1).

    Args:
        n: Number of layers.
    """

    def __init__(self, n: int) -> None:
        super().__init__()
        self.weights = nn.Parameter(torch.zeros(n))
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, states: Sequence[Tensor]) -> Tensor:
        """(B, T, D) each, to (B, T, D)."""
        shares = self.weights.softmax(0) * self.scale
        return torch.stack(list(states), -1) @ shares.to(states[0].dtype)


class BiLSTM(nn.Module):
    """An LSTM from each side; its first weights are torch's own, uniform within 1 / sqrt(H).

    Args:
        d_in: I.
        width: H.
        n_layers: Each reads both directions of the one below.
    """

    def __init__(self, d_in: int, width: int, n_layers: int) -> None:
        super().__init__()
        self.lstm = nn.LSTM(d_in, width, n_layers, batch_first=True, bidirectional=True)

    def forward(self, h: Tensor, mask: Tensor | None) -> Tensor:
        """(B, T, I), of which `mask` (B, T) are real, to (B, T, 2 H): 0 at padding.

        Padding stands on the right, where all data of this package put it.
        """
        if mask is None:
            return self.lstm(h)[0]
        assert not (mask[:, 1:] & ~mask[:, :-1]).any(), "padding on the left"
        packed = pack_padded_sequence(h, mask.sum(1).cpu(), batch_first=True, enforce_sorted=False)
        return pad_packed_sequence(self.lstm(packed)[0], True, total_length=h.shape[1])[0]
