"""Impossible shapes are refused before anything is built, with the values in the message."""

import math
from typing import Any

import pytest

from fourfold.core.config import TransformerConfig
from fourfold.core.errors import InputError
from fourfold.models import CausalLMConfig, EncoderDecoderConfig, MaskedLMConfig, ViT, ViTConfig
from fourfold.tasks.tuning import TuningConfig


@pytest.mark.parametrize(
    ("kind", "changes", "message"),
    [
        (TransformerConfig, {"d_model": 32, "n_heads": 5}, "d_model 32 .* n_heads 5"),
        (TransformerConfig, {"activation": "gelus"}, "activation is 'gelus', .* relu, gelu"),
        (TransformerConfig, {"feed_forward": "moe"}, "feed_forward is 'moe'"),
        (TransformerConfig, {"norm": "batch"}, "norm is 'batch', .* layer, rms"),
        (TransformerConfig, {"norm_placement": "both"}, "norm_placement is 'both'"),
        (TransformerConfig, {"n_layers": 0}, "n_layers is 0, but must be at least 1"),
        (TransformerConfig, {"d_head": -1}, "d_head is -1"),
        (TransformerConfig, {"dropout": 1.0}, r"dropout is 1.0, but must lie in \[0, 1\)"),
        (TransformerConfig, {"drop_path": -0.1}, "drop_path is -0.1"),
        (CausalLMConfig, {"vocab_size": 0}, "vocab_size is 0"),
        (MaskedLMConfig, {"max_len": 0}, "max_len is 0"),
        (EncoderDecoderConfig, {"tie": "both"}, "tie is 'both', .* all, decoder, embeddings, none"),
        (EncoderDecoderConfig, {"n_decoder_layers": 0}, "n_decoder_layers is 0"),
        (ViTConfig, {"pool": "max"}, "pool is 'max'"),
        (ViTConfig, {"distillation": True, "pool": "mean"}, "distillation needs pool cls"),
        (ViTConfig, {"patch_size": 0}, "patch_size is 0"),
        # Of another kind than declared, as only a file may be.
        (TransformerConfig, {"d_model": "12"}, "d_model is '12', but must be of the kind int"),
        (TransformerConfig, {"n_layers": True}, "n_layers is 'True'"),
        (TransformerConfig, {"dropout": None}, "dropout is 'None', but must be of the kind float"),
        (TransformerConfig, {"bias": 1}, "bias is '1', but must be of the kind bool"),
        (CausalLMConfig, {"vocab_size": 2.0}, "vocab_size is '2.0'"),
        (CausalLMConfig, {"vocab_size": 2**31}, "vocab_size is 2147483648, but must be at most"),
        (MaskedLMConfig, {"n_segments": -1}, "n_segments is -1, but must not be negative"),
        (TransformerConfig, {"norm_eps": math.nan}, r"norm_eps is nan, but must lie in \[0, 1\)"),
    ],
)
def test_impossible(kind: type[TransformerConfig], changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        kind(**changes)


def test_patches_must_tile_the_image() -> None:
    with pytest.raises(InputError, match="image_size 10 is not divisible by patch_size 4"):
        ViT(ViTConfig(d_model=8, n_heads=2, n_layers=1, d_ff=8, image_size=10, patch_size=4))


def test_widths_follow_from_each_other() -> None:
    assert TransformerConfig(d_model=12, n_heads=3).value_width == 4
    assert TransformerConfig(d_model=12, n_heads=5, d_head=3).value_width == 3
    given = TransformerConfig(d_model=12, n_heads=3, d_value=7)
    assert (given.head_width, given.value_width) == (4, 7)


def test_a_word_that_is_none_of_those_declared() -> None:
    for given, kind in (("none", "all or int"), (True, "all or int"), (1.5, "all or int")):
        with pytest.raises(InputError, match=f"but must be of the kind {kind}"):
            TuningConfig(freeze=given)  # type: ignore[arg-type]
    assert TuningConfig(freeze="all").freeze == "all"
