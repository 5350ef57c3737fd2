"""CLIP's two towers: what they count, what they see, and where they are read off."""

import copy
import math
from dataclasses import asdict, replace

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.flop_counter import FlopCounterMode

from fourfold.analysis.flops import forward_flops, parameters
from fourfold.core.attention import attention_backend
from fourfold.errors import InputError
from fourfold.models import CLIP, CLIPConfig
from tests.fixtures.tiny_models import assert_same

EOS = 28
TINY = CLIPConfig(
    d_model=12,
    n_layers=2,
    n_heads=3,
    d_ff=20,
    vocab_size=29,
    max_len=10,
    eos_id=EOS,
    image_d_model=16,
    image_n_layers=1,
    image_n_heads=2,
    image_d_ff=24,
    image_size=8,
    patch_size=4,
    n_channels=2,
    d_embed=7,
)


def build(**changes: object) -> CLIP:
    """Every parameter is noise, so that nothing is hidden by a 0 or a 1."""
    model = CLIP(replace(TINY, **changes)).double().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=0.5)
    return model


def texts(lengths: list[int], pad: int = 0) -> tuple[Tensor, Tensor]:
    """Random words up to the end of the text, then padding."""
    mask = torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]
    ids = torch.randint(1, EOS, mask.shape)
    ids[torch.arange(len(lengths)), torch.tensor(lengths) - 1] = EOS
    return ids.masked_fill(~mask, pad), mask


def images(n: int) -> Tensor:
    return torch.randn(n, 2, 8, 8, dtype=torch.float64)


@pytest.mark.parametrize(
    ("changes", "count"),
    [
        ({}, 151_277_313),
        ({"patch_size": 16}, 149_620_737),
        (
            {
                "patch_size": 14,
                "d_model": 768,
                "n_heads": 12,
                "d_ff": 3072,
                "d_embed": 768,
                "image_d_model": 1024,
                "image_n_layers": 24,
                "image_n_heads": 16,
                "image_d_ff": 4096,
            },
            427_616_513,
        ),
    ],
    ids=["B/32", "B/16", "L/14"],
)
def test_parameter_counts_equal_the_released_models(changes: dict[str, int], count: int) -> None:
    with torch.device("meta"):
        model = CLIP(CLIPConfig(**changes))
    assert sum(p.numel() for p in model.parameters()) == count
    parts = parameters(model)
    assert parts.total == count
    assert parts.head > 0


def test_embeddings_follow_the_definition() -> None:
    model, x = build(), images(3)
    patches = x.unfold(2, 4, 4).unfold(3, 4, 4).permute(0, 2, 3, 1, 4, 5).reshape(3, 4, -1)
    h = patches @ model.image_embed.patches.weight.flatten(1).T  # no bias
    h = torch.cat([model.image_embed.prefix.expand(3, -1, -1), h], 1)
    h = model.image_norm(h + model.image_embed.positions.weight)
    image = model.image_stack(h)[:, 0] @ model.image_projection.weight.T
    assert_same(model.encode_image(x), image)
    ids, mask = texts([5, 3])
    text = model.encode_text(ids, mask)
    cosines = F.cosine_similarity(image[:, None], text[None], dim=-1)
    assert_same(model(x, ids, mask=mask), cosines * model.log_scale.exp())


def test_text_encoder_is_causal() -> None:
    model = build(eos_id=5)
    ids, _ = texts([9])
    ids[0, 4] = 5
    ids = torch.where((ids == 5) & (torch.arange(9) != 4), 6, ids)
    before = model.encode_text(ids)
    later = ids.clone()
    later[0, 5:] = 7
    assert_same(model.encode_text(later), before)
    for place in range(5):
        earlier = ids.clone()
        earlier[0, place] = 5 if place == 4 else 8 + place
        changed = place != 4 and bool(earlier[0, place] != ids[0, place])
        assert torch.allclose(model.encode_text(earlier), before) is not changed


@pytest.mark.parametrize("eos_id", [EOS, None], ids=["first", "highest"])
def test_padding_does_not_change_the_text_embedding(eos_id: int | None) -> None:
    model = build(eos_id=eos_id)
    ids, mask = texts([4, 8, 6])
    alone = torch.cat([model.encode_text(ids[i : i + 1, :n]) for i, n in enumerate((4, 8, 6))])
    assert_same(model.encode_text(ids, mask), alone)
    assert_same(model.encode_text(ids), alone)
    assert_same(model.encode_text(ids.masked_fill(~mask, EOS), mask), alone)
    assert_same(model.encode_text(ids.masked_fill(~mask, EOS)), alone)
    left = torch.stack([ids[i].roll(8 - n) for i, n in enumerate((4, 8, 6))])
    assert_same(model.encode_text(left, left != 0), alone)


def test_first_end_of_text_token_is_used() -> None:
    model, ids = build(eos_id=5), torch.tensor([[9, 27, 8, 5, 6, 5, 28, 7]])
    assert_same(model.encode_text(ids), model.encode_text(ids[:, :4]))
    highest = build(eos_id=None)
    highest.load_state_dict(model.state_dict())
    assert_same(highest.encode_text(ids), highest.encode_text(ids[:, :7]))
    assert not torch.allclose(highest.encode_text(ids), model.encode_text(ids))


