"""Parameters and FLOPs against torch's own counter and the figures computed from the papers."""

from dataclasses import replace

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from fourfold.core.attention import attention_backend
from fourfold.core.config import TransformerConfig
from fourfold.core.errors import InputError
from fourfold.models import (
    CaptionerConfig,
    CausalLM,
    CausalLMConfig,
    EncoderDecoder,
    EncoderDecoderConfig,
    Joined,
    JoinedConfig,
    MaskedLM,
    MaskedLMConfig,
    SequenceClassifier,
    SequenceClassifierConfig,
    SpanExtractor,
    SpanExtractorConfig,
    TokenClassifier,
    TokenClassifierConfig,
    ViT,
    ViTConfig,
)
from fourfold.models.cost import Parts, forward_flops, parameters

SMALL = {"d_model": 32, "n_layers": 2, "n_heads": 4, "d_ff": 48}
TEXT = {**SMALL, "vocab_size": 50, "max_len": 40}
LARGE = {"d_model": 1024, "n_layers": 24, "n_heads": 16, "d_ff": 4096}


def giga_macs(flops: int) -> float:
    return round(flops / 2e9, 3)


def counted(call) -> int:
    """FLOPs that torch sees; the naive backend, so that no fused kernel hides its products."""
    with attention_backend("naive"), FlopCounterMode(display=False) as counter:
        call()
    return counter.get_total_flops()


@pytest.mark.parametrize(
    "changes", [{}, {"d_head": 5}, {"d_head": 5, "d_value": 7}, {"feed_forward": "glu"}]
)
def test_text_flops_are_torchs(changes: dict[str, object]) -> None:
    ids = torch.zeros(1, 13, dtype=torch.long)
    causal = CausalLMConfig(**TEXT, **changes)
    masked = MaskedLMConfig(**TEXT, **changes)
    pair = EncoderDecoderConfig(**TEXT, n_decoder_layers=3, **changes)
    source = torch.zeros(1, 9, dtype=torch.long)
    with torch.device("meta"):
        models = CausalLM(causal), MaskedLM(masked), EncoderDecoder(pair)
    ids, source = ids.to("meta"), source.to("meta")
    assert forward_flops(causal, 13).total == counted(lambda: models[0](ids))
    assert forward_flops(masked, 13).total == counted(lambda: models[1](ids))
    assert forward_flops(pair, 13, source=9).total == counted(lambda: models[2](source, ids))


@pytest.mark.parametrize(
    ("kind", "config"),
    [
        (SequenceClassifier, SequenceClassifierConfig(**TEXT, n_classes=3)),
        (SequenceClassifier, SequenceClassifierConfig(**TEXT, n_classes=3, pool="mean")),
        (TokenClassifier, TokenClassifierConfig(**TEXT, n_classes=5)),
        (TokenClassifier, TokenClassifierConfig(**TEXT, n_classes=5, layers=(0, 1), mix="concat")),
        (SpanExtractor, SpanExtractorConfig(**TEXT)),
    ],
)
def test_what_reads_words_without_scoring_them(kind: type, config: TransformerConfig) -> None:
    with torch.device("meta"):
        model, ids = kind(config), torch.zeros(1, 13).long()
    assert forward_flops(config, 13).total == counted(lambda: model(ids))


def test_a_bilstm_counts() -> None:
    """Four gates, both ways, of what comes in and the state: torch's counter does not see them."""
    plain, read = (
        TokenClassifierConfig(**TEXT, n_classes=5, lstm=u, lstm_layers=2) for u in (0, 6)
    )
    gates = 13 * 2 * 4 * 6 * ((32 + 6) + (12 + 6))
    narrower = 13 * 5 * (12 - 32)
    more = forward_flops(read, 13).total - forward_flops(plain, 13).total
    assert more == 2 * (gates + narrower)


@pytest.mark.parametrize(
    "changes", [{}, {"distillation": True}, {"pool": "mean"}, {"representation_size": 20}]
)
def test_image_flops_are_torchs(changes: dict[str, object]) -> None:
    config = ViTConfig(**SMALL, image_size=20, patch_size=4, n_classes=7, **changes)
    with torch.device("meta"):
        model = ViT(config)
    images = torch.empty(1, 3, 20, 20, device="meta")
    assert forward_flops(config).total == counted(lambda: model(images))


