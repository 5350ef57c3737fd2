"""Edits and records of the tensors inside the models of all families."""

import copy
import gc
import pickle
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import fourfold
from fourfold.core.attention import Attention
from fourfold.core.kv_cache import KVCache
from fourfold.core.masks import Mask
from fourfold.edits import (
    add,
    drop,
    dump_edits,
    edit_targets,
    hide,
    load_edits,
    mean,
    patch,
    resample,
    scale,
    set,
    zero,
)
from fourfold.errors import InputError
from fourfold.models import (
    CausalLM,
    CausalLMConfig,
    RecurrentEncoderDecoder,
    RecurrentEncoderDecoderConfig,
)
from tests.fixtures.tiny_models import (
    BACKENDS,
    PAIRS,
    StackRunner,
    all_stacks,
    assert_same,
    backend,
    build,
    causal_stacks,
    tokens,
)


def prefix(runner: StackRunner) -> str:
    """Return the start of the names of the stack that the runner returns."""
    has_two = runner.kind not in ("causal", "masked", "stack")
    return f"{runner.stack}." if has_two else ""


def names(runner: StackRunner, slot: str) -> list[str]:
    """Return the names of a slot in the stack that the runner returns, without index."""
    found = [
        name
        for name in edit_targets(runner.model)
        if name.startswith(prefix(runner)) and name.endswith(f".{slot}")
    ]
    assert found
    return found


def state(model: nn.Module) -> list[tuple[str, list[str]]]:
    return [(name, sorted(vars(module))) for name, module in model.named_modules()]


@all_stacks
@pytest.mark.parametrize("name", BACKENDS)
def test_edits_that_change_nothing_change_no_bit(kind: str, name: str) -> None:
    runner = StackRunner(kind)
    inputs = (tokens(2, 6),)
    source = runner.source(2)
    targets = edit_targets(runner.model)
    slots = [target for target in targets if not target.endswith(".weights")]
    one: dict[str, Any] = dict.fromkeys(slots, scale(1.0))
    indexed = [f"*.{slot}.*" for slot in ("head", "q", "k", "v")]
    with backend(name):
        expected = runner(*inputs, **source)
        with fourfold.record(runner.model, *slots, *indexed) as run:
            assert torch.equal(runner(*inputs, **source), expected)
        for edits in (
            one,
            dict.fromkeys(slots, add(0.0)),
            dict.fromkeys((*slots, *indexed), patch(run)),
            dict.fromkeys(slots, lambda x: x.clone()),
        ):
            with fourfold.edit(runner.model, edits):
                assert torch.equal(runner(*inputs, **source), expected)
        weights = {target: scale(1.0) for target in targets if target not in slots}
        with fourfold.edit(runner.model, weights):
            assert_same(runner(*inputs, **source), expected)
        assert torch.equal(runner(*inputs, **source), expected)


@all_stacks
def test_zero_of_a_head_equals_zero_columns_of_the_output_matrix(kind: str) -> None:
    runner = StackRunner(kind)
    ids, source = tokens(2, 6), runner.source(2)
    for name in names(runner, "head"):
        module: Any = edit_targets(runner.model)[name].module
        width = module.out.in_features // module.n_heads
        head = module.n_heads - 1
        with fourfold.edit(runner.model, {f"{name}.{head}": zero}):
            found = runner(ids, **source)
        saved = module.out.weight.detach().clone()
        with torch.no_grad():
            module.out.weight[:, head * width : (head + 1) * width] = 0.0
        expected = runner(ids, **source)
        with torch.no_grad():
            module.out.weight.copy_(saved)
        torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)
        assert not torch.allclose(found, runner(ids, **source))


def test_zero_of_a_group_of_heads_equals_a_smaller_model() -> None:
    big = Attention(16, 4, n_kv_heads=2, d_head=6, bias=False).double()
    small = Attention(16, 2, n_kv_heads=1, d_head=6, bias=False).double()
    with torch.no_grad():
        for name, size in (("q", 12), ("k", 6), ("v", 6)):
            small.get_submodule(name).weight.copy_(big.get_submodule(name).weight[:size])
        small.out.weight.copy_(big.out.weight[:, :12])
    model = CausalLM(
        CausalLMConfig(
            vocab_size=9,
            d_model=16,
            n_layers=1,
            n_heads=4,
            n_kv_heads=2,
            d_head=6,
            d_ff=8,
            bias=False,
        )
    ).double()
    model.stack.blocks[0].attn = big
    ids = tokens(2, 5) % 9
    with fourfold.edit(model.eval(), {"0.self.head.2": zero, "0.self.head.3": zero}):
        found = model(ids)
    model.stack.blocks[0].attn = small
    assert_same(found, model(ids))
    assert_same(found, model(ids))


