"""RecurrentCaptioner: padding, step by step, beam search, first input, parameters; its losses."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from fourfold import beam_search, generate
from fourfold.core.kv_cache import KVCache
from fourfold.errors import InputError
from fourfold.models import RecurrentCaptioner, RecurrentCaptionerConfig, ViTConfig
from fourfold.models.recurrent.hard_attention_task import doubly_stochastic_loss

V, B, T = 17, 3, 6
SMALL = RecurrentCaptionerConfig(
    vocab_size=V, max_len=20, d_model=8, hidden_size=10, n_channels=6, d_attn=7
)
VIT = ViTConfig(d_model=6, n_layers=1, n_heads=2, d_ff=8, image_size=8, patch_size=4, n_channels=1)
CONFIGS = {
    "soft": SMALL,
    "hard": replace(SMALL, attention="hard_sample"),
    "gumbel": replace(SMALL, attention="hard_gumbel", gate=False),
    "general": replace(SMALL, attn_score="general"),
    "once": replace(SMALL, image="once"),
    "none": replace(SMALL, image="none"),
    "vit": replace(SMALL, encoder=VIT),
}
models = pytest.mark.parametrize("name", CONFIGS)


def build(name: str) -> tuple[RecurrentCaptioner, Tensor, Tensor]:
    """Return a model in fp64 with random weights, inputs of B images, and token ids (B, T)."""
    torch.manual_seed(0)
    model = RecurrentCaptioner(CONFIGS[name]).double().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=0.5)
    shape = (B, 1, 8, 8) if name == "vit" else (B, 6, 3, 3)
    return model, torch.randn(shape, dtype=torch.float64), torch.randint(3, V, (B, T))


@models
def test_rows_are_independent_of_batch_and_padding(name: str) -> None:
    model, src, ids = build(name)
    padded = torch.cat([ids, torch.zeros(B, 4, dtype=torch.long)], 1)
    logits = model(src, padded)[:, :T]
    for row in range(B):
        alone = model(src[row : row + 1], ids[row : row + 1])[0]
        torch.testing.assert_close(logits[row], alone, rtol=0, atol=1e-12)


@models
def test_steps_with_a_cache_equal_teacher_forcing(name: str) -> None:
    model, src, ids = build(name)
    expected, cache = model(src, ids), model.new_cache()
    memory = model.encode(src)
    steps = [model.logits(model.decode(ids[:, t : t + 1], memory, cache=cache)) for t in range(T)]
    torch.testing.assert_close(torch.cat(steps, 1), expected, rtol=0, atol=1e-12)
    # Without a cache, all tokens are computed in each step.
    options: dict[str, Any] = {"bos_id": 1, "eos_id": 2, "num_beams": 3, "max_new_tokens": 8}
    found = beam_search(model, src, **options)
    for a, b in zip(found, beam_search(model, src, use_cache=False, **options), strict=True):
        torch.testing.assert_close(a, b)


@models
def test_beam_of_one_is_greedy_search_for_each_image(name: str) -> None:
    model, src, _ = build(name)
    ids, _ = beam_search(model, src, 1, bos_id=1, eos_id=2, pad_id=0, max_new_tokens=9)
    greedy = generate(model, src, 9, bos_id=1, eos_id=2, pad_id=0)
    assert torch.equal(ids, greedy)
    for beam in (1, 4):
        best, scores = beam_search(model, src, beam, bos_id=1, eos_id=2, pad_id=0, max_new_tokens=9)
        for row in range(B):
            alone, score = beam_search(
                model, src[row : row + 1], beam, bos_id=1, eos_id=2, pad_id=0, max_new_tokens=9
            )
            assert torch.equal(best[row, : alone.shape[1]], alone[0])
            torch.testing.assert_close(scores[row], score[0])


def test_use_of_the_image() -> None:
    """Only the language model ignores it; with attention, the start token has no vector."""
    for name in CONFIGS:
        model, src, ids = build(name)
        logits = model(src, ids)
        assert torch.equal(model(src + 1, ids), logits) == (name == "none")
        other_start = ids.clone()
        other_start[:, 0] = 1
        same = torch.allclose(model(src, other_start), logits)
        assert same == (CONFIGS[name].image == "attention")


def test_context_is_the_weighted_mean_of_the_places_times_the_gate() -> None:
    """The first step, computed from the formulas of the paper."""
    model, src, ids = build("soft")
    decoder: Any = model.decoder
    places = src.flatten(2).mT
    summary = torch.tanh(decoder.summary(places.mean(1)))
    h, c = (torch.tanh(f(summary)) for f in (decoder.initial_state, decoder.initial_cell))
    attention = decoder.cross_attn
    scores = attention.v_a(torch.tanh(attention.w_a(h)[:, None] + attention.u_a(places)))
    z = (scores.softmax(1) * places).sum(1) * torch.sigmoid(decoder.gate(h))
    x = torch.cat([torch.zeros(B, 8, dtype=torch.float64), z], 1)
    rnn = decoder.stack.rnn
    gates = x @ rnn.weight_ih_l0.T + h @ rnn.weight_hh_l0.T + rnn.bias_ih_l0 + rnn.bias_hh_l0
    i, f, g, o = gates.chunk(4, 1)
    h = o.sigmoid() * torch.tanh(f.sigmoid() * c + i.sigmoid() * g.tanh())
    output = torch.tanh(decoder.from_state(h) + decoder.from_context(z))
    torch.testing.assert_close(model.decode(ids[:, :1], model.encode(src))[:, 0], output)


def test_parameters_of_the_paper() -> None:
    """The decoder of the released code has 35,333,450; see the docstring for the differences."""
    with torch.device("meta"):
        model = RecurrentCaptioner(RecurrentCaptionerConfig())
    n_parameters = sum(p.numel() for p in model.parameters())
    second_layer = 512 * 512 + 512
    biases = 4 * 1800 - 512 - 1 - 512  # the LSTM's second; score and context have none
    assert n_parameters == 35_333_450 - second_layer + biases


def test_initialization() -> None:
    model = RecurrentCaptioner(replace(SMALL, hidden_size=64, forget_bias=1.0))
    state = model.state_dict()
    for gate in state["decoder.stack.rnn.weight_hh_l0"].split(64):
        torch.testing.assert_close(gate @ gate.T, torch.eye(64), rtol=0, atol=1e-5)
    assert 0.009 < float(state["decoder.stack.rnn.weight_ih_l0"].std()) < 0.011
    assert (state["decoder.stack.rnn.bias_ih_l0"][64:128] == 1).all()
    assert not state["decoder.stack.rnn.bias_hh_l0"].any()


def test_doubly_stochastic_loss_equals_a_loop() -> None:
    torch.manual_seed(0)
    alpha = torch.rand(B, T, 5, dtype=torch.float64).softmax(-1).requires_grad_()
    lengths = [6, 2, 4]
    counts = torch.arange(T) < torch.tensor(lengths)[:, None]
    expected = sum(
        (1 - sum(alpha[b, t, i] for t in range(lengths[b]))) ** 2
        for b in range(B)
        for i in range(5)
    )
    loss = doubly_stochastic_loss(alpha, counts)
    torch.testing.assert_close(loss, expected)
    (gradient,) = torch.autograd.grad(loss, alpha)
    assert not gradient[~counts].any()
    assert gradient[counts].abs().min() > 0


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"attn_score": "location"}, "must be given for the score location"),
        ({"image": "twice"}, "image must be"),
        ({"d_attn": 0}, "d_attn must be at least 1"),
    ],
)
def test_invalid_options(change: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        RecurrentCaptioner(replace(SMALL, **change))


def test_wrong_number_of_channels() -> None:
    model, src, ids = build("soft")
    message = r"model\.config\.n_channels must be the number of channels of the features, 5, got 6"
    with pytest.raises(InputError, match=message):
        model(src[:, :5], ids)


def test_cache_is_not_one_of_keys_and_values() -> None:
    model, _, _ = build("soft")
    assert not isinstance(model.new_cache(), KVCache)
