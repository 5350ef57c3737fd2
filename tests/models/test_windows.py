"""Restricted self-attention: reach, decoding, class tokens, cost, and skipped keys."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import fourfold
from fourfold.analysis.attention_maps import mean_maps
from fourfold.analysis.flops import forward_flops
from fourfold.cli import main
from fourfold.core.attention import attend, attention_backend, lower_mask
from fourfold.core.block import Stack
from fourfold.core.config import TransformerConfig
from fourfold.core.kv_cache import KVCache
from fourfold.core.masks import Mask
from fourfold.errors import InputError
from fourfold.hub import transformers_format
from fourfold.kernels import cpu_attention
from fourfold.kernels.cpu_attention import window_is_faster
from fourfold.models import CausalLM, CausalLMConfig, ViT, ViTConfig
from fourfold.models.vit import hub_timm as timm
from tests.fixtures.tiny_models import V, assert_same, build, tokens


@pytest.fixture
def short_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the CPU kernel skip keys at any length, with two queries in each slice."""
    monkeypatch.setattr(cpu_attention, "MIN_SLICED_KEYS", 1)
    monkeypatch.setattr(cpu_attention, "MIN_KEYS_PER_WINDOW", 1)
    monkeypatch.setattr(cpu_attention, "WINDOW_SLICE", 2)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("window", "n_layers"), [(1, 2), (2, 1), (2, 3), (4, 2), (9, 1)])
def test_jacobian_is_zero_exactly_beyond_the_reach(
    causal: bool, window: int, n_layers: int
) -> None:
    shape: dict[str, Any] = {"d_model": 8, "n_heads": 2, "d_ff": 8, "dropout": 0.0}
    stack = Stack(TransformerConfig(**shape, n_layers=n_layers, window=window)).double()
    x = torch.randn(1, 10, 8, dtype=torch.float64, requires_grad=True)
    h = stack(x, Mask(causal=causal))
    reach = n_layers * (window - 1)
    for query in range(10):
        (gradient,) = torch.autograd.grad(h[0, query].square().sum(), x, retain_graph=True)
        found = gradient[0].abs().sum(-1) > 0
        places = torch.arange(10)
        wanted = ((places - query).abs() <= reach) & ((places <= query) | (not causal))
        assert found.tolist() == wanted.tolist()


@pytest.mark.parametrize("family", ["causal", "masked", "encoder_decoder", "t5", "vit"])
def test_window_of_the_whole_length_changes_nothing(family: str) -> None:
    def run(window: int | None) -> Tensor:
        torch.manual_seed(0)
        model = build(family, window=window)
        ids = torch.randn(2, 2, 8, 8).double() if family == "vit" else tokens(2, 17)
        return model(ids, ids) if family in ("encoder_decoder", "t5") else model(ids)

    full = run(None)
    assert torch.equal(run(17), full)
    assert not torch.allclose(run(2), full)


@pytest.mark.parametrize("beam", [1, 3])
def test_beam_search_equals_decoding_without_a_cache(beam: int) -> None:
    model, src = build("encoder_decoder", window=2), tokens(3, 7)
    given: dict[str, Any] = {"num_beams": beam, "bos_id": 0, "eos_id": 1, "max_new_tokens": 12}
    fast, scores = fourfold.beam_search(model, src, **given)
    slow, again = fourfold.beam_search(model, src, **given, use_cache=False)
    assert torch.equal(fast, slow)
    assert_same(scores, again)


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("sliced", [False, True])
def test_padded_prompts_are_continued_like_single_prompts(
    request: pytest.FixtureRequest, side: str, sliced: bool
) -> None:
    """Padding on the right lies between a prompt and its continuation."""
    if sliced:
        request.getfixturevalue("short_slices")
    model, rows = build("causal", window=4), [tokens(n) for n in (9, 2, 5)]
    ids, mask = tokens(3, 9), torch.zeros(3, 9, dtype=torch.bool)
    for i, row in enumerate(rows):
        columns = slice(0, len(row)) if side == "right" else slice(9 - len(row), 9)
        ids[i, columns], mask[i, columns] = row, True
    found = fourfold.generate(model, ids, mask=mask, max_new_tokens=8)
    for i, row in enumerate(rows):
        alone = fourfold.generate(model, row[None], max_new_tokens=8)
        assert torch.equal(found[i, -8:], alone[0, -8:])


