"""Effects of edits on the loss of a model: ablation of heads and layers, with intervals.

Source: Michel et al. 2019 (removal of single heads), Wang et al. 2022 (means of other data).
"""

from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from fourfold.edits import Operation, Run, edit, record, set, zero
from fourfold.edits.contexts import edit_targets
from fourfold.errors import InputError
from fourfold.metrics.significance import holm, t_quantile, t_test

ExampleT = TypeVar("ExampleT")
Kind = Literal["zero", "mean", "resample"]
SLOTS = {"head": ("head",), "layer": ("head", "neuron")}


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
def ablation(
    model: nn.Module,
    examples: Sequence[ExampleT],
    loss: Callable[[ExampleT], tuple[Any, Any]],
    *,
    by: Literal["head", "layer"] = "head",
    kind: Kind = "zero",
    others: Sequence[ExampleT] = (),
    seed: int = 0,
) -> tuple[float, list[Effect]]:
    """Remove each head, or all heads or neurons of each sub-layer, and measure the loss.

    The output bias of a sub-layer stays. `zero` also removes what a value bias adds to each token;
    `mean` replaces a vector by its mean over the tokens of other examples, and `resample` by that
    of a random token of them.

    Args:
        examples: Examples of any kind, evaluated one at a time.
        loss: Function that runs the model on an example, and returns the sum of the loss and the
            number of targets.
        others: Examples for `mean` and `resample`, which should not be among `examples`.

    Returns:
        The mean loss over all targets without an edit, and an effect for each head or sub-layer.
        The intervals and p-values are those of Student's t for the differences of the examples, a
        ratio of two sums. A bootstrap of few examples has intervals that are too short.

    Raises:
        InputError: There are fewer than two examples with targets, or none for the means.
    """
    if kind != "zero" and not others:
        raise InputError("must have at least one example", option="others")
    pools = _pools(model, others, loss) if kind != "zero" else {}
    names = []
    for name, target in edit_targets(model).items():
        if name.rpartition(".")[2] in SLOTS[by]:
            size = target.size or 0
            names += [f"{name}.{i}" for i in range(size)] if by == "head" else [name]
    if not names:
        raise InputError("must have attention", option="the model")
    base = _losses(examples, loss)
    if (base[:, 1] > 0).sum() < 2:
        raise InputError("must have at least two examples with targets", option="examples")
    generator = torch.Generator().manual_seed(seed)
    totals = []
    for name in names:
        with edit(model, {name: _replacement(name, kind, pools, generator)}):
            totals.append(_losses(examples, loss)[:, 0])
    return float(base[:, 0].sum() / base[:, 1].sum()), _effects(names, base, np.stack(totals))


def _losses(
    examples: Sequence[ExampleT], loss: Callable[[ExampleT], tuple[Any, Any]]
) -> np.ndarray:
    """Return sum of the loss and number of targets (N, 2) of each example."""
    found = [[float(x) for x in loss(example)] for example in examples]
    return np.array(found).reshape(-1, 2)


def _pools(
    model: nn.Module, others: Sequence[ExampleT], loss: Callable[[ExampleT], tuple[Any, Any]]
) -> dict[str, Tensor]:
    """Return vectors (N, H, D), or (N, F) of neurons, of the tokens of other examples."""
    found: dict[str, list[Tensor]] = {}
    names = [n for n in edit_targets(model) if n.rpartition(".")[2] in SLOTS["layer"]]
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
