"""Effects of edits on the loss, with intervals: ablation, pruning, knockout of attention.

Source: Michel et al. 2019 (removal of heads), Wang et al. 2022 (means of other data), Geva et al.
2023 (knockout).
"""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, NamedTuple, TypeVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fourfold.edits import Operation, Run, drop, edit, hide, record, scale, set, zero
from fourfold.edits.contexts import edit_targets
from fourfold.errors import InputError
from fourfold.metrics.significance import holm, t_quantile, t_test

ExampleT = TypeVar("ExampleT")
Kind = Literal["zero", "mean", "resample"]
Loss = Callable[[ExampleT], tuple[Any, Any]]
Edits = Mapping[str, Operation | Callable[[Tensor], Tensor]]
Pairs = tuple[Sequence[int], Sequence[int] | None]
SLOTS = (".head", ".neuron")  # of a sub-layer


class Effect(NamedTuple):
    """Effect of an edit on a mean loss.

    Args:
        name: Name of the edited tensor.
        change: Mean loss with the edit minus that without it.
        low, high: 95 % interval of the change over examples.
        p: p-value of no change, with Holm's correction for the number of effects.
    """

    name: str
    change: float
    low: float
    high: float
    p: float


@torch.no_grad()
def edit_effects(
    model: nn.Module,
    examples: Sequence[ExampleT],
    loss: Loss[ExampleT],
    edits: Mapping[str, Edits | Callable[[ExampleT], Edits]],
) -> tuple[float, list[Effect]]:
    """Measure how each of several sets of edits changes the loss.

    Args:
        examples: Examples of any kind, evaluated one at a time.
        loss: Function that runs the model on an example, and returns the sum of the loss and the
            number of targets.
        edits: Arguments of `edit` by a name of the set, or a function that returns them for an
            example.

    Returns:
        The mean loss over all targets without an edit, and an effect for each set. The intervals
        and p-values are those of Student's t for the differences of the examples, a ratio of two
        sums. A bootstrap of few examples has intervals that are too short.

    Raises:
        InputError: There are fewer than two examples with targets.
    """
    base = _losses(examples, loss)
    if (base[:, 1] > 0).sum() < 2:
        raise InputError("must have at least two examples with targets", option="examples")
    totals = []
    for change in edits.values():
        rows = []
        for example in examples:
            with edit(model, change(example) if callable(change) else change):
                rows.append(float(loss(example)[0]))
        totals.append(rows)
    mean = float(base[:, 0].sum() / base[:, 1].sum())
    return mean, _effects(list(edits), base, np.array(totals))


@torch.no_grad()
def ablation(
    model: nn.Module,
    examples: Sequence[ExampleT],
    loss: Loss[ExampleT],
    *,
    by: Literal["head", "layer"] = "head",
    kind: Kind = "zero",
    others: Sequence[ExampleT] = (),
    seed: int = 0,
) -> tuple[float, list[Effect]]:
    """Remove each head, or all heads or neurons of each sub-layer, and measure the loss.

    The output bias of a sub-layer stays. `zero` also removes what a value bias adds to each token;
    `mean` replaces a vector by its mean over the tokens of other examples, and `resample` by that
    of a random token of them. See `edit_effects` for the other arguments and the result, which has
    an effect for each head or sub-layer.

    Args:
        others: Examples for `mean` and `resample`, which should not be among `examples`.

    Raises:
        InputError: There are fewer than two examples with targets, or none for the means.
    """
    if kind != "zero" and not others:
        raise InputError("must have at least one example", option="others")
    names = heads(model)
    if by == "layer":
        names = [name for name in edit_targets(model) if name.endswith(SLOTS)]
    pools = _pools(model, others, loss) if kind != "zero" else {}
    generator = torch.Generator().manual_seed(seed)
    edits = {name: {name: _replacement(name, kind, pools, generator)} for name in names}
    return edit_effects(model, examples, loss, edits)


def heads(model: nn.Module) -> list[str]:
    """Return the names of all attention heads of a model, such as "decoder.0.cross.head.3"."""
    return [f"{name}.{i}" for name, size in _head_sizes(model).items() for i in range(size)]


