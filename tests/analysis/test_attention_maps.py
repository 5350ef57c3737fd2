"""Attention maps: recorded weights, causality, the T5 bias, and an unchanged model."""

import weakref
from typing import Any

import numpy as np
import pytest
import torch

import fourfold
import fourfold.models
from fourfold.analysis.attention_maps import (
    LayerAttention,
    attention_layers,
    mean_maps,
    quantize,
    visit_attention,
)
from fourfold.core.attention import Attention, attention_backend
from fourfold.errors import InputError
from fourfold.models import (
    HierarchicalClassifier,
    HierarchicalClassifierConfig,
    RecurrentEncoderDecoder,
    RecurrentEncoderDecoderConfig,
)
from tests.fixtures.explorer_documents import dequantize
from tests.fixtures.tiny_models import build, tokens


def test_maps_equal_the_weights_of_the_forward_pass() -> None:
    model = build("encoder_decoder")
    src, tgt = tokens(2, 7), tokens(2, 5)
    with attention_backend("naive"):
        maps = mean_maps(model, "cross_attn", lambda: model(src, tgt))
    assert [x.shape for x in maps] == [(5, 7)] * len(model.decoder.blocks)
    for x in maps:
        torch.testing.assert_close(x.sum(1), torch.ones(5))
    attn = model.decoder.blocks[0].cross_attn
    calls = []
    hook = attn.register_forward_pre_hook(
        lambda module, args, kwargs: calls.append((args, kwargs["mask"])), with_kwargs=True
    )
    model(src, tgt)
    hook.remove()
    (x, memory), mask = calls[0]
    q = attn.q(x)[0].unflatten(-1, (attn.n_heads, -1)).transpose(0, 1)
    k = attn.k(memory)[0].unflatten(-1, (attn.n_heads, -1)).transpose(0, 1)
    scale = q.shape[-1] ** -0.5 if attn.scale is None else attn.scale
    expected = (q @ k.mT * scale).softmax(-1).mean(0)
    assert mask.mask is None
    torch.testing.assert_close(maps[0], expected.float())


def test_maps_of_a_causal_model_are_lower_triangular() -> None:
    model = build("causal")
    for x in mean_maps(model, "attn", lambda: model(tokens(1, 6))):
        assert torch.equal(x, x.tril())
        assert (x.diagonal() > 0).all()


def test_recording_does_not_change_the_model() -> None:
    model = build("causal").train()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    ids = tokens(1, 6)
    outputs = []
    maps = mean_maps(model, "attn", lambda: outputs.append(model(ids)))
    assert len(maps) == len(model.stack.blocks)
    assert not any(x.requires_grad for x in [*maps, *outputs])
    assert model.training
    assert not any(module._forward_pre_hooks for module in model.modules())
    assert torch.is_grad_enabled()
    assert model(ids).requires_grad
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name])


def test_maps_include_the_relative_bias() -> None:
    """Without the bias, all weights on equal tokens would be equal."""
    model = build("t5")
    src = torch.full((1, 6), 7)
    maps = mean_maps(model, "attn", lambda: model(src, src))[:2]  # of the encoder
    for x in maps:
        torch.testing.assert_close(x.sum(1), torch.ones(6))
    assert maps[0].std() > 1e-3


Inputs = tuple[tuple[torch.Tensor, ...], dict[str, torch.Tensor]]  # positional and keyword


def pair_inputs() -> Inputs:
    mask = torch.tensor([[True] * 7, [True] * 4 + [False] * 3])
    return (tokens(2, 7), tokens(2, 5)), {"src_mask": mask}


def text_inputs() -> Inputs:
    mask = torch.tensor([[False] * 2 + [True] * 7, [True] * 9])
    return (tokens(2, 9),), {"mask": mask}


FORWARDS: dict[str, Any] = {
    "causal": text_inputs,
    "masked": text_inputs,
    "encoder_decoder": pair_inputs,
    "t5": pair_inputs,
    "joined": pair_inputs,
    "vit": lambda: ((torch.randn(2, 2, 8, 8, dtype=torch.float64),), {}),
}


@pytest.mark.parametrize(
    ("family", "changes"),
    [*((family, {}) for family in FORWARDS), ("causal", {"window": 3}), ("masked", {"window": 2})],
)
def test_collected_weights_give_the_output_of_each_layer(
    family: str, changes: dict[str, int]
) -> None:
    """The product of weights and values, through the output matrix, is that of the kernel."""
    model, (inputs, options) = build(family, **changes), FORWARDS[family]()
    outputs: dict[str, tuple[Any, ...]] = {}
    for path in attention_layers(model):
        model.get_submodule(path).register_forward_hook(
            lambda _module, args, y, path=path: outputs.update({path: (*args, y)})
        )
    found: list[LayerAttention] = []
    with torch.no_grad():
        visit_attention(model, lambda: model(*inputs, **options), found.append)
    assert {record.path for record in found} == attention_layers(model).keys()
    for record in found:
        attn = model.get_submodule(record.path)
        *given, output = outputs[record.path]
        v = attn.v(given[-1]).unflatten(-1, (attn.n_heads, -1)).transpose(1, 2)
        torch.testing.assert_close(
            attn.out((record.weights @ v).transpose(1, 2).flatten(2)), output
        )
        assert not (record.weights * ~record.allowed).any()


