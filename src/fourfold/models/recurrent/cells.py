"""RecurrentStack: layers of RNN, GRU or LSTM cells, over padded batches or step by step; its cache.

The weights are those of `nn.RNN`, `nn.GRU` or `nn.LSTM`, under torch's names. Shapes: B batch, T
tokens, D input width, H units of a layer, G gates of a cell (1 for an RNN, 3 for a GRU, 4 for an
LSTM), L layers, R directions (1 or 2).
"""

from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from fourfold.errors import InputError
from fourfold.kernels.cpu_decoding import linear
from fourfold.kernels.dropout import Dropout

Cell = Literal["rnn", "gru", "lstm"]
Reset = Literal["after", "before"]
# Hidden states (L R, B, H) of all layers, and for an LSTM also the cells (L R, B, H).
State = tuple[Tensor, ...]


def rnn_step(products: Tensor, state: State, matrix: Tensor, bias: Tensor | None) -> State:
    """Compute the next state (B, H) of an RNN with tanh; arguments as for `gru_step`."""
    return ((products + linear(state[0], matrix, bias)).tanh(),)


def lstm_step(products: Tensor, state: State, matrix: Tensor, bias: Tensor | None) -> State:
    """Compute the next state and cell (B, H) of an LSTM; arguments as for `gru_step`."""
    h, c = state
    i, f, g, o = (products + linear(h, matrix, bias)).chunk(4, dim=1)
    c = f.sigmoid() * c + i.sigmoid() * g.tanh()
    return o.sigmoid() * c.tanh(), c


def gru_step(products: Tensor, state: State, matrix: Tensor, bias: Tensor | None) -> State:
    """Compute the next state (B, H) of torch's GRU, whose reset gate follows the matrix.

    Args:
        products: Products (B, G H) of the input with the input matrix, plus its bias.
        state: Tuple of the last state (B, H), and for an LSTM the last cell (B, H).
        matrix: Recurrent matrix (G H, H), in torch's order of the gates.
        bias: Bias (G H,) of the recurrent products, or None.
    """
    (h,) = state
    r, z, n = products.chunk(3, dim=1)
    h_r, h_z, h_n = linear(h, matrix, bias).chunk(3, dim=1)
    n = (n + (r + h_r).sigmoid() * h_n).tanh()
    return (n + (z + h_z).sigmoid() * (h - n),)


def gru_step_reset_before(
    products: Tensor, state: State, matrix: Tensor, candidate: Tensor | None
) -> State:
    """Compute the next state (B, H) of a GRU whose reset gate precedes the recurrent matrix.

    Args:
        products: As for `gru_step`.
        state: As for `gru_step`.
        matrix: Recurrent matrix (2 H, H) of the reset and update gate.
        candidate: Recurrent matrix (H, H) of the candidate.
    """
    assert candidate is not None
    (h,) = state
    gates, n = products.split([len(matrix), len(candidate)], dim=1)
    r, z = (gates + linear(h, matrix)).sigmoid().chunk(2, dim=1)
    n = (n + linear(r * h, candidate)).tanh()
    return (n + z * (h - n),)


class ResetBeforeGRU(nn.GRU):
    """Weights of a GRU whose reset gate precedes the recurrent matrix (Cho et al. 2014).

    Only the input of the candidate has a bias, as in the code of Bahdanau et al. 2015. As in torch,
    the update gate is the weight of the old state. In these papers it is the weight of the
    candidate, which is the same model with the negative weights of this gate.

    Args:
        input_size: Input width D.
        hidden_size: Number of units H.
        n_layers: Number of layers L.
        bias: Learn the bias `bias_in_l*` (H,) of each candidate.
        options: Further arguments of `nn.GRU`.
    """

    def __init__(
        self, input_size: int, hidden_size: int, n_layers: int, bias: bool, **options: Any
    ) -> None:
        super().__init__(input_size, hidden_size, n_layers, bias=False, **options)
        for name, _ in list(self.named_parameters()) if bias else []:
            if name.startswith("weight_ih"):
                suffix = name.removeprefix("weight_ih")
                self.register_parameter("bias_in" + suffix, nn.Parameter(torch.zeros(hidden_size)))


class LayerWeights(NamedTuple):
    """Weights of one layer and direction.

    Attributes:
        input: Input matrix (G H, D).
        input_bias: Bias (G H,) of the products with this matrix, or None.
        recurrent: Recurrent matrix (G H, H), or that of the gates (2 H, H) if the reset gate
            precedes the matrix.
        other: Bias (G H,) of the recurrent products, or None; or the recurrent matrix (H, H) of the
            candidate if the reset gate precedes it.
    """

    input: Tensor
    input_bias: Tensor | None
    recurrent: Tensor
    other: Tensor | None


