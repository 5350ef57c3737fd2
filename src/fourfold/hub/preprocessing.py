"""Tokenizer, class names, image transform and generation defaults of a transformers directory.

Generation defaults are special token ids and options of beam search.
"""

import math
import os
import re
import warnings
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from tokenizers.processors import Sequence as ProcessorSequence
from tokenizers.processors import TemplateProcessing

from fourfold.core.validation import ImageSize, canonical_size, height_width
from fourfold.errors import InputError, reading
from fourfold.families import lookup
from fourfold.hub.architecture import Json, check_allowed, get_key, square
from fourfold.hub.directory import CONFIG_FILE, write_json
from fourfold.json_files import read_json
from fourfold.layers.base_model import Model
from fourfold.layers.generation_defaults import SAMPLING, DecodingOptions, GenerationDefaults
from fourfold.text_files import parse_json, read_text
from fourfold.tokenization.pretrained import TOKENIZER_CONFIG_FILE, TOKENIZER_FILE
from fourfold.tokenization.tokenizer import ROLES, Tokenizer

PREPROCESSOR_FILE = "preprocessor_config.json"
# Options of decoding that have one name, and that no task stores, so that an export may write them.
_EXPORTED = ("num_beams", "max_new_tokens", *SAMPLING, *DecodingOptions.__annotations__)
# Numbers of Pillow's resampling filters, which preprocessor_config.json contains.
_PIL_RESAMPLE = {2: "bilinear", 3: "bicubic"}
_IMAGE_DEFAULTS: dict[str, Any] = {
    "do_rescale": True,
    "rescale_factor": 1 / 255,
    "do_normalize": True,
    "image_mean": [0.5],
    "image_std": [0.5],
    "resample": 2,
}
MULTI_LABEL = "multi_label_classification"  # value of `problem_type` in config.json
_MODULES_FILE = "modules.json"  # of sentence-transformers
_SENTENCE_FILE = re.compile(r"modules\.json|\d+_\w+/config\.json|\w*sentence_\w+\.json")
_SENTENCE_MODULE = re.compile(r"sentence_transformers\.(.*\.)?(Transformer|Pooling|Normalize)")
_ALLOWED = {
    "do_resize": (True,),
    "do_rescale": (True, None),
    "rescale_factor": (1 / 255,),
    "resample": tuple(_PIL_RESAMPLE),
}


def default_class_names(n_classes: int) -> list[str]:
    """Return the names that transformers gives to unnamed classes: "LABEL_0", "LABEL_1", ..."""
    return [f"LABEL_{i}" for i in range(n_classes)]


def label_mappings(names: Sequence[str]) -> dict[str, Any]:
    """Return `id2label` and `label2id` of config.json for classes with these names."""
    return {
        "id2label": {str(i): name for i, name in enumerate(names)},
        "label2id": {name: i for i, name in enumerate(names)},
    }


def label_entries(config: Any) -> dict[str, Any]:
    """Return `id2label` and `label2id` of config.json for classes without names."""
    return label_mappings(default_class_names(config.n_classes))


def infer_n_classes(names: Collection[str], config: Json) -> dict[str, Any]:
    """Infer the config field `n_classes` from config.json: the number of labels, by default 2.

    `names` is ignored.
    """
    return {"n_classes": len(class_names(config)) or config.get("num_labels", 2)}


def class_names(config: Json) -> list[str]:
    """Return the class names of config.json in the order of their ids; empty if it has none."""
    names = config.get("id2label") or {}
    return [str(names[key]) for key in sorted(names, key=int)]


def read_class_artifacts(model: Any, tokenizer: str | None) -> dict[str, Any]:
    """Return values that inference needs and that a transformers directory has no file for.

    Args:
        model: Model that was imported from a transformers directory.
        tokenizer: Tokenizer as JSON; None if none is stored.

    Returns:
        `class_names` of a classifier, `multi_label` if a sample has several labels, `max_len`
        (number of tokens) of a text classifier, and `n_separators` (end tokens between two texts)
        of an encoder of sentence pairs.
    """
    artifacts: dict[str, Any] = {}
    n_classes = getattr(model.config, "n_classes", None)
    if n_classes:
        names = class_names(model.source.config)
        if not hasattr(model.config, "image_size"):
            artifacts["max_len"] = model.config.max_len
            names = names or default_class_names(n_classes)
        has_names = len(names) == n_classes > 1  # one class is a regression
        artifacts["class_names"] = names if has_names else []
        if model.source.config.get("problem_type") == MULTI_LABEL:
            artifacts["multi_label"] = True
    if tokenizer and model.reads_pairs:
        artifacts["n_separators"] = count_separators(tokenizer)
    return artifacts