@pytest.mark.usefixtures("short_slices")
@pytest.mark.parametrize("sizes", [[7], [5, 1, 1], [2, 4, 1]])
def test_skipped_keys_are_those_that_the_mask_hides(sizes: list[int]) -> None:
    model, ids = build("causal", window=3), tokens(2, 7)
    with attention_backend("naive"):
        wanted = model(ids)
    cache = KVCache()
    assert_same(torch.cat([model(part, cache=cache) for part in ids.split(sizes, 1)], 1), wanted)


@pytest.mark.usefixtures("short_slices")
@pytest.mark.parametrize("saved", [0, 2**18])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("padding", [None, "left", "right", "both"])
@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("biased", [False, True])
def test_sliced_window_equals_the_naive_backend(
    monkeypatch: pytest.MonkeyPatch,
    saved: int,
    causal: bool,
    padding: str | None,
    packed: bool,
    biased: bool,
) -> None:
    monkeypatch.setattr(cpu_attention, "MAX_SAVED_WEIGHTS", saved)
    leaves = [torch.randn(2, 3, 9, 4, dtype=torch.float64).requires_grad_() for _ in range(3)]
    leaves += [torch.randn(1, 3, 9, 9, dtype=torch.float64).requires_grad_()] * biased
    keys = None
    if padding is not None:
        keys = torch.ones(2, 9, dtype=torch.bool)
        keys[0, :2], keys[1, -1:] = padding == "right", padding == "left"
    documents = torch.tensor([[0] * 4 + [1] * 5, [0] * 9]) if packed else None
    pattern = Mask(causal=causal, keys=keys, documents=documents, window=3)
    results = []
    for name in ("auto", "naive"):
        with attention_backend(name):
            mask = lower_mask(pattern, 9, 9, leaves[0])
            assert mask.window == (3 if name == "auto" else None)
            y = attend(*leaves[:3], **mask._asdict(), bias=leaves[3] if biased else None)
        if keys is not None:
            y = y * keys[:, None, :, None]  # no loss reads the output at padding
        results.append([y, *torch.autograd.grad(y.square().sum(), leaves)])
    for mine, wanted in zip(*results, strict=True):
        assert_same(mine, wanted)


@pytest.mark.usefixtures("short_slices")
@pytest.mark.parametrize("whole", [False, True])
def test_window_compiles_without_graph_breaks(whole: bool) -> None:
    model, ids = build("causal", window=3), tokens(2, 9)
    wanted = model(ids)
    if whole:
        compiled = torch.compile(model, backend="eager", fullgraph=True)
        assert_same(compiled(ids, mask=torch.ones_like(ids).bool()), wanted)
    else:  # as in training with --compile
        for block in model.stack.blocks:
            block.compile(backend="eager", fullgraph=True)
        assert_same(model(ids), wanted)


