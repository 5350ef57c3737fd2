"""Directories written by `fourfold.save`: Hugging Face format and native format."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

import fourfold
from fourfold.checkpoints.save import staged_directory
from fourfold.errors import InputError
from fourfold.layers.generation_defaults import GenerationDefaults
from fourfold.models import (
    CausalLM,
    CausalLMConfig,
    CompositeEncoderDecoder,
    ConvolutionalLM,
    ConvolutionalLMConfig,
    ImageToTextConfig,
    LadderLM,
    LadderLMConfig,
    Model,
    RecurrentEncoderDecoder,
    RecurrentEncoderDecoderConfig,
    RecurrentLM,
    RecurrentLMConfig,
    ResNet,
    ResNetConfig,
    TextToTextConfig,
)

SHAPE: dict[str, Any] = {"d_model": 16, "n_layers": 1, "n_heads": 2, "d_ff": 24}
TEXT: dict[str, Any] = {**SHAPE, "vocab_size": 31, "max_len": 40}


def native_models() -> dict[str, Model]:
    return {
        "resnet": ResNet(ResNetConfig(n_classes=3)),
        "ladder": LadderLM(LadderLMConfig(**TEXT, rung="scaled")),
        "lstm": RecurrentLM(RecurrentLMConfig(d_model=16, n_layers=1, vocab_size=31)),
        "recurrent": RecurrentEncoderDecoder(
            RecurrentEncoderDecoderConfig(d_model=8, hidden_size=6, n_layers=1, vocab_size=31)
        ),
        "convolution": ConvolutionalLM(
            ConvolutionalLMConfig(d_model=16, n_layers=2, vocab_size=31, dilations=(1, 2))
        ),
        "text to text": CompositeEncoderDecoder(TextToTextConfig(**TEXT)),
        "rms norm": CausalLM(CausalLMConfig(**TEXT, norm="rms")),
    }


@pytest.mark.parametrize(
    "name", ["ladder", "lstm", "recurrent", "convolution", "rms norm", "resnet"]
)
def test_native_directory_restores_model_and_artifacts(name: str, tmp_path: Path) -> None:
    model: Any = native_models()[name]
    model.artifacts = {"class_names": ["a", "b", "c"]} if name == "resnet" else {}
    model.generation_defaults = GenerationDefaults(eos_id=2, num_beams=5, top_k=3, temperature=0.5)
    fourfold.save(model, tmp_path / "saved")
    names = {file.name for file in (tmp_path / "saved").iterdir()}
    assert names == {"fourfold.json", "model.safetensors"}
    again: Any = fourfold.load(tmp_path / "saved")
    assert type(again) is type(model)
    assert again.config == model.config
    assert dict(again.artifacts) == model.artifacts
    assert again.generation_defaults == model.generation_defaults
    assert not again.training
    for key, value in model.state_dict().items():
        assert torch.equal(value, again.state_dict()[key]), key


def test_config_class_of_a_composite_model_is_that_of_its_encoder() -> None:
    from fourfold.checkpoints.classes import find_model_class

    for config, encoder in (
        (TextToTextConfig, {"vocab_size": 9}),
        (ImageToTextConfig, {"image_size": 8}),
    ):
        classes = find_model_class("CompositeEncoderDecoder", {"encoder": encoder}, (), None)
        assert classes == (CompositeEncoderDecoder, config)


def test_saving_again_replaces_the_files(tmp_path: Path) -> None:
    gpt = CausalLM(CausalLMConfig(**{**TEXT, "d_ff": 64}))
    lstm = native_models()["lstm"]
    (tmp_path / "saved").mkdir()
    (tmp_path / "saved" / "notes.txt").write_text("mine")
    for model in (gpt, lstm, gpt):
        fourfold.save(model, tmp_path / "saved")
        assert type(fourfold.load(tmp_path / "saved")) is type(model)
    assert (tmp_path / "saved" / "notes.txt").read_text() == "mine"
    assert [path.name for path in tmp_path.iterdir()] == ["saved"]


def test_folders_keep_their_other_files(tmp_path: Path) -> None:
    (tmp_path / "saved/data").mkdir(parents=True)
    (tmp_path / "saved/data/valuable.txt").write_text("mine")
    for content in ("{}", "[]"):
        with staged_directory(tmp_path / "saved") as folder:
            for name in ("data", "1_Pooling"):
                (folder / name).mkdir()
                (folder / name / "config.json").write_text(content)
        assert (tmp_path / "saved/1_Pooling/config.json").read_text() == content
        assert (tmp_path / "saved/data/valuable.txt").read_text() == "mine"


def test_failed_save_leaves_nothing(tmp_path: Path) -> None:

    def fail_half_way() -> None:
        with staged_directory(tmp_path / "saved") as folder:
            (folder / "model.safetensors").write_text("incomplete")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail_half_way()
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"version": 1}, "an earlier version of fourfold"),
        ({"model": {"class": "Transformer", "config": {}}}, "fourfold has no model 'Transformer'"),
        ({"model": {"class": "os.path", "config": {}}}, "--allow_class os.path"),
        ({"model": 7}, "model must be of type dict"),
        ({"artifacts": {"class_names": [1]}}, "data.class_names must be of type str"),
    ],
)
def test_invalid_native_directory_is_rejected(
    change: dict[str, Any], message: str, tmp_path: Path
) -> None:
    fourfold.save(native_models()["lstm"], tmp_path)
    file = tmp_path / "fourfold.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **change}))
    with pytest.raises(InputError, match=message) as caught:
        fourfold.load(tmp_path)
    assert str(file) in str(caught.value)
