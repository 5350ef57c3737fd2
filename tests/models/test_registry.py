"""Models by name: equal to the recipes, parameter counts, overrides and unknown names."""

from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

import fourfold
from fourfold.errors import InputError
from fourfold.models.registry import create_config, list_models

ROOT = Path(__file__).parents[2]
RECIPES = {
    "vit_tiny_patch16_224": "vit/ti16",
    "vit_small_patch16_224": "vit/s16",
    "vit_base_patch16_224": "vit/b16",
    "vit_base_patch32_224": "vit/b32",
    "vit_large_patch16_224": "vit/l16",
    "vit_large_patch32_224": "vit/l32",
    "vit_huge_patch14_224": "vit/h14",
    "deit_tiny_patch16_224": "deit/ti",
    "deit_small_patch16_224": "deit/s",
    "deit_base_patch16_224": "deit/b",
    "deit_tiny_distilled_patch16_224": "deit/ti_distilled",
    "deit_small_distilled_patch16_224": "deit/s_distilled",
    "deit_base_distilled_patch16_224": "deit/b_distilled",
    "openai-gpt": "gpt1/base",
    "gpt2": "gpt2/small",
    "gpt2-medium": "gpt2/medium",
    "gpt2-large": "gpt2/large",
    "gpt2-xl": "gpt2/xl",
    "bert-base-uncased": "bert/base",
    "bert-large-uncased": "bert/large",
    "roberta-base": "roberta/base",
    "roberta-large": "roberta/large",
    "transformer_base": "vaswani2017/base",
    "transformer_big": "vaswani2017/big",
    "t5-small": "t5/small",
    "clip-vit-base-patch32": "clip/b32",
}
# Sizes without a recipe: the counts of transformers and torchvision. Those of DINOv2 and DINOv3 are
# the published ones with a classifier of 1,000 classes, without the mask token of pre-training.
COUNTS = {
    "llama-3.2-1b": 1_235_814_400,
    "llama-3.2-3b": 3_212_749_824,
    "llama-3.1-8b": 8_030_261_248,
    "qwen3-0.6b": 596_049_920,
    "qwen3-1.7b": 1_720_574_976,
    "qwen3-8b": 8_190_735_360,
    "modernbert-base": 149_655_232,
    "modernbert-large": 395_881_664,
    "vit_small_patch14_dinov2": 22_056_576 - 384 + 769_000,
    "vit_base_patch14_dinov2": 86_580_480 - 768 + 1_537_000,
    "vit_small_patch16_dinov3": 21_596_544 - 384 + 769_000,
    "vit_base_patch16_dinov3": 85_660_416 - 768 + 1_537_000,
    "bert-base-cased": 108_932_934,
    "bert-large-cased": 334_661_958,
    "distilbert-base-uncased": 66_985_530,
    "t5-base": 222_903_552,
    "t5-large": 737_668_096,
    "clip-vit-base-patch16": 149_620_737,
    "siglip-base-patch16-224": 203_155_970,
    "clip-vit-large-patch14": 427_616_513,
    "electra-small-generator": 13_546_682,
    "electra-base-generator": 33_740_602,
    "electra-large-generator": 51_295_290,
    "electra-small-discriminator": 13_549_057,
    "electra-base-discriminator": 109_483_009,
    "electra-large-discriminator": 335_142_913,
    "resnet18": 11_689_512,
    "resnet34": 21_797_672,
    "resnet50": 25_557_032,
    "resnet101": 44_549_160,
    "resnet152": 60_192_808,
}


def count(name: str) -> int:
    return sum(p.numel() for p in fourfold.create(name, device="meta").parameters())


def test_every_name_has_a_recipe_or_a_count() -> None:
    assert RECIPES.keys() | COUNTS.keys() == set(list_models())
    assert not RECIPES.keys() & COUNTS.keys()


@pytest.mark.parametrize(("name", "recipe"), RECIPES.items())
def test_config_and_parameter_count_equal_the_recipe(name: str, recipe: str) -> None:
    options = yaml.safe_load((ROOT / "configs" / f"{recipe}.yaml").read_text())["model"]
    config = create_config(name)
    given: dict[str, Any] = options["init_args"]["config"]
    assert config == type(config)(**given)
    golden = yaml.safe_load((ROOT / "tests/golden/parameters.yaml").read_text())[recipe]
    assert count(name) == golden


@pytest.mark.parametrize(("name", "parameters"), COUNTS.items())
def test_parameter_count_equals_the_reference(name: str, parameters: int) -> None:
    assert count(name) == parameters


def test_overrides_become_config_fields() -> None:
    model = fourfold.create("vit_tiny_patch16_224", n_classes=10, n_layers=1, image_size=32)
    assert (model.config.n_classes, model.config.n_layers, model.config.d_model) == (10, 1, 192)
    assert model(torch.zeros(2, 3, 32, 32)).shape == (2, 10)
    assert model.training


def test_device_and_data_type_are_those_of_the_weights() -> None:
    model = fourfold.create("gpt2", n_layers=1, device="meta", dtype=torch.bfloat16)
    assert (model.device.type, model.dtype) == ("meta", torch.bfloat16)
    assert {p.dtype for p in model.parameters()} == {torch.bfloat16}
    torch.manual_seed(0)
    single = fourfold.create("vit_tiny_patch16_224", n_layers=1, dtype=torch.float64)
    torch.manual_seed(0)
    expected = fourfold.create("vit_tiny_patch16_224", n_layers=1).double()
    for name, value in expected.state_dict().items():
        assert torch.equal(single.state_dict()[name], value)


def test_list_models_filters_by_pattern() -> None:
    assert fourfold.list_models() == sorted(RECIPES.keys() | COUNTS.keys())
    assert fourfold.list_models("gpt2*") == ["gpt2", "gpt2-large", "gpt2-medium", "gpt2-xl"]
    assert fourfold.list_models("no_such_*") == []


def test_unknown_names_raise_with_the_closest_ones() -> None:
    with pytest.raises(InputError, match=r"name must be one of .*; did you mean gpt2-medium"):
        fourfold.create("gpt2-median")
    with pytest.raises(InputError, match=r"field of ViTConfig must be .* did you mean n_classes"):
        fourfold.create("vit_tiny_patch16_224", num_classes=10)
    with pytest.raises(InputError, match="n_layers must be at least 1, got 0"):
        fourfold.create("gpt2", n_layers=0)