@all_stacks
def test_the_stream_of_another_input_gives_its_output(kind: str) -> None:
    runner = StackRunner(kind)
    clean, other, source = tokens(2, 6), tokens(2, 6), runner.source(2)
    name = f"{prefix(runner)}0.out"
    with fourfold.record(runner.model, name) as run:
        expected = runner(other, **source)
    with fourfold.edit(runner.model, {name: set(run[name])}):
        assert torch.equal(runner(clean, **source), expected)
    with fourfold.edit(runner.model, {name: patch(run, positions=[1, 3])}):
        mixed = runner(clean, **source)
    assert not torch.allclose(mixed, expected)
    with fourfold.record(runner.model, f"{prefix(runner)}*") as run:
        runner(clean, **source)
    placement = runner.model.config.norm_placement if kind != "stack" else "pre"
    if placement != "post" and not kind.startswith("joined_en"):
        parts = [
            x
            for n, x in run.items()
            if n.startswith(f"{prefix(runner)}0.")
            and n.count(".") == prefix(runner).count(".") + 2
            and n.endswith(".out")
        ]
        assert_same(run[f"{prefix(runner)}0.in"] + sum(parts), run[name])


@pytest.mark.parametrize("kind", ["causal", "causal_llama", "causal_gemma3", "stack", "t5_decoder"])
def test_a_head_acts_through_later_layers_and_the_last_sum(kind: str) -> None:
    runner = StackRunner(kind)
    if kind != "stack" and runner.model.config.norm_placement == "post":
        pytest.skip("the output of a post-norm block is not a sum")
    ids, source = tokens(2, 6), runner.source(2)
    start = prefix(runner)
    every = [n for n in edit_targets(runner.model) if n.startswith(start)]
    with fourfold.edit(runner.model, {f"{start}0.self.head.0": scale(3.0)}):
        expected = runner(ids, **source)
        with fourfold.record(runner.model, f"{start}0.self.out") as changed:
            runner(ids, **source)
    with fourfold.record(runner.model, f"{start}0.self.out") as clean:
        runner(ids, **source)
    difference = changed[f"{start}0.self.out"] - clean[f"{start}0.self.out"]
    parts = [n for n in every if n.endswith(".in") and n.count(".") == start.count(".") + 2]
    later = [n for n in parts if not n.endswith("0.self.in")]
    depth = max(int(n.removeprefix(start).split(".")[0]) for n in every)
    edits = dict.fromkeys([*later, f"{start}{depth}.out"], add(difference))
    with fourfold.edit(runner.model, edits):
        assert_same(runner(ids, **source), expected)


@causal_stacks
def test_edits_at_a_position_do_not_change_earlier_outputs(kind: str) -> None:
    runner = StackRunner(kind)
    ids, source = tokens(2, 7), runner.source(2)
    expected = runner(ids, **source)
    for slot in (
        "self.head",
        "self.k",
        "self.v",
        "self.q",
        "self.in",
        "self.out",
        "ff.neuron",
        "in",
    ):
        chosen = [
            n
            for n in names(runner, slot)
            if slot != "in" or n.count(".") == prefix(runner).count(".") + 1
        ]
        with fourfold.edit(runner.model, dict.fromkeys(chosen, set(2.0, positions=[4]))):
            found = runner(ids, **source)
        assert_same(found[:, :4], expected[:, :4], slot)
        assert not torch.allclose(found[:, 4:], expected[:, 4:]), slot


def test_hidden_keys_are_tokens_that_do_not_exist() -> None:
    runner = StackRunner("stack")
    ids = tokens(2, 6)
    real = torch.arange(6) != 2
    with fourfold.edit(runner.model, {"*.self.weights.*": hide([2])}):
        found = runner(ids)
    expected = runner.model(runner.table[ids], Mask(keys=real.expand(2, -1)))
    shorter = runner(ids[:, real])
    assert_same(found[:, real], expected[:, real])
    assert_same(found[:, real], shorter)
    with fourfold.edit(runner.model, {"*.self.weights.*": drop([2])}):
        assert not torch.allclose(runner(ids)[:, real], shorter)
    with fourfold.edit(runner.model, {"*.self.weights.*": hide(range(6))}):
        nothing = runner(ids)
    with fourfold.edit(runner.model, {"*.self.head": zero}):
        assert_same(runner(ids), nothing)


