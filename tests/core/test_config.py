"""Checks of config fields: impossible values are rejected before a model is built."""

import math
from typing import Any

import pytest

from fourfold.core.config import TransformerConfig
from fourfold.core.validation import check_nesting, check_range
from fourfold.errors import InputError
from fourfold.finetuning.config import TuningConfig
from fourfold.models import (
    CausalLMConfig,
    EncoderDecoderConfig,
    MaskedAutoencoderConfig,
    MaskedLMConfig,
    ViT,
    ViTConfig,
)
from fourfold.optim import OptimizerConfig


@pytest.mark.parametrize(
    ("config_class", "changes", "message"),
    [
        (
            TransformerConfig,
            {"d_model": 32, "n_heads": 5},
            r"d_model must be divisible by n_heads \(5\) .* got 32",
        ),
        (
            TransformerConfig,
            {"activation": "gelus"},
            "activation must be one of relu, gelu.* got 'gelus'",
        ),
        (
            TransformerConfig,
            {"feed_forward": "moe"},
            "feed_forward must be one of mlp, glu, got 'moe'",
        ),
        (TransformerConfig, {"norm": "batch"}, "norm must be one of layer, rms, got 'batch'"),
        (
            TransformerConfig,
            {"norm_placement": "both"},
            "norm_placement must be one of post, pre, sandwich, inside, got 'both'",
        ),
        (TransformerConfig, {"n_layers": 0}, "n_layers must be at least 1, got 0"),
        (TransformerConfig, {"d_head": -1}, "d_head must be at least 1, got -1"),
        (TransformerConfig, {"dropout": 1.0}, "dropout must be at least 0 and below 1, got 1.0"),
        (
            TransformerConfig,
            {"drop_path": -0.1},
            "drop_path must be at least 0 and below 1, got -0.1",
        ),
        (TransformerConfig, {"n_kv_heads": 3}, r"n_kv_heads must divide n_heads \(8\), got 3"),
        (TransformerConfig, {"n_kv_heads": 16}, r"n_kv_heads must divide n_heads \(8\), got 16"),
        (TransformerConfig, {"parallel": True}, "norm_placement must not be post if parallel"),
        (
            TransformerConfig,
            {"window": 3, "window_pattern": "SLs"},
            "window_pattern must consist of the letters S and L, got 'SLs'",
        ),
        (TransformerConfig, {"window_pattern": "SL"}, "window must be given with window_pattern"),
        (
            TransformerConfig,
            {"rope_theta": 1e4, "d_head": 5},
            "d_head must give an even number of rotated channels, got 5",
        ),
        (
            TransformerConfig,
            {"rope_theta": 1e4, "partial_rotary_factor": 0.05},
            "partial_rotary_factor must give an even number of rotated channels, got 3",
        ),
        (
            TransformerConfig,
            {"rope_theta": 1e4, "partial_rotary_factor": 1.5},
            "partial_rotary_factor must be above 0 and at most 1, got 1.5",
        ),
        (
            TransformerConfig,
            {"rope_theta": 1e4, "rope_local_theta": 1e3},
            "window must be given with rope_local_theta, got None",
        ),
        (
            TransformerConfig,
            {"rope_scaling": {"rope_type": "linear", "factor": 2}},
            "rope_theta must be given with rope_scaling, got None",
        ),
        (
            TransformerConfig,
            {"rope_theta": 1e4, "rope_scaling": {"rope_type": "dynamic"}},
            "rope_scaling.rope_type must be one of linear, llama3, yarn, got 'dynamic'",
        ),
        (
            TransformerConfig,
            {"rope_theta": 1e4, "rope_scaling": {"rope_type": "linear"}},
            "rope_scaling.factor must be of type float or int, got 'None'",
        ),
        (
            TransformerConfig,
            {"rope_theta": 1e4, "rope_scaling": {"rope_type": "linear", "factr": 2}},
            "rope_scaling must be one of factor, got 'factr'; did you mean factor",
        ),
        (
            MaskedAutoencoderConfig,
            {"rope_theta": 1e4},
            "rope_theta must be None for a masked autoencoder, .* got 10000",
        ),
        (CausalLMConfig, {"embed_scale": 0}, "embed_scale must be above 0, got 0"),
        (CausalLMConfig, {"score_cap": 0.0}, "score_cap must be above 0, got 0"),
        (CausalLMConfig, {"logit_cap": -1.0}, "logit_cap must be above 0, got -1"),
        (CausalLMConfig, {"vocab_size": 0}, "vocab_size must be at least 1, got 0"),
        (MaskedLMConfig, {"max_len": 0}, "max_len must be at least 1, got 0"),
        (
            EncoderDecoderConfig,
            {"tie_embeddings": "both"},
            "tie_embeddings must be one of all, decoder, embeddings, none, got 'both'",
        ),
        (
            EncoderDecoderConfig,
            {"n_decoder_layers": 0},
            "n_decoder_layers must be at least 1, got 0",
        ),
        (EncoderDecoderConfig, {"n_decoder_heads": 5}, "d_model must be divisible by n_heads .5."),
        (ViTConfig, {"pool": "max"}, "pool must be one of cls, mean, cls_mean, got 'max'"),
        (ViTConfig, {"distillation": True, "pool": "mean"}, "pool must be cls"),
        (ViTConfig, {"patch_size": 0}, "patch_size must be at least 1, got 0"),
        # Types that only a file can contain: the command line checks them.
        (TransformerConfig, {"d_model": "12"}, "d_model must be of type int, got '12'"),
        (TransformerConfig, {"n_layers": True}, "n_layers must be of type int, got 'True'"),
        (TransformerConfig, {"dropout": None}, "dropout must be of type float.*, got 'None'"),
        (TransformerConfig, {"bias": 1}, "bias must be of type bool, got '1'"),
        (CausalLMConfig, {"vocab_size": 2.0}, "vocab_size must be of type int.*, got '2.0'"),
        (
            CausalLMConfig,
            {"vocab_size": 2**31},
            "vocab_size must be at most 16777216, got 2147483648",
        ),
        (
            MaskedLMConfig,
            {"n_segments": -1},
            "n_segments must be at least 0 and at most 65536, got -1",
        ),
        (TransformerConfig, {"n_layers": 10**9}, "n_layers must be at most 1024, got 1000000000"),
        (TransformerConfig, {"d_ff": 10**9}, "d_ff must be at most 4194304, got 1000000000"),
        (TransformerConfig, {"d_model": 10**5000}, "d_model .* got an integer of 16610 bits"),
        (TransformerConfig, {"dropout": 10**5000}, "dropout .* got an integer of 16610 bits"),
        (ViTConfig, {"image_size": 10**9}, "image_size must be at most 16384, got 1000000000"),
        (
            TransformerConfig,
            {"norm_eps": math.nan},
            "norm_eps must be at least 0 and below 1, got nan",
        ),
    ],
)
def test_impossible_values_are_rejected(
    config_class: type[TransformerConfig], changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        config_class(**changes)


def test_image_size_must_be_divisible_by_patch_size() -> None:
    with pytest.raises(
        InputError, match=r"image_size must be divisible by patch_size \(4\), got 10"
    ):
        ViT(ViTConfig(d_model=8, n_heads=2, n_layers=1, d_ff=8, image_size=10, patch_size=4))


def test_head_widths_default_to_each_other() -> None:
    assert TransformerConfig(d_model=12, n_heads=3).value_width == 4
    assert TransformerConfig(d_model=12, n_heads=5, d_head=3).value_width == 3
    given = TransformerConfig(d_model=12, n_heads=3, d_value=7)
    assert (given.head_width, given.value_width) == (4, 7)


def test_windows_follow_the_pattern() -> None:
    config = TransformerConfig(n_layers=5, window=3)
    assert config.windows() == [3] * 5
    config = TransformerConfig(n_layers=5, window=3, window_pattern="SSL")
    assert config.windows() == [3, 3, None, 3, 3]
    assert TransformerConfig(n_layers=2).windows() == [None, None]


def test_a_literal_field_lists_its_values() -> None:
    with pytest.raises(
        InputError,
        match=r"optimizer\.name must be one of adam, adamw, adadelta, sgd, muon, got None",
    ):
        OptimizerConfig(name=None)  # type: ignore[arg-type]


def test_a_literal_or_integer_field_rejects_other_values() -> None:
    with pytest.raises(InputError, match="freeze must be one of all, tokens, got 'none'"):
        TuningConfig(freeze="none")  # type: ignore[arg-type]
    for value in (True, 1.5):
        with pytest.raises(
            InputError, match=f"freeze must be of type 'all' or 'tokens' or int, got '{value}'"
        ):
            TuningConfig(freeze=value)  # type: ignore[arg-type]
    assert TuningConfig(freeze="all").freeze == "all"


def test_sizes_above_those_of_published_models_are_allowed() -> None:
    CausalLMConfig(d_model=20_480, n_layers=100, n_heads=160, vocab_size=10**6, max_len=10**5)


def test_value_that_would_fill_the_memory_is_abbreviated_in_messages() -> None:
    value: Any = "x"
    for _ in range(60):
        value = [value, value]
    with pytest.raises(InputError, match=r"activation must be one of .* got \[\[\["):
        TransformerConfig(activation=value)


def test_nested_values_are_counted_with_their_shared_parts() -> None:
    def parts(value: Any) -> Any:
        return value if isinstance(value, list) else ()

    value: Any = [0] * 10
    for _ in range(5):
        value = [value] * 10
    check_nesting(value, parts, 1_111_111, None)
    with pytest.raises(InputError, match=r"^x: must have at most 1111110 values once shared"):
        check_nesting(value, parts, 1_111_110, "x")
    cycle: list[Any] = []
    cycle.append(cycle)
    with pytest.raises(InputError, match="at most 64 levels"):
        check_nesting(cycle, parts, 10**6, None)


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (2**63, "at least 4 and an integer of 64 bits, got 9223372036854775808"),
        (-(10**400), "at least 4 and an integer of 64 bits, got -1000"),
        (float("nan"), "at least 4 and finite, got nan"),
        (3, "at least 4, got 3"),
    ],
)
def test_numbers_that_no_tensor_holds_are_out_of_range(value: float, said: str) -> None:
    check_range("x", 2**63 - 1, minimum=4)
    check_range("x", 1e300, minimum=4)
    with pytest.raises(InputError, match=f"^x must be {said}"):
        check_range("x", value, minimum=4)
