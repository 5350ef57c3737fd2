"""RecurrentStack, layers of RNN, GRU or LSTM cells, and RecurrentCache, the state between steps.

A stack runs over padded batches, or over one token at a time. The weights are those of
`nn.RNN`, `nn.GRU` or `nn.LSTM`, under torch's names and in torch's order of the gates. Shapes: B
batch, T tokens, D input width, H units of a layer, G gates of a cell (1 for an RNN, 3 for a GRU, 4
for an LSTM), L layers, R directions (1 or 2).

A step function computes the next state of a cell. Its arguments are the product (B, G H) of the
input with the input matrix, plus the input bias; the state, a tuple of the hidden state (B, H), and
for an LSTM also the cell (B, H); the recurrent matrix (G H, H); and its bias (G H,) or None.
"""

from collections.abc import Callable
from typing import Any, Literal

import torch
from torch import Tensor, nn

from fourfold.core.validation import check_absent
from fourfold.kernels.cpu_decoding import linear
from fourfold.kernels.dropout import Dropout
from fourfold.layers.base_model import Layers
from fourfold.layers.padded_rnn import run_padded

Cell = Literal["rnn", "gru", "lstm"]
Reset = Literal["after", "before"]
# Tuple of the hidden states (L R, B, H) of all layers, and for an LSTM also the cells (L R, B, H).
State = tuple[Tensor, ...]


# Input matrix, its bias, recurrent matrix, and its bias or the second one of a `ResetBeforeGRU`.
LayerWeights = tuple[Tensor, Tensor | None, Tensor, Tensor | None]


def rnn_step(products: Tensor, state: State, matrix: Tensor, bias: Tensor | None) -> State:
    """Compute the next state of an RNN with tanh."""
    return ((products + linear(state[0], matrix, bias)).tanh(),)


def lstm_step(products: Tensor, state: State, matrix: Tensor, bias: Tensor | None) -> State:
    """Compute the next state of an LSTM (Hochreiter and Schmidhuber 1997)."""
    h, c = state
    i, f, g, o = (products + linear(h, matrix, bias)).chunk(4, dim=1)
    c = f.sigmoid() * c + i.sigmoid() * g.tanh()
    return o.sigmoid() * c.tanh(), c


def gru_step(products: Tensor, state: State, matrix: Tensor, bias: Tensor | None) -> State:
    """Compute the next state of torch's GRU, which applies the reset gate after the matrix."""
    (h,) = state
    r, z, n = products.chunk(3, dim=1)
    h_r, h_z, h_n = linear(h, matrix, bias).chunk(3, dim=1)
    n = (n + (r + h_r).sigmoid() * h_n).tanh()
    return (n + (z + h_z).sigmoid() * (h - n),)


def gru_step_reset_before(products: Tensor, state: State, matrix: Tensor, candidate: Any) -> State:
    """Compute the next state of a GRU that applies the reset gate before the recurrent matrix.

    The recurrent matrices are those of both gates, (2 H, H), and of the candidate state, (H, H).
    """
    (h,) = state
    gates, n = products.split([len(matrix), len(candidate)], dim=1)
    r, z = (gates + linear(h, matrix)).sigmoid().chunk(2, dim=1)
    n = (n + linear(r * h, candidate)).tanh()
    return (n + z * (h - n),)


class ResetBeforeGRU(nn.GRU):
    """Weights of a GRU that applies the reset gate before the recurrent matrix (Cho et al. 2014).

    Only the input of the candidate state has a bias, as in the code of Bahdanau et al. 2015. As in
    torch, the update gate multiplies the old state; in these papers, it multiplies the candidate
    state. The two models are equal if the weights of this gate have opposite signs.
    """

    def __init__(self, *sizes: int, bias: bool, **options: Any) -> None:
        super().__init__(*sizes, bias=False, **options)
        for name, _ in list(self.named_parameters()) if bias else []:
            if name.startswith("weight_ih"):
                zeros = nn.Parameter(torch.zeros(self.hidden_size))
                self.register_parameter(name.replace("weight_ih", "bias_in"), zeros)


# Ranges of fields that several configs have.
LSTM_RANGES = {
    "attn_temperature": {"above": 0.0},
    "forget_bias": {"minimum": -100.0, "maximum": 100.0},
}
Step = Callable[[Tensor, State, Tensor, Tensor | None], State]
CELLS: dict[tuple[Cell, Reset], tuple[Callable[..., nn.RNNBase], Step]] = {
    ("rnn", "after"): (nn.RNN, rnn_step),
    ("gru", "after"): (nn.GRU, gru_step),
    ("gru", "before"): (ResetBeforeGRU, gru_step_reset_before),
    ("lstm", "after"): (nn.LSTM, lstm_step),
}


