"""Recurrent modules of torch on padded batches.

Shapes: B rows, T tokens, D width of the input, R directions, H width of the state.
"""

from typing import Any

from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence


def run_padded(
    rnn: nn.RNNBase, x: Tensor, lengths: Tensor | None, state: Any = None
) -> tuple[Tensor, Any]:
    """Run a module of torch with `batch_first` over the real tokens of x (B, T, D).

    The outputs (B, T, R H) are 0 at the padding on the right, and the state is that after the last
    of the `lengths` (B,) real tokens of each row. None means that all tokens are real.
    """
    if lengths is None:
        y, final = rnn(x, state)
        return y, final
    packed = pack_padded_sequence(x, lengths.cpu(), batch_first=True, enforce_sorted=False)
    y, final = rnn(packed, state)
    return pad_packed_sequence(y, batch_first=True, total_length=x.shape[1])[0], final
