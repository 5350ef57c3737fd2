"""Encoder-decoders with rotary positions, compared with loops over positions and heads."""

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import fourfold
from fourfold.errors import InputError
from fourfold.models import EncoderDecoder, EncoderDecoderConfig
from tests.fixtures.tiny_models import V, assert_same, build, tokens

THETA = 100.0
ROTARY: dict[str, Any] = {"positions": "none", "rope_theta": THETA, "n_heads": 3, "d_head": 4}
GIVEN: dict[str, Any] = {"bos_id": 0, "eos_id": 1, "max_new_tokens": 9}


def turned(x: Tensor, position: int) -> Tensor:
    """Rotate the pairs (i, i + 2) of a vector of four channels by the angles of a position."""
    angles = [
        float(torch.tensor(position).float() / torch.tensor(THETA**share)) for share in (0, 0.5)
    ]
    out = x.clone()
    for i, angle in enumerate(angles):
        out[i] = x[i] * math.cos(angle) - x[i + 2] * math.sin(angle)
        out[i + 2] = x[i + 2] * math.cos(angle) + x[i] * math.sin(angle)
    return out


def attended(attn: Any, x: Tensor, memory: Tensor, causal: bool, rotary: bool) -> Tensor:
    """Compute attention of x (T, D) to a memory (S, D), head by head and pair by pair."""
    heads = []
    for h in range(attn.n_heads):
        part = slice(4 * h, 4 * h + 4)
        q, k, v = (
            F.linear(y, p.weight, p.bias)[:, part]
            for y, p in ((x, attn.q), (memory, attn.k), (memory, attn.v))
        )
        if rotary:
            q, k = (torch.stack([turned(row, i) for i, row in enumerate(rows)]) for rows in (q, k))
        rows = []
        for i in range(len(x)):
            seen = i + 1 if causal else len(memory)
            scores = torch.stack([q[i] @ k[j] / 2 for j in range(seen)])  # 2 = sqrt(4)
            rows.append(scores.softmax(0) @ v[:seen])
        heads.append(torch.stack(rows))
    return F.linear(torch.cat(heads, dim=-1), attn.out.weight, attn.out.bias)


def feed_forward(block: Any, x: Tensor) -> Tensor:
    hidden = F.linear(x, block.ff.up.weight, block.ff.up.bias).relu()
    return block.ff_norm(x + F.linear(hidden, block.ff.down.weight, block.ff.down.bias))


def reference(model: Any, src: Tensor, tgt: Tensor) -> Tensor:
    """Compute the logits (T, V) of one pair of token ids (S,) and (T,), without padding."""
    scale = model.config.d_model**0.5
    memory, x = (model.src_embed.tokens.weight[ids] * scale for ids in (src, tgt))
    for block in model.encoder.blocks:
        memory = block.attn_norm(memory + attended(block.attn, memory, memory, False, True))
        memory = feed_forward(block, memory)
    for block in model.decoder.blocks:
        x = block.attn_norm(x + attended(block.attn, x, x, True, True))
        # Cross-attention is not rotated: positions of source and target are not comparable.
        x = block.cross_attn_norm(x + attended(block.cross_attn, x, memory, False, False))
        x = feed_forward(block, x)
    return F.linear(x, model.head.weight)