@pytest.mark.parametrize("width", [32, 40])
def test_joined_flops_are_torchs(width: int) -> None:
    shape = {"d_model": width, "n_layers": 3, "n_heads": 2, "d_ff": 20}
    seen = ViTConfig(**shape, image_size=20, patch_size=4)
    texts = JoinedConfig(**TEXT, encoder=MaskedLMConfig(**shape))
    images = CaptionerConfig(**TEXT, encoder=seen)
    with torch.device("meta"):
        models = Joined(texts), Joined(images)
        ids, source = torch.zeros(1, 13).long(), torch.zeros(1, 9).long()
        image = torch.empty(1, 3, 20, 20)
    assert forward_flops(texts, 13, source=9).total == counted(lambda: models[0](source, ids))
    assert forward_flops(images, 13).total == counted(lambda: models[1](image, ids))


@pytest.mark.parametrize(
    ("config", "length", "expected"),
    [
        (MaskedLMConfig(), 128, 11.174),
        (MaskedLMConfig(), 512, 48.318),
        (MaskedLMConfig(**LARGE), 128, 39.460),
        (MaskedLMConfig(**LARGE), 512, 167.504),
    ],
)
def test_bert_blocks(config: MaskedLMConfig, length: int, expected: float) -> None:
    assert giga_macs(forward_flops(config, length).blocks) == expected


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        (CausalLMConfig(), 145.824),
        (CausalLMConfig(**LARGE), 413.476),
        (CausalLMConfig(d_model=1280, n_layers=36, n_heads=20, d_ff=5120), 887.285),
        (CausalLMConfig(d_model=1600, n_layers=48, n_heads=25, d_ff=6400), 1753.352),
        (CausalLMConfig(vocab_size=40478, max_len=512), 64.235),
        (ViTConfig(), 17.564),
        (ViTConfig(image_size=384), 55.484),
        (ViTConfig(patch_size=32), 4.409),
        (ViTConfig(**LARGE), 61.555),
        (ViTConfig(**LARGE, patch_size=32), 15.378),
        (ViTConfig(d_model=1280, n_layers=32, n_heads=16, d_ff=5120, patch_size=14), 167.295),
        (ViTConfig(d_model=192, n_heads=3, d_ff=768), 1.254),
        (ViTConfig(d_model=384, n_heads=6, d_ff=1536), 4.599),
    ],
)
def test_whole_models(config: TransformerConfig, expected: float) -> None:
    assert giga_macs(forward_flops(config).total) == expected


def test_a_pair_of_25_tokens() -> None:
    """The count of papers/vaswani2017.yaml, which has four decimals."""
    big = EncoderDecoderConfig(d_model=1024, d_ff=4096, n_heads=16)
    assert round(forward_flops(EncoderDecoderConfig(), 25).total / 2e9, 4) == 1.5861
    assert round(forward_flops(big, 25).total / 2e9, 4) == 5.3743


def test_a_masked_lm_is_trained_on_few_places() -> None:
    everywhere, some = (forward_flops(MaskedLMConfig(), 128, scored=s) for s in (1.0, 0.15))
    assert some.blocks == everywhere.blocks
    assert some.head == pytest.approx(0.15 * everywhere.head)


@pytest.mark.parametrize(
    ("model", "config"),
    [
        (CausalLM, CausalLMConfig(**TEXT, tie=False)),
        (MaskedLM, MaskedLMConfig(**TEXT, next_sentence=True)),
        (EncoderDecoder, EncoderDecoderConfig(**TEXT)),
        (ViT, ViTConfig(**SMALL, image_size=20, patch_size=4, distillation=True)),
    ],
)
def test_parts_make_the_whole(model: type, config: TransformerConfig) -> None:
    with torch.device("meta"):
        built = model(config)
    parts = parameters(built)
    assert parts.total == sum(p.numel() for p in built.parameters())
    assert min(parts.embeddings, parts.blocks) > 0


def test_a_shared_matrix_counts_where_it_enters() -> None:
    with torch.device("meta"):
        parts = parameters(CausalLM(CausalLMConfig()))
    assert parts == Parts(embeddings=(50257 + 1024) * 768, blocks=85_056_000, head=0)


def test_what_is_left_to_the_data_must_be_given() -> None:
    with pytest.raises(InputError, match="vocab_size is left to the data"):
        forward_flops(replace(CausalLMConfig(), vocab_size=None))
    with pytest.raises(InputError, match="n_classes is left to the data"):
        forward_flops(replace(ViTConfig(), n_classes=None))


def test_too_long_a_sequence() -> None:
    with pytest.raises(InputError, match="1025 tokens does not fit max_len 1024"):
        forward_flops(CausalLMConfig(), 1025)


def test_a_bare_stack_has_no_cost() -> None:
    with pytest.raises(InputError, match="no cost is known for a TransformerConfig"):
        forward_flops(TransformerConfig())
