"""What stands beside the weights: the tokenizer of a text model, the preprocessing of images."""

import json
from collections.abc import Mapping
from math import isclose, isfinite
from pathlib import Path
from typing import Any

from tokenizers.processors import Sequence as Processors
from tokenizers.processors import TemplateProcessing
from torch import nn

from fourfold.core.errors import InputError
from fourfold.data.tokenizer import Tokenizer
from fourfold.data.tokenizer_files import make_tokenizer
from fourfold.data.tokenizer_training import TokenizerConfig
from fourfold.data.transforms import scaled_side
from fourfold.hub.directory import read_json
from fourfold.hub.labels import labels
from fourfold.models import CLIP, CausalLM, MaskedLM
from fourfold.models.encoder_decoder import Seq2Seq

TOKENIZER = "tokenizer.json"
TOKENIZER_CONFIG = "tokenizer_config.json"
IMAGES = "preprocessor_config.json"
PROCESSOR = "processor_config.json"  # where newer files have that in a section
# Pillow's numbers for ways to resize, which config files use.
_RESAMPLE = {2: "bilinear", 3: "bicubic"}
# What a sentence gets around it, and a pair where the family reads pairs.
_PAIR = "{bos}:0 $A:0 {eos}:0 {between}$B:1 {eos}:1"
_AROUND: dict[type[nn.Module], tuple[str, str | None]] = {
    MaskedLM: ("{bos} $A {eos}", _PAIR),
    Seq2Seq: ("$A {eos}", None),
    CausalLM: ("$A", None),
    CLIP: ("{bos} $A {eos}", None),
}


def tokenizer_files(path: Path) -> TokenizerConfig | None:
    """The files of a directory's tokenizer, None if there are none.

    Raises:
        InputError: tokenizer_config.json is broken.
    """
    if (path / TOKENIZER).is_file():
        return TokenizerConfig(file=str(path / TOKENIZER))
    if (path / "vocab.txt").is_file():
        there = (path / TOKENIZER_CONFIG).is_file()
        said = read_json(path / TOKENIZER_CONFIG) if there else {}
        lower = bool(said.get("do_lower_case", True))
        return TokenizerConfig(file=str(path / "vocab.txt"), lowercase=lower)
    if (path / "vocab.json").is_file() and (path / "merges.txt").is_file():
        return TokenizerConfig(file=str(path / "vocab.json"), merges=str(path / "merges.txt"))
    return None


def read_tokenizer(path: Path) -> str | None:
    """The tokenizer of a directory as JSON, None if there is none.

    Raises:
        InputError: Its files are broken, or no role of its special tokens can be told.
    """
    config = tokenizer_files(path)
    return None if config is None else make_tokenizer(config, [], mask=False).to_str()


def write_tokenizer(
    path: Path, text: str, model: nn.Module, max_len: int | None, separators: int = 1
) -> dict[str, int]:
    """Write the files that `AutoTokenizer` reads; returns what config.json says of the tokens."""
    tokenizer = Tokenizer.from_str(text)
    core, ids = tokenizer.core, {}
    names = {}
    for role in ("pad", "bos", "eos", "unk", "mask"):
        number = getattr(tokenizer, f"{role}_id")
        if number is not None:
            ids[role], names[f"{role}_token"] = number, core.id_to_token(number)
    single, pair = next(found for kind, found in _AROUND.items() if isinstance(model, kind))
    bare, around = (core.encode("a", add_special_tokens=special).ids for special in (False, True))
    if bare == around and single != "$A":  # one of bytes may be there, which only moves offsets
        called = {"bos": names["bos_token"], "eos": names["eos_token"]}
        called["between"] = f"{called['eos']}:0 " if separators == 2 else ""
        ours = TemplateProcessing(
            single=single.format(**called),
            pair=pair and pair.format(**called),
            special_tokens=[(names[f"{role}_token"], ids[role]) for role in ("bos", "eos")],
        )
        there = core.post_processor
        core.post_processor = ours if there is None else Processors([there, ours])
    said: dict[str, Any] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        **({} if max_len is None else {"model_max_length": max_len}),
        "clean_up_tokenization_spaces": False,
        **names,
    }
    if getattr(model.config, "n_segments", 0) > 1:
        said["model_input_names"] = ["input_ids", "token_type_ids", "attention_mask"]
    (path / TOKENIZER).write_text(core.to_str(), encoding="utf-8")
    (path / TOKENIZER_CONFIG).write_text(json.dumps(said, indent=2) + "\n", encoding="utf-8")
    # With which token a decoder begins.
    given = getattr(model.config, "start_id", None)
    start = ids["bos"] if given is None else given
    begins = {"decoder_start_token_id": start} if isinstance(model, Seq2Seq) else {}
    return begins | {f"{role}_token_id": ids[role] for role in ("pad", "bos", "eos")}