EDITS: dict[str, Callable[[str], dict[str, Any]]] = {
    "zero": lambda start: {f"{start}0.self.head.1": zero, f"{start}0.self.k.0": zero},
    "scale": lambda start: {f"{start}*.self.v": scale(0.5), f"{start}*.ff.out": scale(2.0)},
    "add": lambda start: {f"{start}0.out": add(0.3, [2, 5, 6]), f"{start}0.self.q": add(1.0, [7])},
    "keys": lambda start: {f"{start}*.self.k": set(0.7, [1, 6]), f"{start}1.self.v": add(2.0, [3])},
    "hide": lambda start: {f"{start}0.self.weights.*": hide([1, 4], [5, 6, 8])},
    "drop": lambda start: {f"{start}*.self.weights": drop([0, 7])},
}


@causal_stacks
@pytest.mark.parametrize("operation", EDITS)
def test_cached_steps_equal_one_call(kind: str, operation: str) -> None:
    runner = StackRunner(kind)
    ids, source = tokens(2, 9), runner.source(2)
    start = prefix(runner)
    n_layers = len({n.removeprefix(start).split(".")[0] for n in names(runner, "self.head")})
    edits = {
        name.replace("1.", "0.") if n_layers == 1 else name: x
        for name, x in EDITS[operation](start).items()
    }
    with torch.no_grad(), fourfold.edit(runner.model, edits):
        expected = runner(ids, **source)
        assert not torch.allclose(expected, _unedited(runner, ids, source))
        for split in range(1, 9):
            for cache in (KVCache(), runner.model.new_cache()):
                if not isinstance(cache, KVCache):
                    continue
                first = runner(ids[:, :split], cache=cache, **source)
                rest = [runner(ids[:, i : i + 1], cache=cache, **source) for i in range(split, 9)]
                assert_same(torch.cat([first, *rest], 1), expected, f"{split}")


def _unedited(runner: StackRunner, ids: Tensor, source: dict[str, Tensor]) -> Tensor:
    return copy_of(runner)(ids, **source)


def copy_of(runner: StackRunner) -> Any:
    """Return a runner with the same weights outside all edits."""
    model = runner.model
    saved = [
        (module, vars(module).pop(name, None), name)
        for module in model.modules()
        for name in ("edits", "normalize")
        if name in vars(module)
    ]
    other = copy.copy(runner)
    other.model = copy.deepcopy(model)
    for module, value, name in saved:
        vars(module)[name] = value
    return other


def test_a_cache_belongs_to_its_edits() -> None:
    runner = StackRunner("causal")
    ids = tokens(2, 6)
    cache = KVCache()
    with fourfold.edit(runner.model, {"0.self.head.1": zero}):
        runner(ids[:, :3], cache=cache)
    for context in (fourfold.edit(runner.model, {"0.self.head.1": zero}), torch.no_grad()):
        with context, pytest.raises(InputError, match="under other edits"):
            runner(ids[:, 3:4], cache=cache)
    cache = KVCache()
    runner(ids[:, :3], cache=cache)
    with fourfold.record(runner.model, "0.self.head.1", "0.self.weights") as run:  # changes nothing
        runner(ids[:, 3:4], cache=cache)
    assert run["0.self.head.1"].shape == (2, 1, 4)


@pytest.mark.parametrize("kind", ["causal", "causal_llama", "causal_mistral"])
def test_generation_and_beams_apply_edits(kind: str) -> None:
    model = StackRunner(kind).model
    ids = tokens(2, 5)
    plain = fourfold.generate(model, ids, max_new_tokens=6)
    with fourfold.edit(model, {"0.self.head.0": scale(-2.0), "*.ff.neuron.3": set(4.0)}):
        cached = fourfold.generate(model, ids, max_new_tokens=6)
        assert torch.equal(cached, fourfold.generate(model, ids, max_new_tokens=6, use_cache=False))
        beams = [
            fourfold.beam_search(model, ids, num_beams=3, eos_id=2, max_new_tokens=6, use_cache=use)
            for use in (True, False)
        ]
        assert torch.equal(beams[0][0], beams[1][0])
        assert_same(beams[0][1], beams[1][1])
    assert not torch.equal(cached, plain)
    assert torch.equal(fourfold.generate(model, ids, max_new_tokens=6), plain)
    with (
        fourfold.edit(model, {"0.self.head.0": set(1.0, [2])}),
        pytest.raises(InputError, match="must be None in beam search"),
    ):
        fourfold.beam_search(model, ids, num_beams=3, eos_id=2, max_new_tokens=6)


