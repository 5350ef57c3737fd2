"""Cross-entropy of a large vocabulary: loss and gradients from a slice of the logits at a time.

Shapes: N tokens, n of a slice, D model width, V vocabulary.
"""

import math
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

IGNORED = -100
Goal = tuple[float, float, int | None]  # extra on the target, elsewhere, the word with nothing
# Logits held at once, in numbers (128 MiB in bf16): few enough to fit, and enough rows that adding
# a slice's share to the (V, D) gradient is little against its matrix products.
SLICE = 2**26
# Those of some words, made into powers at once: on a CPU few enough to stay in its cache.
TILE, TILE_CUDA = 2**22, 2**26


class LinearCrossEntropy(torch.autograd.Function):
    """The summed loss, with its gradients made in the same pass over slices of rows.

    Of a `Goal`, whether gradients are wanted, hidden states (N, D), a matrix (V, D), bias (V,) or
    None, targets (N,) and their weights (N,) or None.
    """

    @staticmethod
    def forward(ctx: Any, goal: Goal, learning: bool, *inputs: Any) -> Tensor:
        learning = learning and any(ctx.needs_input_grad)
        total, ctx.gradients = _pass(goal, learning, *inputs)
        device = total.device.type
        ctx.autocast = torch.get_autocast_dtype(device), torch.is_autocast_enabled(device)
        ctx.goal = goal
        ctx.save_for_backward(*inputs)
        return total

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        inputs = ctx.saved_tensors
        gradients, ctx.gradients = ctx.gradients, None
        if gradients is None:  # a second time: the first has given its own away
            with torch.autocast(grad.device.type, *ctx.autocast):
                _, gradients = _pass(ctx.goal, True, *inputs)
        # Scaled in the dtype of sums, fp32 or better: 1 / (number of tokens) is not bf16's.
        scaled = [
            None if total is None else total.mul_(grad).to(given.dtype)
            for total, given in zip(gradients.all, inputs[:3], strict=True)
        ]
        return None, None, *scaled, None, None


def _pass(
    goal: Goal,
    learning: bool,
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    targets: Tensor,
    weights: Tensor | None,
) -> tuple[Tensor, "_Gradients | None"]:
    """The summed loss and, if `learning`, its gradients."""
    x, w, exact = operands(hidden, weight)
    counts = (targets != IGNORED).to(exact)
    if weights is not None:
        counts *= weights
    total = torch.zeros((), dtype=exact, device=x.device)
    gradients = _Gradients(x, w, bias, exact, goal) if learning else None
    room = _Room(x, w, exact, keep=learning)
    with torch.autocast(x.device.type, enabled=False):
        for rows in even_slices(x, w):
            part = _Slice(x[rows], w, bias, targets[rows], counts[rows], goal, room)
            total += part.loss
            if gradients is not None:
                gradients.add(rows, part)
    return total, gradients