def _head_sizes(model: nn.Module) -> dict[str, int]:
    sizes = {x: t.size or 0 for x, t in edit_targets(model).items() if t.slot == "head"}
    if not sizes:
        raise InputError("must have attention", option="the model")
    return sizes


def head_gradients(
    model: nn.Module, examples: Sequence[ExampleT], loss: Loss[ExampleT]
) -> dict[str, float]:
    """Return the importance of each head by name, from gradients (Michel et al. 2019).

    It is the mean over examples of |dL/dg|, for a gate g = 1 that multiplies the output of the
    head, divided by the norm over the heads of the layer. One backward pass gives all heads.
    """
    sizes = _head_sizes(model)
    gates = {name: torch.ones(size, 1, 1, requires_grad=True) for name, size in sizes.items()}
    sums = [torch.zeros(size) for size in sizes.values()]
    with torch.enable_grad(), edit(model, {name: scale(gate) for name, gate in gates.items()}):
        for example in examples:
            found = torch.autograd.grad(loss(example)[0], [*gates.values()], materialize_grads=True)
            for total, gradient in zip(sums, found, strict=True):
                total += gradient.abs().flatten()
    shares = torch.cat([x / x.norm().clamp(min=1e-30) for x in sums]).tolist()
    return dict(zip(heads(model), shares, strict=True))