@pytest.mark.parametrize("family", PAIRS)
def test_cross_attention_is_edited_in_beam_search(family: str) -> None:
    model = build(family)
    src = tokens(2, 5)
    options: dict[str, Any] = {"max_new_tokens": 5, "bos_id": 1, "eos_id": 2}
    with fourfold.edit(model, {"decoder.0.cross.head.1": zero, "decoder.0.cross.v.0": scale(3.0)}):
        beams = [
            fourfold.beam_search(model, src, num_beams=3, use_cache=use, **options)
            for use in (True, False)
        ]
    assert torch.equal(beams[0][0], beams[1][0])
    assert_same(beams[0][1], beams[1][1])


def test_records_of_cached_decoding_are_those_of_one_call() -> None:
    runner = StackRunner("causal_llama")
    ids = tokens(2, 7)
    every = ("*.in", "*.head.*", "*.k", "*.weights.*", "*.neuron", "*.neuron.3")
    with fourfold.record(runner.model, *every) as whole:
        runner(ids)
    cache = KVCache()
    with fourfold.record(runner.model, *every) as steps:
        runner(ids[:, :4], cache=cache)
        for i in range(4, 7):
            runner(ids[:, i : i + 1], cache=cache)
    assert whole.keys() == steps.keys()
    for name, x in whole.items():
        assert_same(steps[name], x, name)


def test_attention_maps_are_those_of_the_edited_model() -> None:
    model = StackRunner("causal").model
    ids = tokens(2, 6)
    with fourfold.edit(model, {"1.self.weights.2": hide([1])}):
        maps = fourfold.attention_maps(model, ids)
        with fourfold.record(model, "*.self.weights") as run:
            model(ids)
    assert not maps["self.1"][:, 2, :, 1].any()
    assert maps["self.1"][:, 0, 1:, 1].all()
    for layer in range(2):
        assert_same(maps[f"self.{layer}"], run[f"{layer}.self.weights"])


def test_recurrent_attention_is_edited() -> None:
    config = RecurrentEncoderDecoderConfig(
        vocab_size=29, d_model=8, hidden_size=8, n_layers=1, max_len=20
    )
    model = RecurrentEncoderDecoder(config).double().eval()
    src, tgt = tokens(2, 5), tokens(2, 4)
    plain = model(src, tgt)
    with fourfold.record(model, "0.cross.weights", "0.cross.head.0") as run:
        model(src, tgt)
    weights = run["0.cross.weights"]
    assert weights.shape == (2, 1, 4, 5)
    assert_same(weights.sum(-1), torch.ones_like(weights[..., 0]))
    with fourfold.edit(model, {"0.cross.weights.0": hide([0, 2])}):
        maps = fourfold.attention_maps(model, src, tgt)
        hidden = model(src, tgt)
    found = next(iter(maps.values()))
    assert not found[..., [0, 2]].any()
    assert_same(found.sum(-1), torch.ones_like(found[..., 0]))
    assert not torch.allclose(hidden, plain)
    with fourfold.edit(model, {"0.cross.head.0": set(0.0, [3])}):
        late = model(src, tgt)
    assert_same(late[:, :3], plain[:, :3])
    assert not torch.allclose(late[:, 3], plain[:, 3])
    assert torch.equal(model(src, tgt), plain)


