"""Recurrent encoder-decoders: papers' equations and sizes, padding, decoding step by step."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fourfold.analysis.attention_maps import mean_maps
from fourfold.analysis.flops import forward_flops, parameters
from fourfold.errors import InputError
from fourfold.generation import GenerationDefaults, beam_search, generate
from fourfold.layers.quantization import quantize
from fourfold.models import RecurrentEncoderDecoder, RecurrentEncoderDecoderConfig

V = 17
SHAPE: dict[str, Any] = {
    "vocab_size": V,
    "max_len": 40,
    "d_model": 6,
    "hidden_size": 8,
    "n_layers": 2,
    "dropout": 0.0,
    "bias": True,
}
SEARCH: dict[str, Any] = {
    "cell": "gru",
    "decoder": "bahdanau",
    "attn_score": "additive",
    "input_feeding": False,
    "bidirectional": True,
    "bridge": "backward",
    "init": "bahdanau",
}
NO_ATTENTION: dict[str, Any] = {"context": "initial", "input_feeding": False}
LINEAR: dict[str, Any] = {"bidirectional": True, "bridge": "linear"}
VARIANTS: dict[str, dict[str, Any]] = {
    "sutskever": {**NO_ATTENTION, "reverse_source": True, "forget_bias": 1.0},
    "cho": {
        **SEARCH,
        "context": "every_step",
        "bidirectional": False,
        "bridge": "linear",
        "reset": "before",
        "n_layers": 1,
    },
    "search": {**SEARCH, "reset": "before", "n_layers": 1, "embed_bias": True, "output_rank": 6},
    "search lstm": {**SEARCH, "cell": "lstm", "output_bias": True},
    "search without context": {**SEARCH, "context": "initial", "bridge": "linear"},
    "global": {**LINEAR, "input_feeding": False, "tie_embeddings": "embeddings"},
    "global all at once": {"input_feeding": False, "attn_score": "dot", "hidden_size": 6}
    | {"tie_embeddings": "all"},
    "local": {"attn_weights": "local_p", "attn_window": 2, "reverse_source": True},
    "monotonic": {"attn_weights": "local_m", "attn_window": 1, "input_feeding": False},
    "hard": {"attn_weights": "hard_gumbel", "input_feeding": False},
    "mixed": {**LINEAR, "mix_outputs": True, "input_feeding": False, "output_bias": True},
    "location": {**LINEAR, "attn_score": "location", "cell": "gru"},
    "context at every step": {**LINEAR, "context": "every_step", "input_feeding": False}
    | {"cell": "rnn"},
}
PAPER: dict[str, Any] = {
    "vocab_size": 30001,
    "d_model": 620,
    "n_layers": 1,
    "reset": "before",
    **SEARCH,
}


def build(name: str, **changes: Any) -> RecurrentEncoderDecoder:
    """Return a model in fp64 with large weights, so that tokens and states matter."""
    torch.manual_seed(0)
    config = RecurrentEncoderDecoderConfig(**(SHAPE | VARIANTS[name] | changes))
    model = RecurrentEncoderDecoder(config).double().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=0.6)
    model.generation_defaults = GenerationDefaults(bos_id=1, eos_id=2, pad_id=0)
    return model


def rows() -> list[Tensor]:
    torch.manual_seed(1)
    return [torch.randint(3, V, (n,)) for n in (5, 2, 7, 1)]


def batch(side: str = "right") -> tuple[Tensor, Tensor]:
    """Return the rows as a batch with padding on one side, and its mask."""
    ids, mask = torch.full((4, 7), 3), torch.zeros(4, 7, dtype=torch.bool)
    for i, row in enumerate(rows()):
        at = slice(0, len(row)) if side == "right" else slice(7 - len(row), 7)
        ids[i, at], mask[i, at] = row, True
    return ids, mask


@pytest.mark.parametrize("side", ["right", "left"])
@pytest.mark.parametrize("name", VARIANTS)
def test_padding_changes_neither_states_nor_translations(name: str, side: str) -> None:
    model = build(name)
    src, mask = batch(side)
    tgt = torch.randint(3, V, (4, 5))
    memory = model.encode(src, src_mask=mask)
    y = model.decode(tgt, memory, src_mask=mask)
    ids, scores = beam_search(model, src, 3, src_mask=mask, max_new_tokens=9)
    for i, row in enumerate(rows()):
        alone = model.encode(row[None])
        n = alone.vectors.shape[1]
        torch.testing.assert_close(memory.vectors[i, :n], alone.vectors[0], rtol=0, atol=1e-12)
        for found, expected in zip(memory.initial, alone.initial, strict=True):
            torch.testing.assert_close(found[:, i], expected[:, 0], rtol=0, atol=1e-12)
        torch.testing.assert_close(y[i], model.decode(tgt[i, None], alone)[0], rtol=0, atol=1e-12)
        single, score = beam_search(model, row[None], 3, max_new_tokens=9)
        assert torch.equal(single[0], ids[i, : single.shape[1]])
        assert (ids[i, single.shape[1] :] == 0).all()
        torch.testing.assert_close(score[0], scores[i], rtol=0, atol=1e-12)


@pytest.mark.parametrize("name", VARIANTS)
def test_steps_equal_the_teacher_forced_pass(name: str) -> None:
    model = build(name)
    src, mask = batch()
    tgt = torch.randint(3, V, (4, 6))
    logits = model(src, tgt, src_mask=mask)
    memory, cache = model.encode(src, src_mask=mask), model.new_cache()
    for t, part in ((0, 1), (1, 1), (2, 3), (5, 1)):  # steps of one token and of three
        y = model.logits(model.decode(tgt[:, t : t + part], memory, src_mask=mask, cache=cache))
        torch.testing.assert_close(y, logits[:, t : t + part], rtol=0, atol=1e-12)
    assert cache.length == 6


@pytest.mark.parametrize("name", VARIANTS)
def test_search_with_a_cache_equals_search_without(name: str) -> None:
    model = build(name)
    src, mask = batch()
    found = beam_search(model, src, 4, src_mask=mask, max_new_tokens=8, num_return_sequences=3)
    plain = beam_search(
        model, src, 4, src_mask=mask, max_new_tokens=8, num_return_sequences=3, use_cache=False
    )
    assert torch.equal(found[0], plain[0])
    torch.testing.assert_close(found[1], plain[1], rtol=0, atol=1e-12)
    greedy = generate(model, src, 8, mask=mask)
    first, _ = beam_search(model, src, 1, src_mask=mask, max_new_tokens=8)
    assert torch.equal(first, greedy)
    options: dict[str, Any] = {"temperature": 1.0, "seed": 3, "mask": mask}
    assert torch.equal(
        generate(model, src, 8, **options), generate(model, src, 8, **options, use_cache=False)
    )


@pytest.mark.parametrize("name", VARIANTS)
def test_beam_of_one_is_greedy_search(name: str) -> None:
    model = build(name)
    src = torch.randint(3, V, (4, 7))
    options: dict[str, Any] = {"bos_id": 1, "eos_id": 2, "pad_id": 0}
    ids, _ = beam_search(model, src, 1, max_new_tokens=12, **options)
    assert torch.equal(ids, generate(model, src, 12, **options))


def test_reordered_cache_continues_the_chosen_rows() -> None:
    model = build("local")
    src, mask = batch()
    tgt, chosen = torch.randint(3, V, (4, 4)), torch.tensor([2, 0, 0])
    memory, cache = model.encode(src, src_mask=mask), model.new_cache()
    model.decode(tgt[:, :3], memory, cache=cache)
    cache.reorder(chosen)
    y = model.decode(tgt[chosen, 3:], memory.index_select(0, chosen), cache=cache)
    expected = model.decode(tgt, memory)[chosen, 3:]
    torch.testing.assert_close(y, expected, rtol=0, atol=1e-12)


def test_source_is_reversed_within_its_own_length() -> None:
    model = build("sutskever")
    plain = RecurrentEncoderDecoder(replace(model.config, reverse_source=False)).double().eval()
    plain.load_state_dict(model.state_dict())
    src, mask = batch()
    tgt = torch.randint(3, V, (4, 5))
    logits = model(src, tgt, src_mask=mask)
    for i, row in enumerate(rows()):
        torch.testing.assert_close(logits[i], plain(row.flip(0)[None], tgt[i, None])[0])


def test_vectors_of_a_reversed_source_keep_the_order_of_the_tokens() -> None:
    model = build("local")
    row = rows()[2]
    vectors, _ = model.encoder(model.src_embed(row.flip(0)[None], slice(0, 7)))
    torch.testing.assert_close(model.encode(row[None]).vectors, vectors.flip(1))


def test_search_decoder_follows_the_equations_of_bahdanau() -> None:
    """Section A.2: alignment with the previous state, gates with the context, and maxout."""
    model = build("search")
    src, tgt = rows()[0][None], torch.randint(3, V, (1, 4))
    memory = model.encode(src)
    h = memory.vectors[0]  # (S, 2 H)
    decoder: Any = model.decoder
    gates, bias, w_rz, w_n = decoder.stack.weights(0)
    s = (
        (model.encoder(model.src_embed(src, slice(0, 5)))[1][0][1, 0])
        @ model.bridge.maps[0].weight.T
    )
    s = torch.tanh(s + model.bridge.maps[0].bias)
    attn, readout = decoder.cross_attn, decoder.readout
    for t, token in enumerate(tgt[0]):
        y = model.tgt_embed.tokens.weight[token] + model.tgt_embed.norm.bias
        energies = torch.tanh(attn.w_a.weight @ s + h @ attn.u_a.weight.T) @ attn.v_a.weight[0]
        c = energies.softmax(0) @ h
        units = readout.from_state.weight @ s + readout.from_state.bias
        units = units + readout.from_token.weight @ y + readout.from_context.weight @ c
        out = decoder.low_rank.weight @ torch.maximum(units[::2], units[1::2])
        expected = model.head.own.weight @ out
        torch.testing.assert_close(model(src, tgt)[0, t], expected)
        r, z, n = (gates @ torch.cat([y, c]) + bias).chunk(3)
        r, z = torch.sigmoid(r + w_rz[:8] @ s), torch.sigmoid(z + w_rz[8:] @ s)
        # The paper's update gate is 1 - z.
        s = z * s + (1 - z) * torch.tanh(n + w_n @ (r * s))
    assert not decoder.stack.weights(0)[1][:16].any()  # the gates have no bias on the input


def test_feeding_decoder_follows_the_equations_of_luong() -> None:
    """Sections 3.1 and 3.3: query with the new state, and the last output as input."""
    model = build("global", input_feeding=True, n_layers=1)
    src, tgt = rows()[0][None], torch.randint(3, V, (1, 4))
    memory = model.encode(src)
    decoder: Any = model.decoder
    cell: Any = nn.LSTMCell(6 + 8, 8).double()
    names = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
    cell.load_state_dict({x: decoder.stack.rnn.state_dict()[f"{x}_l0"] for x in names})
    h, c = (part[0] for part in memory.initial)
    feed, vectors = torch.zeros(1, 8).double(), memory.vectors[0]
    for t, token in enumerate(tgt[0]):
        x = torch.cat([model.tgt_embed.tokens.weight[token, None], feed], dim=1)
        h, c = cell(x, (h, c))
        weights = (vectors @ decoder.cross_attn.w_a.weight.T @ h[0]).softmax(0)
        feed = torch.tanh(torch.cat([weights @ vectors, h[0]]) @ decoder.combine.weight.T)[None]
        torch.testing.assert_close(model(src, tgt)[0, t], model.head.own.weight @ feed[0])


@pytest.mark.parametrize(
    ("options", "count"),
    [
        ({**NO_ATTENTION}, 214_000_000),
        ({"attn_score": "dot"}, 220_000_000),
        ({}, 221_000_000),
        ({"attn_score": "dot", "attn_weights": "local_p"}, 221_001_000),
        ({"attn_weights": "local_p"}, 222_001_000),
        # The source vocabulary of 160,000 has 80,000,000 parameters more.
        ({**NO_ATTENTION, "vocab_size": 80_000, "reverse_source": True}, 384_000_000 - 80_000_000),
        (
            {**PAPER, "bias": True, "embed_bias": True, "output_bias": True, "output_rank": 620},
            84_349_101,  # the released code
        ),
        ({**PAPER, "vocab_size": 30_000}, 80_401_000),  # the equations, without biases
    ],
)
def test_parameter_counts_of_the_papers(options: dict[str, Any], count: int) -> None:
    with torch.device("meta"):
        model = RecurrentEncoderDecoder(RecurrentEncoderDecoderConfig(**options))
    assert parameters(model).total == count


@pytest.mark.parametrize("name", VARIANTS)
def test_every_parameter_gets_a_gradient(name: str) -> None:
    model = build(name).train()
    src, mask = batch()
    model(src, torch.randint(3, V, (4, 5)), src_mask=mask).square().sum().backward()
    assert [x for x, p in model.named_parameters() if p.grad is None or not p.grad.any()] == []


@pytest.mark.parametrize("name", ["search", "global", "local", "sutskever"])
def test_autocast_gives_finite_logits_near_those_of_fp32(name: str) -> None:
    model = build(name).float()
    src, mask = batch()
    tgt = torch.randint(3, V, (4, 5))
    with torch.autocast("cpu", torch.bfloat16):
        logits = model(src, tgt, src_mask=mask)
    expected = model(src, tgt, src_mask=mask)
    assert (logits - expected).abs().max() < 0.1 * expected.abs().max()


@pytest.mark.parametrize("name", ["search", "global", "local", "location", "mixed"])
def test_int8_gives_logits_near_those_of_fp32(name: str) -> None:
    model = build(name).float()
    src, mask = batch()
    tgt = torch.randint(3, V, (4, 5))
    expected = model(src, tgt, src_mask=mask)
    quantize(model, "int8")
    assert (model(src, tgt, src_mask=mask) - expected).abs().max() < 0.1 * expected.abs().max()


@pytest.mark.parametrize("name", ["search", "global", "local"])
def test_attention_maps_have_a_row_for_each_target_token(name: str) -> None:
    model = build(name)
    src, tgt = rows()[0][None], torch.randint(3, V, (1, 4))
    (weights,) = mean_maps(model, "cross_attn", lambda: model(src, tgt))
    assert weights.shape == (4, 5)
    total = weights.sum(1)
    assert (total <= 1 + 1e-6).all() if name == "local" else torch.allclose(total, torch.ones(4))


def test_initializations_follow_the_papers() -> None:
    torch.manual_seed(0)
    shape = {**SHAPE, "d_model": 60, "hidden_size": 80, "n_layers": 1}
    model = RecurrentEncoderDecoder(RecurrentEncoderDecoderConfig(**(shape | SEARCH)))
    for gate in model.decoder.stack.rnn.weight_hh_l0.chunk(3):
        torch.testing.assert_close(gate @ gate.T, torch.eye(80), rtol=0, atol=1e-5)
    attn = model.decoder.cross_attn
    assert not attn.v_a.weight.any()
    assert attn.w_a.weight.std().item() == pytest.approx(0.001, rel=0.1)
    assert model.head.own.weight.std().item() == pytest.approx(0.01, rel=0.1)
    for init, bound in (("luong", 0.1), ("sutskever", 0.08)):
        config = RecurrentEncoderDecoderConfig(**shape, **NO_ATTENTION, init=init, forget_bias=2.0)
        model = RecurrentEncoderDecoder(config)
        forget = model.encoder.rnn.bias_ih_l0.chunk(4)[1]
        assert (forget - 2.0).abs().max() <= bound + 1e-6
        assert 0.9 * bound < model.src_embed.tokens.weight.max() <= bound


def test_flops_and_parameters_are_divided_into_parts() -> None:
    model = build("global")
    flops, counts = forward_flops(model, 5, source=7), parameters(model)
    assert counts.embeddings == V * 6
    assert counts.head == V * 8 + sum(p.numel() for p in model.bridge.parameters())
    encoder = 2 * 4 * 8 * (6 + 8) + 2 * 4 * 8 * (16 + 8)
    decoder = 4 * 8 * (6 + 8) + 4 * 8 * (8 + 8)
    attention = 5 * 7 * (8 + 16) + 5 * (16 + 8) * 8
    assert flops.blocks == 2 * (7 * encoder + 5 * decoder + attention)
    bridge, projection = 4 * 16 * 8, 7 * 16 * 8
    assert flops.head == 2 * (bridge + projection + 5 * 8 * V)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"reset": "before"}, "reset must be after for the cell lstm, got before"),
        ({"forget_bias": 101.0}, "forget_bias must be at least -100 and at most 100, got 101"),
        ({"context": "initial"}, "input_feeding must be false without attention in the decoder"),
        ({"bidirectional": True}, "bridge must be linear or backward for a bidirectional encoder"),
        ({"bridge": "backward"}, "bridge must be none or linear without a bidirectional encoder"),
        ({"tie_embeddings": "all", "d_model": 7}, "tie_embeddings must be embeddings or none"),
        ({"attn_window": 0}, "attn_window must be at least 1, got 0"),
        ({"attn_temperature": 0.0}, "attn_temperature must be above 0 and finite|must be above 0"),
        ({"cell": "lst"}, "cell must be one of rnn, gru, lstm, got 'lst'; did you mean lstm"),
    ],
)
def test_options_that_do_not_fit_together_are_rejected(
    options: dict[str, Any], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        RecurrentEncoderDecoderConfig(**options)


def test_packed_pairs_are_rejected() -> None:
    model, ids = build("global"), torch.ones(1, 3, dtype=torch.long)
    with pytest.raises(InputError, match="src_documents must be None for a recurrent model"):
        model(ids, ids, src_documents=ids)
    with pytest.raises(InputError, match="tgt_documents must be None for a recurrent model"):
        model.decode(ids, model.encode(ids), tgt_documents=ids)
