"""T5: relative position buckets, initialization, dropout, and sequences without a limit."""

import pytest
import torch

import fourfold
from fourfold.analysis.flops import forward_flops, parameters
from fourfold.core.kv_cache import KVCache
from fourfold.errors import InputError
from fourfold.models import T5, EncoderDecoder, EncoderDecoderConfig, T5Config
from fourfold.models.encoder_decoder.t5 import RelativeBias
from tests.fixtures.tiny_models import V, assert_same, build, tokens

V11 = {
    "feed_forward": "glu",
    "activation": "gelu_tanh",
    "tie_embeddings": "embeddings",
    "scale_output": False,
}


def bucket(ahead: int, n: int, longest: int, bidirectional: bool) -> int:
    """Compute the bucket of one distance in integer arithmetic.

    With e = n / 2, bucket e + j begins at the distance e (longest / e)^(j / (n - e)).
    """
    first = 0
    if bidirectional:
        n //= 2
        first = n if ahead > 0 else 0
    elif ahead > 0:
        return 0
    away, e = abs(ahead), n // 2
    if away < e:
        return first + away
    steps = n - e
    begun = [j for j in range(steps) if away**steps * e**j >= longest**j * e**steps]
    return first + e + max(begun)


@pytest.mark.parametrize("bidirectional", [True, False])
@pytest.mark.parametrize(("n", "longest"), [(32, 128), (8, 7), (8, 13), (12, 100), (5, 4), (4, 3)])
def test_buckets_follow_the_paper(n: int, longest: int, bidirectional: bool) -> None:
    bias, far = RelativeBias(1, n, longest, bidirectional=bidirectional), 3 * longest
    ahead = torch.arange(-far, far + 1)
    assert bias.buckets(ahead).tolist() == [
        bucket(a, n, longest, bidirectional) for a in ahead.tolist()
    ]


@pytest.mark.parametrize("bidirectional", [True, False])
@pytest.mark.parametrize(("q_len", "k_len"), [(1, 1), (9, 9), (1, 9), (3, 9)])
def test_queries_are_at_the_last_positions(q_len: int, k_len: int, bidirectional: bool) -> None:
    bias = RelativeBias(3, 8, 7, bidirectional=bidirectional)
    found = bias(q_len, k_len)
    assert found.shape == (1, 3, q_len, k_len)
    for i in range(q_len):
        for j in range(k_len):
            row = bucket(j - (k_len - q_len + i), 8, 7, bidirectional)
            assert torch.equal(found[0, :, i, j], bias.table.weight[row])


def test_bias_affects_self_attention_only() -> None:
    model, src, tgt = build("t5"), tokens(2, 9), tokens(2, 9)
    before = model.encode(src)
    with torch.no_grad():
        model.decoder.bias.table.weight.normal_()
    assert torch.equal(model.encode(src), before)
    biases = []
    for block in model.decoder.blocks:
        block.cross_attn.register_forward_hook(
            lambda _, args, kwargs, y: biases.append(kwargs.get("bias")), with_kwargs=True
        )
    model(src, tgt)
    assert biases == [None]


def test_sequences_may_be_longer_than_max_distance() -> None:
    model, src = build("t5"), tokens(1, 50)
    cache, memory = KVCache(), model.encode(src)
    tgt = tokens(1, 40)
    whole = model.decode(tgt, memory)
    steps = [model.decode(piece, memory, cache=cache) for piece in tgt.split(1, dim=1)]
    assert_same(torch.cat(steps, 1), whole)