def parse_generation_defaults(contents: Sequence[Json]) -> GenerationDefaults:
    """Return special token ids and options of decoding of a model in the format of transformers.

    Of several end-of-text tokens, the first is `eos_id`, and the others are `stop_ids`. Values that
    no file contains are None.

    Args:
        contents: Contents of generation_config.json and config.json, in order of precedence.
    """
    keys = ("decoder_start", "bos", "eos", "pad")
    start, bos, ends, pad = (_find(contents, f"{key}_token_id") for key in keys)
    # As in transformers, options in config.json count only without a generation_config.json.
    files = contents[:1] if contents[0] else contents
    alpha = _find(files, "length_penalty")
    samples = next(iter(_find(files, "do_sample")), False)
    options = {name: next(iter(_find(files, name)), None) for name in _EXPORTED}
    top_k = 50 if options["top_k"] is None else options["top_k"]  # transformers' default
    options["top_k"] = top_k or None  # 0: no limit
    if not samples:
        options |= dict.fromkeys(SAMPLING)
    elif options["temperature"] is None:
        options["temperature"] = 1.0
    return GenerationDefaults(
        bos_id=next(iter(start or bos), None),
        eos_id=next(iter(ends), None),
        pad_id=next(iter(pad), None),
        length_penalty=float(alpha[0]) if alpha else None,
        # transformers divides the score of a hypothesis of n tokens by n ** length_penalty.
        length_penalty_type="power" if alpha else None,
        stop_ids=ends[1:] or None,
        **options,
    )


def generation_entries(defaults: GenerationDefaults, known: GenerationDefaults) -> dict[str, Any]:
    """Return entries of generation_config.json for the options that differ from the known ones."""
    pairs = ((name, getattr(defaults, name)) for name in _EXPORTED)
    changed = {name: value for name, value in pairs if value != getattr(known, name)}
    alpha, kind = defaults.length_penalty, defaults.length_penalty_type
    if kind == "power" and alpha != known.length_penalty:
        changed["length_penalty"] = alpha
    if changed:  # several sequences need samples or beams
        changed |= {"do_sample": defaults.temperature is not None, "num_beams": defaults.num_beams}
        if defaults.temperature is not None:
            changed["top_k"] = defaults.top_k or 0  # without it, transformers takes 50
    return changed


def _find(contents: Sequence[Json], key: str) -> list[Any]:
    """Return the value of a key as a list, from the first object that has it; empty if none has.

    The key is also searched in the sections `text_config` and `decoder`.
    """
    for content in contents:
        for section in ("", "text_config.", "decoder."):
            value = get_key(content, section + key)
            if value is not None:
                return value if isinstance(value, list) else [value]
    return []


def write_tokenizer(path: Path, model: Any) -> dict[str, int]:
    """Write tokenizer.json and tokenizer_config.json for `AutoTokenizer` of transformers.

    The class of the model determines the special tokens that `AutoTokenizer` adds to a text, and
    its artifacts the number of separators of a pair and the chat template. `path` is a directory.

    Returns:
        Special token ids for config.json by key, such as pad_token_id.
    """
    tokenizer = Tokenizer.from_str(model.tokenizer.to_str())
    artifacts = getattr(model, "artifacts", {})
    ids: dict[str, Any] = {role: getattr(tokenizer, f"{role}_id") for role in ROLES}
    _add_template(tokenizer, model, artifacts.get("n_separators", 1))
    config: dict[str, Any] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "clean_up_tokenization_spaces": False,
    }
    for role, token_id in ids.items():
        if token_id is not None:
            config[f"{role}_token"] = tokenizer.backend.id_to_token(token_id)
    if model.config.max_len is not None:
        config["model_max_length"] = model.config.max_len
    if getattr(model.config, "n_segments", 0) > 1:
        config["model_input_names"] = ["input_ids", "token_type_ids", "attention_mask"]
    if "chat_template" in artifacts:
        config |= artifacts["chat_template"]
        config["chat_template"] = config.pop("template")
    (path / TOKENIZER_FILE).write_text(tokenizer.to_str(), encoding="utf-8")
    write_json(path / TOKENIZER_CONFIG_FILE, config)
    if hasattr(model, "decode"):  # an encoder-decoder
        ids["decoder_start"] = getattr(model.config, "decoder_start_token_id", None)
        ids["decoder_start"] = ids["bos"] if ids["decoder_start"] is None else ids["decoder_start"]
    roles = ("pad", "bos", "eos", "decoder_start")
    return {f"{role}_token_id": ids[role] for role in roles if role in ids}


