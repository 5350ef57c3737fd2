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
from torch._dynamo import eval_frame

import fourfold
from fourfold.core.attention import Attention
from fourfold.core.kv_cache import KVCache
from fourfold.core.masks import Mask
from fourfold.edits import (
    add,
    drop,
    dump_edits,
    hide,
    load_edits,
    mean,
    patch,
    resample,
    scale,
    set,
    zero,
)
from fourfold.edits.contexts import edit_targets
from fourfold.errors import InputError
from fourfold.finetuning.config import TuningConfig
from fourfold.finetuning.lora import add_lora
from fourfold.layers.quantization import quantize
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


def test_a_recurrent_cache_belongs_to_its_edits() -> None:
    model = recurrent()
    tgt = tokens(1, 4)
    memory, cache = model.encode(tokens(1, 5)), model.new_cache()
    with fourfold.edit(model, {"0.cross.head": zero}):
        model.decode(tgt[:, :2], memory, cache=cache)
    with pytest.raises(InputError, match="under other edits"):
        model.decode(tgt[:, 2:], memory, cache=cache)


@pytest.mark.parametrize("recompute", ["block", "attention"])
@pytest.mark.parametrize("inside", [True, False])
def test_gradients_do_not_depend_on_checkpointing(recompute: str, inside: bool) -> None:
    model = build("encoder_decoder")
    src, tgt = tokens(2, 7), tokens(2, 4)
    edits: dict[str, Any] = {
        "encoder.0.self.weights": hide([1]),
        "encoder.1.self.k": set(0.3, [1]),
        "decoder.0.self.q": add(1.0, [2]),
        "decoder.1.self.head": add(0.5),
    }
    gradients = []
    for mode in ("none", recompute):
        model.set_activation_checkpointing(mode)
        model.zero_grad()
        with fourfold.edit(model, edits):
            loss = model(src, tgt).sin().sum() + model(src[:, :5], tgt[:, :3]).sin().sum()
            if inside:
                loss.backward()
        if not inside:
            loss.backward()
        gradients.append([p.grad.clone() for p in model.parameters()])
    for found, expected in zip(*gradients, strict=True):
        assert_same(found, expected)


def test_per_sample_gradients_and_vmap_see_edits() -> None:
    model = StackRunner("causal").model
    ids = tokens(3, 5)
    edits: dict[str, Any] = {"0.self.head.1": scale(2.0), "1.ff.neuron": zero, "1.in": add(0.1)}
    with fourfold.edit(model, {**edits, "*.weights.0": hide([1])}):
        found = torch.vmap(lambda row: model(row[None])[0])(ids)
        assert_same(found, model(ids))
    with fourfold.record(model, "0.in"), pytest.raises(InputError, match="under vmap"):
        torch.vmap(lambda row: model(row[None])[0])(ids)


FAMILIES: dict[str, tuple[str, dict[str, Any], list[str]]] = {
    "clip": (
        "clip-vit-base-patch32",
        {"text_n_layers": 1, "image_n_layers": 1},
        ["text_stack.0.self.head", "image_stack.0.ff.neuron"],
    ),
    "siglip": ("siglip-base-patch16-224", {}, ["image_pool.attn.head", "text_stack.0.in"]),
    "electra": ("electra-small-discriminator", {}, ["0.self.head"]),
}


@pytest.mark.parametrize("family", FAMILIES)
def test_names_are_paths_in_the_model(family: str) -> None:
    name, _, wanted = FAMILIES[family]
    model = fourfold.create(name, device="meta")
    targets = edit_targets(model)
    for target in wanted:
        assert target in targets
    assert not [name for name in targets if "_." in name or ".." in name]
    paths = set_of(model.get_submodule(path) for path in model.attention_modules())
    edited = set_of(target.module for target in targets.values() if target.slot == "head")
    assert paths == edited


@pytest.mark.parametrize("place", ["layers", "layers_shared"])
def test_blocks_with_positions_of_their_own_are_edited(place: str) -> None:
    model = build("vit", positions_at=place)
    images = torch.randn(1, *model.example_inputs()[0].shape[1:], dtype=torch.float64)
    with fourfold.record(model, "1.in", "0.out") as run:
        model(images)
    if place == "layers":
        assert_same(run["1.in"], run["0.out"] + model.stack.blocks[1].positions.weight)
    for name in ("0.in", "1.self.head.2", "1.ff.neuron.3"):
        with fourfold.edit(model, {name: zero}):
            changed = model(images)
        assert not torch.allclose(changed, model(images)), name


