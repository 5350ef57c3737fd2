"""Tests of DINOv2 beyond the tests of all models."""

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as hf

import fourfold
from fourfold.checkpoints.load import read_model
from fourfold.errors import InputError
from fourfold.hub import directory
from fourfold.models import ViT, ViTConfig
from fourfold.tasks.convert import make_task
from tests.fixtures.hf_models import DINOV2, make_model

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
        ({"pool": "mean"}, "pool must be cls or cls_mean with registers"),
        ({"n_registers": -1}, "n_registers must be at least 0"),
        ({"positions": "none"}, "prefix_positions must be all for these positions"),
        ({"distillation": True}, "pool must be cls for a model with distillation"),
    ],
)
def test_impossible_registers_are_rejected(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        ViTConfig(**{**vars(SMALL), **changes})