def read_images(path: Path, config: Mapping[str, Any], side: int, channels: int) -> dict[str, Any]:
    """What `eval_transform` and a classifier's output need, from what the directory says.

    Raises:
        InputError: The images are resized in a way that we do not have.
    """
    file = path / (IMAGES if (path / IMAGES).is_file() else PROCESSOR)
    said = read_json(file) if file.is_file() else {}
    said = said.get("image_processor", said)
    if not isinstance(said, Mapping):
        raise InputError(f"{file}: image_processor is no section")
    resample = said.get("resample", 2)
    if resample not in tuple(_RESAMPLE):
        raise InputError(f"{file}: resample is {str(resample)[:80]}, but must be 2 or 3")
    _refuse_other_scale(said, file)
    scaled, cut = (_pixels(said, key, side, file) for key in ("size", "crop_size"))
    share = cut / scaled if said.get("do_center_crop") else 1.0
    if share > 1:
        raise InputError(
            f"{file}: crop_size is {cut}, but the size that it is cut from is {scaled}"
        )
    is_plain = said.get("do_normalize") is False
    return {
        "class_names": class_names(config),
        "image_size": side,
        "n_channels": channels,
        "mean": [0.0] * channels if is_plain else _of_channels(said, "image_mean", channels, file),
        "std": [1.0] * channels if is_plain else _of_channels(said, "image_std", channels, file),
        "eval_crop": share,
        "squash": _squashes(said),
        "interpolation": _RESAMPLE[resample],
    }


def _squashes(said: Mapping[str, Any]) -> bool:
    """Whether both sides are scaled to the same; what says one number leaves it to its class."""
    size = said.get("size")
    if isinstance(size, Mapping):
        return "shortest_edge" not in size
    kind = said.get("image_processor_type", said.get("feature_extractor_type", ""))
    return size is not None and not str(kind).startswith("CLIP")


def _refuse_other_scale(said: Mapping[str, Any], file: Path) -> None:
    """Pixels are 0 to 1 here before a mean is taken from them."""
    factor = said.get("rescale_factor", 1 / 255)
    usual = type(factor) in (int, float) and isclose(factor, 1 / 255)
    if said.get("do_rescale") is False or not usual:
        shown = "do_rescale is false" if usual else f"rescale_factor is {str(factor)[:80]}"
        raise InputError(f"{file}: {shown}, but pixels must be scaled by 1/255")


def _pixels(said: Mapping[str, Any], key: str, default: int, file: Path) -> int:
    """A side, which may be said alone or by what is resized to it."""
    found: Any = said.get(key, default)
    if isinstance(found, Mapping):
        height, width = (found.get(name, default) for name in ("height", "width"))
        if "shortest_edge" not in found and height != width:
            raise InputError(f"{file}: {key} is {height}x{width}, but must be a square")
        found = found.get("shortest_edge", height)
    if type(found) is not int or found < 1:
        raise InputError(f"{file}: {key} is {str(found)[:80]}, but must be a number of pixels")
    return found


def _of_channels(said: Mapping[str, Any], key: str, channels: int, file: Path) -> list[float]:
    """A number for each channel."""
    found = said.get(key, [0.5] * channels)
    right = isinstance(found, list) and all(type(x) in (int, float) and isfinite(x) for x in found)
    if not right or len(found) not in (1, channels):
        raise InputError(f"{file}: {key} is {str(found)[:80]}, but must be {channels} numbers")
    return [float(x) for x in found]


def write_images(path: Path, artifacts: Mapping[str, Any], is_clip: bool) -> dict[str, Any]:
    """Write preprocessor_config.json; returns what config.json says of the classes, if any.

    Args:
        path: The directory.
        artifacts: Of the data.
        is_clip: Whether they are CLIP's, whose class keeps the shape of images of its own accord.
    """
    side, share = artifacts["image_size"], artifacts["eval_crop"]
    scaled, squash = scaled_side(side, share), artifacts.get("squash", False)
    kind = "DeiTImageProcessor" if share < 1 else "ViTImageProcessor"
    said = {
        "image_processor_type": "CLIPImageProcessor" if is_clip else kind,
        "do_resize": True,
        "do_rescale": True,
        "rescale_factor": 1 / 255,
        "do_normalize": True,
        "image_mean": artifacts["mean"],
        "image_std": artifacts["std"],
        "resample": next(n for n, w in _RESAMPLE.items() if w == artifacts["interpolation"]),
        "size": {"height": scaled, "width": scaled} if squash else {"shortest_edge": scaled},
    }
    if is_clip:
        said |= {"do_convert_rgb": artifacts["n_channels"] == 3}
    if share < 1 or not squash:  # of what is not square the longer side is cut
        said |= {"do_center_crop": True, "crop_size": {"height": side, "width": side}}
    (path / IMAGES).write_text(json.dumps(said, indent=2) + "\n", encoding="utf-8")
    if not artifacts.get("class_names"):
        return {}
    return labels(artifacts["class_names"])


def class_names(config: Mapping[str, Any]) -> list[str]:
    """Names of the classes in the order of their numbers, none if config.json has none.

    Raises:
        InputError: It says something else there.
    """
    names = config.get("id2label") or {}
    try:
        return [str(names[key]) for key in sorted(names, key=int)]
    except (TypeError, ValueError) as error:
        raise InputError("config.json: id2label does not give a name to each number") from error


def separators(text: str) -> int:
    """EOS tokens that a tokenizer (as JSON) puts between two sentences: 1, or RoBERTa's 2."""
    tokenizer = Tokenizer.from_str(text)
    if tokenizer.core.post_processor is None:
        return 1
    ids = tokenizer.core.encode("a", "b").ids
    return 2 if ids.count(tokenizer.eos_id) == 3 else 1
