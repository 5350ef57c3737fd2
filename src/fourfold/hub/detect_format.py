"""Import of a model after detection of its format: transformers, timm or nanoGPT.

`read_model` imports a model of any of these formats.
"""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import Tensor

from fourfold.errors import InputError, reading
from fourfold.hub import directory, preprocessing, transformers_format
from fourfold.hub.directory import SourceModel
from fourfold.json_files import read_json
from fourfold.models import CLIP, CausalLM, ViT
from fourfold.models.causal_lm import hub_nanogpt as nanogpt
from fourfold.models.vit import hub_timm as timm
from fourfold.tokenization import pretrained
from fourfold.tokenization.chat import read_chat_template

# sentencepiece applies the longest matching normalization rule, also across combining characters.
# The library `tokenizers` applies the shortest rule within a character. The two libraries would
# therefore divide decomposed accents into different tokens.
_SENTENCEPIECE = (
    "not read, since the `tokenizers` library normalizes text differently from sentencepiece"
)


def read_model(
    path: Path, content: Mapping[str, Any] | None, *, allow_missing_heads: bool = False
) -> SourceModel:
    """Import a model of another library, with its tokenizer, from a directory or a file of weights.

    The weights are converted to fp32.

    Args:
        path: Directory or file.
        content: Content of the file, as `torch.load` returns it; None for a directory.
        allow_missing_heads: Allow an image model that lacks classification heads, for example
            because new heads will be trained.

    Raises:
        InputError: The files are corrupted, or contain a model that is not supported.
    """
    with reading(path):
        return _read_source(path, content, allow_missing_heads)


def _read_source(
    path: Path, content: Mapping[str, Any] | None, allow_missing_heads: bool
) -> SourceModel:
    source = _read_weights(path, content)
    model = source.model
    # DINOv2, which pools in this way, is published without a head, for its hidden states.
    if isinstance(model, ViT) and not (allow_missing_heads or model.config.pool == "cls_mean"):
        n_heads = 1 + model.config.distillation
        if missing := n_heads - len(model.heads):
            message = f"{missing} of {n_heads} classification heads are missing; use init_from"
            raise InputError(f"{message} to train a model with new heads", file=path)
    if hasattr(model.config, "vocab_size"):
        folder = path if content is None else path.parent
        source = replace(source, tokenizer=pretrained.read_tokenizer(folder))
    if model.source is not None:
        artifacts = preprocessing.read_class_artifacts(model, source.tokenizer)
        if isinstance(model, CausalLM) and (template := read_chat_template(path)):
            artifacts["chat_template"] = template
        if isinstance(model, ViT | CLIP) and not allow_missing_heads:
            artifacts |= preprocessing.read_image_preprocessing(path, model.config)
        source = replace(source, artifacts=artifacts)
    if content is None:
        source = replace(source, defaults=preprocessing.read_generation_defaults(path))
    return source


def _read_weights(path: Path, content: Mapping[str, Any] | None) -> SourceModel:
    """Read the config and the weights of a model.

    The caller reads the tokenizer and checks that no classification head is missing.

    Args:
        path: Directory or file.
        content: Content of the file, as `torch.load` returns it; None for a directory.

    Raises:
        InputError: The files are corrupted, or contain a model that is not supported.
    """
    if content is not None and nanogpt.is_nanogpt(content):
        return SourceModel(path, nanogpt.read_nanogpt_model(content), "nanoGPT")
    folder = path if content is None else path.parent
    settings = read_json(folder / directory.CONFIG_FILE, optional=True)
    if content is None and "model_type" not in settings and "architecture" in settings:
        content = directory.read_tensors(path)
    if content is None:
        model = transformers_format.read_model(path)
        has_tokenizer = pretrained.tokenizer_files(path) is not None
        unread = [] if has_tokenizer else sorted(file.name for file in path.glob("*.spm"))
        notes = [f"{' and '.join(unread)} {_SENTENCEPIECE}"] if unread else []
        return SourceModel(path, model, settings["model_type"], notes=notes)
    state = timm.find_tensors(content) or (content if path == folder else None)
    if state is None:
        message = "not a checkpoint written by fourfold, transformers, timm or nanoGPT"
        raise InputError(message, file=path)
    vit, notes = timm.read_model(_check_tensors(state), settings)
    artifacts, image_notes = timm.read_image_preprocessing(settings, vit.config)
    return SourceModel(path, vit, "timm", notes + image_notes, artifacts=artifacts)


def _check_tensors(content: Mapping[str, Any]) -> Mapping[str, Tensor]:
    """Return `content` unchanged; raise InputError if a value is not a tensor."""
    for name, value in content.items():
        if not isinstance(value, Tensor):
            raise InputError(f"must be a tensor, got {type(value).__name__}", option=name)
    return content
