"""Detection of the format of a model: transformers, timm, nanoGPT or minGPT.

`read_model` imports a model of any of these formats.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor

from fourfold.errors import InputError
from fourfold.hub import directory, nanogpt, timm, transformers_format
from fourfold.hub.preprocessing import tokenizer_files
from fourfold.models import Model, ViT

_MINGPT_WEIGHTS = "model.pt"
# sentencepiece applies the longest matching normalization rule, across combining characters;
# `tokenizers` applies the shortest rule within a character. Decomposed accents would give other
# tokens.
_SENTENCEPIECE = (
    "not read, since the `tokenizers` library normalizes text differently from sentencepiece"
)


@dataclass(frozen=True)
class ImportedModel:
    """Model that was imported from the format of another library.

    Args:
        model: Model in eval mode. `model.source` is set for a model of a transformers directory.
        format_name: Name of the format for messages: timm, nanoGPT, minGPT, or the `model_type` of
            a transformers directory.
        artifacts: Class names and image preprocessing; empty for transformers, whose directories
            have separate files for preprocessing.
        notes: Sentences for the user about assumptions and about files that are not read.
    """

    model: Model
    format_name: str
    artifacts: Mapping[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


def is_importable(content: Mapping[str, Any]) -> bool:
    """Return True if the content of a weights file has the format of timm, nanoGPT or minGPT."""
    is_timm = timm.find_tensors(content) is not None
    return is_timm or nanogpt.is_nanogpt(content) or nanogpt.is_mingpt(content)


def read_model(
    path: Path, content: Mapping[str, Any] | None, *, allow_missing_heads: bool = False
) -> ImportedModel:
    """Import the model of a directory or of one file of weights, in fp32.

    Args:
        path: Directory or file.
        content: Content of the file; None for a directory.
        allow_missing_heads: Allow an image model that lacks classification heads, such as one that
            is trained with new heads.

    Raises:
        InputError: The files are corrupted, or contain a model that is not supported.
    """
    imported = _read_any_format(path, content)
    model = imported.model
    if isinstance(model, ViT) and not allow_missing_heads:
        n_heads = 1 + model.config.distillation
        if len(model.heads) < n_heads:
            raise InputError(
                f"{n_heads - len(model.heads)} of {n_heads} classification heads are missing; use"
                " init_from to train a model with new heads from these weights",
                file=path,
            )
    return imported


def _read_any_format(path: Path, content: Mapping[str, Any] | None) -> ImportedModel:
    """Import the model of a directory, or of a file of nanoGPT, minGPT or timm.

    Args:
        path: Directory or file.
        content: Content of the file; None for a directory.
    """
    if content is not None and nanogpt.is_nanogpt(content):
        return ImportedModel(nanogpt.read_nanogpt_model(content, str(path)), "nanoGPT")
    folder = path if content is None else path.parent
    has_config = content is None or directory.is_model_directory(folder)
    settings = directory.read_config(folder) if has_config else {}
    if content is None and "model_type" not in settings:
        if "architecture" in settings:
            content = directory.read_tensors(path)
        elif (path / _MINGPT_WEIGHTS).is_file():
            path = path / _MINGPT_WEIGHTS
            content = directory.read_pickle(path)
    if content is None:
        model = transformers_format.read_model(path)
        unread = [] if tokenizer_files(path) else sorted(file.name for file in path.glob("*.spm"))
        notes = [f"{' and '.join(unread)} {_SENTENCEPIECE}"] if unread else []
        return ImportedModel(model, str(settings["model_type"]), notes=tuple(notes))
    if nanogpt.is_mingpt(content):
        tensors = _check_tensors(content, path)
        return ImportedModel(nanogpt.read_mingpt_model(tensors, settings, str(path)), "minGPT")
    state = timm.find_tensors(content) or (content if path == folder else None)
    if state is None:
        message = "neither a transformers directory nor a checkpoint of nanoGPT, minGPT or timm"
        raise InputError(message, file=path)
    vit, notes = timm.read_model(_check_tensors(state, path), settings, str(path))
    artifacts, image_notes = timm.read_image_preprocessing(settings, vit.config, str(path))
    return ImportedModel(vit, "timm", artifacts, (*notes, *image_notes))


def _check_tensors(content: Mapping[str, Any], path: Path) -> Mapping[str, Tensor]:
    """Return the content of a file; raise InputError if a value is not a tensor."""
    for name, value in content.items():
        if not isinstance(value, Tensor):
            kind = type(value).__name__
            raise InputError(f"must be a tensor, got {kind}", option=name, file=path)
    return content