def _add_template(tokenizer: Tokenizer, model: Model, n_separators: int) -> None:
    """Make a tokenizer add the special tokens that the class of a model requires, in place.

    A tokenizer that adds special tokens already is left unchanged.
    """
    backend = tokenizer.backend
    single, pair = lookup("token_templates", model)
    plain = backend.encode("a", add_special_tokens=False).ids
    if single == "$A" or plain != backend.encode("a", add_special_tokens=True).ids:
        return
    bos, eos = (str(backend.id_to_token(i)) for i in (tokenizer.bos_id, tokenizer.eos_id))
    tokens = {"bos": bos, "eos": eos, "between": f"{eos}:0 " if n_separators == 2 else ""}
    template = TemplateProcessing(
        single=single.format(**tokens),
        pair=pair and pair.format(**tokens),
        special_tokens=[(bos, tokenizer.bos_id), (eos, tokenizer.eos_id)],
    )
    # A ByteLevel post-processor adds no tokens, but corrects offsets, so it is kept.
    existing = backend.post_processor
    backend.post_processor = ProcessorSequence([existing, template]) if existing else template


def count_separators(text: str) -> int:
    """Return the number of end tokens that a tokenizer (JSON) puts between two texts of a pair.

    The number is 2 for RoBERTa, otherwise 1.
    """
    tokenizer = Tokenizer.from_str(text)
    if tokenizer.backend.post_processor is None:
        return 1
    return 2 if tokenizer.backend.encode("a", "b").ids.count(tokenizer.eos_id) == 3 else 1


def read_sentence_files(path: Path) -> dict[str, Any]:
    """Return the JSON files of sentence-transformers in a directory, by name.

    They describe the pooling, the normalization and the maximum length of a sentence encoder. The
    result is empty if the directory has no modules.json, or, with a warning, modules with weights.
    """
    file = path / _MODULES_FILE
    if not os.path.lexists(file):
        return {}
    modules = parse_json(read_text(str(file)), str(file))
    with reading(file):
        if other := _unknown_modules(modules):
            message = f"pooling and length are not kept, since modules are unknown: {other[0]}"
            warnings.warn(f"{file}: {message[:160]}", stacklevel=1)
            return {}
        names = [f"{x['path']}/{CONFIG_FILE}" for x in modules if x["path"]]
    names += sorted(found.name for found in path.glob("*sentence_*.json"))
    files = {x: read_json(path / x, optional=True) for x in names if _SENTENCE_FILE.fullmatch(x)}
    length = read_json(path / TOKENIZER_CONFIG_FILE, optional=True).get("model_max_length")
    settings = {"max_seq_length": length, **files.get("sentence_bert_config.json", {})}
    return {_MODULES_FILE: modules, **files, "sentence_bert_config.json": settings}


def _unknown_modules(modules: Sequence[Mapping[str, str]]) -> list[str]:
    return [x["type"] for x in modules if not _SENTENCE_MODULE.fullmatch(x["type"])]


def write_sentence_files(path: Path, files: Mapping[str, Any]) -> None:
    """Write the result of `read_sentence_files` to a directory.

    Raises:
        InputError: A name is none of sentence-transformers, or a module is unknown.
    """
    with reading(path):  # a file could be anywhere, and a module any class that is then imported
        wrong = [name for name in files if not _SENTENCE_FILE.fullmatch(name)]
        wrong += _unknown_modules(files.get(_MODULES_FILE, []))
    if wrong:
        message = f"must be a file or module of sentence-transformers, got {wrong[0][:80]!r}"
        raise InputError(message, file=path)
    for name, content in files.items():
        (path / name).parent.mkdir(exist_ok=True)
        write_json(path / name, content)


def read_image_preprocessing(path: Path, config: Any) -> dict[str, Any]:
    """Read the settings of the evaluation transform of images, such as `crop_pct`, as a dict.

    The size of the input is that of the model. The file determines which part of an image the input
    shows: DINOv2, with an input of 518 pixels, is published with a crop of 224 of 256 pixels.

    Args:
        path: Directory with a preprocessor_config.json or processor_config.json; without these
            files the defaults of transformers apply.
        config: Config of the model, with the fields `image_size` and `n_channels`.

    Raises:
        InputError: A setting is not supported.
    """
    file = path / PREPROCESSOR_FILE
    if not os.path.lexists(file):  # newer directories: a section of another file
        file = path / "processor_config.json"
    settings = read_json(file, optional=True)
    with reading(file):
        return _read_transform(settings, config.image_size, config.n_channels)


