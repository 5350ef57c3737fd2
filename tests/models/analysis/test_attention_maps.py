"""Attention maps: recorded weights, causality, the T5 bias, and an unchanged model."""

import torch

from fourfold.core.attention import attention_backend
from fourfold.models.analysis.attention_maps import attention_maps
from tests.fixtures.tiny_models import build, tokens


def test_maps_equal_the_weights_of_the_forward_pass() -> None:
    model = build("encoder_decoder")
    src, tgt = tokens(2, 7), tokens(2, 5)
    with attention_backend("naive"):
        maps = attention_maps(model, "cross_attn", lambda: model(src, tgt))
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
    for x in attention_maps(model, "attn", lambda: model(tokens(1, 6))):
        assert torch.equal(x, x.tril())
        assert (x.diagonal() > 0).all()


def test_recording_does_not_change_the_model() -> None:
    model = build("causal").train()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    ids = tokens(1, 6)
    outputs = []
    maps = attention_maps(model, "attn", lambda: outputs.append(model(ids)))
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
    maps = attention_maps(model.encoder, "attn", lambda: model(src, src))
    for x in maps:
        torch.testing.assert_close(x.sum(1), torch.ones(6))
    assert maps[0].std() > 1e-3
