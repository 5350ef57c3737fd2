"""Terms of logits, against products of the weights, for all families with a linear head."""

from typing import Any

import pytest
import torch
from torch import Tensor

import fourfold
from fourfold.analysis.logit_attribution import logit_attribution
from fourfold.errors import InputError
from tests.fixtures.tiny_models import PAIRS, VARIANTS, build, tokens

TEXT = ("window", "rotary", "llama", "mistral", "qwen3", "gemma3", "olmo2", "cohere")
IMAGES: dict[str, dict[str, Any]] = {
    "cls": {},
    "mean": {"pool": "mean"},
    "cls_mean": {"pool": "cls_mean"},
    "pool_norm": {"pool": "mean", "pool_norm": True},
    "distillation": {"distillation": True, "n_registers": 1},
    "positions in each layer": {"positions_at": "layers"},
    "relative": {"positions": "relative"},
}


def check_sum(terms: dict[str, Tensor], expected: Tensor) -> None:
    assert all(term.shape == expected.shape for term in terms.values())
    total = torch.stack(list(terms.values())).sum(0)
    torch.testing.assert_close(total, expected, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("variant", ["", *TEXT])
def test_terms_sum_to_the_logits_of_a_causal_lm(variant: str) -> None:
    model = build("causal", **VARIANTS.get(variant, {}))
    ids, target, other = tokens(2, 6), tokens(2, 6), tokens(2, 6)
    logits = model(ids)
    terms = logit_attribution(model, lambda: model(ids), target)
    check_sum(terms, logits.gather(-1, target[..., None])[..., 0])
    both = logit_attribution(model, lambda: model(ids), target, other)
    differences = logits.gather(-1, target[..., None]) - logits.gather(-1, other[..., None])
    check_sum(both, differences[..., 0])
    assert torch.equal(model(ids), logits)


@pytest.mark.parametrize("family", PAIRS)
def test_terms_sum_to_the_logits_of_an_encoder_decoder(family: str) -> None:
    model = build(family, norm_placement="pre")
    src, tgt = tokens(2, 5), tokens(2, 4)
    target = tokens(2, 4)
    terms = logit_attribution(model, lambda: model(src, tgt), target)
    check_sum(terms, model(src, tgt).gather(-1, target[..., None])[..., 0])
    assert "decoder.0.cross.head.1" in terms
    assert not [name for name in terms if name.startswith("encoder")]


@pytest.mark.parametrize("kind", IMAGES)
def test_terms_sum_to_the_logits_of_a_vit(kind: str) -> None:
    model = build("vit", **{"norm_placement": "pre", **IMAGES[kind]})
    images = torch.randn(3, 2, 8, 8, dtype=torch.float64)
    target, other = torch.tensor([0, 4, 2]), torch.tensor([1, 1, 0])
    logits = model(images)
    terms = logit_attribution(model, lambda: model(images), target, other)
    check_sum(terms, (logits.gather(1, target[:, None]) - logits.gather(1, other[:, None]))[:, 0])


@torch.no_grad()
def test_terms_are_products_of_the_weights() -> None:
    model = build("causal")
    ids, target = tokens(2, 6), tokens(2, 6)
    seen: dict[str, Tensor] = {}
    block = model.stack.blocks[0]
    for name, module in {
        "head": block.attn.out,
        "neuron": block.ff.down,
        "stream": model.stack.norm,
        "embedding": block,
    }.items():
        module.register_forward_pre_hook(
            lambda _, args, name=name: seen.update({name: args[0].clone()})
        )
    model(ids)
    stream, norm = seen["stream"], model.stack.norm
    scale = (stream.var(-1, unbiased=False, keepdim=True) + norm.eps).rsqrt()
    matrix = model.head.weight[target]  # (B, T, D)

    def term(x: Tensor) -> Tensor:
        return ((x - x.mean(-1, keepdim=True)) * scale * norm.weight * matrix).sum(-1)

    terms = logit_attribution(model, lambda: model(ids), target)
    out, down = block.attn.out, block.ff.down
    expected = {
        "embedding": term(seen["embedding"]),
        "0.self.head.1": term(seen["head"][..., 4:8] @ out.weight[:, 4:8].T),
        "0.self.bias": term(out.bias.expand_as(stream)),
        "0.ff.neuron": term(seen["neuron"] @ down.weight.T),
        "0.ff.bias": term(down.bias.expand_as(stream)),
        "bias": (norm.bias * matrix).sum(-1),
    }
    for name, value in expected.items():
        torch.testing.assert_close(terms[name], value, rtol=1e-10, atol=1e-10, msg=name)
    assert len(terms) == 2 + 2 * (3 + 1 + 2)


def test_refused_models() -> None:
    ids = tokens(1, 3)
    capped = build("causal", **VARIANTS["gemma2"])
    vit = {"norm_placement": "pre", "representation_size": 6}
    for model, message in (
        (build("causal", norm_placement="post"), "must not be post-norm"),
        (build("encoder_decoder", norm_placement="post"), "must not be post-norm"),
        (build("masked", norm_placement="pre"), "must have a linear head"),
        (build("vit", **vit), "must have a linear head"),
        (fourfold.create("resnet18", n_classes=2), "must have a linear head"),
        (capped, "set model.head.logit_cap to None"),
    ):
        with pytest.raises(InputError, match=message):
            logit_attribution(model, lambda model=model: model(ids), ids)
    capped.head.logit_cap = None
    terms = logit_attribution(capped, lambda: capped(ids), ids)
    check_sum(terms, capped(ids).gather(-1, ids[..., None])[..., 0])
