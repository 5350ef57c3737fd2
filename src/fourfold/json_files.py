"""JSON objects in the directories of transformers, timm and fourfold, and the types of their keys.

Of an optional file, absent means that there is nothing at its path. A link without a target, a
folder, an empty file and invalid JSON are errors, as for a file that is required.
"""

import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fourfold.core.validation import check_type
from fourfold.errors import InputError, errors_in
from fourfold.text_files import parse_json, read_text

_SECTIONS = (
    "text_config vision_config text_config_dict vision_config_dict decoder rope_parameters"
    " rope_scaling full_attention sliding_attention model_args pretrained_cfg image_processor"
)
_TOKENS = "bos eos pad unk sep cls mask decoder_start forced_bos"
_GENERATION = {
    int | list[int]: " ".join(f"{name}_token_id" for name in _TOKENS.split()),
    int: "num_beams max_new_tokens top_k num_return_sequences no_repeat_ngram_size min_length"
    " min_new_tokens",
    float: "length_penalty temperature top_p min_p repetition_penalty",
    bool: "do_sample",
}
_IMAGES = {dict: "image_processor", bool: "do_center_crop do_normalize"}
_CONFIG = {
    dict: f"{_SECTIONS} id2label",
    list[str]: "architectures label_names",
    int: "sliding_window_pattern max_window_layers global_attn_every_n_layers local_attention"
    f" {_GENERATION[int]}",
    float: "query_pre_attn_scalar factor mscale mscale_all_dim mlp_ratio crop_pct"
    f" {_GENERATION[float]}",
    list[float]: "mean std",
    bool: f"no_embed_class {_GENERATION[bool]}",
    int | list[int]: _GENERATION[int | list[int]],
}
_TOKENIZER = {
    str | dict: " ".join(f"{name}_token" for name in _TOKENS.split()),
    bool: "do_lower_case strip_accents tokenize_chinese_chars",
    str | list[dict]: "chat_template",
}
# Keys by the name of a file, then by the type of their values. A key may also be absent or null.
# Other keys are not read, become fields of a config, which checks their types itself, or are
# rejected where they are read.
_KEYS: dict[str, dict[Any, str]] = {
    "config.json": _CONFIG,
    "generation_config.json": _GENERATION,
    "preprocessor_config.json": _IMAGES,
    "processor_config.json": _IMAGES,
    "tokenizer_config.json": _TOKENIZER,
    "model.safetensors.index.json": {dict[str, str]: "weight_map"},
}
TYPES = {
    file: {key: kind for kind, keys in kinds.items() for key in keys.split()}
    for file, kinds in _KEYS.items()
}


def read_json(path: Path, *, optional: bool = False) -> dict[str, Any]:
    """Read a JSON file whose content is an object, and return the object as a dict.

    If `optional` is true, the result is empty if there is nothing at this path.

    Raises:
        InputError: The file is missing or unreadable, is not a JSON object, or has a value of
            another type than in `TYPES`.
    """
    if optional and not os.path.lexists(path):
        return {}
    content = parse_json(read_text(str(path)), str(path))
    if not isinstance(content, dict):
        raise InputError(f"must be a JSON object, got {type(content).__name__}", file=path)
    with errors_in(path):
        check_values(content, TYPES.get(path.name, {}))
    return content


def check_values(content: Mapping[str, Any], types: Mapping[str, Any], prefix: str = "") -> None:
    """Check the types of the values of a JSON object, and of the objects that are its sections.

    Args:
        content: The object.
        types: Type by key. Keys that are absent or null pass, as do keys without a type.
        prefix: Dotted name of the section that `content` is, for error messages.

    Raises:
        InputError: A value has a wrong type, or is a number that is not finite.
    """
    for key in content.keys() & types.keys():
        value = content[key]
        if value is None:
            continue
        check_type(prefix + key, value, types[key])
        if isinstance(value, float) and not math.isfinite(value):
            raise InputError(f"must be finite, got {value}", option=prefix + key)
        if key in _SECTIONS.split() and isinstance(value, dict):
            check_values(value, types, f"{prefix}{key}.")
