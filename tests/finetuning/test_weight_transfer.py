"""Weights of one model in another: what is taken over, by which rule, and what is refused."""

from dataclasses import fields
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fourfold.core.config import TransformerConfig
from fourfold.errors import InputError
from fourfold.finetuning.weight_transfer import LAYER_FIELDS, TransferReport, transfer
from fourfold.layers.image_positions import (
    INTERPOLATIONS,
    interpolate_positions,
)
from fourfold.models import (
    CausalClassifier,
    CausalClassifierConfig,
    CausalLM,
    CausalLMConfig,
    EncoderDecoder,
    EncoderDecoderConfig,
    MaskedLM,
    MaskedLMConfig,
    SequenceClassifier,
    SequenceClassifierConfig,
    ViT,
    ViTConfig,
)

SHAPE: dict[str, Any] = {"d_model": 12, "n_layers": 2, "n_heads": 3, "d_ff": 20, "dropout": 0.0}
TEXT: dict[str, Any] = {**SHAPE, "vocab_size": 29, "max_len": 16}


def noisy(model: nn.Module, seed: int) -> Any:
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=0.5, generator=generator)
    return model.double().eval()


def masked(seed: int = 0, **changes: Any) -> Any:
    return noisy(MaskedLM(MaskedLMConfig(**{**TEXT, "attn_dropout": 0.0, **changes})), seed)


def classifier(seed: int = 1, **changes: Any) -> Any:
    config = SequenceClassifierConfig(**{**TEXT, "attn_dropout": 0.0, "n_classes": 3, **changes})
    return noisy(SequenceClassifier(config), seed)


def names(lines: list[Any]) -> set[str]:
    return {name for name, _, _ in lines}


def untouched(model: nn.Module, before: dict[str, Tensor], found: set[str]) -> None:
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, before[name]) == (name in found), name


def test_encoder_weights_transfer_to_another_head() -> None:
    source, target = masked(), classifier()
    before = {k: v.clone() for k, v in target.state_dict().items()}
    report = transfer(target, source)
    assert names(report.new) == {k for k in before if k.startswith("classifier.")}
    assert names(report.left_out) == {k for k in source.state_dict() if k.startswith("head.")}
    assert not report.resized
    untouched(target, before, names(report.new))
    ids = torch.randint(29, (2, 9))
    torch.testing.assert_close(target.encode(ids), source.encode(ids), rtol=0, atol=0)


def test_next_sentence_pooler_becomes_the_classifier_pooler() -> None:
    source, target = masked(next_sentence=True), classifier()
    report = transfer(target, source)
    assert torch.equal(target.classifier.pool.weight, source.next_sentence.pool.weight)
    assert torch.equal(target.classifier.pool.bias, source.next_sentence.pool.bias)
    assert {"classifier.pool.weight", "classifier.pool.bias"} <= names(report.loaded)
    assert names(report.new) == {"classifier.classify.weight", "classifier.classify.bias"}
    last = {"next_sentence.classify.weight", "next_sentence.classify.bias"}
    assert {n for n in names(report.left_out) if not n.startswith("head.")} == last
    # The whole way of the first token is the same, up to the classes.
    with torch.no_grad():
        for mine, theirs in zip(
            target.classifier.classify.parameters(),
            source.next_sentence.classify.parameters(),
            strict=True,
        ):
            mine[:2] = theirs
    ids = torch.randint(29, (2, 9))
    expected = source.next_sentence_logits(source.encode(ids))
    torch.testing.assert_close(target(ids)[:, :2], expected, rtol=0, atol=0)


@pytest.mark.parametrize("pool", ["mean", "last"])
def test_other_pools_do_not_use_the_next_sentence_pooler(pool: str) -> None:
    source, target = masked(next_sentence=True), classifier(pool=pool)
    before = {k: v.clone() for k, v in target.state_dict().items()}
    report = transfer(target, source)
    assert names(report.new) == {k for k in before if k.startswith("classifier.")}
    assert "next_sentence.pool.weight" in names(report.left_out)
    untouched(target, before, names(report.new))


def test_classifier_pooler_takes_precedence() -> None:
    source, target = classifier(0, next_sentence=True), classifier()
    report = transfer(target, source)
    assert torch.equal(target.classifier.pool.weight, source.classifier.pool.weight)
    assert "next_sentence.pool.weight" in names(report.left_out)


