"""RecurrentDecoder: RNN, GRU or LSTM decoder with or without attention to a memory.

The memory is the output of an encoder: one vector for each source token, or one vector for each
source. Shapes: B sources, N rows (target sequences; N is a multiple of B, as in beam search), S
vectors of the memory, T target tokens, M width of the memory, D width of the embedding, H units of
a layer, L layers.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fourfold.core.config import ModelConfig
from fourfold.core.edits import check_cache
from fourfold.core.feed_forward import Linear
from fourfold.errors import InputError
from fourfold.kernels.cpu_decoding import linear
from fourfold.kernels.dropout import Dropout
from fourfold.layers.base_model import Layers
from fourfold.models.recurrent.attention import RecurrentAttention, Score, Weights
from fourfold.models.recurrent.cells import (
    LSTM_RANGES,
    Cell,
    RecurrentCache,
    RecurrentStack,
    Reset,
    State,
)


@dataclass(frozen=True)
class RecurrentDecoderConfig(ModelConfig):
    """Config of a recurrent decoder; the defaults are those of Luong et al. 2015.

    Args:
        vocab_size: Size V of the vocabulary. None takes that of the tokenizer.
        max_len: Longest source and longest target in tokens, which data and generation check. None
            means no limit, and is not allowed with the score location.
        d_model: Width D of the embedding.
        hidden_size: Number of units H of a layer.
        n_layers: Number of layers L.
        cell: rnn (tanh), gru or lstm.
        reset: Place of the reset gate of a GRU: after the recurrent matrix (torch) or before it
            (Cho et al. 2014; Bahdanau et al. 2015), which is slower.
        forget_bias: Number that is added to the initial bias of the forget gate of an LSTM with
            biases.
        bias: Learn biases in the cells, the bridge and the readout.
        decoder: Order of attention, cell and output. With luong, the query is the new state h, and
            the output is tanh(W [context; h]). With bahdanau, the query is the previous state, and
            the context is an input of the cell. The output of bahdanau is a maxout layer of the
            previous state, the previous token and the context.
        context: Use of the memory: initial (the initial state only; Sutskever et al. 2014),
            every_step (one vector as a further input of every step; Cho et al. 2014) or attention
            (to one vector for each source token).
        input_feeding: Use the previous output as a further input of the cell (Luong et al. 2015,
            section 3.3; decoder luong with attention only). The steps then run one after another.
        attn_score: Score of a query and a vector of the memory: dot, general, concat, additive,
            location or scaled. `RecurrentAttention` has their formulas.
        attn_weights: Function from scores to attention weights: softmax, local_m, local_p,
            hard_sample, hard_gumbel or hard_argmax. `RecurrentAttention` describes them.
        d_attn: Width of the hidden layer of the scores concat and additive. None means
            `hidden_size`.
        attn_window: Distance D from the centre of local attention to the ends of its window.
        attn_temperature: Temperature of hard_gumbel.
        mix_outputs: Compute an output distribution from each vector of the memory, and average the
            distributions with the attention weights (exact hard attention; Wu et al. 2018). This
            option requires `attn_weights` softmax or hard_argmax. With hard_argmax, the average is
            used in training only, and generation uses the vector with the largest weight.
        n_maxout: Number of maxout units of the decoder bahdanau, each the maximum of two values;
            None means half of `hidden_size`.
        output_rank: Rank of the output matrix, which is then a product of two matrices. None means
            one matrix of full rank.
        dropout: Dropout probability of the input of each layer and of the output matrix.
        output_bias: Learn a bias for each token of the vocabulary.
    """

    vocab_size: int | None = 50000
    max_len: int | None = None
    d_model: int = 1000
    hidden_size: int = 1000
    n_layers: int = 4
    cell: Cell = "lstm"
    reset: Reset = "after"
    forget_bias: float = 0.0
    bias: bool = False
    decoder: Literal["luong", "bahdanau"] = "luong"
    context: Literal["initial", "every_step", "attention"] = "attention"
    input_feeding: bool = True
    attn_score: Score = "general"
    attn_weights: Weights = "softmax"
    d_attn: int | None = None
    attn_window: int = 10
    attn_temperature: float = 1.0
    mix_outputs: bool = False
    n_maxout: int | None = None
    output_rank: int | None = None
    dropout: float = 0.2
    output_bias: bool = False
    ranges: ClassVar = LSTM_RANGES

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.reset == "before" and self.cell != "gru":
            raise InputError(f"must be after for the cell {self.cell}, got before", option="reset")
        if self.input_feeding and (self.decoder != "luong" or self.context != "attention"):
            message = "must be false without attention in the decoder luong, got true"
            raise InputError(message, option="input_feeding")
        if self.mix_outputs and self.attn_weights not in ("softmax", "hard_argmax"):
            message = f"must be softmax or hard_argmax for mix_outputs, got {self.attn_weights}"
            raise InputError(message, option="attn_weights")
        is_independent = self.decoder == "luong" and not self.input_feeding
        if self.mix_outputs and not (is_independent and self.context == "attention"):
            message = "must be false unless the decoder is luong, with attention and without"
            message += " input_feeding, since its states must not depend on the context; got true"
            raise InputError(message, option="mix_outputs")

    @property
    def readout_width(self) -> int:
        """Width of the decoder's output before its projection to `output_rank` values, if any."""
        if self.decoder == "luong":
            return self.hidden_size
        return self.n_maxout or max(1, self.hidden_size // 2)

    @property
    def output_width(self) -> int:
        """Width of the input of the output matrix."""
        return self.output_rank or self.readout_width


@dataclass(frozen=True)
class RecurrentMemory:
    """Output of an encoder for B sources, in the form that a `RecurrentDecoder` reads.

    Args:
        vectors: Vectors (B, S, M) that a decoder attends to. Without attention, S is 1, and the
            vector is an input of each step if the field `context` of the config is every_step.
        mask: (B, S) bool, True = real vector; None means that all vectors are real.
        initial: Initial state of the decoder, with tensors (L, B, H).
        projected: Part (B, S, width) of the attention scores that depends on the vectors only.
    """

    vectors: Tensor
    mask: Tensor | None
    initial: State
    projected: Tensor

    def __len__(self) -> int:
        return len(self.vectors)

    def index_select(self, dim: int, sources: Tensor) -> "RecurrentMemory":
        """Return the memory of selected sources, like `Tensor.index_select` in dimension 0."""
        assert dim == 0, "the first dimension counts the sources"
        return RecurrentMemory(
            self.vectors.index_select(0, sources),
            None if self.mask is None else self.mask.index_select(0, sources),
            tuple(part.index_select(1, sources) for part in self.initial),
            self.projected.index_select(0, sources),
        )

    def start(self, x: Tensor, cache: RecurrentCache | None) -> tuple[State, int]:
        """Return the state (L, N, H) before the new tokens x (N, T, D), and their position from 0.

        Without a cache, or with an empty one, the state is `initial`.
        """
        state = None if cache is None else cache.state
        if state is None:
            state = tuple(part.repeat_interleave(len(x) // len(self), 1) for part in self.initial)
        return tuple(part.to(x.dtype) for part in state), 0 if cache is None else cache.length

    def context(
        self, attention: RecurrentAttention | None, queries: Tensor, start: int, **options: Any
    ) -> Tensor:
        """Return the contexts (N, T, M) of queries (N, T, H), the first of which is at `start`.

        Without attention, the only vector of the memory is the context.
        """
        if attention is None:
            rows = len(queries) // len(self)
            return self.vectors.repeat_interleave(rows, 0).expand(-1, queries.shape[1], -1)
        options |= {"projected": self.projected, "step": start}
        return attention(queries, self.vectors, self.mask, **options)[0]


class RecurrentDecoder(Layers):
    """Recurrent decoder: maps target embeddings and a memory to the input of the output matrix.

    All target tokens are computed in one call of the recurrent layers if a step does not depend on
    attention or output of the step before it: without attention, and for `decoder` luong without
    input feeding. Otherwise the steps run one after another.

    Attributes:
        cross_attn: Attention to the memory of width M = `memory_size`; None without attention.
    """

    def __init__(self, config: RecurrentDecoderConfig, memory_size: int) -> None:
        super().__init__()
        self.config = config
        width, hidden = config.d_model, config.hidden_size
        has_context = config.context != "initial"
        self.cross_attn: Any = None
        if config.context == "attention":
            self.cross_attn = RecurrentAttention(
                hidden,
                memory_size,
                score=config.attn_score,
                weights=config.attn_weights,
                d_attn=config.d_attn,
                window=config.attn_window,
                max_source_len=config.max_len,
                temperature=config.attn_temperature,
            )
        is_input = config.context == "every_step" or (has_context and config.decoder == "bahdanau")
        d_in = width + memory_size * is_input + hidden * config.input_feeding
        self.stack = stack_from_config(config, d_in)
        self.combine: Any = None
        self.readout: Any = None
        if config.decoder == "bahdanau":
            self.readout = MaxoutReadout(config, memory_size * has_context)
        elif has_context:
            self.combine = Linear(memory_size + hidden, hidden, bias=False)
        self.low_rank: nn.Module = nn.Identity()
        if config.output_rank is not None:
            self.low_rank = Linear(config.readout_width, config.output_rank, bias=False)
        self.dropout = Dropout(config.dropout)

    def forward(
        self, x: Tensor, memory: RecurrentMemory, cache: RecurrentCache | None = None
    ) -> Tensor:
        """Compute the input (N, T, output width) of the output matrix.

        Args:
            x: Embedded target tokens (N, T, D).
            memory: Output of the encoder for B sources. Each source has N / B consecutive rows,
                such as its hypotheses in beam search.
            cache: State after the earlier tokens. None starts from the initial state of the memory.
        """
        state, start = memory.start(x, cache)
        if cache is not None and self.cross_attn is not None:
            check_cache(self.cross_attn.edits, cache, start)
        feed = None
        if self.config.decoder == "bahdanau":
            y, state = self._read_before_step(x, memory, state, start)
        elif self.config.input_feeding:
            feed = None if cache is None else cache.feed
            y, state = self._feed_outputs(x, memory, state, start, feed)
            feed = y[:, -1]
        else:
            if self.config.context == "every_step":
                x = torch.cat([x, self.context(x, memory, start)], dim=2)
            y, state = self.stack(x, None, state)
            if self.combine is not None:
                y = self.attentional(self.context(y, memory, start), y)
        if cache is not None:
            cache.store(state, x.shape[1], feed)
        return self.low_rank(self.dropout(y))

    def by_vector(
        self, x: Tensor, memory: RecurrentMemory, cache: RecurrentCache | None = None
    ) -> tuple[Tensor, Tensor]:
        """Compute one output for each vector of the memory, for attention to this vector only.

        The model must have `decoder` luong, `context` attention and no input feeding. The result is
        the attention weights (N, T, S), of hard attention those before the choice of a position,
        and the input (N, T, S, output width) of the output matrix.
        """
        if self.cross_attn.edits is not None:
            message = "must not be edited or recorded if outputs, not vectors, are mixed"
            raise InputError(message, option="cross attention")
        state, start = memory.start(x, cache)
        h, state = self.stack(x, None, state)
        options: dict[str, Any] = {"projected": memory.projected, "step": start}
        if self.cross_attn.weighting == "softmax":
            _, alpha = self.cross_attn(h, memory.vectors, memory.mask, **options)  # is recorded
        else:
            alpha, *_ = self.cross_attn.probabilities(h, memory.mask, **options)
        from_vectors = self.combine(F.pad(memory.vectors, (0, h.shape[2])))  # (B, S, H)
        from_vectors = from_vectors.repeat_interleave(len(x) // len(memory), 0)
        from_states = self.combine(F.pad(h, (memory.vectors.shape[2], 0)))  # (N, T, H)
        y = (from_vectors[:, None] + from_states[:, :, None]).tanh()
        if cache is not None:
            cache.store(state, x.shape[1])
        return alpha, self.low_rank(self.dropout(y))

    def context(self, queries: Tensor, memory: RecurrentMemory, start: int) -> Tensor:
        """Return `memory.context` of queries (N, T, H), the first of which is at `start`."""
        return memory.context(self.cross_attn, queries, start, need_weights=False)

    def attentional(self, context: Tensor, h: Tensor) -> Tensor:
        """Compute the output tanh(W_c [context; h]) (N, T, H) of a model with `decoder` luong."""
        return self.combine(torch.cat([context, h], dim=2)).tanh()

    def _feed_outputs(
        self, x: Tensor, memory: RecurrentMemory, state: State, start: int, feed: Tensor | None
    ) -> tuple[Tensor, State]:
        """Run a model with input feeding, whose last output is `feed`, one step after another."""
        loop = Loop(self.stack, x, state)
        feed = x.new_zeros(len(x), self.config.hidden_size) if feed is None else feed
        outputs = []
        for t, products in enumerate(loop.products, start):
            h = loop.step(products, self.dropout(feed))
            feed = self.attentional(self.context(h[:, None], memory, t), h[:, None])[:, 0]
            outputs.append(feed)
        return torch.stack(outputs, dim=1), loop.state

    def _read_before_step(
        self, x: Tensor, memory: RecurrentMemory, state: State, start: int
    ) -> tuple[Tensor, State]:
        """Run a model with `decoder` bahdanau, on all tokens at once if it has no attention."""
        first = state[0][-1]
        if self.cross_attn is not None:
            loop = Loop(self.stack, x, state)
            context = lambda h, t: self.context(h[:, None], memory, t)[:, 0]  # noqa: E731
            hs, contexts = loop.run(first, start, context)
            return self.readout(torch.stack(hs[:-1], 1), x, contexts), loop.state
        inputs, found = x, None
        if self.config.context == "every_step":
            found = self.context(x, memory, start)
            inputs = torch.cat([x, found], dim=2)
        h, state = self.stack(inputs, None, state)
        return self.readout(torch.cat([first[:, None], h[:, :-1]], dim=1), x, found), state


def stack_from_config(
    config: RecurrentDecoderConfig, d_in: int, *, bidirectional: bool = False
) -> RecurrentStack:
    """Build the recurrent layers of an encoder or a decoder for inputs of width `d_in`."""
    names = ("cell", "reset", "bias", "dropout", "forget_bias")
    options: Any = {name: getattr(config, name) for name in names}
    sizes = d_in, config.hidden_size, config.n_layers
    return RecurrentStack(*sizes, bidirectional=bidirectional, **options)


class Loop:
    """Loop over the steps of a `RecurrentStack` whose input depends on the result of earlier steps.

    The input of a step is the concatenation of an embedded token (D values) and of a vector that is
    known only after the step before it, such as an attention context. The products of all tokens
    with the input matrix, the attribute `products`, are computed at once.
    """

    def __init__(self, stack: RecurrentStack, x: Tensor, state: State) -> None:
        self._stack = stack
        self._weights = [stack.weights(layer) for layer in range(len(state[0]))]
        matrix, bias, *_ = self._weights[0]
        width = x.shape[2]
        token_matrix, self._matrix = matrix.split([width, matrix.shape[1] - width], dim=1)
        self.products = linear(x, token_matrix, bias).unbind(1)
        self._layers: list[State] = list(zip(*(part.unbind(0) for part in state), strict=True))

    def step(self, products: Tensor, x: Tensor) -> Tensor:
        """Run a step, and return the new hidden state (N, H) of the last layer.

        Args:
            products: Element of the attribute `products` for this step.
            x: Vector (N, width) that follows the embedded token in the input of the step.
        """
        products = products + linear(x, self._matrix)
        new: list[State] = []
        for old, (w_ih, b_ih, w_hh, other) in zip(self._layers, self._weights, strict=True):
            if new:
                products = linear(self._stack.dropout(new[-1][0]), w_ih, b_ih)
            new.append(self._stack.step_cell(products, old, w_hh, other))
        self._layers = new
        return new[-1][0]

    def run(
        self, first: Tensor, start: int, context: Callable[[Tensor, int], Tensor]
    ) -> tuple[list[Tensor], Tensor]:
        """Run all steps, each with the context of the hidden state before it.

        Args:
            first: Hidden state (N, H) of the last layer before the first step, whose position is
                `start`.
            context: Function from a hidden state (N, H) and its position to a context (N, M).

        Returns:
            List of T + 1 hidden states (N, H), beginning with `first`, and contexts (N, T, M).
        """
        hs, contexts = [first], []
        for t, products in enumerate(self.products, start):
            contexts.append(context(hs[-1], t))
            hs.append(self.step(products, contexts[-1]))
        return hs, torch.stack(contexts, 1)

    @property
    def state(self) -> State:
        """State after the last step so far, a tuple of tensors (L, N, H)."""
        return tuple(torch.stack(parts) for parts in zip(*self._layers, strict=True))


class MaxoutReadout(nn.Module):
    """Maxout output layer of Bahdanau et al. 2015, section A.2.2, of state, token and context."""

    def __init__(self, config: RecurrentDecoderConfig, memory_size: int) -> None:
        super().__init__()
        units = 2 * config.readout_width
        self.from_state = Linear(config.hidden_size, units, bias=config.bias)
        self.from_token = Linear(config.d_model, units, bias=False)
        self.from_context = Linear(memory_size, units, bias=False) if memory_size else None

    def forward(self, states: Tensor, tokens: Tensor, contexts: Tensor | None) -> Tensor:
        """Compute the outputs (N, T, readout width), each the maximum of two values."""
        y = self.from_state(states) + self.from_token(tokens)
        if contexts is not None and self.from_context is not None:
            y = y + self.from_context(contexts)
        return y.unflatten(2, (-1, 2)).amax(3)
