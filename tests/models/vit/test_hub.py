"""Tests of DINOv2 and DINOv3 beyond the tests of all models."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as hf

import fourfold
from fourfold.checkpoints.init_from import initialize_from
from fourfold.checkpoints.load import read_model
from fourfold.errors import InputError
from fourfold.hub import directory
from fourfold.json_files import read_json
from fourfold.models import ViT, ViTConfig
from fourfold.tasks.convert import make_task
from tests.fixtures.hf_models import DINOV2, DINOV3, make_model, to_fp64
from tests.hub.test_transformers_format import close, gradients, mapped_gradients

SMALL = ViTConfig(
    d_model=36,
    n_layers=2,
    n_heads=3,
    d_ff=72,
    image_size=12,
    patch_size=4,
    n_classes=5,
    pool="cls_mean",
    layer_scale=0.3,
    n_registers=2,
    prefix_positions="class",
)


@pytest.mark.parametrize("n_registers", [0, 3])
def test_hidden_states_of_the_model_without_a_head(n_registers: int, tmp_path: Path) -> None:
    torch.manual_seed(0)
    if n_registers:
        config = hf.Dinov2WithRegistersConfig(**DINOV2, num_register_tokens=n_registers)
        theirs: Any = hf.Dinov2WithRegistersModel(config).eval()
    else:
        theirs = hf.Dinov2Model(hf.Dinov2Config(**DINOV2)).eval()
    with torch.no_grad():
        for parameter in theirs.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    theirs.save_pretrained(tmp_path / "there")
    model: Any = fourfold.load(tmp_path / "there")
    images = torch.randn(2, 3, 12, 12)
    expected = theirs(pixel_values=images).last_hidden_state
    torch.testing.assert_close(model.encode(images), expected, rtol=1e-5, atol=1e-5)
    fourfold.save(model, tmp_path / "again")
    before, after = (directory.read_tensors(tmp_path / name) for name in ("there", "again"))
    assert before.keys() == after.keys()
    assert all(torch.equal(before[key], after[key]) for key in before)
    with pytest.raises(InputError, match="the classification head is missing"):
        make_task(read_model(tmp_path / "there"))


def test_native_model_is_exported_as_dinov2(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = ViT(SMALL).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    fourfold.save(model, tmp_path)
    theirs: Any = hf.AutoModelForImageClassification.from_pretrained(tmp_path).eval()
    assert type(theirs).__name__ == "Dinov2WithRegistersForImageClassification"
    images = torch.randn(2, 3, 12, 12)
    torch.testing.assert_close(model(images), theirs(images).logits, rtol=1e-5, atol=1e-5)


def test_registers_have_no_position(tmp_path: Path) -> None:
    make_model("dinov2-registers-gated").save_pretrained(tmp_path)
    model: Any = fourfold.load(tmp_path)
    assert model.embed.positions.weight.shape == (1 + 9, 36)
    assert model.n_prefix == 4


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"pool_norm": True}, "pool_norm must be false for pool cls_mean"),
        ({"n_registers": -1}, "n_registers must be at least 0"),
        ({"distillation": True}, "pool must be cls for a model with distillation"),
    ],
)
def test_impossible_registers_are_rejected(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        ViTConfig(**{**vars(SMALL), **changes})


DINOV3_CASES: dict[str, dict[str, Any]] = {
    "plain": {},
    "gated": {"use_gated_mlp": True, "hidden_act": "silu", "num_register_tokens": 3},
    "no-biases": {"query_bias": False, "value_bias": False, "num_register_tokens": 2},
    "key-bias": {"key_bias": True, "layerscale_value": 0.2, "rope_theta": 50.0},
}


def save_dinov3(folder: Path, **changes: Any) -> Any:
    """Create a DINOv3 with random weights, and save it."""
    torch.manual_seed(0)
    theirs = hf.DINOv3ViTModel(hf.DINOv3ViTConfig(**{**DINOV3, **changes})).eval()
    with torch.no_grad():
        for parameter in theirs.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    theirs.save_pretrained(folder)
    return theirs


@pytest.mark.parametrize("case", DINOV3_CASES)
def test_dinov3_has_the_states_and_gradients_of_transformers(case: str, tmp_path: Path) -> None:
    theirs = save_dinov3(tmp_path / "there", **DINOV3_CASES[case])
    model: Any = fourfold.load(tmp_path / "there")
    images = torch.randn(2, 3, 20, 20)
    torch.testing.assert_close(
        model.encode(images), theirs(images).last_hidden_state, rtol=1e-5, atol=1e-5
    )
    fourfold.save(model, tmp_path / "again")
    before, after = (directory.read_tensors(tmp_path / name) for name in ("there", "again"))
    assert before.keys() == after.keys()
    assert all(torch.equal(before[key], after[key]) for key in before)
    configs = [(tmp_path / name / "config.json").read_text() for name in ("there", "again")]
    assert configs[0] == configs[1]
    model, theirs = model.double(), to_fp64(theirs)
    actual, expected = model.encode(images.double()), theirs(images.double()).last_hidden_state
    assert close(actual, expected, 1e-10)
    weights = torch.randn_like(actual)
    losses = [(states * weights).square().sum() for states in (actual, expected)]
    assert close(*losses, 1e-10)
    for loss in losses:
        loss.backward()
    found = gradients(model)
    wanted = mapped_gradients(theirs, model, tmp_path / "gradients")
    largest = max(float(gradient.abs().max()) for gradient in wanted.values())
    assert found.keys() == wanted.keys()
    for key, gradient in found.items():
        assert (gradient - wanted[key]).abs().max() <= 1e-10 * largest, key


def test_native_encoder_is_exported_as_dinov3(tmp_path: Path) -> None:
    theirs = save_dinov3(tmp_path / "there", num_register_tokens=2)
    model: Any = fourfold.load(tmp_path / "there")
    model.source = None
    fourfold.save(model, tmp_path / "again")
    again, report = hf.AutoModel.from_pretrained(tmp_path / "again", output_loading_info=True)
    assert type(again) is type(theirs)
    # The mask token is for pre-training only.
    assert report["missing_keys"] == {"embeddings.mask_token"}
    images = torch.randn(2, 3, 20, 20)
    states = [family(images).last_hidden_state for family in (again.eval(), theirs)]
    torch.testing.assert_close(*states, rtol=1e-6, atol=1e-6)
    assert fourfold.load(tmp_path / "again").config == model.config


def test_classifier_of_another_image_size_starts_from_dinov3(tmp_path: Path) -> None:
    theirs = save_dinov3(tmp_path / "there", num_register_tokens=2)
    sizes: dict[str, Any] = {
        "image_size": 28,
        "n_classes": 3,
        "rope_theta": 100.0,
        "layer_scale": 1.0,
    }
    sizes |= {"positions": "rotary2d", "prefix_positions": "all", "d_ff": 50, "norm_eps": 1e-5}
    model = ViT(replace(SMALL, **sizes, key_bias=False)).eval()
    report = initialize_from(model, str(tmp_path / "there"), None, "bicubic")
    new = [line.split()[1] for line in report.splitlines() if line.split()[0] == "new"]
    assert new == ["heads.0.weight", "heads.0.bias"]
    images = torch.randn(2, 3, 28, 28)
    expected = theirs(images).last_hidden_state
    torch.testing.assert_close(model.encode(images), expected, rtol=1e-5, atol=1e-5)
    fourfold.save(model, tmp_path / "classifier")  # in the native format
    again = fourfold.load(tmp_path / "classifier")
    torch.testing.assert_close(again(images), model(images), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        ({"query_bias": False}, "query_bias must equal value_bias"),
        ({"mlp_bias": False}, "mlp_bias must be True"),
        ({"drop_path_rate": 0.1}, "drop_path_rate must be 0.0"),
        ({"patch_size": [4, 4]}, "patch_size must be of type int"),
    ],
)
def test_option_of_dinov3_that_is_not_supported_is_named(
    entries: dict[str, Any], message: str, tmp_path: Path
) -> None:
    save_dinov3(tmp_path)
    config = read_json(tmp_path / "config.json") | entries
    directory.write_json(tmp_path / "config.json", config)
    with pytest.raises(InputError, match=rf"config\.json: .*{message}"):
        fourfold.load(tmp_path)