def test_layers_are_named_by_stack_and_counted_from_zero() -> None:
    model = build("encoder_decoder")
    maps = fourfold.attention_maps(model, tokens(1, 4), tokens(1, 3), layers=[-1])
    assert {name: weights.shape for name, weights in maps.items()} == {
        "encoder.1": (1, 3, 4, 4),
        "decoder.1": (1, 3, 3, 3),
        "cross.1": (1, 3, 3, 4),
    }
    assert [*fourfold.attention_maps(build("vit"), *FORWARDS["vit"]()[0])] == ["self.0", "self.1"]


def test_maps_use_a_custom_normalization(monkeypatch: pytest.MonkeyPatch) -> None:
    def linear(scores: torch.Tensor) -> torch.Tensor:
        positive = (scores - scores.amin(-1, keepdim=True).clamp(min=-9)).clamp(min=0) + 1e-3
        return positive / positive.sum(-1, keepdim=True)

    model, ids = build("masked"), tokens(1, 6)
    before = fourfold.attention_maps(model, ids)["self.0"]
    monkeypatch.setattr(Attention, "normalize", staticmethod(linear))
    after = fourfold.attention_maps(model, ids)["self.0"]
    torch.testing.assert_close(after.sum(-1), torch.ones_like(after[..., 0]))
    assert (after - before).abs().max() > 0.1


def test_one_pass_over_prompt_and_output_gives_the_maps_of_cached_steps() -> None:
    model = build("causal")
    ids = fourfold.generate(model, tokens(1, 3), max_new_tokens=5)
    whole = fourfold.attention_maps(model, ids)
    steps: dict[str, list[torch.Tensor]] = {}
    for path, (name, layer) in attention_layers(model).items():

        def record(scores: torch.Tensor, name: str = f"{name}.{layer}") -> torch.Tensor:
            steps.setdefault(name, []).append(scores.softmax(-1))
            return steps[name][-1]

        model.get_submodule(path).normalize = record
    cache = model.new_cache()
    with torch.no_grad():
        for t in range(ids.shape[1]):
            model(ids[:, t : t + 1], cache=cache)
    for name, weights in whole.items():
        assert len(steps[name]) == ids.shape[1]
        for t, step in enumerate(steps[name]):
            torch.testing.assert_close(weights[0, :, t, : t + 1], step[0, :, 0])


def test_weights_of_a_layer_are_freed_before_the_next_layer() -> None:
    model, earlier = build("causal", n_layers=3), []

    def visit(record: LayerAttention) -> None:
        assert all(reference() is None for reference in earlier)
        earlier.append(weakref.ref(record.weights))

    visit_attention(model, lambda: model(tokens(1, 6)), visit)
    assert len(earlier) == 3


def test_quantized_weights_are_within_the_documented_error() -> None:
    a = np.linspace(0, 1, 10_001, dtype=np.float32)
    assert np.abs(dequantize(quantize(a)) - a).max() < 0.004


def test_centres_of_predictive_alignment_are_those_of_the_weights() -> None:
    config = RecurrentEncoderDecoderConfig(
        vocab_size=20, d_model=8, hidden_size=8, n_layers=1, attn_weights="local_p", attn_window=2
    )
    model = RecurrentEncoderDecoder(config).double().eval()
    found: list[LayerAttention] = []
    src, tgt = torch.randint(20, (2, 9)), torch.randint(20, (2, 4))
    mask = torch.arange(9) < torch.tensor([[9], [6]])
    visit_attention(model, lambda: model(src, tgt, src_mask=mask), found.append)
    (record,) = found
    assert record.name == "cross"
    assert record.weights.shape == (2, 1, 4, 9)
    assert record.centers.shape == (2, 4)
    positions = torch.arange(1, 10)
    inside = (positions - record.centers[..., None].floor()).abs() <= 2
    assert torch.equal(record.weights[:, 0] > 0, inside & mask[:, None])
    # The Gaussian is the factor between these weights and a softmax over the window.
    gaussian = torch.exp(-((positions - record.centers[..., None]) ** 2) / 2)
    soft = record.weights[:, 0] / gaussian
    torch.testing.assert_close(soft.sum(-1), torch.ones(2, 4, dtype=torch.float64))


def test_hierarchical_weights_are_those_of_the_model() -> None:
    config = HierarchicalClassifierConfig(vocab_size=9, n_classes=3, d_embed=6, d_model=8)
    model = HierarchicalClassifier(config).eval()
    inputs = torch.tensor([[5, 6, 7], [8, 5, 0], [6, 0, 0]]), [3, 2, 1], [2, 1]
    words, sentences = model.weights(*inputs)
    maps = fourfold.attention_maps(model, *inputs)
    torch.testing.assert_close(maps["words.pool.0"][:, 0, 0], words)
    torch.testing.assert_close(maps["sentences.pool.0"][:, 0, 0], sentences)


def test_models_and_layers_without_attention_are_rejected() -> None:
    model = fourfold.models.RecurrentLM(fourfold.models.RecurrentLMConfig(vocab_size=9, d_model=4))
    with pytest.raises(InputError, match="must have attention, got RecurrentLM without it"):
        fourfold.attention_maps(model, tokens(1, 3))
    with pytest.raises(InputError, match="layers must be from 0 to 1, got 2"):
        fourfold.attention_maps(build("causal"), tokens(1, 3), layers=[2])
