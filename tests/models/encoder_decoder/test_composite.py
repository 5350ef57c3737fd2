"""Composite encoder-decoders: outputs of the parts, decoding, parameters and weight transfer."""

from dataclasses import asdict, replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import fourfold
from fourfold.analysis.flops import parameters
from fourfold.checkpoints.schema import dataclass_from_dict, flatten
from fourfold.core.kv_cache import KVCache
from fourfold.core.masks import Mask
from fourfold.errors import InputError
from fourfold.finetuning.weight_transfer import transfer
from fourfold.generation import GenerationDefaults, beam_search, generate
from fourfold.models import (
    CausalLM,
    CausalLMConfig,
    CompositeEncoderDecoder,
    EncoderDecoder,
    EncoderDecoderConfig,
    ImageToTextConfig,
    MaskedLM,
    MaskedLMConfig,
    TextToTextConfig,
    ViT,
    ViTConfig,
)

V = 29
READER: dict[str, Any] = {
    "d_model": 20,
    "n_layers": 3,
    "n_heads": 2,
    "d_ff": 16,
    "dropout": 0.0,
    "attn_dropout": 0.0,
    "vocab_size": V,
    "max_len": 24,
}
WRITER: dict[str, Any] = {
    "d_model": 12,
    "n_layers": 2,
    "n_heads": 3,
    "d_ff": 20,
    "dropout": 0.0,
    "attn_dropout": 0.0,
    "vocab_size": V,
    "max_len": 16,
}
IMAGE: dict[str, Any] = {
    "d_model": 20,
    "n_layers": 2,
    "n_heads": 2,
    "d_ff": 16,
    "image_size": 12,
    "patch_size": 2,
    "n_channels": 2,
    "n_classes": 3,
}
BERT, GPT2, VIT = MaskedLMConfig(**READER), CausalLMConfig(**WRITER), ViTConfig(**IMAGE)
TEXTS = TextToTextConfig(**WRITER, encoder=BERT)
IMAGES = ImageToTextConfig(**WRITER, encoder=VIT)
# A BERT that writes: its norms and activation, a norm on what it embeds, no segments.
WRITING = {"activation": "gelu", "norm_placement": "post", "norm_eps": 1e-12, "embed_norm": True}
BOTH = [pytest.param(TEXTS, id="texts"), pytest.param(IMAGES, id="images")]


def noisy(model: nn.Module, seed: int = 0) -> Any:
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=0.5, generator=generator)
    model.generation_defaults = GenerationDefaults(bos_id=1, eos_id=2, pad_id=0)
    return model.double().eval()


def tokens(*shape: int) -> Tensor:
    return torch.randint(3, V, shape)


def pictures(rows: int, side: int = 12) -> Tensor:
    return torch.randn(rows, 2, side, side, dtype=torch.float64)


def sources(config: Any, rows: int = 3) -> Tensor:
    return pictures(rows) if isinstance(config, ImageToTextConfig) else tokens(rows, 7)


def without_crossing(model: CompositeEncoderDecoder) -> None:
    """Set the output projections of cross-attention to zero, in place."""
    with torch.no_grad():
        for block in model.decoder.blocks:
            block.cross_attn.out.weight.zero_()
            block.cross_attn.out.bias.zero_()


def same(actual: Tensor, expected: Tensor, atol: float = 0.0) -> None:
    torch.testing.assert_close(actual, expected, rtol=0, atol=atol)


# --------------------------------------------------------------------------------------- halves
def test_bert_and_gpt2_keep_their_outputs_in_a_composite() -> None:
    bert, gpt2, model = (
        noisy(MaskedLM(BERT), 1),
        noisy(CausalLM(GPT2), 2),
        noisy(CompositeEncoderDecoder(TEXTS), 3),
    )
    reports = [transfer(model, bert, "encoder"), transfer(model, gpt2, "decoder")]
    new = {name for name, _, _ in reports[0].new} & {name for name, _, _ in reports[1].new}
    crossing = {name for name in model.state_dict() if "cross_attn" in name}
    assert len(crossing) == 2 * 10
    assert new == crossing | {"memory_map.weight", "memory_map.bias"}
    assert not reports[0].resized + reports[1].resized
    # No part of one model gets into the other's.
    assert all(name.startswith(("src_embed.", "encoder.")) for name, _, _ in reports[0].loaded)
    assert {name for name, _, _ in reports[0].left_out} == {
        name for name in bert.state_dict() if name.startswith("head.")
    }
    src, tgt = tokens(2, 9), tokens(2, 6)
    mask = torch.ones_like(src, dtype=torch.bool)
    mask[0, :3] = False
    for given in (None, mask):
        expected = bert.encode(src, mask=given)
        same(model.encode(src, src_mask=given), model.memory_map(expected))
    without_crossing(model)
    same(model(src, tgt), gpt2(tgt))


