"""The ladder: each rung computes its formula, and the last one is the model of the package."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, get_args

import pytest
import torch
from torch import Tensor, nn

import fourfold
from fourfold import generate
from fourfold.analysis.flops import parameters
from fourfold.core.kv_cache import KVCache
from fourfold.core.masks import Mask
from fourfold.errors import InputError
from fourfold.models import (
    CausalLM,
    CausalLMConfig,
    LadderClassifier,
    LadderClassifierConfig,
    LadderLM,
    LadderLMConfig,
    SequenceClassifier,
    SequenceClassifierConfig,
)
from fourfold.models.baselines.ladder import Rung

SHAPE: dict[str, Any] = {
    "d_model": 12,
    "n_layers": 2,
    "n_heads": 3,
    "d_ff": 20,
    "dropout": 0.0,
    "attn_dropout": 0.0,
    "vocab_size": 29,
    "max_len": 16,
}
CLASSES: dict[str, Any] = {**SHAPE, "n_classes": 3, "pool": "mean", "n_segments": 0}
RUNGS = get_args(Rung)


def lm(rung: str, **options: Any) -> LadderLM:
    torch.manual_seed(0)
    config = LadderLMConfig(**{**SHAPE, "init": "vaswani", **options, "rung": rung})
    return LadderLM(config).double().eval()


def classifier(rung: str, **options: Any) -> LadderClassifier:
    torch.manual_seed(0)
    config = LadderClassifierConfig(**{**CLASSES, "init": "vaswani", **options, "rung": rung})
    return LadderClassifier(config).double().eval()


def same_model(made: nn.Module, product: nn.Module, *inputs: Tensor) -> None:
    """Check that two models have the same parameters, in names and values, and the same logits."""
    weights, wanted = made.state_dict(), product.state_dict()
    assert list(weights) == list(wanted)
    assert all(torch.equal(weights[name], wanted[name]) for name in wanted)
    assert torch.equal(made.eval()(*inputs), product.eval()(*inputs))


@pytest.mark.parametrize("options", [{}, {"norm_placement": "post"}, {"positions": "none"}])
def test_last_rung_is_the_causal_lm(options: dict[str, Any]) -> None:
    torch.manual_seed(0)
    product = CausalLM(CausalLMConfig(**SHAPE, **options))
    torch.manual_seed(0)
    same_model(LadderLM(LadderLMConfig(**SHAPE, **options)), product, torch.arange(9)[None])


def test_last_rung_is_the_sequence_classifier() -> None:
    torch.manual_seed(0)
    product = SequenceClassifier(SequenceClassifierConfig(**CLASSES))
    torch.manual_seed(0)
    same_model(LadderClassifier(LadderClassifierConfig(**CLASSES)), product, torch.arange(9)[None])


def softmax_of(scores: Tensor) -> Tensor:
    """Apply softmax over the keys under a causal mask."""
    hidden = torch.ones_like(scores, dtype=torch.bool).triu(1)
    return scores.masked_fill(hidden, -torch.inf).softmax(-1)


def one_head(head: Any, x: Tensor, scale: float) -> Tensor:
    return softmax_of(head.q(x) @ head.k(x).mT * scale) @ head.v(x)


def heads(block: Any, x: Tensor) -> Tensor:
    attn = block.attn
    q, k, v = (part(x).unflatten(-1, (3, 4)).transpose(1, 2) for part in (attn.q, attn.k, attn.v))
    return attn.out((softmax_of(q @ k.mT / 2) @ v).transpose(1, 2).flatten(2))


def mlp(block: Any, x: Tensor) -> Tensor:
    return x + block.ff(block.ff_norm(x))


FORMULAS: dict[str, Callable[[Any, Tensor], Tensor]] = {
    "none": lambda block, x: x,
    "parameter_free": lambda block, x: softmax_of(x @ x.mT) @ x,
    "projections": lambda block, x: one_head(block.head, x, 1.0),
    "scaled": lambda block, x: one_head(block.head, x, 12**-0.5),
    "heads": heads,
    "residual": lambda block, x: x + heads(block, x),
    "norm": lambda block, x: x + heads(block, block.attn_norm(x)),
    "full": lambda block, x: mlp(block, x + heads(block, block.attn_norm(x))),
    "mlp": mlp,
}


@pytest.mark.parametrize("rung", RUNGS)
def test_a_rung_computes_its_formula(rung: str) -> None:
    stack: Any = lm(rung).stack
    x = torch.randn(2, 7, 12, dtype=torch.float64)
    wanted = x
    for block in stack.blocks:
        wanted = FORMULAS[rung](block, wanted)
    torch.testing.assert_close(stack(x, Mask(causal=True)), stack.norm(wanted))
    has_norm = rung in ("norm", "full", "mlp")
    assert isinstance(stack.norm, nn.LayerNorm) is has_norm


@pytest.mark.parametrize("rung", ["parameter_free", "projections", "scaled"])
def test_weights_of_a_single_head_give_its_output(rung: str) -> None:
    model, ids, calls = lm(rung), torch.arange(7)[None], []
    head: Any = model.stack.blocks[1].head
    hook = head.register_forward_hook(lambda module, args, output: calls.append((args[0], output)))
    maps = fourfold.attention_maps(model, ids)
    hook.remove()
    assert list(maps) == ["self.0", "self.1"]
    ((x, output),) = calls
    with torch.no_grad():
        found = maps["self.1"][0, 0] @ head.v(x.clone())
    torch.testing.assert_close(found, output.clone(), atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize("rung", ["none", "mlp"])
def test_rungs_without_attention_have_no_weights(rung: str) -> None:
    with pytest.raises(InputError, match="the model must have attention, got LadderLM"):
        fourfold.attention_maps(lm(rung), torch.arange(7)[None])


def test_post_norm_follows_the_sum() -> None:
    stack: Any = lm("norm", norm_placement="post", n_layers=1).stack
    x = torch.randn(2, 7, 12, dtype=torch.float64)
    (block,) = stack.blocks
    wanted = block.attn_norm(x + heads(block, x))
    torch.testing.assert_close(stack(x, Mask(causal=True)), wanted)


def test_parameters_by_rung() -> None:
    d, d_ff, norm = 12, 20, 24
    matrices = 4 * (d * d + d)
    per_layer = {
        "none": 0,
        "parameter_free": 0,
        "projections": 3 * (d * d + d),
        "scaled": 3 * (d * d + d),
        "heads": matrices,
        "residual": matrices,
        "norm": matrices + norm,
        "full": matrices + 2 * norm + 2 * d * d_ff + d_ff + d,
        "mlp": norm + 2 * d * d_ff + d_ff + d,
    }
    last = dict.fromkeys(("norm", "full", "mlp"), norm)
    counts = {rung: parameters(lm(rung)).blocks for rung in RUNGS}
    assert counts == {rung: 2 * n + last.get(rung, 0) for rung, n in per_layer.items()}


def test_width_of_a_single_head() -> None:
    head: Any = lm("scaled", d_head=64).stack.blocks[0].head  # type: ignore[union-attr, index]
    assert head.q.weight.shape == head.k.weight.shape == (64, 12)
    assert head.v.weight.shape == (12, 12)


@pytest.mark.parametrize("rung", RUNGS)
def test_cached_steps_equal_one_pass(rung: str) -> None:
    model, ids = lm(rung), torch.randint(29, (2, 9))
    cache = KVCache()
    steps = [model(part, cache=cache) for part in ids.split([4, 1, 1, 3], 1)]
    torch.testing.assert_close(torch.cat(steps, 1), model(ids))
    greedy = generate(model, ids[:, :4], max_new_tokens=3)
    for position in range(4, 7):
        assert torch.equal(greedy[:, position], model(greedy[:, :position])[:, -1].argmax(-1))


@pytest.mark.parametrize("rung", RUNGS)
def test_later_tokens_do_not_change_earlier_logits(rung: str) -> None:
    ids = torch.arange(9)[None]
    changed = ids.clone()
    changed[0, 5:] = 28
    before, after = lm(rung)(ids), lm(rung)(changed)
    assert torch.equal(after[:, :5], before[:, :5])
    is_mixed = rung not in ("none", "mlp")
    last = ids.clone()
    last[0, 7] = 28  # the last logits depend on it only if tokens are mixed
    assert torch.equal(lm(rung)(last)[:, -1], before[:, -1]) is not is_mixed


@pytest.mark.parametrize("rung", RUNGS)
def test_padding_does_not_change_a_classification(rung: str) -> None:
    ids = torch.randint(29, (2, 9))
    mask = torch.arange(9) < torch.tensor([[9], [6]])
    model = classifier(rung)
    torch.testing.assert_close(model(ids, mask=mask)[1:], model(ids[1:, :6]))


@pytest.mark.parametrize("rung", RUNGS)
def test_order_of_words_matters_to_a_classifier_with_positions_only(rung: str) -> None:
    ids = torch.randint(29, (2, 9))
    mixed = ids[:, torch.randperm(9)]
    model = classifier(rung, positions="none")
    torch.testing.assert_close(model(mixed), model(ids))
    # Learned positions of a bag of embeddings only add a constant to their mean.
    if rung not in ("none",):
        model = classifier(rung)
        assert not torch.isclose(model(mixed), model(ids)).all()


def test_gradients_reach_all_parameters() -> None:
    for rung in RUNGS:
        model = lm(rung, tie_embeddings=False)
        model(torch.randint(29, (2, 9))).logsumexp(-1).sum().backward()
        missing = {name for name, p in model.named_parameters() if p.grad is None}
        assert not missing, rung


def test_unknown_rung_is_rejected() -> None:
    config = LadderLMConfig(**SHAPE)
    with pytest.raises(InputError, match="rung must be one of none, parameter_free"):
        replace(config, rung="linear")  # type: ignore[arg-type]