def close(actual: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(actual, expected, rtol=0, atol=1e-5)  # angles are in fp32


def test_rotary_positions_follow_the_definition() -> None:
    model, src, tgt = build("encoder_decoder", **ROTARY), tokens(2, 6), tokens(2, 5)
    for row, (source, target) in enumerate(zip(src, tgt, strict=True)):
        close(model(src, tgt)[row], reference(model, source, target))
    shifted = build("encoder_decoder", positions="none", n_heads=3, d_head=4)
    shifted.load_state_dict(model.state_dict())  # rotary positions have no weights
    assert not torch.allclose(shifted(src, tgt), model(src, tgt), atol=1e-2)


@pytest.mark.parametrize("left", [False, True])
def test_logits_do_not_depend_on_padding_and_other_rows(left: bool) -> None:
    model, src, tgt = build("encoder_decoder", **ROTARY), tokens(3, 7), tokens(3, 6)
    n_src, n_tgt = (7, 4, 2), (6, 3, 1)
    rows = [slice(-n, None) if left else slice(0, n) for n in n_src]
    masks = [torch.zeros(3, n, dtype=torch.bool) for n in (7, 6)]
    parts = [slice(-n, None) if left else slice(0, n) for n in n_tgt]
    for i in range(3):
        masks[0][i, rows[i]] = masks[1][i, parts[i]] = True
    logits = model(src, tgt, src_mask=masks[0], tgt_mask=masks[1])
    for i in range(3):
        close(logits[i, parts[i]], reference(model, src[i, rows[i]], tgt[i, parts[i]]))


def test_decoding_with_a_cache_follows_the_definition() -> None:
    model, src, tgt = build("encoder_decoder", **ROTARY), tokens(2, 6), tokens(2, 8)
    cache, memory = model.new_cache(), model.encode(src)
    pieces = [model.decode(piece, memory, cache=cache) for piece in tgt.split([3, 1, 1, 3], dim=1)]
    logits = model.logits(torch.cat(pieces, dim=1))
    for row in range(2):
        close(logits[row], reference(model, src[row], tgt[row]))


@pytest.mark.parametrize("scaling", [None, {"rope_type": "linear", "factor": 4.0}])
@pytest.mark.parametrize("beam", [1, 4])
def test_beam_search_of_a_batch_equals_search_by_row(beam: int, scaling: Any) -> None:
    model, src = build("encoder_decoder", **ROTARY, rope_scaling=scaling), tokens(3, 7)
    mask = torch.arange(7) < torch.tensor([[7], [4], [2]])
    found, scores = fourfold.beam_search(model, src, num_beams=beam, src_mask=mask, **GIVEN)
    slow, again = fourfold.beam_search(
        model, src, num_beams=beam, src_mask=mask, **GIVEN, use_cache=False
    )
    assert torch.equal(found, slow)
    assert_same(scores, again)
    for i, n in enumerate((7, 4, 2)):
        own, score = fourfold.beam_search(model, src[i : i + 1, :n], num_beams=beam, **GIVEN)
        assert found[i][: own.shape[1]].tolist() == own[0].tolist()
        assert_same(scores[i], score[0])


def test_greedy_search_follows_the_definition() -> None:
    model, src = build("encoder_decoder", **ROTARY), tokens(1, 6)
    found, _ = fourfold.beam_search(model, src, num_beams=1, **GIVEN)
    ids = torch.tensor([0])
    while len(ids) < found.shape[1]:
        ids = torch.cat([ids, reference(model, src[0], ids)[-1:].argmax(-1)])
    assert found[0].tolist() == ids.tolist()


def test_packed_pairs_count_their_own_positions() -> None:
    model, src, tgt = build("encoder_decoder", **ROTARY), tokens(1, 7), tokens(1, 6)
    documents = torch.tensor([[0, 0, 0, 1, 1, 1, 1]]), torch.tensor([[0, 0, 1, 1, 1, 1]])
    logits = model(src, tgt, src_documents=documents[0], tgt_documents=documents[1])
    close(logits[0, :2], reference(model, src[0, :3], tgt[0, :2]))
    close(logits[0, 2:], reference(model, src[0, 3:], tgt[0, 2:]))


def test_rotary_positions_need_no_longest_length() -> None:
    config = EncoderDecoderConfig(
        d_model=8, n_heads=2, vocab_size=V, positions="none", rope_theta=1e4, max_len=None
    )
    assert EncoderDecoder(config)(tokens(1, 3), tokens(1, 2000)).shape == (1, 2000, V)
    with pytest.raises(InputError, match="max_len must be given for positions sinusoidal"):
        EncoderDecoderConfig(vocab_size=V, rope_theta=1e4, max_len=None)
