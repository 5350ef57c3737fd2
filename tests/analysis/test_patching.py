"""Activation patching against hooks on copies of tensors, and attribution against patching."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import fourfold
from fourfold.analysis.patching import attribution, patching
from fourfold.edits import set
from fourfold.edits.contexts import edit_targets
from fourfold.errors import InputError
from fourfold.metrics.classification import RegressionScores
from tests.fixtures.tiny_models import StackRunner, assert_same, build, tokens

KINDS = ("causal", "causal_llama", "causal_cohere", "masked", "encoder", "decoder", "t5_decoder")


class Case:
    """A model of one family with two examples, and a metric that reads one token."""

    def __init__(self, kind: str) -> None:
        self.position = 3
        if kind == "vit":
            self.model: Any = build("vit")
            self.clean, self.corrupt = torch.randn(2, 1, 2, 8, 8, dtype=torch.float64)
            self.start = ""
            self.run = lambda images: self.model.encode(images)
            return
        runner = StackRunner(kind)
        self.model = runner.model
        self.start = "" if hasattr(self.model, "stack") else f"{runner.stack}."
        source = runner.source(1)
        self.clean, self.corrupt = tokens(1, 6), tokens(1, 6)
        self.run = lambda ids: runner(ids, **source)

    def metric(self, example: Tensor) -> Tensor:
        return self.run(example)[0, self.position].sin().sum()


families = pytest.mark.parametrize("kind", [*KINDS, "vit"])


@contextmanager
def replaced_head(out: Any, head: int, value: Tensor, position: int | None) -> Iterator[None]:
    """Replace the columns of a head in the input of the output matrix."""
    width = value.shape[-1]

    def hook(_: Any, inputs: tuple[Tensor]) -> Tensor:
        x = inputs[0].clone()
        rows = slice(None) if position is None else position
        x[:, rows, head * width : (head + 1) * width] = value[:, rows]
        return x

    handle = out.register_forward_pre_hook(hook)
    try:
        yield
    finally:
        handle.remove()


@families
def test_effects_of_a_head_equal_those_of_hooks(kind: str) -> None:
    case = Case(kind)
    name = f"{case.start}0.self.head.1"
    out = edit_targets(case.model)[f"{case.start}0.self.head"].module.out
    values, heads = [], []
    for example in (case.clean, case.corrupt):
        with fourfold.record(case.model, name) as run:
            values.append(case.metric(example).item())
        heads.append(run[name])
    for by_position in (False, True):
        found = patching(
            case.model, case.clean, case.corrupt, case.metric, [name], by_position=by_position
        )
        assert [effect.position for effect in found] == (
            [*range(heads[0].shape[1])] if by_position else [None]
        )
        for effect in found:
            with replaced_head(out, 1, heads[0], effect.position):
                restored = case.metric(case.corrupt).item() - values[1]
            with replaced_head(out, 1, heads[1], effect.position):
                removed = values[0] - case.metric(case.clean).item()
            expected = [x / (values[0] - values[1]) for x in (restored, removed)]
            assert [effect.denoising, effect.noising] == pytest.approx(expected, abs=1e-9)
    assert any(abs(effect.denoising) > 1e-6 for effect in found)


@families
def test_the_whole_input_restores_and_removes_everything(kind: str) -> None:
    case = Case(kind)
    (effect,) = patching(case.model, case.clean, case.corrupt, case.metric, [f"{case.start}0.in"])
    assert effect[2:] == pytest.approx((1, 1), abs=1e-9)


@pytest.mark.parametrize("kind", ["causal", "causal_llama", "decoder", "t5_decoder"])
def test_causal_models_read_no_later_token(kind: str) -> None:
    case = Case(kind)
    names = [f"{case.start}*.in", f"{case.start}*.self.head.*", f"{case.start}*.ff.neuron.7"]
    found = patching(case.model, case.clean, case.corrupt, case.metric, names, by_position=True)
    late = [x for x in found if x.position is not None and x.position > case.position]
    early = [x for x in found if x not in late]
    assert not any(x.denoising or x.noising for x in late)
    assert sum(x.denoising != 0 for x in early) > 10
    # The examples differ at one token: earlier tokens have the same tensors.
    case.corrupt = case.clean.clone()
    case.corrupt[0, 2] += 1
    case.corrupt %= 29
    found = patching(case.model, case.clean, case.corrupt, case.metric, names, by_position=True)
    assert not any(x.denoising or x.noising for x in found if x.position in (0, 1))


def mixed(case: Case, size: float) -> tuple[Tensor, Tensor, Any]:
    """Return the first states of two examples that differ by `size`, and the metric of them."""
    name = f"{case.start}0.in"
    states = []
    for example in (case.clean, case.corrupt):
        with fourfold.record(case.model, name) as run:
            case.run(example)
        states.append(run[name])

    def metric(state: Tensor) -> Tensor:
        with fourfold.edit(case.model, {name: set(state)}):
            return case.metric(case.clean)

    return states[0], states[0] + size * (states[1] - states[0]), metric


@families
def test_the_error_of_attribution_is_of_second_order(kind: str) -> None:
    case = Case(kind)
    names = [f"{case.start}*.self.head.*", f"{case.start}0.out", f"{case.start}*.ff.neuron.4"]
    errors = []
    for size in (2e-3, 1e-3):
        clean, corrupt, metric = mixed(case, size)
        difference = (metric(clean) - metric(corrupt)).item()
        exact = patching(case.model, clean, corrupt, metric, names)
        linear = attribution(case.model, clean, corrupt, metric, names)
        assert [x[:2] for x in exact] == [x[:2] for x in linear]
        shares = [np.array([x[2:] for x in effects]) * difference for effects in (exact, linear)]
        errors.append(shares[1] - shares[0])
        assert np.abs(errors[-1]).max() < 0.05 * np.abs(shares[0]).max()
    chosen = np.abs(errors[0]) > 0.1 * np.abs(errors[0]).max()
    assert 3 < np.median(errors[0][chosen] / errors[1][chosen]) < 5


@families
@pytest.mark.parametrize("slot", ["head.1", "weights.1", "q.1", "v.0", "out"])
def test_attribution_is_the_slope_of_a_mixture(kind: str, slot: str) -> None:
    case = Case(kind)
    name = f"{case.start}0.self.{slot}"
    examples, values, states = (case.clean, case.corrupt), [], []
    for example in examples:
        with fourfold.record(case.model, name) as run:
            values.append(case.metric(example).item())
        states.append(run[name])
    (effect,) = attribution(case.model, *examples, case.metric, [name])
    for found, own, other in ((-effect.noising, 0, 1), (effect.denoising, 1, 0)):
        ends = []
        for size in (1e-6, -1e-6):
            mixture = states[own] + size * (states[other] - states[own])
            with fourfold.edit(case.model, {name: set(mixture)}):
                ends.append(case.metric(examples[own]).item())
        slope = (ends[0] - ends[1]) / 2e-6
        assert found == pytest.approx(slope / (values[0] - values[1]), rel=1e-4, abs=1e-7)


def test_attribution_orders_as_patching() -> None:
    case = Case("causal")
    clean, corrupt, metric = mixed(case, 0.02)
    names = ["*.self.head.*", "*.ff.neuron.*"]
    found = [
        function(case.model, clean, corrupt, metric, names, by_position=True)
        for function in (patching, attribution)
    ]
    for column in ("denoising", "noising"):
        scores = RegressionScores()
        exact, linear = (torch.tensor([getattr(x, column) for x in one]) for one in found)
        scores.update(linear, exact)
        assert scores.compute()["spearman"] > 0.95
    whole = attribution(case.model, clean, corrupt, metric, names)
    parts: dict[str, float] = {}
    for effect in found[1]:
        parts[effect.name] = parts.get(effect.name, 0.0) + effect.denoising
    assert parts == pytest.approx({effect.name: effect.denoising for effect in whole})


def test_attribution_of_a_linear_part_is_exact() -> None:
    model = build("causal", norm_placement="post")  # no norm follows the last block
    direction = torch.randn(12, dtype=torch.float64)

    def metric(ids: Tensor) -> Tensor:
        return (model.hidden(ids)[0, 3] @ direction).sum()

    examples = tokens(1, 6), tokens(1, 6)
    exact = patching(model, *examples, metric, ["1.out"], by_position=True)
    linear = attribution(model, *examples, metric, ["1.out"], by_position=True)
    assert_same(torch.tensor([x[2:] for x in linear]), torch.tensor([x[2:] for x in exact]))


def test_refused_pairs() -> None:
    model = build("causal")
    short, long = tokens(1, 4), tokens(1, 5)

    def metric(ids: Tensor) -> Tensor:
        return model(ids)[0, -1, 0]

    for function in (patching, attribution):
        with pytest.raises(InputError, match="numbers of tokens of clean"):
            function(model, short, long, metric, ["0.in"])
        with pytest.raises(InputError, match="must not have the metric of clean"):
            function(model, short, short, metric, ["0.in"])
