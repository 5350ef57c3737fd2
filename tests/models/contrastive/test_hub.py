"""Tests of CLIP: sections of config.json, old checkpoints, and settings without an equivalent."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as hf
from safetensors.torch import load_file, save_file

import fourfold
from fourfold import json_files
from fourfold.errors import InputError
from fourfold.hub import transformers_format
from tests.fixtures.hf_models import make_model
from tests.models.contrastive.test_clip import EOS, build, images, texts


@pytest.mark.parametrize("eos_id", [EOS, None], ids=["first", "highest"])
@pytest.mark.parametrize("activation", ["quick_gelu", "gelu", "gelu_tanh"])
def test_exported_model_matches_transformers(
    eos_id: int | None, activation: str, tmp_path: Path
) -> None:
    model = build(eos_id=eos_id, activation=activation, norm_eps=1e-3)
    fourfold.save(model, tmp_path / "exported")
    hf_model = hf.CLIPModel.from_pretrained(tmp_path / "exported", dtype=torch.float64).eval()
    x, (ids, mask) = images(3), texts([5, 9])
    with torch.no_grad():
        out = hf_model(input_ids=ids, attention_mask=mask.long(), pixel_values=x)
        torch.testing.assert_close(
            model(x, ids, mask=mask), out.logits_per_image, rtol=1e-9, atol=1e-9
        )
        tower = hf.CLIPTextModelWithProjection.from_pretrained(
            tmp_path / "exported", dtype=torch.float64
        )
        text = tower.eval()(input_ids=ids).text_embeds
        torch.testing.assert_close(model.encode_text(ids), text, rtol=1e-9, atol=1e-9)
    again = fourfold.load(tmp_path / "exported")
    assert again.config == model.config


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"eos_id": 2}, "eos_id=2"),  # means the highest token id in transformers
        ({"dropout": 0.1}, "dropout=0.1"),
        ({"norm_placement": "post"}, "norm_placement=post"),
        ({"d_head": 5}, "d_head=5"),
    ],
)
def test_export_of_unsupported_settings_is_rejected(
    changes: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(InputError, match=message):
        transformers_format.write_model(build(**changes), tmp_path / "exported")


def rewrite(folder: Path, section: str, **changes: Any) -> None:
    file = folder / "config.json"
    config = json.loads(file.read_text())
    config[section] = {**(config.get(section) or {}), **changes}
    file.write_text(json.dumps(config))


def test_checkpoint_with_duplicate_sections_and_position_ids(tmp_path: Path) -> None:
    make_model("clip").save_pretrained(tmp_path)
    new = fourfold.load(tmp_path).state_dict()
    tensors = load_file(tmp_path / "model.safetensors")
    tensors["text_model.embeddings.position_ids"] = torch.arange(23)[None]
    tensors["vision_model.embeddings.position_ids"] = torch.arange(10)[None]
    save_file(tensors, tmp_path / "model.safetensors")
    text_config = json.loads((tmp_path / "config.json").read_text())["text_config"]
    # Keys that the second section lacks have defaults; the activation is the default one.
    rewrite(
        tmp_path, "text_config_dict", **{k: v for k, v in text_config.items() if k != "hidden_act"}
    )
    old = fourfold.load(tmp_path).state_dict()
    assert all(torch.equal(new[key], old[key]) for key in new)
    rewrite(tmp_path, "text_config_dict", num_attention_heads=4)
    with pytest.raises(
        InputError, match="text_config_dict must be equal, got num_attention_heads 3 and 4"
    ):
        fourfold.load(tmp_path)


def test_missing_keys_of_a_duplicate_section_mean_the_defaults(tmp_path: Path) -> None:
    make_model("clip").save_pretrained(tmp_path)
    rewrite(tmp_path, "text_config_dict", vocab_size=61)
    assert hf.CLIPConfig.from_pretrained(tmp_path).text_config.hidden_size == 512
    with pytest.raises(InputError, match="_dict must be equal, got hidden_size 36 and 512"):
        fourfold.load(tmp_path)


@pytest.mark.parametrize(
    ("section", "changes", "message"),
    [
        ("vision_config", {"hidden_act": "gelu"}, "vision_config.hidden_act=gelu must be equal"),
        ("text_config", {"layer_norm_eps": 1e-6}, "text_config.layer_norm_eps=1e-06,"),
        ("text_config", {"hidden_act": "mish"}, "must be equal"),
        (
            "vision_config",
            {"model_type": "resnet"},
            "vision_config.model_type must be clip_vision_model, got resnet",
        ),
        ("vision_config", {"num_attention_heads": 5}, "n_heads"),
    ],
)
def test_incompatible_towers_are_rejected(
    section: str, changes: dict[str, Any], message: str, tmp_path: Path
) -> None:
    make_model("clip").save_pretrained(tmp_path)
    rewrite(tmp_path, section, **changes)
    with pytest.raises(InputError, match=message):
        fourfold.load(tmp_path)


def test_export_updates_only_changed_keys(tmp_path: Path) -> None:
    make_model("clip").save_pretrained(tmp_path / "theirs")
    rewrite(tmp_path / "theirs", "vision_config", initializer_range=0.5)
    model = fourfold.load(tmp_path / "theirs")
    before = json_files.read_json(tmp_path / "theirs" / "config.json")
    model.config = replace(model.config, attn_dropout=0.25)
    fourfold.save(model, tmp_path / "again")
    after = json_files.read_json(tmp_path / "again" / "config.json")
    for section in ("text_config", "vision_config"):
        before[section]["attention_dropout"] = 0.25
    assert after == before