def test_similarity_ignores_the_norms_of_embeddings() -> None:
    model = build()
    a, b = torch.randn(3, 7).double(), torch.randn(4, 7).double()
    assert_same(model.similarity(5 * a, b / 9), model.similarity(a, b))


def test_similarity_is_computed_in_fp32_under_autocast() -> None:
    model = build().float()
    a, b = torch.randn(3, 7), torch.randn(4, 7)
    with torch.autocast("cpu", torch.bfloat16):
        low = model.similarity(a, b)
        y = model(images(2).float(), texts([5, 3])[0])
    assert y.dtype == low.dtype == torch.float32
    assert torch.equal(low, model.similarity(a, b))


def test_weights_are_initialized_as_in_openais_code() -> None:
    config = replace(
        TINY,
        d_model=192,
        n_heads=3,
        d_ff=384,
        n_layers=3,
        vocab_size=500,
        image_d_model=256,
        image_d_ff=512,
        image_n_layers=2,
        d_embed=128,
    )
    torch.manual_seed(0)
    model = CLIP(config)

    def has(weight: Tensor, std: float) -> bool:
        weight = weight.detach()
        return math.isclose(float(weight.std()), std, rel_tol=0.1) and abs(weight.mean()) < std / 5

    assert has(model.text_embed.tokens.weight, 0.02)
    assert has(model.text_embed.positions.weight, 0.01)
    assert has(model.image_embed.positions.weight, 256**-0.5)
    assert has(model.image_embed.prefix, 256**-0.5)
    towers = ((model.text_stack, 192, 3), (model.image_stack, 256, 2))
    for stack, width, depth in towers:
        for block in stack.blocks:
            for matrix in (block.attn.q, block.attn.k, block.attn.v):
                assert has(matrix.weight, width**-0.5)
            assert has(block.ff.up.weight, (2 * width) ** -0.5)
            for matrix in (block.attn.out, block.ff.down):
                assert has(matrix.weight, (2 * depth * width) ** -0.5)
    assert has(model.text_projection.weight, 192**-0.5)
    assert has(model.image_projection.weight, 256**-0.5)
    assert math.isclose(model.log_scale.exp().item(), 1 / 0.07, rel_tol=1e-6)
    for module in model.modules():
        if isinstance(module, nn.LayerNorm):
            assert (module.weight == 1).all()
        if getattr(module, "bias", None) is not None:
            assert not module.bias.any()


def test_every_parameter_has_a_gradient() -> None:
    model = build().train()
    F.cross_entropy(model(images(3), texts([5, 3, 9])[0]), torch.arange(3)).backward()
    for key, parameter in model.named_parameters():
        assert parameter.grad is not None, key
        # A bias on keys moves all scores of a query alike; the length of a vector does not count.
        assert key.endswith("attn.k.bias") or parameter.grad.abs().max() > 1e-12, key


def test_model_keeps_its_config() -> None:
    model = build()
    assert CLIPConfig(**asdict(model.config)) == model.config == TINY
    twin = copy.deepcopy(model)
    ids, mask = texts([4, 6])
    x = images(2)
    assert torch.equal(twin(x, ids, mask=mask), model(x, ids, mask=mask))
    tower = TINY.image_tower
    assert (tower.d_model, tower.n_layers, tower.n_heads, tower.d_ff) == (16, 1, 2, 24)
    assert (tower.activation, tower.norm_eps) == (TINY.activation, TINY.norm_eps)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"image_n_heads": 3}, "d_model must be divisible by n_heads"),
        ({"image_n_layers": 0}, "n_layers must be at least 1"),
        ({"d_embed": 0}, "d_embed must be at least 1"),
        ({"patch_size": 3}, "image_size must be divisible by patch_size"),
    ],
)
def test_invalid_configs_raise(changes: dict[str, int], message: str) -> None:
    with pytest.raises(InputError, match=message):
        CLIP(replace(TINY, **changes))


def test_invalid_inputs_raise() -> None:
    model = build()
    with pytest.raises(InputError, match="max_len = 10"):
        model.encode_text(torch.zeros(1, 11, dtype=torch.long))
    with pytest.raises(InputError, match=r"got \(1, 2, 4, 4\)"):
        model.encode_image(torch.zeros(1, 2, 4, 4).double())


def test_flops_sum_over_both_encoders() -> None:
    with torch.device("meta"):
        model, x, ids = CLIP(TINY), images(1), torch.zeros(1, 9, dtype=torch.long)
    with attention_backend("naive"), FlopCounterMode(display=False) as counter:
        model(x.float(), ids)
    assert forward_flops(model, 9).total == counter.get_total_flops()


@pytest.mark.slow
def test_compiles_without_graph_breaks() -> None:
    model, ids = build(), texts([5, 3])[0]
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    assert_same(compiled(images(2) * 0 + 1, ids), model(images(2) * 0 + 1, ids))


def test_similarity_of_bf16_embeddings_is_fp32() -> None:
    model = build().bfloat16()
    model.log_scale.data.fill_(4.6)
    a, b = torch.randn(4, 7).bfloat16(), torch.randn(5, 7).bfloat16()
    wanted = F.normalize(a.double(), dim=-1) @ F.normalize(b.double(), dim=-1).T
    found = model.similarity(a, b)
    assert found.dtype == torch.float32
    scale = float(model.log_scale.double().exp())
    torch.testing.assert_close(found.double(), scale * wanted, rtol=1e-5, atol=1e-4)