def test_nothing_remains_after_the_context() -> None:
    runner = StackRunner("causal_gemma2")  # whose attention has a function of its own
    model, ids = runner.model, tokens(2, 5)
    before, expected = state(model), model(ids)
    weights = {name: x.clone() for name, x in model.state_dict().items()}
    functions = [module.normalize for module in model.modules() if isinstance(module, Attention)]
    edits = {"*": scale(2.0), "0.self.weights.0": hide([1])}
    with fourfold.edit(model, edits), fourfold.record(model, "*") as run:
        model(ids)
    with pytest.raises(ZeroDivisionError), fourfold.edit(model, edits):
        raise ZeroDivisionError
    with pytest.raises(InputError), fourfold.edit(model, {**edits, "7.in": zero}):
        pass

    def closed() -> Any:
        with fourfold.edit(model, edits):
            yield model(ids)

    generator = closed()
    next(generator)
    outer, inner = fourfold.edit(model, edits), fourfold.edit(model, edits)
    outer.__enter__()
    inner.__enter__()
    generator.close()  # contexts may end in any order
    outer.__exit__(None, None, None)
    inner.__exit__(None, None, None)
    assert state(model) == before
    assert [m.normalize for m in model.modules() if isinstance(m, Attention)] == functions
    assert all(torch.equal(x, weights[name]) for name, x in model.state_dict().items())
    assert torch.equal(model(ids), expected)
    kept = [weakref.ref(x) for x in run.values()]
    del run
    gc.collect()
    assert not [reference for reference in kept if reference() is not None]


@pytest.mark.parametrize(
    "slot",
    [
        "in",
        "self.q",
        "self.k",
        "self.v",
        "self.head.1",
        "self.weights.0",
        "ff.neuron.2",
        "self.out",
        "out",
    ],
)
def test_gradients_pass_through_operations(slot: str) -> None:
    runner = StackRunner("causal")
    model, ids = runner.model, tokens(1, 3)
    with fourfold.record(model, f"0.{slot}") as run:
        model(tokens(1, 3))
    own: dict[str, Callable[[Tensor], Any]] = {
        "scale": scale,
        "add": add,
        "patch": lambda _: patch(run, [1]),
        "zero": lambda _: zero,
        "callable": lambda g: lambda x: x * g + x.sin(),
    }
    matrix = model.stack.blocks[0].attn.q.weight[:2].detach().clone()

    def loss(g: Tensor, rows: Tensor, make: Callable[[Tensor], Any]) -> Tensor:
        parameters = dict(model.named_parameters())
        name = "stack.blocks.0.attn.q.weight"
        whole = torch.cat([rows, parameters[name][2:].detach()])
        with fourfold.edit(model, {f"0.{slot}": make(g)}):
            return torch.func.functional_call(model, {name: whole}, (ids,)).sin().sum()

    for make in own.values():
        g = torch.tensor(0.7, dtype=torch.float64, requires_grad=True)
        assert torch.autograd.gradcheck(
            lambda g, rows, make=make: loss(g, rows, make), (g, matrix.requires_grad_())
        )


def test_all_parameters_keep_a_gradient() -> None:
    model = StackRunner("causal").model
    with fourfold.edit(model, {"0.self.head": zero, "1.ff.neuron": set(torch.tensor(1.0))}):
        model(tokens(2, 4)).sum().backward()
    assert all(p.grad is not None for p in model.parameters())
    assert not model.stack.blocks[0].attn.v.weight.grad.any()


def test_records_with_a_graph_have_gradients() -> None:
    model = StackRunner("causal").model
    with fourfold.record(model, "0.self.head.1", grad=True) as run:
        loss = model(tokens(2, 4)).sum()
    (gradient,) = torch.autograd.grad(loss, [run["0.self.head.1"]], allow_unused=True)
    assert gradient is not None
    assert gradient.abs().sum() > 0
    with torch.inference_mode(), fourfold.record(model, "0.self.head.1") as run:
        model(tokens(2, 4))
    assert not run["0.self.head.1"].is_inference()


def test_mean_and_resample_use_rows_of_the_run() -> None:
    model = StackRunner("causal").model
    ids, mask = tokens(3, 5), torch.arange(5) < torch.tensor([[5], [3], [4]])
    with fourfold.record(model, "0.self.head.1", "0.self.head", "0.ff.neuron.4", mask=mask) as run:
        model(ids, mask=mask)
    with (
        fourfold.edit(model, {"0.self.head.1": mean(run), "0.ff.neuron.4": mean(run)}),
        fourfold.record(model, "0.self.head", "0.ff.neuron.4") as after,
    ):
        model(tokens(2, 7))
    wanted = run["0.self.head.1"][mask].mean(0)
    assert_same(after["0.self.head"][:, 1], wanted.expand(2, 7, -1))
    assert_same(after["0.ff.neuron.4"], run["0.ff.neuron.4"][mask].mean().expand(2, 7))
    with (
        fourfold.edit(model, {"0.self.head": mean(run)}),
        fourfold.record(model, "0.self.head.1") as each,
    ):
        model(tokens(2, 7))
    assert_same(each["0.self.head.1"], wanted.expand(2, 7, -1))
    for operation, rows in ((resample(run), [1, 2, 0]), (resample(run, [2, 2, 1]), [2, 2, 1])):
        with (
            fourfold.edit(model, {"0.self.head": operation}),
            fourfold.record(model, "0.self.head") as after,
        ):
            model(ids)
        assert torch.equal(after["0.self.head"], run["0.self.head"][rows])