Step = Callable[[Tensor, State, Tensor, Tensor | None], State]
STEPS: dict[tuple[Cell, Reset], Step] = {
    ("rnn", "after"): rnn_step,
    ("gru", "after"): gru_step,
    ("gru", "before"): gru_step_reset_before,
    ("lstm", "after"): lstm_step,
}
LAYERS: dict[tuple[Cell, Reset], Callable[..., nn.RNNBase]] = {
    ("rnn", "after"): nn.RNN,
    ("gru", "after"): nn.GRU,
    ("gru", "before"): ResetBeforeGRU,
    ("lstm", "after"): nn.LSTM,
}


class RecurrentStack(nn.Module):
    """Layers of recurrent cells, optionally bidirectional, with dropout between the layers.

    Args:
        input_size: Input width D.
        hidden_size: Number of units H of a layer and direction.
        n_layers: Number of layers L.
        cell: rnn (tanh), gru or lstm.
        reset: Place of the reset gate of a GRU: after the recurrent matrix (torch) or before it
            (Cho et al. 2014). `before` has no fused kernel.
        bidirectional: Read the input in both directions.
        bias: Learn biases.
        dropout: Dropout probability of the input of all layers but the first.
        forget_bias: Number that is added to the initial bias of the forget gate of an LSTM.

    Attributes:
        rnn: The module of torch that holds the weights.
        n_directions: Number of directions R.
    """

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        n_layers: int = 1,
        *,
        cell: Cell = "lstm",
        reset: Reset = "after",
        bidirectional: bool = False,
        bias: bool = True,
        dropout: float = 0.0,
        forget_bias: float = 0.0,
    ) -> None:
        super().__init__()
        kind = (cell, reset)
        between = dropout if n_layers > 1 and reset == "after" else 0.0
        self.rnn = LAYERS[kind](
            input_size,
            hidden_size,
            n_layers,
            bias=bias,
            batch_first=True,
            dropout=between,
            bidirectional=bidirectional,
        )
        self.step_cell = STEPS[kind]
        self.is_fused = reset == "after"
        self.has_cell = cell == "lstm"
        self.n_directions = 2 if bidirectional else 1
        self.forget_bias = forget_bias
        self.dropout = Dropout(dropout)
        self.add_forget_bias()

    def add_forget_bias(self) -> None:
        """Add `forget_bias` to the biases of the forget gates of an LSTM, after an initialization.

        Each gate has two biases in torch, of which the first one is changed.
        """
        for name, bias in self.rnn.named_parameters() if self.forget_bias else ():
            if name.startswith("bias_ih"):
                bias.data.chunk(4)[1].add_(self.forget_bias)

    def weights(self, layer: int, *, reverse: bool = False) -> LayerWeights:
        """Return the weights of a layer, as `step` takes them.

        Args:
            layer: Index of the layer.
            reverse: Return the weights of the backward direction.
        """
        suffix = f"l{layer}" + "_reverse" * reverse
        names = ("weight_ih", "bias_ih", "weight_hh", "bias_hh")
        found: list[Any] = [getattr(self.rnn, f"{x}_{suffix}", None) for x in names]
        w_ih, b_ih, w_hh, b_hh = found
        if not self.is_fused:
            w_hh, b_hh = w_hh.split([2 * self.rnn.hidden_size, self.rnn.hidden_size])
            candidate = getattr(self.rnn, f"bias_in_{suffix}", None)
            if candidate is not None:
                b_ih = torch.cat([candidate.new_zeros(2 * len(candidate)), candidate])
        return LayerWeights(w_ih, b_ih, w_hh, b_hh)

    def forward(
        self, x: Tensor, lengths: Tensor | None = None, state: State | None = None
    ) -> tuple[Tensor, State]:
        """Run all layers over the input, without reading its padding.

        Args:
            x: Input (B, T, D), with padding on the right.
            lengths: Number of real tokens of each row (B,), at least 1; None means T.
            state: Initial state; None means zeros.

        Returns:
            Outputs of the last layer (B, T, R H), 0 at padding, and the state after the last real
            token of each row, whose first dimension counts layers and then directions.
        """
        state = None if state is None else tuple(part.to(x.dtype) for part in state)
        if not self.is_fused:
            return self._loop(x, lengths, state)
        given = state if state is None or self.has_cell else state[0]
        if lengths is None:
            y, final = self.rnn(x, given)
        else:
            packed = pack_padded_sequence(x, lengths.cpu(), True, enforce_sorted=False)
            y, final = self.rnn(packed, given)
            y, _ = pad_packed_sequence(y, batch_first=True, total_length=x.shape[1])
        return y, final if self.has_cell else (final,)

    def _loop(self, x: Tensor, lengths: Tensor | None, state: State | None) -> tuple[Tensor, State]:
        """Run `forward` with one call of `step_cell` for each layer, direction and token."""
        finals: list[Tensor] = []
        for layer in range(self.rnn.num_layers):
            x = self.dropout(x) if layer else x
            outputs = []
            for reverse in (False, True)[: self.n_directions]:
                w_ih, b_ih, w_hh, other = self.weights(layer, reverse=reverse)
                y = linear(flip(x, lengths) if reverse else x, w_ih, b_ih)  # (B, T, G H)
                h = y.new_zeros(len(y), self.rnn.hidden_size)
                h = h if state is None else state[0][len(finals)]
                hs = []
                for t, products in enumerate(y.unbind(1)):
                    (new,) = self.step_cell(products, (h,), w_hh, other)
                    h = new if lengths is None else torch.where(t < lengths[:, None], new, h)
                    hs.append(h)
                y = torch.stack(hs, dim=1)
                if lengths is not None:
                    y = y.masked_fill(~real_tokens(lengths, y.shape[1])[..., None], 0.0)
                outputs.append(flip(y, lengths) if reverse else y)
                finals.append(h)
            x = torch.cat(outputs, dim=2)
        return x, (torch.stack(finals),)

    def step(
        self, products: Tensor, state: Sequence[State], weights: Sequence[LayerWeights]
    ) -> list[State]:
        """Run all layers of a stack with one direction for one token.

        Args:
            products: Products (B, G H) of the input with the input matrix of the first layer, plus
                its bias.
            state: State of each layer, with tensors (B, H).
            weights: Weights of each layer, as the method `weights` returns them.

        Returns:
            The new state of each layer, with tensors (B, H).
        """
        new: list[State] = []
        for old, (w_ih, b_ih, w_hh, other) in zip(state, weights, strict=True):
            if new:
                products = linear(self.dropout(new[-1][0]), w_ih, b_ih)
            new.append(self.step_cell(products, old, w_hh, other))
        return new


