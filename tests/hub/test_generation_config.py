"""Tests of the precedence of generation defaults."""

import json
from pathlib import Path
from typing import Any

import pytest

from fourfold.errors import InputError
from fourfold.hub.generation_config import read_generation_defaults
from fourfold.tokenization.training import TokenizerConfig, train_tokenizer


def write(folder: Path, config: dict[str, Any], generation: dict[str, Any] | None = None) -> Path:
    (folder / "config.json").write_text(json.dumps(config))
    if generation is not None:
        (folder / "generation_config.json").write_text(json.dumps(generation))
    return folder


def test_generation_config_has_precedence_over_config(tmp_path: Path) -> None:
    config = {"eos_token_id": 5, "pad_token_id": 6, "num_beams": 2}
    generation = {"eos_token_id": [1, 7], "num_beams": 4, "length_penalty": 1, "max_length": 512}
    assert read_generation_defaults(write(tmp_path, config, generation)) == {
        "eos_id": 1,
        "pad_id": 6,
        "num_beams": 4,
        "length_penalty": 1.0,
        "max_length": 512,
    }


def test_tokenizer_provides_missing_token_ids(tmp_path: Path) -> None:
    tokenizer = train_tokenizer(TokenizerConfig("char"), ["a text"], mask=False)
    defaults = read_generation_defaults(write(tmp_path, {"eos_token_id": 9}), tokenizer)
    assert defaults == {"bos_id": tokenizer.bos_id, "eos_id": 9, "pad_id": tokenizer.pad_id}


@pytest.mark.parametrize("do_sample", [True, False])
def test_sampling_settings_require_do_sample(do_sample: bool, tmp_path: Path) -> None:
    settings = {"temperature": 0.7, "top_k": 50, "do_sample": do_sample}
    defaults = read_generation_defaults(write(tmp_path, {}, settings))
    assert defaults == ({"temperature": 0.7, "top_k": 50} if do_sample else {})


def test_token_ids_of_the_text_section_are_read(tmp_path: Path) -> None:
    config = {"text_config": {"eos_token_id": 3}, "vision_config": {}}
    assert read_generation_defaults(write(tmp_path, config)) == {"eos_id": 3}


def test_value_of_a_wrong_type_is_rejected(tmp_path: Path) -> None:
    write(tmp_path, {"eos_token_id": "</s>"})
    with pytest.raises(InputError, match=r"config\.json: eos_token_id must be a number"):
        read_generation_defaults(tmp_path)