def pruning_curve(
    model: nn.Module,
    examples: Sequence[ExampleT],
    loss: Loss[ExampleT],
    order: Sequence[str],
    *,
    n_steps: int = 10,
) -> tuple[float, list[Effect]]:
    """Remove ever more heads together, and measure the loss, which is that of a smaller model.

    See `edit_effects` for the result. The name of an effect is the number of removed heads.

    Args:
        order: Names of heads, the least important first. It should come from other examples.
        n_steps: Number of steps until all heads of the order are removed.
    """
    numbers = sorted({-(-len(order) * step // n_steps) for step in range(1, n_steps + 1)})
    edits = {str(n): dict.fromkeys(order[:n], zero) for n in numbers}
    return edit_effects(model, examples, loss, edits)


def knockout(
    model: nn.Module,
    examples: Sequence[ExampleT],
    loss: Loss[ExampleT],
    pairs: Callable[[ExampleT], Pairs],
    *,
    attention: str = "self",
    window: int = 1,
    kind: Literal["hide", "drop"] = "hide",
) -> tuple[float, list[Effect]]:
    """Remove the attention of some queries to some keys, in each window of consecutive layers.

    See `edit_effects` for the result. The name of an effect has the first and the last layer.

    Args:
        pairs: Function from an example to columns of keys, and of queries or None for all queries.
        attention: Name without layer and slot, such as "self", "encoder.self" or "decoder.cross".
        window: Number of layers in which the pairs are removed together.
        kind: `hide` removes them before the softmax, so that the other weights of a query grow;
            `drop` sets their weights to 0 after it.

    Raises:
        InputError: The model has no such attention, or fewer layers than the window.
    """
    operation = {"hide": hide, "drop": drop}[kind]
    every = [name for name in edit_targets(model) if name.endswith(".weights")]
    kinds = {name: re.sub(r"(^|\.)\d+\.", r"\1", name).removesuffix(".weights") for name in every}
    names = [name for name, found in kinds.items() if found == attention]
    if not names:
        message = f"must be one of {', '.join(dict.fromkeys(kinds.values()))}, got {attention}"
        raise InputError(message, option="attention")
    if not 1 <= window <= len(names):
        raise InputError(f"must be from 1 to {len(names)}, got {window}", option="window")
    edits = {}
    for start in range(len(names) - window + 1):
        chosen = names[start : start + window]
        title = f"{attention} {start} to {start + window - 1}"
        edits[title] = lambda example, chosen=chosen: dict.fromkeys(
            chosen, operation(*pairs(example))
        )
    return edit_effects(model, examples, loss, edits)


@torch.no_grad()
def deletion(
    model: Any, images: Tensor, classes: Tensor, scores: Tensor, baseline: Tensor | float = 0.0
) -> Tensor:
    """Return the probability of a class without the 0, 1, ... N best patches (B, N + 1) of images.

    Source: Petsiuk et al. 2018. With scores that find what a ViT reads, the curve falls early.
    Compare it with the curve of random scores, since an image without patches is unlike the data.

    Args:
        images: Images (B, C, height, width).
        classes: Class (B,) whose probability is computed.
        scores: Scores (B, N) of the patches, or (B, rows, columns).
        baseline: Pixels that replace a patch, such as the mean image; broadcast to `images`.
    """
    baseline = torch.as_tensor(baseline).to(images)
    ranks = scores.flatten(1).argsort(1, descending=True).argsort(1)
    found = []
    for n in range(ranks.shape[1] + 1):
        is_gone = (ranks < n).view(-1, 1, *model.embed.grid).to(images)
        is_gone = F.interpolate(is_gone, images.shape[2:]) > 0  # nearest pixels
        probabilities = model(torch.where(is_gone, baseline, images)).softmax(-1)
        found.append(probabilities.gather(1, classes[:, None])[:, 0])
    return torch.stack(found, 1)


def insertion(
    model: Any, images: Tensor, classes: Tensor, scores: Tensor, baseline: Tensor | float = 0.0
) -> Tensor:
    """Return the probability of a class with only the 0, 1, ... N best patches (B, N + 1).

    The arguments are those of `deletion`; the other patches have the pixels of the baseline.
    """
    empty = torch.as_tensor(baseline).to(images).expand_as(images)
    return deletion(model, empty, classes, scores, images)


def _losses(examples: Sequence[ExampleT], loss: Loss[ExampleT]) -> np.ndarray:
    """Return sum of the loss and number of targets (N, 2) of each example."""
    found = [[float(x) for x in loss(example)] for example in examples]
    return np.array(found).reshape(-1, 2)


def _pools(model: nn.Module, others: Sequence[ExampleT], loss: Loss[ExampleT]) -> dict[str, Tensor]:
    """Return vectors (N, H, D), or (N, F) of neurons, of the tokens of other examples."""
    found: dict[str, list[Tensor]] = {}
    names = [name for name in edit_targets(model) if name.endswith(SLOTS)]
    for example in others:
        run: Run
        with record(model, *names) as run:
            loss(example)
        for name, x in run.items():
            found.setdefault(name, []).append(
                (x.transpose(1, 2) if x.ndim == 4 else x).flatten(0, 1)
            )
    return {name: torch.cat(parts) for name, parts in found.items()}


def _replacement(
    name: str, kind: Kind, pools: dict[str, Tensor], generator: torch.Generator
) -> Operation | Callable[[Tensor], Tensor]:
    if kind == "zero":
        return zero
    whole, _, index = name.rpartition(".")
    pool = pools[whole][:, int(index)] if index.isdecimal() else pools[name]  # (N, H, D) or (N, D)
    if kind == "mean":
        wide = torch.promote_types(pool.dtype, torch.float32)
        center = pool.to(wide).mean(0)
        return set(center[:, None] if center.ndim == 2 else center)

    def resampled(x: Tensor) -> Tensor:
        tokens = (len(x), x.shape[-2])
        rows = pool[torch.randint(len(pool), tokens, generator=generator).to(pool.device)]
        return rows.transpose(1, 2) if x.ndim == 4 else rows

    return resampled


def _effects(names: Sequence[str], base: np.ndarray, totals: np.ndarray) -> list[Effect]:
    """Return the effects from loss and targets (N, 2), and losses with edits (E, N)."""
    used = base[:, 1] > 0
    differences, counts = (totals - base[:, 0])[:, used], base[used, 1]
    changes = differences.sum(1) / counts.sum()
    # Linear approximation of a ratio of sums (Cochran 1977, section 6.4).
    n, residuals = len(counts), differences - changes[:, None] * counts
    errors = np.sqrt(n / (n - 1) * np.square(residuals).sum(1)) / counts.sum()
    halves = t_quantile(n - 1) * errors
    p = holm(
        [
            t_test(c / e if e else np.inf * bool(c), n - 1)
            for c, e in zip(changes, errors, strict=True)
        ]
    )
    rows = zip(names, changes, changes - halves, changes + halves, p, strict=True)
    return [Effect(name, *map(float, values)) for name, *values in rows]
