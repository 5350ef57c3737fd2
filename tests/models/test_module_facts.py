"""Facts about a model that are methods: layers, attention, example inputs and the classifier."""

import re
from typing import Any

import pytest
import torch
from torch import nn

import fourfold
from fourfold import models
from fourfold.core.attention import Attention
from fourfold.errors import InputError
from fourfold.finetuning.layer_lr_decay import layer_ids
from fourfold.models import (
    CausalClassifier,
    CausalClassifierConfig,
    SequenceClassifier,
    SequenceClassifierConfig,
    ViT,
    ViTConfig,
)

# The layer of a parameter by its name.
BLOCK = re.compile(r"\bblocks\.(\d+)\.|^net\.layer(\d)\.")
EMBEDDING = re.compile(
    r"(\w+_)?embed\.|project\.|\w+_norm\.|(\w+_)?(stack|encoder|decoder)\.bias\.|net\.(conv|bn)1\."
)
STACK = re.compile(r"(\w+_)?(stack|encoder|decoder|words|sentences)\.")
TINY: dict[str, Any] = {"d_model": 16, "n_layers": 2, "n_heads": 2, "d_ff": 32}
RECURRENT: dict[str, Any] = {"vocab_size": 9, "d_model": 8, "hidden_size": 8}
IMAGES = ViTConfig(**TINY, image_size=32, n_classes=3)
HAN: dict[str, Any] = {"vocab_size": 9, "n_classes": 2, "d_model": 16, "n_heads": 2}
OTHERS: dict[str, Any] = {
    "relative positions": lambda: ViT(ViTConfig(**TINY, image_size=32, positions="relative")),
    "positions of each layer": lambda: ViT(ViTConfig(**TINY, positions_at="layers")),
    "autoencoder": lambda: models.MaskedAutoencoder(
        models.MaskedAutoencoderConfig(**TINY, image_size=32, n_decoder_layers=3)
    ),
    "words": lambda: models.HierarchicalClassifier(models.HierarchicalClassifierConfig(**HAN)),
    "words in blocks": lambda: models.HierarchicalClassifier(
        models.HierarchicalClassifierConfig(**HAN, encoder="block")
    ),
    "lstm": lambda: models.RecurrentLM(models.RecurrentLMConfig(**RECURRENT)),
    "translator": lambda: models.RecurrentEncoderDecoder(
        models.RecurrentEncoderDecoderConfig(**RECURRENT)
    ),
    "captioner": lambda: models.RecurrentCaptioner(
        models.RecurrentCaptionerConfig(**RECURRENT, encoder=IMAGES)
    ),
    "ladder": lambda: models.LadderLM(models.LadderLMConfig(**TINY, vocab_size=9, rung="scaled")),
    "convolution": lambda: models.ConvolutionalLM(
        models.ConvolutionalLMConfig(d_model=8, n_layers=2, vocab_size=9)
    ),
    "features": lambda: SequenceClassifier(
        SequenceClassifierConfig(
            **TINY, vocab_size=9, n_classes=2, lstm_width=4, feature_layers=(0, 1)
        )
    ),
    "joined": lambda: models.CompositeEncoderDecoder(
        models.ImageToTextConfig(**TINY, vocab_size=9, encoder=IMAGES)
    ),
}


def expected_layers(model: nn.Module) -> dict[str, int]:
    names = [name for name, _ in model.named_parameters()]
    found = {name: match for name in names if (match := BLOCK.search(name))}
    blocks = {n: int(m[1]) + 1 if m[1] else int(m[2]) for n, m in found.items()}
    last = max(blocks.values(), default=0)

    def layer(name: str) -> int:
        if EMBEDDING.match(name) and name not in blocks:
            return 0
        return blocks.get(name, last if STACK.match(name) else last + 1)

    return {name: layer(name) for name in names}


@pytest.mark.parametrize("name", [*fourfold.list_models(), *OTHERS])
def test_layer_of_each_parameter_agrees_with_its_name(name: str) -> None:
    model = OTHERS[name]() if name in OTHERS else fourfold.create(name, device="meta")
    layers, head = layer_ids(model)
    assert layers == expected_layers(model)
    assert head == max(layers.values()) or not any(layer == head for layer in layers.values())


def test_attention_modules_of_registered_models_are_all_attention() -> None:
    for name in fourfold.list_models():
        model = fourfold.create(name, device="meta")
        paths = [path for path, module in model.named_modules() if isinstance(module, Attention)]
        assert list(model.attention_modules()) == paths


@pytest.mark.parametrize(
    ("name", "count"),
    [("words", 2), ("translator", 1), ("captioner", 3), ("ladder", 2), ("lstm", 0)],
)
def test_other_attention_is_found_too(name: str, count: int) -> None:
    assert len(OTHERS[name]().attention_modules()) == count


@pytest.mark.parametrize(
    "name",
    ["gpt2", "bert-base-uncased", "t5-small", "vit_tiny_patch16_224", "clip-vit-base-patch32"],
)
def test_example_inputs_are_inputs(name: str) -> None:
    model = fourfold.create(name, device="meta")
    inputs = model.example_inputs(7, source=5, batch=2)
    assert {len(x) for x in inputs} == {2}
    assert {x.device.type for x in inputs} == {"meta"}
    assert len(model(*inputs)) == 2


CLASSIFIERS: dict[str, Any] = {
    "vit": lambda: ViT(ViTConfig(**TINY, image_size=32, n_classes=3, distillation=True)),
    "sequence": lambda: SequenceClassifier(
        SequenceClassifierConfig(**TINY, vocab_size=9, n_classes=3, next_sentence=True)
    ),
    "causal": lambda: CausalClassifier(CausalClassifierConfig(**TINY, vocab_size=9, n_classes=3)),
}


@pytest.mark.parametrize("name", CLASSIFIERS)
def test_reset_classifier_changes_the_classifier_only(name: str) -> None:
    model = CLASSIFIERS[name]().double()
    before = model.state_dict()
    model.reset_classifier(7)
    after = model.state_dict()
    assert before.keys() == after.keys()
    changed = {key for key in after if after[key].shape != before[key].shape}
    assert changed
    assert all(key.startswith(("heads.", "classifier")) for key in changed)
    assert all(torch.equal(after[key], before[key]) for key in after.keys() - changed)
    assert all(len(after[key]) == 7 for key in changed)
    assert model.config.n_classes == 7
    assert {x.dtype for x in after.values() if x.is_floating_point()} == {torch.float64}


def test_models_without_a_classifier_reject_a_reset() -> None:
    with pytest.raises(InputError, match="must be a ViT or a classifier of texts, got CausalLM"):
        fourfold.create("gpt2", device="meta", n_layers=1).reset_classifier(2)