@pytest.mark.parametrize("beam", [1, 3])
def test_beam_search_equals_decoding_without_a_cache(beam: int) -> None:
    model, src = build("t5"), tokens(4, 7)
    mask = torch.arange(7) < torch.tensor([[7], [2], [5], [1]])
    given = {"src_mask": mask, "num_beams": beam, "bos_id": 0, "eos_id": 1, "max_new_tokens": 20}
    fast, scores = fourfold.beam_search(model, src, **given)
    slow, again = fourfold.beam_search(model, src, **given, use_cache=False)
    assert torch.equal(fast, slow)
    assert_same(scores, again)
    alone, _ = fourfold.beam_search(model, src[1:2, :2], **{**given, "src_mask": None})
    assert torch.equal(alone[0], fast[1, : alone.shape[1]])
    assert (fast[:, 0] == 0).all()


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, 60_506_624),  # t5-small
        ({"d_model": 768, "n_layers": 12, "n_heads": 12, "d_ff": 3072}, 222_903_552),  # t5-base
        ({"n_layers": 8, "n_heads": 6, "d_ff": 1024, **V11}, 76_961_152),  # t5-v1_1-small
        (
            {"d_model": 768, "n_layers": 12, "n_heads": 12, "d_ff": 2048, **V11},
            247_577_856,  # t5-v1_1-base
        ),
    ],
)
def test_parameters_of_the_released_models(changes: dict[str, object], expected: int) -> None:
    with torch.device("meta"):
        model = T5(T5Config(**changes))
    assert parameters(model).total == sum(p.numel() for p in model.parameters()) == expected


def test_initial_scores_and_logits_have_unit_variance() -> None:
    torch.manual_seed(0)
    model = T5(T5Config(d_model=96, d_head=24, n_layers=1, n_heads=4, d_ff=64, vocab_size=500))
    x, attn = torch.randn(1, 200, 96), model.encoder.blocks[0].attn
    q, k = (y.unflatten(-1, (4, 24)).transpose(1, 2) for y in (attn.q(x), attn.k(x)))
    assert (q @ k.mT).std().item() == pytest.approx(1.0, rel=0.05)
    assert model.logits(x).std().item() == pytest.approx(1.0, rel=0.05)
    assert model.src_embed.tokens.weight.std().item() == pytest.approx(1.0, rel=0.05)
    assert model.encoder.bias.table.weight.std().item() == pytest.approx(96**-0.5, rel=0.2)
    own = T5(
        T5Config(
            d_model=96, n_layers=1, vocab_size=500, tie_embeddings="embeddings", scale_output=False
        )
    )
    assert own.logits(x).std().item() == pytest.approx(1.0, rel=0.05)


def test_dropout_is_applied_where_t5_applies_it() -> None:
    """It is on embeddings, attention weights, in and after sub-layers, and after the last norm."""
    model = T5(T5Config(d_model=8, d_head=4, n_heads=2, n_layers=1, d_ff=8, vocab_size=V))
    block = model.decoder.blocks[0]
    assert block.attn.dropout == block.cross_attn.dropout == block.ff.dropout.p == 0.1
    assert block.dropout.p == model.src_embed.dropout.p == 0.1
    model.encoder.dropout.p = model.decoder.dropout.p = 0.9999
    memory = model.train().encode(tokens(1, 5))
    assert (memory == 0).all()
    assert (model.decode(tokens(1, 5), memory) == 0).all()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"n_buckets": 3}, "n_buckets must be at least 4.* got 3"),
        ({"max_distance": 16}, "less than twice max_distance .16."),
        ({"positions": "sinusoidal"}, "max_len must be given for positions sinusoidal"),
    ],
)
def test_invalid_configs_raise(changes: dict[str, object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        T5Config(**changes)


def test_flops_without_max_len_require_a_length() -> None:
    with torch.device("meta"):
        model = T5(T5Config())
    assert forward_flops(model, 10).total == forward_flops(model, 10, source=10).total
    with pytest.raises(InputError, match="length must be given"):
        forward_flops(model)


def test_encoder_decoder_without_positions_has_no_length_limit() -> None:
    config = EncoderDecoderConfig(
        d_model=8, n_heads=2, vocab_size=V, positions="none", max_len=None
    )
    assert EncoderDecoder(config)(tokens(1, 3), tokens(1, 2000)).shape == (1, 2000, V)
