"""What of a CLIP is said in sections, said twice, said in old ways, or cannot be said."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as hf
from safetensors.torch import load_file, save_file

import fourfold
from fourfold.core.errors import InputError
from fourfold.hub import directory
from tests.hub.foreign_models import make
from tests.models.test_clip import EOS, build, images, texts


@pytest.mark.parametrize("eos_id", [EOS, None], ids=["first", "highest"])
@pytest.mark.parametrize("activation", ["quick_gelu", "gelu", "gelu_tanh"])
def test_a_model_of_ours_says_the_same_there(
    eos_id: int | None, activation: str, tmp_path: Path
) -> None:
    ours = build(eos_id=eos_id, activation=activation, norm_eps=1e-3)
    fourfold.save(ours, tmp_path / "there")
    theirs = hf.CLIPModel.from_pretrained(tmp_path / "there", dtype=torch.float64).eval()
    x, (ids, mask) = images(3), texts([5, 9])
    with torch.no_grad():
        out = theirs(input_ids=ids, attention_mask=mask.long(), pixel_values=x)
        torch.testing.assert_close(ours(x, ids, mask), out.logits_per_image, rtol=1e-9, atol=1e-9)
        tower = hf.CLIPTextModelWithProjection.from_pretrained(
            tmp_path / "there", dtype=torch.float64
        )
        text = tower.eval()(input_ids=ids).text_embeds
        torch.testing.assert_close(ours.encode_text(ids), text, rtol=1e-9, atol=1e-9)
    again = fourfold.load(tmp_path / "there")
    assert again.config == ours.config


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"eos_id": 2}, "eos_id=2"),  # there it means: the highest number
        ({"dropout": 0.1}, "dropout=0.1"),
        ({"norm_placement": "post"}, "norm_placement=post"),
        ({"d_head": 5}, "d_head=5"),
    ],
)
def test_what_transformers_does_not_have_is_said(
    changes: dict[str, Any], why: str, tmp_path: Path
) -> None:
    with pytest.raises(InputError, match=why):
        fourfold.save(build(**changes), tmp_path / "there")


def rewrite(folder: Path, section: str, **changes: Any) -> None:
    file = folder / "config.json"
    said = json.loads(file.read_text())
    said[section] = {**(said.get(section) or {}), **changes}
    file.write_text(json.dumps(said))


def test_old_checkpoints(tmp_path: Path) -> None:
    make("clip").save_pretrained(tmp_path)
    new = fourfold.load(tmp_path).state_dict()
    tensors = load_file(tmp_path / "model.safetensors")
    tensors["text_model.embeddings.position_ids"] = torch.arange(23)[None]
    tensors["vision_model.embeddings.position_ids"] = torch.arange(10)[None]
    save_file(tensors, tmp_path / "model.safetensors")
    whole = json.loads((tmp_path / "config.json").read_text())["text_config"]
    # What the second telling leaves out is the default, and here so is the activation.
    rewrite(tmp_path, "text_config_dict", **{k: v for k, v in whole.items() if k != "hidden_act"})
    old = fourfold.load(tmp_path).state_dict()
    assert all(torch.equal(new[key], old[key]) for key in new)
    rewrite(tmp_path, "text_config_dict", num_attention_heads=4)
    with pytest.raises(InputError, match="text_config_dict differ: num_attention_heads 3, 4"):
        fourfold.load(tmp_path)


def test_what_a_second_telling_leaves_out_is_the_default(tmp_path: Path) -> None:
    make("clip").save_pretrained(tmp_path)
    rewrite(tmp_path, "text_config_dict", vocab_size=61)
    assert hf.CLIPConfig.from_pretrained(tmp_path).text_config.hidden_size == 512
    with pytest.raises(InputError, match="_dict differ: hidden_size 36, 512"):
        fourfold.load(tmp_path)


@pytest.mark.parametrize(
    ("section", "changes", "why"),
    [
        ("vision_config", {"hidden_act": "gelu"}, "vision_config.hidden_act gelu differ"),
        ("text_config", {"layer_norm_eps": 1e-6}, "text_config.layer_norm_eps 1e-06 and"),
        ("text_config", {"hidden_act": "mish"}, "differ"),
        ("vision_config", {"model_type": "resnet"}, "vision_config.model_type is resnet"),
        ("vision_config", {"num_attention_heads": 5}, "d_model 24 is not divisible by n_heads 5"),
    ],
)
def test_towers_that_do_not_go_together(
    section: str, changes: dict[str, Any], why: str, tmp_path: Path
) -> None:
    make("clip").save_pretrained(tmp_path)
    rewrite(tmp_path, section, **changes)
    with pytest.raises(InputError, match=why):
        fourfold.load(tmp_path)


def test_only_what_changed_is_said_anew(tmp_path: Path) -> None:
    make("clip").save_pretrained(tmp_path / "theirs")
    rewrite(tmp_path / "theirs", "vision_config", initializer_range=0.5)
    model = fourfold.load(tmp_path / "theirs")
    before = directory.read_config(tmp_path / "theirs")
    model.config = replace(model.config, attn_dropout=0.25)
    fourfold.save(model, tmp_path / "again")
    after = directory.read_config(tmp_path / "again")
    for section in ("text_config", "vision_config"):
        before[section] |= {"attention_dropout": 0.25, "projection_dim": 20}
    assert after == before
