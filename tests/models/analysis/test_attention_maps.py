import torch

from fourfold.core.attention import attention_backend
from fourfold.models.attention_maps import attention_maps
from tests.tiny import build, tokens


def test_weights_are_those_of_the_forward_pass() -> None:
    model = build("encoder_decoder")
    src, tgt = tokens(2, 7), tokens(2, 5)
    with attention_backend("naive"):
        maps = attention_maps(model, "cross_attn", lambda: model(src, tgt))
    assert [x.shape for x in maps] == [(5, 7)] * len(model.decoder.blocks)
    for x in maps:
        torch.testing.assert_close(x.sum(1), torch.ones(5))
    # With values that are the identity of a place, attention hands its weights on.
    attn = model.decoder.blocks[0].cross_attn
    seen = []
    hook = attn.register_forward_pre_hook(
        lambda module, args, kwargs: seen.append((args, kwargs["mask"])), with_kwargs=True
    )
    model(src, tgt)
    hook.remove()
    (x, memory), mask = seen[0]
    q, k = attn._split(attn.q(x))[0], attn._split(attn.k(memory))[0]
    scale = q.shape[-1] ** -0.5 if attn.scale is None else attn.scale
    plain = (q @ k.mT * scale).softmax(-1).mean(0)
    assert mask.mask is None
    torch.testing.assert_close(maps[0], plain.float())


def test_a_causal_model_looks_back_only() -> None:
    model = build("causal")
    for x in attention_maps(model, "attn", lambda: model(tokens(1, 6))):
        assert torch.equal(x, x.tril())
        assert (x.diagonal() > 0).all()


def test_the_model_is_as_it_was() -> None:
    model = build("causal").train()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    attention_maps(model, "attn", lambda: model(tokens(1, 6)))
    assert model.training
    assert not any(module._forward_pre_hooks for module in model.modules())
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name])
    assert all(parameter.grad is None for parameter in model.parameters())


def test_a_bias_counts() -> None:
    """T5 knows places by it alone, so that without it equal tokens were all looked at alike."""
    model = build("t5")
    src = torch.full((1, 6), 7)
    maps = attention_maps(model.encoder, "attn", lambda: model(src, src))
    for x in maps:
        torch.testing.assert_close(x.sum(1), torch.ones(6))
    assert maps[0].std() > 1e-3