class RecurrentStack(Layers):
    """Layers of recurrent cells, optionally bidirectional, with dropout between the layers.

    Args:
        reset: Place of the reset gate of a GRU: after the recurrent matrix (torch) or before it
            (Cho et al. 2014), for which there is no fused kernel.
        dropout: Dropout probability of the input of all layers but the first.
        forget_bias: Number that is added to the initial bias of the forget gate of an LSTM.
        name: Name of the attribute with the weights, which is also the attribute `rnn`.
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
        name: str = "rnn",
    ) -> None:
        super().__init__()
        self.is_fused = reset == "after"
        module, self.step_cell = CELLS[cell, reset]
        rnn = module(
            *(input_size, hidden_size, n_layers),
            bias=bias,
            batch_first=True,
            dropout=dropout if n_layers > 1 and self.is_fused else 0.0,
            bidirectional=bidirectional,
        )
        self.add_module(name, rnn)
        self.name = name
        self.has_cell = cell == "lstm"
        self.n_directions = 2 if bidirectional else 1
        self.forget_bias = forget_bias
        self.dropout = Dropout(dropout)
        add_forget_biases(self)

    @property
    def rnn(self) -> nn.RNNBase:
        """Module of torch that holds the weights."""
        return self._modules[self.name]  # type: ignore[return-value]

    def weights(self, layer: int, *, reverse: bool = False) -> LayerWeights:
        """Return the weights of a layer in one direction."""
        suffix = f"l{layer}" + "_reverse" * reverse
        names = ("weight_ih", "bias_ih", "weight_hh", "bias_hh")
        found: list[Any] = [getattr(self.rnn, f"{x}_{suffix}", None) for x in names]
        w_ih, b_ih, w_hh, b_hh = found
        if not self.is_fused:
            w_hh, b_hh = w_hh.split([2 * self.rnn.hidden_size, self.rnn.hidden_size])
            candidate = getattr(self.rnn, f"bias_in_{suffix}", None)
            if candidate is not None:
                b_ih = torch.cat([candidate.new_zeros(2 * len(candidate)), candidate])
        return w_ih, b_ih, w_hh, b_hh

    def forward(
        self, x: Tensor, lengths: Tensor | None = None, state: State | None = None
    ) -> tuple[Tensor, State]:
        """Run all layers over the real tokens of the input (B, T, D), as `run_padded` does.

        The initial and the final state are tuples of tensors (L R, B, H). Index l R + r is
        direction r of layer l.
        """
        state = None if state is None else tuple(part.to(x.dtype) for part in state)
        if not self.is_fused:
            return self._loop(x, lengths, state)
        given = state if state is None or self.has_cell else state[0]
        y, final = run_padded(self.rnn, x, lengths, given)
        return y, final if self.has_cell else (final,)

    def _loop(self, x: Tensor, lengths: Tensor | None, state: State | None) -> tuple[Tensor, State]:
        """Compute the result of `forward` for a `ResetBeforeGRU`, for which torch has no kernel."""
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


class RecurrentCache:
    """State of a recurrent model between decoding steps, with the interface of a `KVCache`.

    Attributes:
        length: Number of tokens that the model has processed.
        state: State of the layers, with tensors (L, B, H). None before the first step.
        feed: Last output (B, H) of a decoder with input feeding, or None.
    """

    keys = documents = None
    edits: tuple[object, ...] = ()  # under which the state was computed

    def __init__(self) -> None:
        self.length = 0
        self.state: State | None = None
        self.feed: Tensor | None = None

    def advance(self, ids: Tensor, keys: Tensor | None, documents: Tensor | None) -> None:
        """Add the new tokens (B, t) to `length`; an InputError rejects padding and documents."""
        check_absent("a recurrent model with a cache", mask=keys, documents=documents)
        self.length += ids.shape[1]

    def store(self, state: State, n_tokens: int, feed: Tensor | None = None) -> None:
        """Replace the state by that after `n_tokens` further tokens."""
        self.state, self.feed, self.length = state, feed, self.length + n_tokens

    def reorder(self, rows: Tensor, sources: Tensor | None = None) -> None:
        """Reorder the states in place: the new row i continues the old row `rows[i]`."""
        if self.state is not None:
            self.state = tuple(part.index_select(1, rows) for part in self.state)
        if self.feed is not None:
            self.feed = self.feed.index_select(0, rows)


def real_tokens(lengths: Tensor, n_tokens: int) -> Tensor:
    """Build the mask (B, T) bool, True = real token, of rows (B,) with padding on the right."""
    return torch.arange(n_tokens, device=lengths.device) < lengths[:, None]


def flip(x: Tensor, lengths: Tensor | None) -> Tensor:
    """Reverse the tokens of each row of x (B, T, ...) within the length of the row.

    The padding on the right is not moved.

    Example:
        >>> flip(torch.tensor([[1, 2, 3, 0]]), torch.tensor([3]))
        tensor([[3, 2, 1, 0]])
    """
    if lengths is None:
        return x.flip(1)
    columns = torch.arange(x.shape[1], device=x.device)
    index = torch.where(columns < lengths[:, None], lengths[:, None] - 1 - columns, columns)
    return x.gather(1, index if x.ndim == 2 else index[..., None].expand_as(x))


def orthogonal_gates(parameter: Tensor) -> None:
    """Draw an orthogonal matrix (H, H) for each gate of a recurrent matrix (G H, H), in place."""
    for gate in parameter.data.split(parameter.shape[1]):
        nn.init.orthogonal_(gate)


def add_forget_biases(model: nn.Module) -> None:
    """Add the `forget_bias` of each stack of a model to its forget gates, if it is an LSTM.

    An initialization that overwrites the biases must call this function afterwards.
    """
    for module in model.modules():
        if isinstance(module, RecurrentStack) and module.has_cell and module.forget_bias:
            for name, bias in module.rnn.named_parameters():
                if name.startswith("bias_ih"):  # torch adds two biases, of which one is changed
                    bias.data.chunk(4)[1].add_(module.forget_bias)
