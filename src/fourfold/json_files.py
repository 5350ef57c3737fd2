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

_TOKEN_ID = int | list[int]
_TOKENS = ("bos", "eos", "pad", "unk", "sep", "cls", "mask", "decoder_start", "forced_bos")
_GENERATION = {
    **{f"{name}_token_id": _TOKEN_ID for name in _TOKENS},
    "num_beams": int,
    "length_penalty": float,
}
_IMAGES = {
    **dict.fromkeys(("size", "crop_size"), int | dict),
    **dict.fromkeys(("image_mean", "image_std"), list[float]),
    **dict.fromkeys(("do_resize", "do_center_crop", "do_rescale", "do_normalize"), bool),
    **dict.fromkeys(("image_processor_type", "feature_extractor_type"), str),
    "image_processor": dict,
    "resample": int,
    "rescale_factor": float,
}
_SECTIONS = (
    *("text_config", "vision_config", "text_config_dict", "vision_config_dict", "decoder"),
    *("rope_parameters", "rope_scaling", "full_attention", "sliding_attention"),
    *("model_args", "pretrained_cfg", "model"),
)
# Types by the name of a file, then by key. A key may also be absent or null. Keys without an entry
# are either not read, or become fields of a config, which checks their types itself.
TYPES: dict[str, dict[str, Any]] = {
    "config.json": {
        **_GENERATION,
        **dict.fromkeys((*_SECTIONS, "id2label"), dict),
        **dict.fromkeys(("architectures", "layer_types", "label_names"), list[str]),
        **dict.fromkeys(("model_type", "architecture", "problem_type", "feed_forward_proj"), str),
        **dict.fromkeys(("hidden_act", "hidden_activation", "activation_function", "afn"), str),
        **dict.fromkeys(("hidden_size", "num_hidden_layers", "num_labels", "num_classes"), int),
        **dict.fromkeys(("max_position_embeddings", "n_embd", "n_inner", "n_layer"), int),
        **dict.fromkeys(("sliding_window", "sliding_window_pattern", "max_window_layers"), int),
        **dict.fromkeys(("global_attn_every_n_layers", "local_attention"), int),
        **dict.fromkeys(("query_pre_attn_scalar", "mlp_ratio", "classifier_dropout"), float),
        **dict.fromkeys(("factor", "mscale", "mscale_all_dim", "rope_theta"), float),
        **dict.fromkeys(("mean", "std"), list[float]),
        **dict.fromkeys(("input_size",), list[int]),
        **dict.fromkeys(("no_embed_class", "class_token", "qkv_bias"), bool),
        "crop_pct": float,
        "img_size": int | list[int],
        "patch_size": int | list[int],
    },
    "generation_config.json": _GENERATION,
    "preprocessor_config.json": _IMAGES,
    "processor_config.json": _IMAGES,
    "tokenizer_config.json": {
        **{f"{name}_token": str | dict for name in _TOKENS},
        **dict.fromkeys(("do_lower_case", "strip_accents", "tokenize_chinese_chars"), bool),
        "chat_template": str | list[dict],
    },
    "model.safetensors.index.json": {"weight_map": dict[str, str]},
    "fourfold.json": {**dict.fromkeys(("model", "artifacts", "generation"), dict), "version": int},
}


def read_json(path: Path, *, optional: bool = False) -> dict[str, Any]:
    """Read a JSON file whose content is an object, and return the object as a dict.

    Args:
        path: The file. Its name is the key in `TYPES` of the types of its values.
        optional: Return an empty dict if there is nothing at this path.

    Raises:
        InputError: The file is missing or unreadable, is not a JSON object, or has a value of a
            wrong type.
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
        if key in (*_SECTIONS, "image_processor") and isinstance(value, dict):
            check_values(value, types, f"{prefix}{key}.")