def test_edits_have_a_json_form() -> None:
    edits = {
        "0.self.head.1": zero,
        "*.ff.out": scale(0.5),
        "1.self.weights.0": hide([1], [2, 3]),
        "0.self.weights": drop([0]),
    }
    model = StackRunner("causal").model
    ids = tokens(2, 5)
    with fourfold.edit(model, edits):
        expected = model(ids)
    with fourfold.edit(model, load_edits(dump_edits(edits))):
        assert torch.equal(model(ids), expected)
    with pytest.raises(InputError, match=r"the edit of 0.in must be zero, scale by a number"):
        dump_edits({"0.in": add(1.0)})
    with pytest.raises(InputError, match="must be one of zero, scale, hide, drop, got 'boom'"):
        load_edits('{"0.in": {"operation": "boom"}}')


def _bad_shape(x: Tensor) -> Tensor:
    return x[:, :1]


def _in_place(x: Tensor) -> Tensor:
    return x.mul_(2.0)


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "unknown": ({"0.self.haed.1": zero}, "did you mean 0.self.head"),
    "pattern": ({"7.*": zero}, "must be a tensor of the model, got 7"),
    "index": ({"0.self.head.9": zero}, "has the indices 0 to 3"),
    "group": ({"0.self.k.3": zero}, "query head 3 reads 0.self.k.1"),
    "shape": ({"0.in": _bad_shape}, "must return a tensor of"),
    "type": ({"0.in": lambda x: x.float()}, "must return a tensor of"),
    "in place": ({"0.self.head.1": _in_place}, "must not change its argument in place"),
    "slot": ({"0.self.head.1": hide([1])}, "must be for a tensor of the slots weights"),
    "value": ({"0.in": set(torch.ones(3))}, "must have the shape"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused_edits(case: str) -> None:
    model = StackRunner("causal_llama").model
    edits, message = REFUSED[case]
    with pytest.raises(InputError, match=message), fourfold.edit(model, edits), torch.no_grad():
        model(tokens(2, 5))
    assert not [m for m in model.modules() if "edits" in vars(m)]


def test_refused_runs_copies_and_padding() -> None:
    model = StackRunner("causal").model
    with fourfold.record(model, "0.in", "0.self.head.1") as run:
        model(tokens(1, 5))
    cases = (
        ({"0.in": patch(run)}, tokens(1, 6), "must have the shape"),
        ({"0.out": patch(run)}, tokens(1, 5), "0.out, which was not recorded"),
        ({"0.in": resample(run)}, tokens(1, 5), "at least two rows"),
    )
    for edits, ids, message in cases:
        with fourfold.edit(model, edits), pytest.raises(InputError, match=message):
            model(ids)
    mask = torch.tensor([[False, True, True]])
    with fourfold.edit(model, {"0.in": set(0.0, [1])}):
        with pytest.raises(InputError, match="must be None with padding on the left"):
            model(tokens(1, 3), mask=mask)
        model(tokens(1, 3), mask=mask.flip(1))
        for forbidden in (copy.deepcopy, pickle.dumps):
            with pytest.raises(InputError, match="must not be copied, pickled or exported"):
                forbidden(model)
        with pytest.raises(Exception, match="must not be copied, pickled or exported"):
            torch.export.export(model, (tokens(1, 3),))


@pytest.mark.slow
def test_compiled_models_run_edits_and_keep_their_graphs() -> None:
    from torch._dynamo.testing import CompileCounter

    model = StackRunner("causal").model
    ids, counter = tokens(2, 5), CompileCounter()
    compiled = torch.compile(model, backend=counter)
    expected = compiled(ids)
    graphs = counter.frame_count
    with fourfold.edit(model, {"0.self.head.1": zero}):
        edited = compiled(ids)
        assert_same(edited, model(ids))
    assert not torch.allclose(edited, expected)
    assert torch.equal(compiled(ids), expected)
    assert counter.frame_count == graphs
