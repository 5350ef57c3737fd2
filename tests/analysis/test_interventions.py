"""Ablation of heads and sub-layers, against copies of the model without them."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import fourfold
from fourfold.analysis.interventions import _effects, ablation
from fourfold.edits import set
from fourfold.errors import InputError
from tests.fixtures.tiny_models import StackRunner, tokens


def loss_of(model: Any) -> Any:
    def loss(ids: Tensor) -> tuple[Tensor, int]:
        targets = ids[:, 1:].flatten()
        logits = model(ids)[:, :-1].flatten(0, 1)
        return torch.nn.functional.cross_entropy(logits, targets, reduction="sum"), len(targets)

    return loss


def examples(n: int) -> list[Tensor]:
    return [tokens(1, 3 + i % 4) for i in range(n)]


def mean_loss(model: Any, rows: list[Tensor]) -> float:
    found = [loss_of(model)(ids) for ids in rows]
    return float(sum(x for x, _ in found) / sum(n for _, n in found))


@torch.no_grad()
def test_zero_equals_a_model_without_the_columns_of_a_head() -> None:
    model, rows = StackRunner("causal").model, examples(6)
    base, effects = ablation(model, rows, loss_of(model))
    assert base == pytest.approx(mean_loss(model, rows), rel=1e-12)
    assert [x.name for x in effects] == [f"{i}.self.head.{h}" for i in range(2) for h in range(3)]
    for effect in effects:
        layer, head = int(effect.name[0]), int(effect.name[-1])
        weight = model.stack.blocks[layer].attn.out.weight
        saved = weight.clone()
        weight[:, head * 4 : head * 4 + 4] = 0.0
        assert effect.change == pytest.approx(mean_loss(model, rows) - base, abs=1e-12)
        weight.copy_(saved)
        assert effect.low <= effect.change <= effect.high


@torch.no_grad()
def test_means_are_those_of_the_other_rows() -> None:
    model, rows, others = StackRunner("causal_llama").model, examples(5), examples(7)
    base, effects = ablation(model, rows, loss_of(model), by="layer", kind="mean", others=others)
    assert [x.name for x in effects] == [
        f"{i}.{name}" for i in range(2) for name in ("self.head", "ff.neuron")
    ]
    for effect in effects:
        parts = []
        for ids in others:
            with fourfold.record(model, effect.name) as run:
                model(ids)
            x = run[effect.name]
            parts.append(x[0] if x.ndim == 3 else x[0].transpose(0, 1))
        center = torch.cat(parts).mean(0)
        with fourfold.edit(model, {effect.name: set(center.unsqueeze(-2))}):
            assert effect.change == pytest.approx(mean_loss(model, rows) - base, abs=1e-12)


@torch.no_grad()
def test_resampled_vectors_come_from_the_pool() -> None:
    model, rows = StackRunner("causal").model, examples(4)
    # One other row with one token: each token gets its vector.
    others = [tokens(1, 1)]
    seen: list[Tensor] = []

    def loss(ids: Tensor) -> tuple[float, int]:
        with fourfold.record(model, "0.self.head.1") as run:
            model(ids)
        seen.append(run["0.self.head.1"])
        return 1.0, 1

    ablation(model, rows, loss, kind="resample", others=others)
    pool = seen[0]  # of the other row
    runs = [seen[1 + 4 * i : 5 + 4 * i] for i in range(7)]  # without an edit, then each head
    for x in runs[2]:
        assert torch.equal(x, pool.expand_as(x))
    same = [torch.equal(x, pool.expand_as(x)) for x in runs[0]]
    assert not all(same)


@torch.no_grad()
def test_a_planted_head_is_found() -> None:
    model = fourfold.create("gpt2", n_layers=2, d_model=32, n_heads=4, vocab_size=29).double()
    model.eval()
    for parameter in model.parameters():
        parameter.mul_(0.2)
    # Head 2 of layer 1 adds the direction of the next token of the constant text, whatever it sees.
    attention = model.stack.blocks[1].attn
    attention.v.bias[16:24] = 1.0
    attention.out.weight[:, 16:24] = 5.0 * model.embed.tokens.weight[7][:, None]
    rows = [torch.full((1, 4 + i), 7) for i in range(5)]
    _, effects = ablation(model, rows, loss_of(model))
    best = max(effects, key=lambda effect: effect.change)
    assert best.name == "1.self.head.2"
    assert best.low > 0
    assert best.p < 0.05
    rest = [effect for effect in effects if effect is not best]
    assert max(effect.change for effect in rest) < best.change / 5
    # The mean keeps what a head adds to every token.
    others = [torch.full((1, 3), 7)]
    _, means = ablation(model, rows, loss_of(model), kind="mean", others=others)
    assert abs(next(x for x in means if x.name == best.name).change) < best.change / 100


def simulated(n: int, n_effects: int, generator: np.random.Generator) -> list[Any]:
    """Return effects whose true change is 0, of losses that differ more between rows than edits."""
    counts = generator.integers(1, 9, n).astype(float)
    base = np.stack([generator.normal(5, 3, n) * counts, counts], 1)
    return _effects(
        [str(i) for i in range(n_effects)],
        base,
        base[:, 0] + generator.normal(0, 0.1, (n_effects, n)) * counts,
    )


@pytest.mark.parametrize("n", [3, 5, 10, 100])
def test_intervals_and_p_values_hold_for_few_examples(n: int) -> None:
    generator = np.random.default_rng(0)
    single = [simulated(n, 1, generator)[0] for _ in range(800)]
    covered = np.mean([effect.low <= 0 <= effect.high for effect in single])
    # The ratio of two sums is only approximately normal; 0.985 is what 3 examples give.
    assert 0.91 <= covered <= 0.985
    assert np.mean([effect.p < 0.05 for effect in single]) == pytest.approx(1 - covered, abs=1e-9)
    families = [simulated(n, 20, generator) for _ in range(60)]
    assert np.mean([any(effect.p < 0.05 for effect in found) for found in families]) <= 0.15


def test_many_clear_effects_are_all_significant() -> None:
    generator = np.random.default_rng(0)
    counts = np.full(200, 3.0)
    base = np.stack([counts, counts], 1)
    totals = base[:, 0] + 3 + generator.normal(0, 0.3, (400, 200))
    found = _effects([str(i) for i in range(400)], base, totals)
    assert all(effect.p < 1e-9 for effect in found)
    assert found[0].change == pytest.approx(1, abs=0.1)


def test_effects_are_paired_ratios_of_sums() -> None:
    base = np.array([[10.0, 1.0], [30.0, 9.0], [0.0, 0.0]])
    (effect,) = _effects(["a"], base, np.array([[11.0, 39.0, 0.0]]))
    assert effect.change == pytest.approx(1.0)  # in each row, so the interval has no width
    assert effect.low == effect.high == effect.change
    assert effect.p == 0
    both = _effects(["a", "b"], base[:2] * 1.0, np.array([[11.0, 38.0], [10.0, 30.0]]))
    assert both[1].p == 1
    alone = _effects(["a"], base[:2] * 1.0, np.array([[11.0, 38.0]]))
    assert both[0].p == pytest.approx(min(1.0, 2 * alone[0].p))  # Holm


def test_refused_ablations() -> None:
    model = StackRunner("causal").model
    with pytest.raises(InputError, match="at least one example"):
        ablation(model, examples(2), loss_of(model), kind="mean")
    for rows in ([], examples(1)):
        with pytest.raises(InputError, match="at least two examples with targets"):
            ablation(model, rows, loss_of(model))
    recurrent = fourfold.create("resnet18", n_classes=2)
    with pytest.raises(InputError, match="must have attention"):
        ablation(recurrent, [1], lambda _: (0.0, 1))