def test_memory_without_a_map_is_the_output_of_the_encoder() -> None:
    config = TextToTextConfig(**WRITER, encoder=replace(BERT, d_model=12))
    bert, model = noisy(MaskedLM(config.encoder)), noisy(CompositeEncoderDecoder(config), 1)
    transfer(model, bert, "encoder")
    src = tokens(2, 5)
    same(model.encode(src), bert.encode(src))
    assert not any("memory_map" in name for name in model.state_dict())


def test_bert_decoder_equals_bert_with_a_causal_mask() -> None:
    """Its states, up to the causal mask; crossing adds nothing before a norm made an identity."""
    bert = noisy(MaskedLM(replace(MaskedLMConfig(**WRITER), n_segments=2)), 1)
    model = noisy(
        CompositeEncoderDecoder(TextToTextConfig(**{**WRITER, **WRITING}, encoder=BERT)), 2
    )
    report = transfer(model, bert, "decoder")
    assert {name for name, _, _ in report.resized} == {"tgt_embed.positions.weight"}
    assert "segment 0" in report.resized[0][2]
    assert {name for name, _, _ in report.left_out} >= {"head.bias", "head.transform.weight"}
    tgt = tokens(2, 6)
    looking_back = bert.stack(bert.embed(tgt, slice(0, 6)), Mask(causal=True))
    embedded = model.tgt_embed(tgt, slice(0, 6))
    same(model.decoder(embedded, Mask(causal=True)), looking_back, atol=1e-12)
    # After a norm, normalising once more changes next to nothing: gain and shift of the one before.
    without_crossing(model)
    with torch.no_grad():
        for block in model.decoder.blocks:
            block.cross_attn_norm.weight.copy_(torch.ones(12))
            block.cross_attn_norm.bias.zero_()
            block.attn_norm.weight.fill_(1.0)
            block.attn_norm.bias.zero_()
    plain = model.decoder(embedded, Mask(causal=True))
    same(model.decode(tgt, model.encode(tokens(2, 5))), plain, atol=1e-9)


@pytest.mark.parametrize("side", [12, 8, 20])
@pytest.mark.parametrize("changes", [{}, {"pool": "mean"}, {"distillation": True}])
def test_vit_encoder_keeps_its_output(side: int, changes: dict[str, Any]) -> None:
    """At another resolution it is what a ViT at that resolution takes over."""
    source = noisy(ViT(replace(VIT, **changes)))
    there = replace(VIT, **changes, image_size=side)
    model = noisy(CompositeEncoderDecoder(ImageToTextConfig(**WRITER, encoder=there)), 1)
    vit = noisy(ViT(there), 2)
    report = transfer(model, source, "encoder")
    transfer(vit, source)
    resized = {name for name, _, _ in report.resized}
    assert resized == (set() if side == 12 else {"src_embed.positions.weight"})
    assert all(name.startswith("heads.") for name, _, _ in report.left_out)
    images = pictures(2, side)
    same(model.encode(images), model.memory_map(vit.encode(images)))


def test_positions_of_images_and_texts_are_not_exchanged() -> None:
    """Positions of patches lie on a grid, those of tokens in a row, whatever else the model has."""
    model = noisy(CompositeEncoderDecoder(IMAGES))
    fresh = model.tgt_embed.positions.weight.clone()
    longer = noisy(CausalLM(replace(GPT2, max_len=25)), 1)  # a square, as it happens
    report = transfer(model, longer, "decoder")
    assert [line[2] for line in report.resized] == ["to (16, 12), its first 16 rows"]
    assert not torch.equal(model.tgt_embed.positions.weight, fresh)
    alike = {"activation": "gelu", "norm_placement": "pre", "norm_eps": 1e-6}
    text = noisy(MaskedLM(replace(BERT, **alike)), 2)
    with pytest.raises(
        InputError, match="patch embeddings of a CompositeEncoderDecoder, got a Mas"
    ):
        transfer(model, text, "encoder")


# --------------------------------------------------------------------------------------- writing
@pytest.mark.parametrize("config", BOTH)
def test_decoding_with_a_cache_equals_decoding_without(config: Any) -> None:
    model, src, tgt = noisy(CompositeEncoderDecoder(config)), sources(config), tokens(3, 9)
    memory, cache = model.encode(src), KVCache()
    pieces = [model.decode(part, memory, cache=cache) for part in tgt.split([4, 1, 1, 3], dim=1)]
    torch.testing.assert_close(model.logits(torch.cat(pieces, 1)), model(src, tgt))
    for beam in (1, 3):
        found, scores = beam_search(model, src, beam)
        slow, expected = beam_search(model, src, beam, use_cache=False)
        assert torch.equal(found, slow)
        torch.testing.assert_close(scores, expected)
    for temperature in (0.0, 1.0):
        found = generate(model, src, 8, temperature=temperature, seed=1)
        assert torch.equal(
            found, generate(model, src, 8, temperature=temperature, seed=1, use_cache=False)
        )