def test_every_tensor_is_in_the_report_once() -> None:
    source, target = masked(vocab_size=40, max_len=20), classifier(max_len=24)
    report = transfer(target, source)
    ours = [name for part in (report.loaded, report.resized, report.new) for name, _, _ in part]
    assert sorted(ours) == sorted(target.state_dict())
    assert names(report.left_out) | set(ours) >= set(source.state_dict())


def test_position_tables_are_extended_and_shortened() -> None:
    for length in (9, 30):
        source, target = masked(max_len=length), classifier()
        fresh = target.embed.positions.weight.clone()
        report = transfer(target, source)
        kept, n = target.embed.positions.weight, min(length, 16)
        assert torch.equal(kept[:n], source.embed.positions.weight[:n])
        assert torch.equal(kept[n:], fresh[n:])
        (line,) = report.resized
        assert line == (
            "embed.positions.weight",
            (length, 12),
            f"to (16, 12), its first {n} rows",
        )


def test_embeddings_are_copied_to_new_token_ids() -> None:
    source = masked(vocab_size=31)
    target = noisy(MaskedLM(MaskedLMConfig(**TEXT, attn_dropout=0.0)), 1)
    fresh = target.embed.tokens.weight.clone()
    old, new = torch.tensor([4, 30, 7]), torch.tensor([8, 0, 28])
    report = transfer(target, source, tokens=(old, new))
    assert torch.equal(target.embed.tokens.weight[new], source.embed.tokens.weight[old])
    assert torch.equal(target.head.bias[new], source.head.bias[old])
    others = [i for i in range(29) if i not in new]
    assert torch.equal(target.embed.tokens.weight[others], fresh[others])
    assert names(report.resized) == {"embed.tokens.weight", "head.bias"}


def test_first_segment_is_added_to_positions_of_models_without_segments() -> None:
    """Exactly the same function of one sentence."""
    source, target = masked(), classifier(n_segments=0)
    report = transfer(target, source)
    ids = torch.randint(29, (2, 9))
    torch.testing.assert_close(target.encode(ids), source.encode(ids), rtol=1e-12, atol=1e-12)
    (line,) = report.resized
    assert line[0] == "embed.positions.weight"
    assert "segment 0" in line[2]


@pytest.mark.parametrize(
    "change",
    [
        {"d_model": 24},
        {"d_ff": 24},
        {"n_heads": 2},
        {"activation": "relu"},
        {"norm_eps": 1e-5},
        {"norm_placement": "pre"},
        {"attn_scale": 0.3},
        {"norm": "rms"},
        {"bias": False},
    ],
)
def test_different_layers_raise(change: dict[str, Any]) -> None:
    target = classifier()
    before = {k: v.clone() for k, v in target.state_dict().items()}
    with pytest.raises(InputError, match=next(iter(change))):
        transfer(target, masked(**change))
    untouched(target, before, set(before))


def test_layers_are_compared_in_every_field_except_depth_and_dropout() -> None:
    names = {field.name for field in fields(TransformerConfig)}
    dropout = {"dropout", "attn_dropout", "ff_dropout", "drop_path"}
    # head_width, value_width and kv_heads stand for d_head, d_value and n_kv_heads.
    others = {"n_layers", "d_head", "d_value", "n_kv_heads", "window", "window_pattern"}
    assert names - set(LAYER_FIELDS) == {*others, *dropout}


def test_fewer_layers_take_the_lowest_layers() -> None:
    source, target = masked(n_layers=3), classifier(n_layers=1)
    report = transfer(target, source)
    assert {n.split(".")[2] for n in names(report.left_out) if "blocks" in n} == {"1", "2"}
    first = target.stack.blocks[0].attn.q.weight
    assert torch.equal(first, source.stack.blocks[0].attn.q.weight)


