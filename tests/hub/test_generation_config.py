"""Tests of the precedence of generation defaults."""

import json
from pathlib import Path
from typing import Any

import pytest

from fourfold.errors import InputError
from fourfold.generation import GenerationDefaults
from fourfold.hub.generation_config import read_generation_defaults


def write(folder: Path, config: dict[str, Any], generation: dict[str, Any] | None = None) -> Path:
    (folder / "config.json").write_text(json.dumps(config))
    if generation is not None:
        (folder / "generation_config.json").write_text(json.dumps(generation))
    return folder


def test_generation_config_has_precedence_over_config(tmp_path: Path) -> None:
    config = {"eos_token_id": 5, "pad_token_id": 6, "num_beams": 2}
    generation = {"eos_token_id": [1, 7], "num_beams": 4, "length_penalty": 1, "max_length": 512}
    found = read_generation_defaults(write(tmp_path, config, generation))
    assert found == GenerationDefaults(
        eos_id=1, pad_id=6, num_beams=4, length_penalty=1.0, length_penalty_type="power"
    )
    assert isinstance(found.length_penalty, float)


@pytest.mark.parametrize("start", [None, 3])
def test_first_token_of_the_decoder_has_precedence_over_bos(
    start: int | None, tmp_path: Path
) -> None:
    config = {"bos_token_id": 7, "decoder_start_token_id": start}
    found = read_generation_defaults(write(tmp_path, config))
    assert found == GenerationDefaults(bos_id=start or 7)


def test_token_ids_of_the_text_section_are_read(tmp_path: Path) -> None:
    config = {"text_config": {"eos_token_id": 3}, "vision_config": {}}
    assert read_generation_defaults(write(tmp_path, config)) == GenerationDefaults(eos_id=3)


def test_value_of_a_wrong_type_is_rejected(tmp_path: Path) -> None:
    write(tmp_path, {"eos_token_id": "</s>"})
    with pytest.raises(InputError, match=r"config\.json: eos_token_id must be a number"):
        read_generation_defaults(tmp_path)
