"""Ablation of heads and sub-layers, against copies of the model without them."""

from typing import Any

import pytest
import torch
from torch import Tensor

import fourfold
from fourfold.analysis.interventions import ablation
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
    others = [effect for effect in effects if effect is not best]
    assert max(effect.change for effect in others) < best.change / 5
    # The mean keeps what a head adds to every token.
    _, means = ablation(model, rows, loss_of(model), kind="mean", others=rows)
    assert abs(next(x for x in means if x.name == best.name).change) < best.change / 100


def test_random_changes_are_not_significant() -> None:
    noise = torch.Generator().manual_seed(1)
    model = StackRunner("causal").model

    def loss(ids: Tensor) -> tuple[float, int]:
        return float(torch.randn((), generator=noise)), 1

    _, effects = ablation(model, examples(40), loss)
    assert all(effect.p >= 0.05 for effect in effects)
    assert all(effect.low < 0 < effect.high for effect in effects)


def test_refused_ablations() -> None:
    model = StackRunner("causal").model
    for rows, kind in (([], "zero"), (examples(2), "mean")):
        with pytest.raises(InputError, match="at least one example"):
            ablation(model, rows, loss_of(model), kind=kind)  # type: ignore[arg-type]
    recurrent = fourfold.create("resnet18", n_classes=2)
    with pytest.raises(InputError, match="must have attention"):
        ablation(recurrent, [1], lambda _: (0.0, 1))