@pytest.mark.parametrize("config", BOTH)
def test_samples_are_independent_of_the_batch(config: Any) -> None:
    model, src = noisy(CompositeEncoderDecoder(config)), sources(config)
    together = generate(model, src, 8, temperature=1.0, seed=3)
    beams, _ = beam_search(model, src, 3, max_new_tokens=6)
    for row in range(3):
        alone = src[row : row + 1]
        assert torch.equal(together[row], generate(model, alone, 8, temperature=1.0, seed=3)[0])
        found = beam_search(model, alone, 3, max_new_tokens=6)[0][0]
        assert torch.equal(beams[row, : len(found)], found)
    twice = generate(model, src[:1].expand(4, *src.shape[1:]), 12, temperature=3.0, seed=3)
    assert len({tuple(row) for row in twice.tolist()}) > 1


@pytest.mark.parametrize("side", ["left", "right"])
def test_source_padding_does_not_change_the_output(side: str) -> None:
    model, tgt = noisy(CompositeEncoderDecoder(TEXTS)), tokens(2, 5)
    rows = [tokens(1, 4), tokens(1, 9)]
    src, mask = torch.zeros(2, 9, dtype=torch.long), torch.zeros(2, 9, dtype=torch.bool)
    for i, row in enumerate(rows):
        at = slice(9 - row.shape[1], 9) if side == "left" else slice(0, row.shape[1])
        src[i, at], mask[i, at] = row[0], True
    together = model(src, tgt, src_mask=mask)
    found, scores = beam_search(model, src, 3, src_mask=mask, max_new_tokens=8)
    for i, row in enumerate(rows):
        torch.testing.assert_close(together[i : i + 1], model(row, tgt[i : i + 1]))
        alone, score = beam_search(model, row, 3, max_new_tokens=8)
        assert torch.equal(found[i, : alone.shape[1]], alone[0])
        torch.testing.assert_close(scores[i : i + 1], score)


@pytest.mark.parametrize("config", BOTH)
def test_decoder_is_causal(config: Any) -> None:
    model, src, tgt = noisy(CompositeEncoderDecoder(config)), sources(config), tokens(3, 8)
    before = model(src, tgt)
    for place in range(8):
        other = tgt.clone()
        other[:, place] = (other[:, place] + 1) % V
        after = model(src, other)
        assert torch.equal(after[:, :place], before[:, :place])
        assert not torch.isclose(after[:, place], before[:, place]).all(-1).any()
    source = src.flip(0)
    assert not torch.isclose(model(source, tgt)[::2], before[::2]).all(-1).any()


def test_encoder_and_decoder_have_separate_lengths_and_vocabularies() -> None:
    model = noisy(CompositeEncoderDecoder(replace(TEXTS, encoder=replace(BERT, vocab_size=40))))
    src = torch.full((1, 24), 39)  # longer than the decoder, and a word it has not
    assert beam_search(model, src, 2)[0].shape[1] <= 17
    with pytest.raises(
        InputError, match="src must have at most max_len = 24 tokens, got 25 in row 0"
    ):
        beam_search(model, torch.full((1, 25), 3), 2)
    with pytest.raises(InputError, match="src must be at least 0 and at most 39, got 40"):
        beam_search(model, torch.tensor([[3, 40]]), 2)
    with pytest.raises(InputError, match="bos_id must be at least 0 and below 29, got 39"):
        beam_search(model, src, 2, bos_id=39)