class _Room:
    """Memory that all slices share: fresh memory costs more than a pass over it.

    Args:
        x: (N, D).
        w: (V, D).
        exact: The dtype of sums.
        keep: Whether all tiles of a slice stay, which their gradients need.
    """

    def __init__(self, x: Tensor, w: Tensor, exact: torch.dtype, *, keep: bool) -> None:
        n_rows = max((len(x[rows]) for rows in even_slices(x, w)), default=0)
        most = TILE if x.device.type == "cpu" else TILE_CUDA
        self.words = min(len(w), max(1, most // max(1, n_rows)))
        self.keep = keep
        self._tiles = x.new_empty(n_rows * (len(w) if keep else self.words))
        low = x.dtype != exact
        self._scratch = x.new_empty(n_rows * self.words, dtype=exact) if low else None

    def tile(self, n: int, words: slice) -> Tensor:
        """(n, words) in the dtype of products, at a place of its own if tiles are kept."""
        start = n * words.start if self.keep else 0
        return self._tiles[start : start + n * (words.stop - words.start)].view(n, -1)

    def exactly(self, tile: Tensor) -> Tensor:
        """The tile in the dtype of sums: a copy, or itself."""
        if self._scratch is None:
            return tile
        return self._scratch[: tile.numel()].view_as(tile).copy_(tile)


class _Slice:
    """The loss of n rows, and what the gradients need of their softmax, tile by tile of words.

    With z the logits of a tile and `top` their largest in each row, a tile keeps exp(z - top); its
    `share`, exp(top - logsumexp of all words) times the row's count, makes softmax of it. Shares
    are factors on rows, which the gradients' products take outside: no second pass over the logits.

    With q = elsewhere + extra on the target, elsewhere on other words, 0 on `pad`, sum(q) = 1:
    loss = logsumexp(z) - sum(q z) and d loss / d z = softmax(z) - q.
    """

    def __init__(
        self,
        x: Tensor,
        w: Tensor,
        bias: Tensor | None,
        targets: Tensor,
        counts: Tensor,
        goal: Goal,
        room: _Room,
    ) -> None:
        self.x, self.counts, self.targets = x, counts, targets
        extra, elsewhere, pad = goal
        self.words = [
            slice(start, min(start + room.words, len(w))) for start in range(0, len(w), room.words)
        ]
        self.powers: list[Tensor] = []
        tops, masses = [], []
        hit = torch.zeros_like(counts)  # sum(q z)
        for words in self.words:
            power = room.tile(len(x), words)
            torch.mm(x, w[words].T, out=power)
            z = room.exactly(power)
            if bias is not None:
                z += bias[words]
            place, inside = self._place(words)
            hit += extra * z.gather(1, place).squeeze(1) * inside
            if elsewhere:
                hit += elsewhere * z.sum(-1)
                if pad is not None and words.start <= pad < words.stop:
                    hit -= elsewhere * z[:, pad - words.start]
            top = z.amax(-1, keepdim=True)
            masses.append(z.sub_(top).exp_().sum(-1))
            tops.append(top.squeeze(1))
            if z is not power and room.keep:
                power.copy_(z)
            self.powers.append(power)
        highest, mass = torch.stack(tops), torch.stack(masses)  # (tiles, n)
        total = (highest + mass.log()).logsumexp(0)
        self.loss = ((total - hit) * counts).sum()
        self.shares = (highest - total).exp() * counts

    def _place(self, words: slice) -> tuple[Tensor, Tensor]:
        """Columns (n, 1) of the targets in a tile, and whether they are there (n,)."""
        place = self.targets - words.start
        inside = (place >= 0) & (place < words.stop - words.start)
        return place.clamp(0, words.stop - words.start - 1)[:, None], inside

    def aim(self, extra: float) -> Tensor:
        """Take `extra` from the targets' softmax where that is large; return what is left, (n,).

        The gradient of a sure model is a small difference of its softmax and its target: it is
        taken here, before low precision rounds it. Elsewhere their shares are simply added.
        """
        left = extra * self.counts
        for words, power, share in zip(self.words, self.powers, self.shares, strict=True):
            place, inside = self._place(words)
            large = inside & (share > 0.25 * self.counts)
            minus = torch.where(large, left / share, 0.0)
            target = torch.arange(len(place), device=place.device), place.squeeze(1)
            power[target] = (power[target] - minus).to(power.dtype)
            left = torch.where(large, 0.0, left)
        return left


class _Gradients:
    """Gradients of the summed loss in the dtype of sums, which grow slice by slice.

    Args:
        x: (N, D).
        w: (V, D).
        bias: (V,) or None.
        exact: The dtype of sums.
        goal: As for `_Slice`.
    """

    def __init__(
        self, x: Tensor, w: Tensor, bias: Tensor | None, exact: torch.dtype, goal: Goal
    ) -> None:
        self.w, self.goal = w, goal
        self.hidden = torch.zeros_like(x, dtype=exact)
        self.weight = torch.zeros_like(w, dtype=exact)
        self.bias = None if bias is None else torch.zeros_like(bias, dtype=exact)

    @property
    def all(self) -> tuple[Tensor, Tensor, Tensor | None]:
        """By hidden, weight and bias."""
        return self.hidden, self.weight, self.bias

    def add(self, rows: slice, part: _Slice) -> None:
        """Add those of `rows`."""
        extra, elsewhere, pad = self.goal
        left, x, hidden = part.aim(extra), part.x.to(self.hidden.dtype), self.hidden[rows]
        for words, power, share in zip(part.words, part.powers, part.shares, strict=True):
            scaled = (x * share[:, None]).to(power.dtype)
            hidden += torch.mm(power, self.w[words]) * share[:, None]
            self.weight[words] += torch.mm(power.T, scaled)
            if self.bias is not None:
                self.bias[words] += torch.mm(power.T, share[:, None].to(power.dtype)).squeeze(1)
        self._shift(hidden, x, -left, part.targets.clamp(min=0))
        if elsewhere:
            even = -elsewhere * part.counts
            hidden += torch.outer(even, self.w.sum(0, dtype=x.dtype))
            self.weight += even @ x
            if self.bias is not None:
                self.bias += even.sum()
            if pad is not None:
                self._shift(hidden, x, -even, torch.full_like(part.targets, pad))

    def _shift(self, hidden: Tensor, x: Tensor, slope: Tensor, words: Tensor) -> None:
        """Add the gradients of logits that have `slope` (n,) at one word (n,) of each row."""
        hidden += slope[:, None] * self.w[words]
        self.weight.index_add_(0, words, slope[:, None] * x)
        if self.bias is not None:
            self.bias.index_add_(0, words, slope)


def operands(hidden: Tensor, weight: Tensor) -> tuple[Tensor, Tensor, torch.dtype]:
    """Both as autocast would hand them to a matrix product, and the dtype for sums."""
    device = hidden.device.type
    if torch.is_autocast_enabled(device) and hidden.dtype != torch.float64:
        low = torch.get_autocast_dtype(device)
        hidden, weight = hidden.to(low), weight.to(low)
    return hidden, weight, torch.promote_types(hidden.dtype, torch.float32)


def even_slices(x: Tensor, w: Tensor) -> list[slice]:
    """Slices of the rows of x with at most SLICE logits, of equal size: no small rest."""
    n_slices = max(1, math.ceil(len(x) * len(w) / SLICE))
    step = max(1, math.ceil(len(x) / n_slices))
    return [slice(start, min(start + step, len(x))) for start in range(0, len(x), step)]