def set_of(items: Any) -> frozenset[Any]:
    return frozenset(items)


def test_adapted_and_quantized_models_are_edited() -> None:
    plain = StackRunner("causal").model.float()
    ids = tokens(2, 5)
    for change in (
        lambda m: add_lora(m, TuningConfig(lora_rank=2, lora_targets=("up", "down"))),
        lambda m: quantize(m, "int8"),
    ):
        model = copy.deepcopy(plain)
        change(model)
        with fourfold.edit(model, {"0.self.head.1": zero, "1.ff.neuron.3": set(2.0)}):
            assert not torch.allclose(model(ids), plain(ids))


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


@pytest.mark.parametrize("kind", ["causal_llama", "causal_mistral", "causal_gemma3"])
@pytest.mark.parametrize("is_own", [True, False])
def test_records_of_cached_decoding_are_those_of_one_call(kind: str, is_own: bool) -> None:
    runner = StackRunner(kind)
    ids = tokens(2, 7)
    every = ("*.in", "*.head.*", "*.k", "*.weights.*", "*.neuron", "*.neuron.3")
    with fourfold.record(runner.model, *every) as whole:
        runner(ids)
    cache = runner.model.new_cache() if is_own else KVCache()
    with fourfold.record(runner.model, *every) as steps:
        runner(ids[:, :4], cache=cache)
        for i in range(4, 7):
            runner(ids[:, i : i + 1], cache=cache)
    assert whole.keys() == steps.keys()
    for name, x in whole.items():
        assert_same(steps[name], x, name)


def test_records_of_several_sequences_are_refused() -> None:
    model = StackRunner("causal").model
    with fourfold.record(model, "0.in"):
        model(tokens(2, 4))
        with pytest.raises(InputError, match="must be of one call, or of one sequence"):
            model(tokens(2, 4))
    with fourfold.record(model, "0.in"), pytest.raises(InputError, match="without beams"):
        fourfold.beam_search(model, tokens(2, 4), 2, eos_id=2, max_new_tokens=3)


def test_attention_maps_are_those_of_the_edited_model() -> None:
    model = StackRunner("causal").model
    ids = tokens(2, 6)
    edits: dict[str, Any] = {"1.self.weights.2": hide([1]), "0.self.k.1": scale(-2.0)}
    with fourfold.edit(model, {**edits, "1.self.q.0": add(1.0)}):
        maps = fourfold.attention_maps(model, ids)
        with fourfold.record(model, "*.self.weights") as run:
            model(ids)
    assert not maps["self.1"][:, 2, :, 1].any()
    assert maps["self.1"][:, 0, 1:, 1].all()
    for layer in range(2):
        assert_same(maps[f"self.{layer}"], run[f"{layer}.self.weights"])


def recurrent(**options: Any) -> Any:
    sizes: dict[str, Any] = {"d_model": 8, "hidden_size": 8, "n_layers": 1, "max_len": 20}
    config = RecurrentEncoderDecoderConfig(vocab_size=29, **sizes, **options)
    model = RecurrentEncoderDecoder(config).double().eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter)
    return model


def test_rows_of_one_source_are_edited_each_for_itself() -> None:
    model = recurrent()
    src, tgt = tokens(1, 5), tokens(3, 4)
    edits = {"0.cross.weights": hide([0, 1], [1]), "0.cross.head": add(1.0, [2])}
    with fourfold.edit(model, edits):
        together = model.decode(tgt, model.encode(src))
        alone = [model.decode(row[None], model.encode(src)) for row in tgt]
        beams = [
            fourfold.beam_search(model, src, 3, bos_id=1, eos_id=2, max_new_tokens=5, use_cache=use)
            for use in (True, False)
        ]
    assert_same(together, torch.cat(alone))
    assert torch.equal(beams[0][0], beams[1][0])
    assert_same(beams[0][1], beams[1][1])


def test_mixed_outputs_are_refused() -> None:
    model = recurrent(mix_outputs=True, decoder="luong", input_feeding=False)
    src, tgt = tokens(2, 5), tokens(2, 4)
    model(src, tgt)
    with fourfold.edit(model, {"0.cross.head": zero}), pytest.raises(InputError, match="are mixed"):
        model(src, tgt)


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
    before, expected, stance = state(model), model(ids), eval_frame._stance.stance
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
    assert eval_frame._stance.stance == "force_eager"
    generator.close()  # contexts may end in any order
    outer.__exit__(None, None, None)
    assert eval_frame._stance.stance == "force_eager"
    inner.__exit__(None, None, None)
    assert state(model) == before
    assert eval_frame._stance.stance == stance == "default"
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