def test_models_with_other_inputs_are_rejected() -> None:
    """Their blocks are the same, but trained on patches instead of tokens."""
    image = ViT(ViTConfig(**SHAPE, image_size=8, patch_size=4, n_classes=2, norm_eps=1e-5))
    text = CausalLM(CausalLMConfig(**{**TEXT, "n_layers": 2}, activation="gelu"))
    for target, source, kind in ((text, image, "token"), (image, text, "patch")):
        before = {name: tensor.clone() for name, tensor in target.state_dict().items()}
        families = [type(model).__name__ for model in (target, source)]
        message = kind + " embeddings of a {}, got a {}".format(*families)
        with pytest.raises(InputError, match=rf"^init_from must be a model with the {message}$"):
            transfer(target, source)
        assert all(torch.equal(x, before[name]) for name, x in target.state_dict().items())
    nothing = nn.Sequential()
    nothing.config = text.config  # type: ignore[assignment]
    with pytest.raises(InputError, match="token embeddings of a CausalLM, got a Sequential"):
        transfer(text, nothing)


def test_language_model_weights_start_a_classifier() -> None:
    source = noisy(CausalLM(CausalLMConfig(**TEXT)), 0)
    target = noisy(CausalClassifier(CausalClassifierConfig(**TEXT, n_classes=4)), 1)
    report = transfer(target, source)
    assert names(report.new) == {"classifier.weight", "classifier.bias"}
    ids = torch.randint(29, (3, 7))
    assert torch.equal(target(ids), source(ids))


def test_encoder_decoder_starts_from_two_encoders() -> None:
    """Rothe et al. 2020: what crosses from encoder to decoder is all that is new."""
    config = EncoderDecoderConfig(
        **TEXT,
        positions="learned",
        tie_embeddings="decoder",
        embed_scale=False,
        embed_norm=True,
        activation="gelu",
        norm_eps=1e-12,
    )
    target = noisy(EncoderDecoder(config), 2)
    left, right = masked(0, n_segments=0), masked(1, n_segments=0)
    first = transfer(target, left, "encoder")
    second = transfer(target, right, "decoder")
    new = names(first.new) & names(second.new)
    assert len(new) == 20  # ten tensors a layer
    assert all("cross_attn" in name for name in new)
    ids = torch.randint(29, (2, 9))
    torch.testing.assert_close(target.encode(ids), left.encode(ids), rtol=0, atol=0)
    assert torch.equal(target.tgt_embed.tokens.weight, right.embed.tokens.weight)


def images(side: int, positions: str = "learned", **changes: Any) -> Any:
    config = {"image_size": side, "patch_size": 2, "n_classes": 3, "positions": positions}
    return noisy(ViT(ViTConfig(**{**SHAPE, **config, **changes})), side)


@pytest.mark.parametrize("method", INTERPOLATIONS)
@pytest.mark.parametrize("side", [8, 24])
def test_positions_are_interpolated_to_another_resolution(method: str, side: int) -> None:
    source, target = images(12), images(side)
    report = transfer(target, source, interpolation=method)
    assert names(report.resized) == {"embed.positions.weight"}
    assert method in report.resized[0][2]
    old, new = source.embed.positions.weight, target.embed.positions.weight
    assert torch.equal(new[0], old[0])  # the class token has its place
    torch.testing.assert_close(new, interpolate_positions(old, new, method))
    assert target(torch.randn(1, 3, side, side, dtype=torch.float64)).isfinite().all()


def test_fixed_positions_become_a_learned_table() -> None:
    source, target = images(12, "sincos2d", pool="mean"), images(24, "learned", pool="mean")
    report = transfer(target, source)
    assert names(report.resized) == {"embed.positions.weight"}
    expected = interpolate_positions(
        source.embed.positions.weight, target.embed.positions.weight, "bicubic_antialias"
    )
    assert torch.equal(target.embed.positions.weight, expected)


def test_class_token_without_source_is_new() -> None:
    source, target = images(12, pool="mean"), images(24)
    fresh = target.embed.positions.weight[0].clone()
    report = transfer(target, source)
    assert "embed.prefix" in names(report.new)
    assert torch.equal(target.embed.positions.weight[0], fresh)


def test_report_merges_equal_layers() -> None:
    report = TransferReport(
        loaded=[(f"stack.blocks.{i}.attn.q.weight", (12, 12), "") for i in range(3)],
        resized=[("embed.tokens.weight", (31, 12), "to (29, 12), 3 of its rows, token by token")],
        new=[("classifier.pool.bias", (12,), "")],
    )
    assert report.lines() == [
        "  loaded    stack.blocks.0-2.attn.q.weight (12, 12)",
        "  resized   embed.tokens.weight (31, 12): to (29, 12), 3 of its rows, token by token",
        "  new       classifier.pool.bias (12,)",
    ]
