"""Rotary positions, compared with complex numbers and with the functions of transformers."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given, settings
from transformers import StableLmConfig
from transformers.models.stablelm.modeling_stablelm import (
    StableLmRotaryEmbedding,
    apply_rotary_pos_emb,
)

from fourfold.core.attention import Attention
from fourfold.core.block import Stack
from fourfold.core.config import TransformerConfig
from fourfold.core.kv_cache import KVCache
from fourfold.core.masks import Mask
from fourfold.core.rotary import frequencies, rotate, rotation
from fourfold.errors import InputError
from fourfold.hub.transformers_format import write_model
from fourfold.models import CausalLM, CausalLMConfig
from tests.fixtures.tiny_models import LLAMA3, assert_same

LINEAR = {"rope_type": "linear", "factor": 3.0}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}
YARN_FULL = {
    **YARN,
    "attention_factor": 1.3,
    "beta_fast": 8.0,
    "beta_slow": 2.0,
    "truncate": False,
}
SCALINGS = [None, LINEAR, LLAMA3, YARN, YARN_FULL]


def test_each_pair_of_channels_is_a_complex_number_that_turns() -> None:
    x = torch.randn(2, 3, 5, 8, dtype=torch.float64)
    turned = rotate(x, rotation(slice(7, 12), x, width=8, theta=100.0))
    pairs = torch.complex(*x.chunk(2, -1))
    rates = 100.0 ** -(torch.arange(4, dtype=torch.float64) / 4)
    angles = torch.arange(7, 12, dtype=torch.float64)[:, None] * rates
    expected = pairs * torch.polar(torch.ones_like(angles), angles)
    # The angles are computed in fp32.
    torch.testing.assert_close(
        turned, torch.cat([expected.real, expected.imag], -1), atol=1e-5, rtol=0
    )


@settings(max_examples=50, deadline=None)
@given(
    st.integers(0, 2**16),
    st.integers(0, 4000),
    st.integers(0, 4000),
    st.integers(0, 4000),
    st.sampled_from(SCALINGS),
)
def test_scores_depend_on_the_distance_only(
    seed: int, first: int, second: int, shift: int, scaling: dict[str, Any] | None
) -> None:
    torch.manual_seed(seed)
    q, k = torch.randn(2, 1, 1, 1, 16, dtype=torch.float64)

    def score(i: int, j: int) -> torch.Tensor:
        turned = (
            rotate(x, rotation(slice(n, n + 1), x, width=16, theta=1e4, scaling=scaling))
            for x, n in ((q, i), (k, j))
        )
        return torch.linalg.vecdot(*turned).squeeze()

    # The angle of position 8000 has an error of about 8000 * 2**-24 in fp32.
    difference = score(first, second) - score(first + shift, second + shift)
    assert abs(float(difference)) <= 2e-3 * float(q.norm() * k.norm())


@pytest.mark.parametrize("scaling", SCALINGS)
@pytest.mark.parametrize(("width", "theta"), [(8, 1e4), (64, 5e5), (2, 1e4), (128, 1e6)])
def test_frequencies_equal_those_of_transformers(
    scaling: dict[str, Any] | None, width: int, theta: float
) -> None:
    transformers = pytest.importorskip("transformers")
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

    config = transformers.LlamaConfig(
        hidden_size=4 * width,
        num_attention_heads=4,
        head_dim=width,
        max_position_embeddings=4096,
        rope_parameters={"rope_theta": theta, **(scaling or {"rope_type": "default"})},
    )
    theirs = LlamaRotaryEmbedding(config)
    rates, factor = frequencies(width, theta, scaling)
    assert float((rates.double() - theirs.inv_freq.double()).abs().max()) <= 1e-12
    assert abs(factor - theirs.attention_scaling) <= 1e-12
    positions = torch.tensor([[0, 1, 5, 4000], [3, 2, 1, 0]])
    for dtype in (torch.float32, torch.bfloat16):
        x = torch.randn(2, 4, 8, dtype=dtype)
        found = rotation(positions, x, width=width, theta=theta, scaling=scaling)
        for mine, expected in zip(found, theirs(x, positions), strict=True):
            assert torch.equal(mine[:, 0], expected[..., : width // 2])


def test_interleaved_pairs_are_a_permutation_of_the_channels() -> None:
    q, k = torch.randn(2, 1, 2, 6, 8, dtype=torch.float64)
    rates, _ = frequencies(8, 1e4, None)
    angles = (torch.arange(6.0)[:, None] * rates).double()
    turns = torch.polar(torch.ones_like(angles), angles)

    def interleaved(x: torch.Tensor) -> torch.Tensor:
        return torch.view_as_real(torch.view_as_complex(x.unflatten(-1, (-1, 2))) * turns).flatten(
            -2
        )

    order = [0, 2, 4, 6, 1, 3, 5, 7]
    turned = (rotate(x[..., order], rotation(slice(0, 6), x, width=8, theta=1e4)) for x in (q, k))
    mine, theirs = (a @ b.mT for a, b in (turned, (interleaved(q), interleaved(k))))
    torch.testing.assert_close(mine, theirs, atol=1e-6, rtol=0)
    assert not torch.allclose(
        rotate(q, rotation(slice(0, 6), q, width=8, theta=1e4)), interleaved(q)
    )


def test_part_of_the_channels_is_rotated_as_in_transformers() -> None:
    theirs = StableLmConfig(
        hidden_size=48,
        num_attention_heads=4,
        rope_parameters={
            "rope_type": "default",
            "rope_theta": 100.0,
            "partial_rotary_factor": 0.5,
        },
    )
    q, k = torch.randn(2, 1, 4, 7, 12)
    cos, sin = StableLmRotaryEmbedding(theirs)(q, torch.arange(7)[None])
    turned = apply_rotary_pos_emb(q[..., :6], k[..., :6], cos, sin)
    config = TransformerConfig(
        d_model=48, n_heads=4, d_ff=8, rope_theta=100.0, partial_rotary_factor=0.5
    )
    assert config.rotary_width == 6
    turns = rotation(slice(0, 7), q, width=config.rotary_width, theta=100.0)
    for x, expected in zip((q, k), turned, strict=True):
        wanted = torch.cat([expected, x[..., 6:]], -1)
        torch.testing.assert_close(rotate(x, turns), wanted, rtol=0, atol=1e-6)


def test_decoding_with_rotated_parts_of_the_heads_equals_the_whole_sequence(
    tmp_path: Path,
) -> None:
    options: dict[str, Any] = {"positions": "none", "rope_theta": 100.0, "dropout": 0.0}
    sizes: dict[str, Any] = {"d_model": 32, "n_heads": 4, "d_ff": 16, "n_layers": 2}
    ids = torch.randint(0, 20, (2, 9))
    results = []
    for part in (0.25, 1.0):
        torch.manual_seed(0)
        config = CausalLMConfig(vocab_size=20, **sizes, **options, partial_rotary_factor=part)
        model = CausalLM(config).double().eval()
        cache = KVCache()
        pieces = [model(piece, cache=cache) for piece in ids.split([4, 1, 3, 1], 1)]
        results.append(model(ids))
        torch.testing.assert_close(torch.cat(pieces, 1), results[-1], rtol=1e-10, atol=1e-10)
    assert not torch.allclose(*results)
    with pytest.raises(InputError, match=r"partial_rotary_factor=0\.25"):
        write_model(CausalLM(replace(config, partial_rotary_factor=0.25)), tmp_path)


def test_angles_stay_in_fp32() -> None:
    """In bf16, the positions 4000 and 4001 would be equal."""
    x = torch.randn(1, 1, 2, 8)
    exact = rotation(slice(4000, 4002), x, width=8, theta=1e4)
    with torch.autocast("cpu", torch.bfloat16):
        cos, _ = rotation(slice(4000, 4002), x, width=8, theta=1e4)
    assert torch.equal(cos, exact[0])
    assert cos.dtype == torch.float32
    low, _ = rotation(slice(4000, 4002), x.bfloat16(), width=8, theta=1e4)
    assert torch.equal(low, exact[0].bfloat16())
    config = TransformerConfig(d_model=16, n_heads=2, n_layers=1, d_ff=8, rope_theta=1e4)
    stack = Stack(config).bfloat16().eval()
    assert not [*stack.buffers()]
    assert stack(torch.randn(1, 3, 16).bfloat16()).dtype == torch.bfloat16


def test_rotated_attention_equals_its_definition() -> None:
    attn = Attention(12, 2).double()
    x = torch.randn(2, 5, 12, dtype=torch.float64)
    turns = rotation(slice(0, 5), x, width=6, theta=100.0)
    q, k, v = (p(x).unflatten(-1, (2, 6)).transpose(1, 2) for p in (attn.q, attn.k, attn.v))
    weights = (rotate(q, turns) @ rotate(k, turns).mT / math.sqrt(6)).softmax(-1)
    assert_same(attn.weights(x, rotation=turns), weights)
    assert_same(attn(x, rotation=turns), attn.out((weights @ v).transpose(1, 2).flatten(2)))


def test_given_positions_replace_those_of_the_mask() -> None:
    config = TransformerConfig(
        d_model=12, n_heads=2, n_layers=2, d_ff=8, dropout=0.0, rope_theta=100.0
    )
    stack = Stack(config).double()
    x = torch.randn(2, 6, 12, dtype=torch.float64)
    plain = stack(x)
    assert_same(stack(x, positions=slice(0, 6)), plain)
    torch.testing.assert_close(stack(x, positions=slice(9, 15)), plain, atol=1e-4, rtol=0)
    gap = torch.tensor([0, 1, 2, 30, 31, 32]).expand(2, 6)
    assert not torch.allclose(stack(x, positions=gap), plain, atol=1e-3)
    documents = torch.tensor([[0, 0, 0, 1, 1, 1]]).expand(2, 6)
    packed = stack(x, Mask(documents=documents))
    assert_same(packed, torch.cat([stack(x[:, :3]), stack(x[:, 3:])], dim=1))


@pytest.mark.parametrize(("local", "scaling"), [(None, None), (10.0, None), (10.0, LINEAR)])
def test_layers_with_a_window_have_their_own_base(
    local: float | None, scaling: dict[str, Any] | None
) -> None:
    shape: dict[str, Any] = {"d_model": 12, "n_heads": 2, "n_layers": 2, "d_ff": 8, "dropout": 0.0}
    rope = {"rope_theta": 1e4, "rope_local_theta": local, "rope_scaling": scaling}
    stack = Stack(TransformerConfig(**shape, **rope, window=50, window_pattern="SL")).double()
    x = torch.randn(1, 6, 12, dtype=torch.float64)
    first = Stack(TransformerConfig(**{**shape, "n_layers": 1}, rope_theta=local or 1e4)).double()
    second = Stack(
        TransformerConfig(**{**shape, "n_layers": 1}, rope_theta=1e4, rope_scaling=scaling)
    ).double()
    first.blocks, second.blocks = stack.blocks[:1], stack.blocks[1:]
    assert_same(stack(x), second(first(x)))
