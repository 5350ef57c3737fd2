"""Options of modern models: generation with caches, beams, state dicts and attention maps."""

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import fourfold
from fourfold.analysis.attention_maps import mean_maps
from fourfold.core.attention import attention_backend
from fourfold.core.kv_cache import LayerCache
from fourfold.core.masks import LoweredMask
from fourfold.generation.caches import WindowCache, WindowLayer
from fourfold.models import CausalLM, CausalLMConfig
from tests.fixtures.tiny_models import VARIANTS, assert_same, build, tokens

MODERN = ("llama", "mistral", "qwen3", "gemma2", "gemma3", "olmo2", "cohere")
modern = pytest.mark.parametrize("variant", MODERN)


@modern
@pytest.mark.parametrize("padded", [False, True])
def test_generation_equals_decoding_without_a_cache(variant: str, padded: bool) -> None:
    model, ids = build("causal", **VARIANTS[variant]), tokens(3, 6)
    mask = torch.ones_like(ids, dtype=torch.bool)
    mask[0, :3] = not padded
    given = {"mask": mask} if padded else {}
    found = fourfold.generate(model, ids, max_new_tokens=14, **given)
    for row, own, real in zip(found, ids, mask, strict=True):
        expected = own[real][None]
        for _ in range(14):
            expected = torch.cat([expected, model(expected)[:, -1:].argmax(-1)], dim=1)
        assert row[len(own) - int(real.sum()) :].tolist() == expected[0].tolist()


@modern
def test_step_by_step_logits_equal_those_of_one_pass(variant: str) -> None:
    model, ids = build("causal", **VARIANTS[variant]), tokens(2, 20)
    cache = model.new_cache()
    pieces = [model(piece, cache=cache) for piece in ids.split([7, 2, *[1] * 11], dim=1)]
    assert_same(torch.cat(pieces, dim=1), model(ids))


def test_layers_with_a_window_drop_what_no_later_token_sees() -> None:
    model = build("causal", **VARIANTS["gemma3"], n_layers=3)
    cache = model.new_cache()
    assert isinstance(cache, WindowCache)
    for piece in tokens(1, 40).split(1, dim=1):
        model(piece, cache=cache)
    assert [type(layer) for layer in cache.layers] == [WindowLayer, LayerCache, WindowLayer]
    stored = [layer.buffers[0].shape for layer in cache.layers if layer.buffers is not None]
    assert stored[1][2] >= 40
    assert max(stored[0][2], stored[2][2]) < 2 * 3 + 32  # 32 is the smallest capacity
    assert cache.layers[0].length < 2 * 3
    assert {shape[1] for shape in stored} == {2}  # heads of keys and values


@pytest.mark.parametrize("family", ["causal", "encoder_decoder"])
@pytest.mark.parametrize("variant", ["llama", "gemma3", "olmo2"])
@pytest.mark.parametrize("beam", [1, 3])
def test_beam_search_equals_decoding_without_a_cache(family: str, variant: str, beam: int) -> None:
    model, ids = build(family, **VARIANTS[variant]), tokens(3, 7)
    given: dict[str, Any] = {"num_beams": beam, "bos_id": 0, "eos_id": 1, "max_new_tokens": 12}
    fast, scores = fourfold.beam_search(model, ids, **given)
    slow, again = fourfold.beam_search(model, ids, **given, use_cache=False)
    assert torch.equal(fast, slow)
    assert_same(scores, again)


@modern
def test_gradients_of_fused_attention_equal_those_of_naive_attention(variant: str) -> None:
    model, ids = build("causal", **VARIANTS[variant]), tokens(2, 9)
    gradients = []
    for name in ("naive", "auto"):
        with attention_backend(name):
            loss = model(ids).square().mean()
        gradients.append(torch.autograd.grad(loss, list(model.parameters())))
    for found, expected in zip(*gradients, strict=True):
        assert_same(found, expected)


def test_defaults_add_no_tensor_to_the_state_dict() -> None:
    plain = CausalLM(CausalLMConfig(vocab_size=9, n_layers=1)).state_dict()
    names = ("q", "k", "v", "out", "up", "down")
    assert {name.split(".")[-2] for name in plain} == {
        *names,
        *("tokens", "positions", "attn_norm", "ff_norm", "norm"),
    }


@modern
def test_attention_maps_are_those_of_the_forward_pass(variant: str) -> None:
    model, ids = build("causal", **VARIANTS[variant]), tokens(1, 6)
    maps = mean_maps(model, "attn", lambda: model(ids))
    for weights, window in zip(maps, model.config.windows(), strict=True):
        torch.testing.assert_close(weights.sum(-1), torch.ones(6))
        distance = torch.arange(6)[:, None] - torch.arange(6)
        hidden = (distance < 0) | (distance >= (window or 6))
        assert (weights[hidden] == 0).all()
        assert (weights[~hidden] > 0).all()


def test_caps_limit_scores_and_logits() -> None:
    model: Any = build("causal", score_cap=0.3, logit_cap=0.2)
    free: Any = build("causal")
    free.load_state_dict(model.state_dict())
    ids = tokens(2, 6)
    weights = []
    for family in (model, free):
        attn = family.stack.blocks[0].attn
        with torch.no_grad():
            attn.q.weight.mul_(100.0)
        x = torch.randn(2, 6, family.config.d_model, generator=torch.Generator().manual_seed(0))
        weights.append(attn.weights(x.double(), mask=LoweredMask(None, True)))
    ratios = [x[..., -1, :].amax(-1) / x[..., -1, :].amin(-1) for x in weights]
    assert ratios[0].max() <= math.exp(0.6) + 1e-9 < ratios[1].min()
    assert (weights[0].triu(1) == 0).all()
    assert model(ids).abs().max() < 0.2 < free(ids).abs().max()
    targets = ids.roll(-1, 1)
    expected = F.cross_entropy(model(ids).flatten(0, 1), targets.flatten())
    torch.testing.assert_close(model.head.loss(model.hidden(ids), targets), expected)


def test_embed_scale_multiplies_the_token_vectors() -> None:
    model = build("causal", embed_scale=3.0, positions="none")
    ids = tokens(2, 5)
    assert torch.equal(model.embed(ids, slice(0, 5)), model.embed.tokens(ids) * 3.0)