@pytest.mark.parametrize(
    ("src", "options", "message"),
    [
        (torch.ones(1, 5, dtype=torch.long), {}, "src must be float images .* got torch.int64"),
        (
            torch.ones(1, 2, 12, 12),
            {"src_mask": torch.ones(1, 5).bool()},
            "src_mask must be None for images",
        ),
        (
            torch.ones(1, 2, 8, 8),
            {},
            r"images must have the shape \(B, 2, 12, 12\), got \(1, 2, 8, 8\)",
        ),
    ],
)
def test_invalid_sources_raise(src: Tensor, options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        beam_search(CompositeEncoderDecoder(IMAGES), src, 2, bos_id=1, eos_id=2, **options)
    with pytest.raises(InputError, match="src must be int64 token ids"):
        beam_search(CompositeEncoderDecoder(TEXTS), torch.ones(1, 2, 12, 12), 2)


# --------------------------------------------------------------------------------------- shape
def count(model: nn.Module) -> int:
    return sum(p.numel() for p in model.parameters())


def test_parameter_count_of_bert_base_and_gpt2_small() -> None:
    with torch.device("meta"):
        model = CompositeEncoderDecoder(TextToTextConfig(encoder=MaskedLMConfig()))
        bert, gpt2 = MaskedLM(MaskedLMConfig(head=False)), CausalLM(CausalLMConfig())
    # Of each of 12 layers: four projections with biases, and a norm.
    crossing = 12 * (4 * (768 * 768 + 768) + 2 * 768)
    assert (count(bert), count(gpt2), crossing) == (108_891_648, 124_439_808, 28_366_848)
    assert count(model) == 108_891_648 + 124_439_808 + 28_366_848 == 261_698_304
    assert parameters(model).total == 261_698_304
    assert parameters(model).head == 0


def test_different_widths_add_a_linear_map() -> None:
    with torch.device("meta"):
        vit = ViTConfig(d_model=384, n_heads=6, d_ff=1536, n_classes=1)  # DeiT-S
        model = CompositeEncoderDecoder(ImageToTextConfig(encoder=vit))
        parts = count(ViT(vit)) - 385 + count(CausalLM(CausalLMConfig()))
    assert count(model) == parts + 28_366_848 + (384 + 1) * 768


def test_config_round_trips_through_plain_values() -> None:
    for config in (TEXTS, IMAGES):
        values = asdict(config)
        assert dataclass_from_dict(type(config), values) == config
        assert flatten(values)["encoder.d_model"] == 20
    with pytest.raises(InputError, match="nothing is not a field of MaskedLMConfig"):
        dataclass_from_dict(TextToTextConfig, {"encoder": {"nothing": 1}})
    assert CompositeEncoderDecoder(
        replace(TEXTS, encoder=replace(BERT, vocab_size=None))
    ).src_embed.tokens
    with pytest.raises(InputError, match="d_model must be divisible"):
        TextToTextConfig(**WRITER, encoder=replace(BERT, d_model=13))


# --------------------------------------------------------------------------------------- refusals
@pytest.mark.parametrize(
    ("role", "source", "message"),
    [
        ("encoder", CausalLM(GPT2), "d_model of the source must be that of the model, 20, got 12"),
        (
            "encoder",
            MaskedLM(replace(BERT, n_heads=4)),
            "n_heads of the source must be that of the model, 2, got 4",
        ),
        ("decoder", MaskedLM(BERT), "d_model of the source must be that of the model, 12, got 20"),
        (
            "decoder",
            CausalLM(replace(GPT2, activation="relu")),
            "activation of the source .* got relu",
        ),
        (
            "model",
            CompositeEncoderDecoder(replace(TEXTS, encoder=replace(BERT, d_ff=17))),
            "d_ff of the source .* got 17",
        ),
        ("model", CausalLM(GPT2), "d_model of the source must be that of the model, 20, got 12"),
    ],
)
def test_transfer_compares_the_layers_of_each_stack(role: str, source: Any, message: str) -> None:
    model = noisy(CompositeEncoderDecoder(TEXTS))
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    with pytest.raises(InputError, match=message):
        transfer(model, source, role)
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())


def test_role_transfers_one_stack_of_an_encoder_decoder() -> None:
    shape = {**WRITER, **WRITING, "n_layers": 2, "positions": "learned", "tie_embeddings": "none"}
    pair = EncoderDecoderConfig(**shape, embed_scale=False, output_bias=True)
    source, model = noisy(EncoderDecoder(pair)), noisy(EncoderDecoder(pair), 1)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    for role, prefixes in (
        ("encoder", ("src_embed.", "encoder.")),
        ("decoder", ("tgt_embed.", "decoder.", "head.")),
    ):
        report = transfer(model, source, role)
        assert {name for name, _, _ in report.loaded} == {
            name for name in before if name.startswith(prefixes)
        }
    assert all(torch.equal(x, source.state_dict()[name]) for name, x in model.state_dict().items())


def test_gpt2_with_embed_norm_round_trips(tmp_path: Any) -> None:
    fourfold.save(CausalLM(replace(GPT2, embed_norm=True)), tmp_path / "embed_norm")
    assert fourfold.load(tmp_path / "embed_norm").config.embed_norm is True
    fourfold.save(CausalLM(GPT2), tmp_path / "plain")
    assert fourfold.load(tmp_path / "plain").config.embed_norm is False
