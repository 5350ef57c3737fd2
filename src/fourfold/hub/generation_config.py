"""Special token ids and options of beam search that a transformers directory contains."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fourfold.errors import InputError
from fourfold.generation.defaults import GenerationDefaults
from fourfold.hub.architecture import get_key
from fourfold.hub.directory import CONFIG_FILE, read_json

GENERATION_CONFIG_FILE = "generation_config.json"
# Sections of config.json that may contain the key of a token id.
_SECTIONS = ("", "text_config.", "decoder.")


def read_generation_defaults(path: Path) -> GenerationDefaults:
    """Read the special token ids and the options of beam search of a transformers directory.

    generation_config.json has precedence over config.json. If there are several end-of-text tokens,
    the first token is returned.

    Args:
        path: Directory with a config.json.

    Returns:
        The values that one of the files contains; the other fields are None.

    Raises:
        InputError: A file is not valid JSON, or a value has a wrong type.
    """
    files = [path / GENERATION_CONFIG_FILE, path / CONFIG_FILE]
    contents = {file: read_json(file) for file in files if file.is_file()}
    start = _first_number(contents, "decoder_start_token_id")
    alpha = _first_number(contents, "length_penalty")
    return GenerationDefaults(
        bos_id=_first_number(contents, "bos_token_id") if start is None else start,
        eos_id=_first_number(contents, "eos_token_id"),
        pad_id=_first_number(contents, "pad_token_id"),
        num_beams=_first_number(contents, "num_beams"),
        length_penalty=None if alpha is None else float(alpha),
        # transformers divides the score of a hypothesis of n tokens by n ** length_penalty.
        length_penalty_type=None if alpha is None else "power",
    )


def _first_number(contents: Mapping[Path, Mapping[str, Any]], key: str) -> Any:
    """Return the value of a key in the first file that has a value, or None.

    Raises:
        InputError: The value is not an integer, or for a length penalty not a number.
    """
    allowed = (int, float) if key == "length_penalty" else (int,)
    for file, content in contents.items():
        for section in _SECTIONS:
            value = get_key(content, section + key)
            value = value[0] if isinstance(value, list) and value else value
            if value is not None and type(value) not in allowed:
                message = f"must be a number, got {str(value)[:80]!r}"
                raise InputError(message, option=section + key, file=file)
            if value is not None:
                return value
    return None
