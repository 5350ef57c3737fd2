"""Effects of edits on the loss, against copies of the model that were changed by hand."""

import copy
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import fourfold
from fourfold.analysis.interventions import (
    _effects,
    ablation,
    deletion,
    edit_effects,
    head_gradients,
    heads,
    insertion,
    knockout,
    pruning_curve,
)
from fourfold.core.attention import Attention, dense_mask
from fourfold.core.masks import LoweredMask
from fourfold.edits import set, zero
from fourfold.edits.contexts import edit_targets
from fourfold.errors import InputError
from tests.fixtures.tiny_models import StackRunner, assert_same, build, tokens

KINDS = ("causal", "causal_rotary", "masked", "encoder", "decoder", "joined_decoder", "vit")
families = pytest.mark.parametrize("kind", KINDS)


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


def case(kind: str, n: int = 4) -> tuple[Any, list[Tensor], Any]:
    """Return a model, examples and a loss of one family."""
    if kind == "vit":
        vit = build("vit", norm_placement="pre")
        images = list(torch.randn(n, 1, 2, 8, 8, dtype=torch.float64))
        return vit, images, lambda x: (vit.encode(x).sin().sum(), 3)
    runner = StackRunner(kind)
    source = runner.source(1)
    return (
        runner.model,
        [tokens(1, 4 + i % 2) for i in range(n)],
        lambda ids: (runner(ids, **source).sin().sum(), ids.numel()),
    )


def total(rows: list[Tensor], loss: Any) -> float:
    """Return the mean loss over the targets."""
    with torch.no_grad():
        found = [loss(row) for row in rows]
    return float(sum(x for x, _ in found) / sum(n for _, n in found))


@families
def test_gradients_of_heads_are_those_of_central_differences(kind: str) -> None:
    model, rows, loss = case(kind)
    found = head_gradients(model, rows, loss)
    assert list(found) == heads(model)
    layers: dict[str, list[float]] = {}
    for name in found:
        module: Any = edit_targets(model)[name.rpartition(".")[0]].module
        head = int(name.rpartition(".")[2])
        width = module.out.in_features // module.n_heads
        columns = slice(head * width, (head + 1) * width)
        saved, ends = module.out.weight.detach().clone(), []
        with torch.no_grad():
            for factor in (1 + 1e-5, 1 - 1e-5):
                module.out.weight[:, columns] = factor * saved[:, columns]
                ends.append(np.array([float(loss(row)[0]) for row in rows]))
            module.out.weight.copy_(saved)
        slope = np.abs((ends[0] - ends[1]) / 2e-5).sum()
        layers.setdefault(name.rpartition(".")[0], []).append(float(slope))
    # The decoder, which the states of an encoder do not depend on, has gradients of 0.
    norms = {layer: sum(x * x for x in slopes) ** 0.5 or 1.0 for layer, slopes in layers.items()}
    expected = [x / norms[layer] for layer, slopes in layers.items() for x in slopes]
    assert list(found.values()) == pytest.approx(expected, rel=1e-4)
    assert all(p.grad is None for p in model.parameters())


def smaller(module: Attention, gone: list[int]) -> Attention:
    """Return an attention module without some heads."""
    kept = [head for head in range(module.n_heads) if head not in gone]
    width = module.q.out_features // module.n_heads
    rows = torch.cat([torch.arange(head * width, (head + 1) * width) for head in kept])
    small = Attention(module.q.in_features, len(kept), d_head=width).double().eval()
    for name in ("q", "k", "v"):
        big: Any = module.get_submodule(name)
        small.get_submodule(name).load_state_dict(
            {"weight": big.weight[rows], "bias": big.bias[rows]}
        )
    small.out.load_state_dict({"weight": module.out.weight[:, rows], "bias": module.out.bias})
    return small