@pytest.mark.parametrize("slot", ["0.self.head", "0.ff.neuron", "0.self.k.1"])
def test_replaced_tensors_leave_gradients_of_zero(slot: str) -> None:
    model = StackRunner("causal").model
    ids = tokens(2, 4)
    with fourfold.record(model, slot) as run:
        model(ids)
    for operation in (patch(run), mean(run), resample(run), lambda x: torch.zeros_like(x)):
        model.zero_grad()
        with fourfold.edit(model, {slot: operation}):
            model(ids).sum().backward()
        assert all(p.grad is not None for p in model.parameters())


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
    bad = (
        '{"0.in": {"operation": "boom"}}',
        "{",
        '{"0.in": 1}',
        '{"0.in": {"operation": "scale"}}',
    )
    for text in (*bad, "[]", '{"0.in": {"operation": "hide", "keys": ["a"]}}'):
        with pytest.raises(InputError, match="operations zero, scale, hide, drop"):
            load_edits(text)
    assert dump_edits({"w": hide(range(3), range(2))}) == dump_edits({"w": hide([0, 1, 2], [0, 1])})


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
    "nothing": ({"0.in": lambda x: None}, "must return a tensor of .*, got None"),
    "wildcard": ({"?.in": zero}, "must be a tensor of the model"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused_edits(case: str) -> None:
    model = StackRunner("causal_llama").model
    edits, message = REFUSED[case]
    with pytest.raises(InputError, match=message), fourfold.edit(model, edits), torch.no_grad():
        model(tokens(2, 5))
    assert not [m for m in model.modules() if "edits" in vars(m)]


def test_functions_that_change_their_argument_are_refused_in_inference_mode() -> None:
    model = StackRunner("causal").model
    with fourfold.edit(model, {"0.in": _in_place}), pytest.raises(InputError, match="in place"):
        fourfold.generate(model, tokens(1, 3), max_new_tokens=1)


def test_negative_positions_are_refused() -> None:
    for make in (set, add, scale):
        with pytest.raises(InputError, match="positions must be at least 0, got -1"):
            make(1.0, [2, -1])
    for make_pairs in (hide, drop):
        with pytest.raises(InputError, match="positions must be at least 0, got -3"):
            make_pairs(0, [-3])


def test_masks_of_a_run_name_its_stack() -> None:
    model, mask = build("encoder_decoder"), torch.arange(5) < torch.tensor([[5], [3]])
    src, tgt = tokens(2, 5), tokens(2, 4)
    names = ("encoder.0.self.head.1", "decoder.0.cross.k.1", "decoder.0.self.head.1")
    masks = {"encoder": mask, "decoder": torch.ones(2, 4, dtype=torch.bool)}
    with fourfold.record(model, *names, mask=masks) as run:
        model(src, tgt, src_mask=mask)
    for name in names:
        wanted = run[name][masks["encoder" if "decoder.0.self" not in name else "decoder"]].mean(0)
        with fourfold.edit(model, {name: mean(run)}), fourfold.record(model, name) as after:
            model(src, tgt, src_mask=mask)
        assert_same(after[name], wanted.expand_as(after[name]))
    with fourfold.record(model, "encoder.0.in", mask={"encodr": mask}) as run:
        model(src, tgt)
    with (
        fourfold.edit(model, {"encoder.0.in": mean(run)}),
        pytest.raises(InputError, match=r"must have the stack of encoder\.0\.in, got encodr"),
    ):
        model(src, tgt)


def test_padding_of_the_memory_is_its_own() -> None:
    model = build("encoder_decoder")
    mask = torch.tensor([[False, True, True, True]])
    with fourfold.edit(model, {"decoder.0.cross.weights": hide([0])}):
        with pytest.raises(InputError, match="with padding on the left"):
            model(tokens(1, 4), tokens(1, 3), src_mask=mask)
        model(tokens(1, 4), tokens(1, 3), src_mask=mask.flip(1))


def test_refused_runs_copies_and_padding() -> None:
    model = StackRunner("causal").model
    with fourfold.record(model, "0.in", "0.self.head.1") as run:
        model(tokens(1, 5))
    cases = (
        ({"0.in": patch(run)}, tokens(1, 6), "must have the shape"),
        ({"0.out": patch(run)}, tokens(1, 5), "0.out, which was not recorded"),
        ({"0.in": resample(run)}, tokens(1, 5), "at least 2 rows"),
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
