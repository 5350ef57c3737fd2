"""Generation defaults and special token ids of a transformers directory."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fourfold.errors import InputError
from fourfold.hub.architecture import get_key
from fourfold.hub.directory import CONFIG_FILE, read_config, read_json
from fourfold.tokenization.tokenizer import Tokenizer

GENERATION_CONFIG_FILE = "generation_config.json"
# Names in the result and keys in generation_config.json and config.json.
_TOKEN_KEYS = {
    "bos_id": "bos_token_id",
    "eos_id": "eos_token_id",
    "pad_id": "pad_token_id",
    "decoder_start_token_id": "decoder_start_token_id",
}
_SETTINGS: dict[str, type] = {
    "num_beams": int,
    "length_penalty": float,
    "max_length": int,
    "max_new_tokens": int,
    "temperature": float,
    "top_k": int,
    "top_p": float,
}
# Classes whose token ids are part of a section of config.json.
_TEXT_SECTIONS = ("text_config", "decoder")


def read_generation_defaults(
    path: Path, tokenizer: Tokenizer | None = None
) -> dict[str, int | float]:
    """Read the special token ids and generation settings of a transformers directory.

    generation_config.json has precedence over config.json, and config.json over the tokenizer.
    Sampling settings (temperature, top_k, top_p) are returned only if `do_sample` is true, since
    transformers ignores them otherwise. If there are several end-of-text tokens, the first one is
    returned.

    Args:
        path: Directory with a config.json.
        tokenizer: Tokenizer of the directory, for special tokens that no file names.

    Returns:
        The values that are known, by the names `bos_id`, `eos_id`, `pad_id`,
        `decoder_start_token_id`, `num_beams`, `length_penalty`, `max_length`, `max_new_tokens`,
        `temperature`, `top_k` and `top_p`. Unknown ones are absent.

    Raises:
        InputError: A file is not valid JSON, or a value has a wrong type.
    """
    generation_file = path / GENERATION_CONFIG_FILE
    files: list[tuple[Path, Mapping[str, Any]]] = []
    if generation_file.is_file():
        files.append((generation_file, read_json(generation_file)))
    files.append((path / CONFIG_FILE, read_config(path)))

    defaults: dict[str, int | float] = {}
    for name, key in _TOKEN_KEYS.items():
        keys = (key, *(f"{section}.{key}" for section in _TEXT_SECTIONS))
        value = _first_value(files, keys, int)
        if value is None and tokenizer is not None:
            value = getattr(tokenizer, name, None)
        if value is not None:
            defaults[name] = value
    do_sample = any(content.get("do_sample") is True for _, content in files[:1])
    for name, kind in _SETTINGS.items():
        is_sampling = name in ("temperature", "top_k", "top_p")
        value = None if is_sampling and not do_sample else _first_value(files, (name,), kind)
        if value is not None:
            defaults[name] = value
    return defaults


def _first_value(
    files: list[tuple[Path, Mapping[str, Any]]], keys: tuple[str, ...], kind: type
) -> Any:
    """Return the first value that is not None, converted to `kind`."""
    for file, content in files:
        for key in keys:
            value = get_key(content, key)
            if isinstance(value, list) and value:
                value = value[0]
            if value is None:
                continue
            allowed = (int, float) if kind is float else (int,)
            if isinstance(value, bool) or not isinstance(value, allowed):
                raise InputError(
                    f"must be a number, got {str(value)[:80]!r}", option=key, file=file
                )
            return kind(value)
    return None
