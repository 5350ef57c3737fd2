"""SigLIP's pooling, its padding of texts, and what it counts."""

from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from fourfold.analysis.flops import parameters
from fourfold.errors import InputError
from fourfold.models import SigLIP, SigLIPConfig
from tests.fixtures.tiny_models import assert_same

TINY = SigLIPConfig(
    d_model=12,
    n_layers=2,
    n_heads=3,
    d_ff=20,
    vocab_size=29,
    max_len=10,
    image_d_model=16,
    image_n_layers=1,
    image_n_heads=2,
    image_d_ff=24,
    image_size=8,
    patch_size=4,
    n_channels=2,
    d_embed=16,
    pad_id=5,
)


def build(**changes: Any) -> SigLIP:
    model = SigLIP(replace(TINY, **changes)).double().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=0.5)
    return model


def images(n: int = 2) -> Tensor:
    return torch.randn(n, 2, 8, 8, dtype=torch.float64)


def test_embedding_of_a_text_does_not_depend_on_the_number_of_columns() -> None:
    model, ids = build(), torch.randint(6, 29, (3, 6))
    mask = torch.arange(6) < torch.tensor([[4], [6], [1]])
    rows = [row[real][None] for row, real in zip(ids, mask, strict=True)]
    expected = torch.cat([model.encode_text(row) for row in rows])
    assert_same(model.encode_text(ids, mask), expected)
    assert_same(model.encode_text(F.pad(ids.masked_fill(~mask, 5), (0, 4), value=5)), expected)
    other = build(pad_id=4)
    other.load_state_dict(model.state_dict())
    assert not torch.allclose(other.encode_text(ids, mask), expected)  # padding is attended
    with pytest.raises(InputError, match="ids must have at most max_len = 10 tokens, got 11"):
        model.encode_text(torch.zeros(1, 11, dtype=torch.long))


def test_logits_are_scaled_similarities_plus_a_bias() -> None:
    model, ids, x = build(), torch.randint(6, 29, (3, 10)), images()
    pairs = F.cosine_similarity(model.encode_image(x)[:, None], model.encode_text(ids)[None], -1)
    assert_same(model(x, ids), model.log_scale.exp() * pairs + model.logit_bias)
    new = SigLIP(TINY)
    assert new.log_scale.exp().item() == pytest.approx(10.0)
    assert new.logit_bias.item() == -10.0


def test_image_is_pooled_by_attention_of_the_probe() -> None:
    model, x = build(), images()
    pool, states = model.image_pool, model.image_stack(model.image_embed(x))
    assert states.shape == (2, 4, 16)  # patches only
    reference = torch.nn.MultiheadAttention(16, 2, batch_first=True, dtype=torch.float64)
    attn = pool.attn
    with torch.no_grad():
        reference.in_proj_weight.copy_(torch.cat([attn.q.weight, attn.k.weight, attn.v.weight]))
        reference.in_proj_bias.copy_(torch.cat([attn.q.bias, attn.k.bias, attn.v.bias]))
        reference.out_proj.load_state_dict(attn.out.state_dict())
    y = reference(pool.probe.expand(2, 1, -1), states, states)[0]
    assert_same(model.encode_image(x), (y + pool.ff(pool.norm(y)))[:, 0])


def test_counts() -> None:
    model = build()
    assert sum(vars(parameters(model)).values()) == sum(p.numel() for p in model.parameters())


def test_width_of_the_embeddings_is_that_of_the_image_encoder() -> None:
    with pytest.raises(InputError, match=r"d_embed must equal image_d_model \(16\), got 7"):
        replace(TINY, d_embed=7)