def test_gradcheck_of_a_window_with_dropout() -> None:
    leaves = [torch.randn(1, 2, 6, 3, dtype=torch.float64).requires_grad_() for _ in range(3)]

    def drop(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        torch.manual_seed(3)
        return cpu_attention.attend_by_products(q, k, v, None, None, True, None, 0.4, 3)

    assert torch.autograd.gradcheck(drop, leaves)


@pytest.mark.usefixtures("short_slices")
def test_columns_measure_distances_only_where_they_equal_positions() -> None:
    gap = torch.tensor([[True, False, True, True]])
    left, right = (
        torch.tensor([[False, True, True, True]]),
        torch.tensor([[True, True, True, False]]),
    )
    for keys, q_len, expected in (
        (None, 4, True),
        (gap, 4, False),
        (left, 1, True),
        (right, 4, True),
        (right, 1, False),  # the query has another position than the last column
    ):
        assert window_is_faster(2, keys, q_len, 4) is expected
    assert not window_is_faster(None, None, 4, 4)


def test_time_and_memory_do_not_depend_on_keys_outside_the_window() -> None:
    model = CausalLM(CausalLMConfig(d_model=16, n_layers=1, n_heads=2, vocab_size=V, window=8))
    sizes = []
    for length in (512, 1024):
        elements: list[int] = []
        with torch.autograd.graph.saved_tensors_hooks(
            lambda x, saved=elements: (saved.append(x.numel()), x)[1], lambda x: x
        ):
            model(tokens(1, length)).sum().backward()
        sizes.append(sum(elements))
    assert sizes[1] < 2 * sizes[0] + 1000
    inputs = [torch.randn(1, 1, 1024, 4)] * 3
    parts = cpu_attention.Inputs(*(x[0] for x in inputs), None, None, True, 0.0, 1, 8).slices()
    assert max(keys.stop - keys.start for _, keys in parts) == 32 + 7


def test_class_token_sees_all_patches_and_patches_see_their_neighbours() -> None:
    model = build("vit", window=2, n_layers=1)
    images = torch.randn(1, 2, 8, 8, dtype=torch.float64)
    weights = mean_maps(model, "attn", lambda: model(images))[0] > 0  # (17, 17)
    places = torch.arange(17)
    near = (places[:, None] - places).abs() < 2
    near[0], near[:, 0] = True, True
    assert torch.equal(weights, near)


def test_attention_maps_show_the_window_of_the_sliced_kernel() -> None:
    config = CausalLMConfig(d_model=8, n_layers=1, n_heads=2, vocab_size=V, window=3)
    model, ids = CausalLM(config).eval(), tokens(1, 300)
    weights = mean_maps(model, "attn", lambda: model(ids))[0]
    distance = torch.arange(300)[:, None] - torch.arange(300)
    assert torch.equal(weights > 0, (distance >= 0) & (distance < 3))


@pytest.mark.parametrize(("family", "n_keys"), [("causal", 3), ("masked", 5), ("vit", 5 + 1)])
def test_flops_count_the_pairs_within_the_window(family: str, n_keys: int) -> None:
    length = 17 if family == "vit" else 40
    args = () if family == "vit" else (length,)
    windowed = forward_flops(build(family, window=3), *args)
    full = forward_flops(build(family), *args)
    hidden = length * (length - n_keys)  # pairs in each of 2 layers, with 12 + 12 multiply-adds
    assert full.blocks - windowed.blocks == 2 * 2 * 24 * hidden
    assert full.head == windowed.head
    assert forward_flops(build(family, window=50), *args) == full


@pytest.mark.parametrize("window", [0, -1])
def test_window_below_one_is_rejected(window: int, capsys: pytest.CaptureFixture[str]) -> None:
    option = f"--model.config.window={window}"
    assert main(["plan", "--config", "gpt2/tiny", option]) == 2
    said = capsys.readouterr().err
    assert f"window must be at least 1, got {window}" in said
    assert said.count("\n") == 1


def test_export_of_a_window_is_refused(tmp_path: Path) -> None:
    config = CausalLMConfig(d_model=8, n_layers=1, n_heads=2, vocab_size=V, window=3)
    with pytest.raises(InputError, match="gpt2 does not support window=3"):
        transformers_format.write_model(CausalLM(config), tmp_path / "gpt2")
    vit = ViT(ViTConfig(d_model=12, n_layers=1, n_heads=2, d_ff=48, window=3))
    with pytest.raises(InputError, match="window=3"):
        timm.write_model(vit, tmp_path / "timm", {})
    fourfold.save(CausalLM(config), tmp_path / "own")
    assert fourfold.load(tmp_path / "own").config.window == 3


@pytest.mark.parametrize("window", [1, 3, 8])
def test_cache_of_a_window_is_bounded_and_changes_nothing(window: int) -> None:
    torch.manual_seed(0)
    model = build("causal", window=window)
    ids = tokens(2, 30)
    expected, cache = model(ids), model.new_cache()
    for part in ids.split([9, 1, 1, 4, 1, 14], dim=1):
        start = cache.length
        assert_same(model(part, cache=cache), expected[:, start : cache.length])
        assert max(layer.length for layer in cache.layers) < 2 * window
    assert cache.length == 30
    rows = torch.tensor([1, 0])
    cache.reorder(rows)
    more = tokens(2, 1)
    whole = torch.cat([ids[rows], more], dim=1)
    assert_same(model(more, cache=cache), model(whole)[:, -1:])
    cached = fourfold.generate(model, ids[:, :5], 20)
    assert torch.equal(cached, fourfold.generate(model, ids[:, :5], 20, use_cache=False))


def test_cache_of_a_window_keeps_all_keys_of_padded_prompts() -> None:
    torch.manual_seed(0)
    model = build("causal", window=3)
    ids, mask = tokens(2, 9), torch.ones(2, 9, dtype=torch.bool)
    mask[0, 5:] = False
    cache = model.new_cache()
    model(ids, mask=mask, cache=cache)
    new = tokens(2, 1)
    found = model(new, cache=cache)
    alone = model(torch.cat([ids[:1, :5], new[:1]], dim=1))
    assert_same(found[:1], alone[:, -1:])
    assert cache.layers[0].length == 10
    bounded = model.new_cache()
    model(ids, cache=bounded)
    with pytest.raises(InputError, match="mask must be given from the first call on"):
        model(new, mask=new >= 0, cache=bounded)