def _read_transform(settings: Any, image_size: ImageSize, n_channels: int) -> dict[str, Any]:
    """Convert the content of a preprocessor_config.json to settings of the evaluation transform."""
    settings = settings.get("image_processor") or settings
    settings = _IMAGE_DEFAULTS | {k: v for k, v in settings.items() if v is not None}
    check_allowed(settings, _ALLOWED)
    resized = _read_size(settings, "size", _read_size(settings, "crop_size", image_size))
    if not isinstance(resized, int) and resized != image_size:
        message = f"must be a square or the size of the model, {image_size}, got {resized}"
        raise InputError(message, option="size")
    smaller = tuple(map(min, height_width(image_size), height_width(resized)))
    cropped = _read_size(settings, "crop_size", canonical_size(smaller))
    crop_pct = 1.0
    if settings.get("do_center_crop") and cropped != resized:
        if not isinstance(cropped, int) or not isinstance(resized, int):
            message = f"must equal size, {resized}, unless both are squares, got {cropped}"
            raise InputError(message, option="crop_size")
        crop_pct = cropped / resized
    if crop_pct > 1:
        raise InputError(f"must be at most size, {resized}, got {cropped}", option="crop_size")
    size = settings.get("size")
    squash = isinstance(size, Mapping) and "shortest_edge" not in size
    if isinstance(size, int):  # CLIP's image processor resizes the shorter side, all others both
        name = settings.get("image_processor_type", settings.get("feature_extractor_type", ""))
        squash = not str(name).startswith("CLIP")
    if size is not None and not squash:
        square(image_size)
    if settings["do_normalize"] is False:
        settings |= {"image_mean": [0.0], "image_std": [1.0]}
    return {
        "image_size": image_size,
        "n_channels": n_channels,
        "mean": _read_channels(settings, "image_mean", n_channels),
        "std": _read_channels(settings, "image_std", n_channels),
        "crop_pct": crop_pct,
        "crop_mode": "squash" if squash else "center",
        "interpolation": _PIL_RESAMPLE[settings["resample"]],
    }


def _read_size(settings: Json, key: str, default: ImageSize) -> ImageSize:
    """Read the size in pixels of an image or crop; absent means `default`.

    The value is a number or an object: {"height": 224, "width": 224} or {"shortest_edge": 224}.
    """
    value: Any = settings.get(key, default)
    if isinstance(value, Mapping):
        sides = ("height", "width") if "shortest_edge" not in value else ("shortest_edge",) * 2
        value = [value.get(side) for side in sides]
    return canonical_size(height_width(value, key))


def _read_channels(settings: Json, key: str, n_channels: int) -> list[float]:
    """Read a list with one number for each channel; one number is used for all channels."""
    values = settings[key]
    if len(values) not in (1, n_channels) or not all(map(math.isfinite, values)):
        raise InputError(f"must be {n_channels} numbers, got {str(values)[:80]}", option=key)
    return [float(x) for x in values] * (n_channels // len(values))


def write_image_preprocessing(path: Path, artifacts: Mapping[str, Any], is_clip: bool) -> None:
    """Write the settings of the evaluation transform of images to preprocessor_config.json.

    Args:
        path: Directory, which must exist.
        artifacts: Settings as `read_image_preprocessing` returns them; others are ignored.
        is_clip: True to name CLIP's image processor, which always keeps the aspect ratio. False to
            name the image processor of ViT or DeiT.
    """
    image_size = artifacts["image_size"]
    crop_pct = artifacts["crop_pct"]
    squash = artifacts["crop_mode"] == "squash"
    if crop_pct < 1 or not squash:
        square(image_size)
    # The small constant undoes the rounding of ratios such as 224 / 400.
    height, width = (math.floor(x / crop_pct + 1e-6) for x in height_width(image_size))
    processor = "DeiTImageProcessor" if crop_pct < 1 else "ViTImageProcessor"
    settings = {
        "image_processor_type": "CLIPImageProcessor" if is_clip else processor,
        "do_resize": True,
        **_IMAGE_DEFAULTS,
        "image_mean": artifacts["mean"],
        "image_std": artifacts["std"],
        "resample": 2 if artifacts["interpolation"] == _PIL_RESAMPLE[2] else 3,
        "size": {"height": height, "width": width} if squash else {"shortest_edge": height},
    }
    if is_clip:
        settings["do_convert_rgb"] = artifacts["n_channels"] == 3
    if crop_pct < 1 or not squash:  # with a fixed aspect ratio, the longer side must be cropped
        settings["do_center_crop"] = True
        settings["crop_size"] = {"height": image_size, "width": image_size}
    write_json(path / PREPROCESSOR_FILE, settings)