class RecurrentCache:
    """State of a recurrent model between steps, with the interface of a `KVCache`.

    Attributes:
        length: Number of tokens so far.
        state: States (L, B, H), and for an LSTM cells (L, B, H); None before the first step.
        feed: Last output (B, H) for input feeding; None before the first step.
        keys: None, since padding cannot be cached.
        documents: None, since packed documents cannot be separated.
    """

    keys = documents = None

    def __init__(self) -> None:
        self.length = 0
        self.state: State | None = None
        self.feed: Tensor | None = None

    def advance(self, ids: Tensor, keys: Tensor | None, documents: Tensor | None) -> None:
        """Add new tokens to `length`, in place.

        Args:
            ids: Ids (B, t) of the new tokens.
            keys: Must be None, because the state after padding is not that after the last token.
            documents: Must be None.

        Raises:
            InputError: `keys` or `documents` is not None.
        """
        for name, value in (("mask", keys), ("documents", documents)):
            if value is not None:
                message = "must be None for a recurrent model with a cache"
                raise InputError(message, option=name)
        self.length += ids.shape[1]

    def reorder(self, rows: Tensor, sources: Tensor | None = None) -> None:
        """Let each new row i continue the old row `rows[i]`, in place; `sources` is not used."""
        if self.state is not None:
            self.state = tuple(part.index_select(1, rows) for part in self.state)
        if self.feed is not None:
            self.feed = self.feed.index_select(0, rows)


def real_tokens(lengths: Tensor, n_tokens: int) -> Tensor:
    """Return the mask (B, T), True = real token, of rows with padding on the right."""
    return torch.arange(n_tokens, device=lengths.device) < lengths[:, None]


def flip(x: Tensor, lengths: Tensor | None) -> Tensor:
    """Reverse the tokens of each row of x (B, T, ...) within the length of the row.

    Args:
        x: Rows with padding on the right, which stays in its place.
        lengths: Number of real tokens of each row (B,); None means T.

    Example:
        >>> flip(torch.tensor([[1, 2, 3, 0]]), torch.tensor([3]))
        tensor([[3, 2, 1, 0]])
    """
    if lengths is None:
        return x.flip(1)
    columns = torch.arange(x.shape[1], device=x.device)
    index = torch.where(columns < lengths[:, None], lengths[:, None] - 1 - columns, columns)
    return x.gather(1, index if x.ndim == 2 else index[..., None].expand_as(x))