@families
def test_a_pruned_model_equals_a_physically_smaller_one(kind: str) -> None:
    model, rows, loss = case(kind)
    # The first head of each layer is removed at last, so that each layer keeps one.
    order = sorted(heads(model), key=lambda name: name.endswith("0"))
    base, curve = pruning_curve(model, rows, loss, order, n_steps=6)
    assert base == pytest.approx(total(rows, loss))
    numbers = [int(effect.name) for effect in curve]
    assert numbers == [-(-len(order) * step // 6) for step in range(1, 7)]
    whole = {name: target.module for name, target in edit_targets(model).items()}
    checked = 0
    for effect in curve:
        gone: dict[str, list[int]] = {}
        for name in order[: int(effect.name)]:
            layer, _, head = name.rpartition(".")
            gone.setdefault(layer, []).append(int(head))
        if any(len(found) == whole[layer].n_heads for layer, found in gone.items()):
            break
        paths = {id(module): path for path, module in model.named_modules()}
        for layer, found in gone.items():
            model.set_submodule(paths[id(whole[layer])], smaller(whole[layer], found))
        assert total(rows, loss) - base == pytest.approx(effect.change, abs=1e-10)
        for layer in gone:
            model.set_submodule(paths[id(whole[layer])], whole[layer])
        checked += 1
    assert checked >= 3
    assert curve[2].change != 0


ATTENTION = {
    **dict.fromkeys(("causal", "causal_rotary", "masked", "vit"), ("self",)),
    "encoder": ("encoder.self",),
    "decoder": ("decoder.self", "decoder.cross"),
    "joined_decoder": ("decoder.cross",),
}


@pytest.mark.parametrize("name", ["hide", "drop"])
@families
def test_knockout_equals_a_mask_of_each_attention(kind: str, name: Any) -> None:
    model, rows, loss = case(kind)
    keys, queries = [0, 2], [2, 3]
    for attention in ATTENTION[kind]:
        modules: list[Any] = [
            target.module
            for place, target in edit_targets(model).items()
            if place.endswith(
                f"{attention}.weights".split(".", 1)[-1]
                if "." in attention
                else f"{attention}.weights"
            )
            and place.startswith(attention.rpartition(".")[0])
        ]
        for window in range(1, len(modules) + 1):
            base, effects = knockout(
                model,
                rows,
                loss,
                lambda _: (keys, queries),
                attention=attention,
                window=window,
                kind=name,
            )
            assert base == pytest.approx(total(rows, loss))
            assert len(effects) == len(modules) - window + 1
            for start, effect in enumerate(effects):
                assert effect.name == f"{attention} {start} to {start + window - 1}"
                handles = []
                for module in modules[start : start + window]:
                    if name == "hide":
                        handles.append(module.register_forward_pre_hook(masked, with_kwargs=True))
                    else:
                        module.normalize = dropped
                assert total(rows, loss) - base == pytest.approx(effect.change, abs=1e-10)
                assert effect.change != 0
                for handle in handles:
                    handle.remove()
                for module in modules:
                    vars(module).pop("normalize", None)


def dropped(scores: Tensor) -> Tensor:
    """Return weights of 0 for two keys of two queries, without a change of the others."""
    weights = scores.softmax(-1)
    weights[..., 2:4, [0, 2]] = 0.0
    return weights


def masked(module: Any, args: tuple[Tensor, ...], options: dict[str, Any]) -> Any:
    """Replace the mask of an attention module by one that also forbids two keys to two queries."""
    mask = options["mask"]
    q, k = args[0][:, None], args[-1][:, None]
    allowed = dense_mask(mask.mask, mask.causal, mask.window, q, k)
    if allowed is None:
        allowed = torch.ones(1, 1, q.shape[2], k.shape[2], dtype=torch.bool)
    allowed = allowed[(None,) * (4 - allowed.ndim)].expand(-1, -1, q.shape[2], -1).clone()
    allowed[..., 2:4, [0, 2]] = False
    return args, {**options, "mask": LoweredMask(allowed)}


def test_each_example_may_have_its_own_edits() -> None:
    model, rows, loss = case("causal")
    last = [ids.shape[1] - 1 for ids in rows]
    _, (effect,) = edit_effects(
        model, rows, loss, {"last": lambda ids: {"0.out": set(0.0, [ids.shape[1] - 1])}}
    )
    changes = []
    for ids, position in zip(rows, last, strict=True):
        with fourfold.edit(model, {"0.out": set(0.0, [position])}):
            changes.append(total([ids], loss) * ids.numel())
    expected = sum(changes) / sum(ids.numel() for ids in rows) - total(rows, loss)
    assert effect.change == pytest.approx(expected)
    _, (whole,) = edit_effects(model, rows, loss, {"all": {"0.self.head": zero, "0.ff.out": zero}})
    copied = copy.deepcopy(model)
    with torch.no_grad():
        copied.stack.blocks[0].attn.out.weight.zero_()
        copied.stack.blocks[0].ff.down.weight.zero_()
        copied.stack.blocks[0].ff.down.bias.zero_()
    runner = StackRunner("causal")
    runner.model = copied
    found = total(rows, lambda ids: (runner(ids).sin().sum(), ids.numel())) - total(rows, loss)
    assert whole.change == pytest.approx(found)


def test_refused_knockouts() -> None:
    model, rows, loss = case("decoder")
    with pytest.raises(InputError, match=r"one of encoder.self, decoder.self, decoder.cross, got"):
        knockout(model, rows, loss, lambda _: ([0], None))
    with pytest.raises(InputError, match="window must be from 1 to 2, got 3"):
        knockout(model, rows, loss, lambda _: ([0], None), attention="decoder.cross", window=3)


@torch.no_grad()
@pytest.mark.parametrize("pool", ["cls", "mean"])
def test_curves_of_patches_equal_a_loop(pool: str) -> None:
    model = build("vit", pool=pool)
    images = torch.randn(3, 2, 8, 8, dtype=torch.float64)
    empty = torch.randn(2, 1, 1, dtype=torch.float64)
    classes, scores = torch.tensor([1, 4, 0]), torch.randn(3, 4, 4)
    probability = model(images).softmax(-1).gather(1, classes[:, None])[:, 0]
    baseline = model(empty.expand_as(images)).softmax(-1).gather(1, classes[:, None])[:, 0]
    gone = deletion(model, images, classes, scores, empty)
    back = insertion(model, images, classes, scores, empty)
    assert gone.shape == back.shape == (3, 17)
    for curve, first, last in ((gone, probability, baseline), (back, baseline, probability)):
        assert_same(curve[:, 0], first)
        assert_same(curve[:, -1], last)
    # The k worst patches remain if the others are deleted.
    assert_same(insertion(model, images, classes, -scores, empty).flip(1), gone)
    for row in range(3):
        order = scores[row].flatten().argsort(descending=True).tolist()
        image = images[row].clone()
        for n, patch in enumerate(order, 1):
            top, left = 2 * (patch // 4), 2 * (patch % 4)
            image[:, top : top + 2, left : left + 2] = empty
            value = model(image[None]).softmax(-1)[0, classes[row]]
            assert_same(gone[row, n], value)
