"""Norms of the gradient of the last hidden state with respect to earlier states and inputs.

The norms show whether gradients vanish or explode with the distance between two tokens (Hochreiter
1991; Pascanu et al. 2013). A Jacobian matrix with S rows is computed in one backward pass over a
batch of S copies of a sequence. Row i of the matrix is the gradient in copy i.
Shapes: T tokens, D width of an input, S size of the differentiated vector, L layers, H units of a
layer, P parts of the state of a cell (2 for an LSTM, whose state is the pair (c, h); otherwise 1).
"""

from collections.abc import Callable, Sequence
from copy import deepcopy
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor, nn

from fourfold.core.block import Stack
from fourfold.core.config import TransformerConfig
from fourfold.core.masks import Mask
from fourfold.layers.init import initialize
from fourfold.models.causal_lm.model import CausalLM
from fourfold.models.recurrent.cells import Cell
from fourfold.models.recurrent.language_model import RecurrentLayers


def input_gradient_norms(
    layers: Callable[[Tensor], Tensor], x: Tensor, distances: Sequence[int]
) -> list[float]:
    """Compute spectral norms of Jacobians of the last output with respect to earlier inputs.

    Args:
        layers: Function from inputs (N, T, D) to outputs (N, T, S) for any number N of sequences,
            which it treats independently and without dropout.
        x: Input of one sequence, (T, D), such as the embeddings of its tokens.
        distances: Distances in tokens from the last token to an input, each below T.
    """
    with torch.no_grad():
        width = layers(x[None]).shape[-1]
    tokens = [token.expand(width, 1, -1).clone().requires_grad_() for token in x]
    last = layers(torch.cat(tokens, dim=1))[:, -1]  # (S, S)
    return _spectral_norms(last, [tokens[-1 - k] for k in distances])


def state_gradient_norms(layer: nn.RNNBase, x: Tensor, distances: Sequence[int]) -> list[float]:
    """Compute spectral norms of Jacobians of the last state with respect to earlier states.

    The state of an LSTM is the pair (c, h) of all layers, that of other cells is h.

    Args:
        layer: Recurrent module of torch with `batch_first`, in one direction.
        x: Input of one sequence, (T, D).
        distances: Distances in tokens between both states, each below T.
    """
    n_parts = 2 if isinstance(layer, nn.LSTM) else 1
    size = n_parts * layer.num_layers * layer.hidden_size  # S
    x = x.expand(size, *x.shape)
    state = x.new_zeros(n_parts, layer.num_layers, size, layer.hidden_size)  # (P, L, S, H)
    states = []
    for token in x.split(1, dim=1):
        new = layer(token, tuple(state) if n_parts == 2 else state[0])[1]
        state = torch.stack(new if n_parts == 2 else (new,))
        states.append(state)
    last = state.movedim(2, 0).flatten(1)  # (S, S)
    return _spectral_norms(last, [states[-1 - k] for k in distances], dim=2)


def _spectral_norms(last: Tensor, earlier: Sequence[Tensor], dim: int = 0) -> list[float]:
    """Compute the spectral norms of the Jacobians of a vector with respect to several tensors."""
    gradients = torch.autograd.grad(last.diagonal().sum(), earlier)
    jacobians = (gradient.movedim(dim, 0).flatten(1) for gradient in gradients)
    return [float(torch.linalg.matrix_norm(jacobian, ord=2)) for jacobian in jacobians]


def initial_gradient_norms(
    of: Literal["state", "input"],
    distances: Sequence[int],
    *,
    cell: Cell | None = None,
    forget_bias: float = 0.0,
    orthogonal: float | None = None,
    config: TransformerConfig | None = None,
    width: int = 64,
    n_seeds: int = 3,
) -> list[float]:
    """Compute the gradient norms of newly initialized layers for inputs from N(0, 1).

    Args:
        of: "state" for derivatives with respect to earlier states of a recurrent layer, "input" for
            those with respect to earlier inputs, or to inputs of the first block of a transformer.
        distances: Distances in tokens between the two states, or between output and input.
        cell: Kind of the recurrent layer: rnn, gru or lstm. None means a transformer.
        forget_bias: Number that is added to torch's initial bias of an LSTM's forget gate.
        orthogonal: Factor of the orthogonal recurrent matrix that replaces torch's initial matrix.
        config: Config of the blocks of the transformer, which uses a causal mask and no positions.
        width: Width of the inputs, and number of units of the recurrent layer.
        n_seeds: Number of random initializations and inputs, over which the norms are averaged.
    """
    norms = []
    for seed in range(n_seeds):
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            x = torch.randn(max(distances) + 20, width, dtype=torch.float64)
            if cell is None:
                assert config is not None, "a config or a cell must be given"
                stack = Stack(config).double().eval()
                initialize(stack, "vaswani")
                layers = partial(stack, mask=Mask(causal=True))
                norms.append(input_gradient_norms(layers, x, distances))
                continue
            layer: Any = getattr(nn, cell.upper())(width, width, batch_first=True).double()
            with torch.no_grad():
                layer.bias_ih_l0[width : 2 * width] += forget_bias if cell == "lstm" else 0.0
                if orthogonal is not None:
                    nn.init.orthogonal_(layer.weight_hh_l0, gain=orthogonal)
            if of == "state":
                norms.append(state_gradient_norms(layer, x, distances))
            else:
                norms.append(input_gradient_norms(partial(_outputs, layer), x, distances))
    return _mean(norms)


def trained_gradient_norms(model: CausalLM, ids: Tensor, distances: Sequence[int]) -> list[float]:
    """Compute the gradient norms of a causal LM with respect to the embeddings of earlier tokens.

    The differentiated vector is the output for the last token, of the transformer blocks or of the
    recurrent layers without the linear map after them. A copy of the model computes in float64,
    without dropout. The norms are averaged over the sequences ids (B, T), which have no padding.
    """
    model = deepcopy(model).double().eval()
    if isinstance(model.stack, RecurrentLayers):
        layers = partial(_outputs, model.stack.rnn)
    else:
        layers = partial(model.stack, mask=Mask(causal=True))
    with torch.no_grad():
        embedded = model.embed(ids, slice(0, ids.shape[1]))  # (B, T, D)
    return _mean([input_gradient_norms(layers, x, distances) for x in embedded])


def _outputs(layer: nn.RNNBase, x: Tensor) -> Tensor:
    """Run a recurrent module on inputs x (S, T, D); return the outputs (S, T, H), without state."""
    return layer(x)[0]


def _mean(norms: Sequence[list[float]]) -> list[float]:
    """Return the element-wise mean of several lists of equal length."""
    return [sum(column) / len(norms) for column in zip(*norms, strict=True)]
