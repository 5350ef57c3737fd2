"""Attention functions of recurrent encoder-decoders: scores, and weights from scores.

Bahdanau, Cho and Bengio 2015; Luong, Pham and Manning 2015; Xu et al. 2015 (hard attention).
Shapes: N sources, B rows of queries (target sequences; B is a multiple of N, as in beam search), Tq
queries of a row, S source positions, Q query width, M memory width, A width of the attention layer.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fourfold.core.attention import attend
from fourfold.core.edits import Columns, Edits, call_columns
from fourfold.core.feed_forward import Linear
from fourfold.errors import InputError
from fourfold.losses import upcast_fp32
from fourfold.models.recurrent.hard_attention import log_weights

Score = Literal["dot", "general", "concat", "additive", "location", "scaled"]
Weights = Literal["softmax", "local_m", "local_p", "hard_sample", "hard_gumbel", "hard_argmax"]


class RecurrentAttention(nn.Module):
    """Attention of decoder states (queries q) to encoder states (memory h_1 ... h_S).

    No map has a bias. The scores are:

    - dot: q^T h_s (Luong 2015, section 3.1), not divided by sqrt(Q).
    - scaled: q^T h_s / sqrt(Q) (Vaswani et al. 2017, eq. 1). The `scaled_luong` of tensorflow/nmt
      is a learned factor instead.
    - general: q^T W_a h_s (Luong 2015, section 3.1).
    - additive: v_a^T tanh(W_a q + U_a h_s) (Bahdanau 2015, section A.1.2). The `mlp` score of
      OpenNMT-py adds a bias.
    - concat: v_a^T tanh(W [q; h_s]) (Luong 2015, section 3.1), which is the score `additive`. In
      the released Matlab code, U_a is a fixed identity matrix.
    - location: entry s of W_a q (Luong 2015, eq. 8). W_a has `max_source_len` rows, of which
      shorter sources use the first. The released code does not have this score.

    The weights are:

    - softmax: softmax of the scores over the real positions of the source.
    - local_m: softmax over the window [p - D, p + D] around the position p of the target token,
      clipped at the ends of the source (Luong 2015, section 3.2; the upper bound of p, the length
      of the source, is that of the code).
    - local_p: softmax over the window around floor(p), p = S sigmoid(v_p^T tanh(W_p q)), times
      exp(-(s - p)^2 / (2 sigma^2)) with sigma = D / 2 (Luong 2015, eqs. 9 and 10). Positions s are
      counted from 1. The product is not normalized again. Only the Gaussian factor has a gradient
      with respect to p. The released code predicts p = (S - 1) sigmoid(...) + 1.
    - hard_sample: one position, drawn in training from the softmax of the scores (Xu 2015, eq. 8).
      The one-hot weights have no gradient: see `fourfold.models.recurrent.hard_attention`.
    - hard_gumbel: one position, drawn in training by the straight-through Gumbel estimator (Jang et
      al. 2017), whose gradient is that of softmax((log alpha + g) / temperature).
    - hard_argmax: the position with the largest score. The scores get no gradient.

    In evaluation mode, hard_sample and hard_gumbel take the position with the largest score.

    Args:
        query_size: Width Q of a query.
        memory_size: Width M of an encoder state.
        d_attn: Width A of the hidden layer of the scores additive and concat, and of the layer that
            predicts p for the weights local_p. None means `query_size`.
        window: Half width D of the window of the weights local_m and local_p; 10 in the paper.
        max_source_len: Number of rows of the matrix of the score location.
        temperature: Temperature of the weights hard_gumbel.
    """

    edits: Edits | None = None

    def __init__(
        self,
        query_size: int,
        memory_size: int,
        *,
        score: Score = "general",
        weights: Weights = "softmax",
        d_attn: int | None = None,
        window: int = 10,
        max_source_len: int | None = None,
        temperature: float = 1.0,
    ) -> None:
        super().__init__()
        if score in ("dot", "scaled") and query_size != memory_size:
            problem = f"must be general, concat, additive or location, got {score}, which needs"
            problem += f" queries as wide as the memory ({query_size} and {memory_size})"
            raise InputError(problem, option="score")
        self.score = score
        self.weighting = weights
        self.window = window
        self.temperature = temperature
        self._records: list[tuple[Any, ...]] | None = None
        self._draw: Callable[[int], Tensor] | None = None
        self.scale = query_size**-0.5 if score == "scaled" else 1.0
        width = d_attn or query_size
        if score == "general":
            self.w_a = Linear(memory_size, query_size, bias=False)
        elif score in ("additive", "concat"):
            self.w_a = Linear(query_size, width, bias=False)
            self.u_a = Linear(memory_size, width, bias=False)
            self.v_a = Linear(width, 1, bias=False)
        elif score == "location":
            if max_source_len is None:
                raise InputError("must be given for the score location, got None", option="max_len")
            self.w_a = Linear(query_size, max_source_len, bias=False)
        if weights == "local_p":
            self.w_p = Linear(query_size, width, bias=False)
            self.v_p = Linear(width, 1, bias=False)

    @property
    def draws(self) -> bool:
        """True if positions are drawn at random: hard_sample or hard_gumbel in training mode."""
        return self.training and self.weighting in ("hard_sample", "hard_gumbel")

    @contextmanager
    def recording(
        self, draw: Callable[[int], Tensor] | None = None
    ) -> Iterator[list[tuple[Any, ...]]]:
        """Record the attention weights of each call of `forward` within the context.

        Args:
            draw: Function from S to exponential random numbers (B, T, S) with the mean 1, from
                which hard_sample and hard_gumbel draw the positions of T target tokens. None means
                torch's generator.

        Yields:
            A list, to which each call appends the results (B, Tq, S) of `probabilities` and of
                `select`, the positions (B, Tq, S) bool that may have a weight, and the centres (B,
                Tq) of the windows of local attention, or None.
        """
        records: list[tuple[Any, ...]] = []
        self._records, self._draw = records, draw
        try:
            yield records
        finally:
            self._records = self._draw = None

    @contextmanager
    def watch_weights(
        self, visit: Callable[[Tensor, Tensor, Tensor | None], None]
    ) -> Iterator[None]:
        """Pass the weights of all calls within the context to a function, at its end.

        The arguments of `visit` are the fields `weights`, `allowed` and `centers` of
        `fourfold.analysis.attention_maps.LayerAttention`.
        """
        with self.recording() as calls:  # the module then does not use its fused kernel
            yield
        if calls:
            _, weights, allowed, centers = zip(*calls, strict=True)
            joined = torch.cat(centers, 1) if self.weighting == "local_p" else None
            visit(torch.cat(weights, 1)[:, None], torch.cat(allowed, 1)[:, None], joined)

    def project(self, memory: Tensor) -> Tensor:
        """Compute the part of the scores that depends on the memory (N, S, M) only.

        The result is (N, S, Q) for the score general, (N, S, A) for additive and concat, and
        `memory` itself for other scores.
        """
        if self.score == "general":
            return self.w_a(memory)
        return self.u_a(memory) if self.score in ("additive", "concat") else memory

    def forward(
        self,
        query: Tensor,
        memory: Tensor,
        mask: Tensor | None = None,
        *,
        projected: Tensor,
        step: int | Tensor = 0,
        need_weights: bool = True,
    ) -> tuple[Tensor, Tensor | None]:
        """Attend from each query to the encoder states of its source.

        Args:
            query: Queries (B, Tq, Q). Each source has B / N consecutive rows, such as its
                hypotheses in beam search.
            memory: Encoder states (N, S, M).
            mask: (N, S) bool, True = real token, or (B, S) with equal rows for the beams of a
                source.
            projected: Result of `project(memory)`.
            step: Position of the first query in the target, from 0, for all rows or by row (B,).
                Only local_m and the noise of `recording` need it.
            need_weights: Return the weights. Without them, the softmax weights of dot, general and
                scaled are computed by the kernels of `fourfold.core.attention.attend`.

        Returns:
            Contexts (B, Tq, M), and weights (B, Tq, S) in at least fp32, or None. A source without
                a real
            position gives zeros.

        Raises:
            InputError: A source is longer than the location score was trained for.
        """
        fused = self.weighting == "softmax" and self.score in _PRODUCTS
        if self.edits is not None:
            differs = Columns(problem="with a step by row")
            call_columns.set(Columns(step) if isinstance(step, int) else differs)
        if need_weights or not fused or self._records is not None or self.edits is not None:
            alpha, allowed, centers = self.probabilities(
                query, mask, projected=projected, step=step
            )
            weights = self.select(alpha, step)
            if self.edits is not None:
                weights = self.edits.apply("weights", weights[:, None])[:, 0]
            folded = weights.unflatten(0, (len(memory), -1)).flatten(1, 2)  # (N, B/N Tq, S)
            if self._records is not None:
                if allowed is None:
                    allowed = torch.ones_like(folded, dtype=torch.bool)
                allowed = allowed.expand_as(folded).reshape(weights.shape)
                centers = None if centers is None else centers.view(weights.shape[:2])
                self._records.append((alpha, weights, allowed, centers))
            context = folded.to(memory.dtype) @ memory
        else:
            weights = None
            allowed = None if mask is None else _by_source(mask, len(memory))[:, None]
            q = query.unflatten(0, (len(memory), -1)).flatten(1, 2).to(projected.dtype)
            v = memory.to(projected.dtype)  # autocast lowers the precision of some only
            inputs = q[:, None], projected[:, None], v[:, None]
            context = attend(*inputs, mask=allowed, scale=self.scale)[:, 0]
        context = context.unflatten(1, (-1, query.shape[1])).flatten(0, 1)
        if self.edits is not None:
            context = self.edits.apply("head", context[:, None])[:, 0]
        return context, weights

    def probabilities(
        self,
        query: Tensor,
        mask: Tensor | None = None,
        *,
        projected: Tensor,
        step: int | Tensor = 0,
    ) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """Compute the attention weights (B, Tq, S) before hard attention selects a position.

        The arguments and errors are those of `forward`. The other results are the positions (N, 1
        or B/N Tq, S) bool that may have a weight, or None for all, and the centres (N, B/N Tq, 1)
        of the windows of local attention, or None.
        """
        n_sources, length = projected.shape[:2]
        q = query.unflatten(0, (n_sources, -1)).flatten(1, 2)  # (N, B/N Tq, Q)
        positions = torch.arange(1, length + 1, device=query.device)[None, None]
        allowed = None
        if mask is not None:
            allowed = _by_source(mask, n_sources)  # (N, 1, S)
            positions = allowed.cumsum(-1)  # padding on either side is not counted
        n_real = positions[..., -1:]  # (N or 1, 1, 1)
        scores = upcast_fp32(self._scores(q, projected, positions))
        centre: Any = None
        if self.weighting == "local_m":
            first = torch.as_tensor(step, device=query.device).reshape(-1, 1) + 1
            targets = first + torch.arange(query.shape[1], device=query.device)
            targets = targets.expand(len(query), -1).reshape(n_sources, -1, 1)
            centre = torch.minimum(targets, n_real)
        elif self.weighting == "local_p":
            # (N, B/N Tq, 1), real numbers from 0 to the number of real positions
            centre = n_real * torch.sigmoid(upcast_fp32(self.v_p(torch.tanh(self.w_p(q)))))
        if centre is not None:
            inside = (positions - centre.detach().floor()).abs() <= self.window
            allowed = inside if allowed is None else allowed & inside
        if allowed is not None:
            scores = scores.masked_fill(~allowed, float("-inf"))
        if self.edits is not None:
            rows = scores.unflatten(1, (-1, query.shape[1])).flatten(0, 1)[:, None]
            rows = self.edits.apply("scores", rows)[:, 0]  # (B, Tq, S)
            scores = rows.unflatten(0, (n_sources, -1)).flatten(1, 2)
            allowed = scores > float("-inf")
        alpha = scores.softmax(-1)
        if allowed is not None:
            alpha = alpha.masked_fill(~allowed, 0.0)  # also the NaN of a row without real positions
        if self.weighting == "local_p":
            sigma = self.window / 2
            alpha = alpha * torch.exp(-((positions - centre) ** 2) / (2 * sigma**2))
        return alpha.unflatten(1, (-1, query.shape[1])).flatten(0, 1), allowed, centre

    def select(self, alpha: Tensor, step: int | Tensor = 0) -> Tensor:
        """Convert the result (B, Tq, S) of `probabilities` to the attention weights that are used.

        Hard attention selects one position, and the weights are one-hot vectors. A random position
        is argmax_s alpha_s / e_s with e_s ~ Exp(1). This is the Gumbel trick argmax_s log(alpha_s)
        + g_s with the noise g_s = -log(e_s).
        """
        if not self.weighting.startswith("hard"):
            return alpha
        impossible = alpha == 0
        race = alpha.detach()
        if self.draws:
            if self._draw is None:
                noise = torch.empty_like(race).exponential_()
            else:
                rows = slice(int(step), int(step) + race.shape[1])
                noise = self._draw(race.shape[-1])[:, rows].to(race.dtype)
            noise = noise.clamp(min=torch.finfo(race.dtype).tiny)
            race = race / noise
        chosen = F.one_hot(race.argmax(-1), alpha.shape[-1]).to(alpha.dtype)
        if self.draws and self.weighting == "hard_gumbel":
            logits = log_weights(alpha).masked_fill(impossible.all(-1, keepdim=True), 0.0)
            soft = ((logits - noise.log()) / self.temperature).softmax(-1)
            chosen = chosen + soft - soft.detach()
        return chosen.masked_fill(impossible, 0.0)

    def _scores(self, q: Tensor, projected: Tensor, positions: Tensor) -> Tensor:
        """Compute the score of each query and source position."""
        if self.score in _PRODUCTS:
            return q @ projected.mT * self.scale
        if self.score == "location":
            table = self.w_a(q)  # (N, Tq, max_source_len)
            longest = table.shape[-1]
            if positions.shape[-1] > longest and (n_real := int(positions.max())) > longest:
                problem = f"is {longest}, the longest source that the location score has weights"
                problem += f" for, but a source has {n_real} tokens"
                raise InputError(problem, option="max_source_len")
            index = (positions - 1).clamp(0, longest - 1)
            return table.gather(-1, index.expand(*table.shape[:2], -1))
        return self.v_a(torch.tanh(self.w_a(q)[:, :, None] + projected[:, None])).squeeze(-1)


_PRODUCTS = ("dot", "general", "scaled")  # scores that are products of query and projected memory


def _by_source(mask: Tensor, n_sources: int) -> Tensor:
    """Return a source mask (N, 1, S) with one row per source."""
    return mask[:: len(mask) // n_sources, None]
