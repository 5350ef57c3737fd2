"""Import of a model after detection of its format: transformers, timm, nanoGPT or llama2.c."""

from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

import torch

from fourfold.errors import InputError, reading
from fourfold.families import families
from fourfold.hub import directory, preprocessing, transformers_format
from fourfold.hub.directory import set_attributes
from fourfold.json_files import read_json
from fourfold.layers.base_model import Model
from fourfold.layers.generation_defaults import GenerationDefaults
from fourfold.tokenization import pretrained
from fourfold.tokenization.chat import read_chat_template


def read_model(
    path: Path,
    content: Mapping[str, Any] | None,
    *,
    allow_missing_heads: bool = False,
    dtype: torch.dtype | None = None,
) -> Model:
    """Import a model of another library, with its tokenizer, from a directory or a file of weights.

    Args:
        path: Directory or file.
        content: Content of the file, as `torch.load` returns it; None for a directory.
        allow_missing_heads: Allow an image model that lacks classification heads, for example
            because new heads will be trained.
        dtype: Data type of the weights; None means fp32.

    Raises:
        InputError: The files are corrupted, or contain a model that is not supported.
    """
    with reading(path):
        model = _read_weights(path, content, dtype)
        artifacts = dict(model.artifacts)
        # A model without any head, as DINOv2 is published, gives hidden states.
        if (heads := getattr(model, "heads", None)) and not allow_missing_heads:
            n_heads = 1 + model.config.distillation
            if missing := n_heads - len(heads):
                message = f"{missing} of {n_heads} classification heads are missing; use init_from"
                raise InputError(f"{message} to train a model with new heads", file=path)
        tokenizer, defaults = None, GenerationDefaults()
        if hasattr(model.config, "vocab_size"):
            folder = (path,) if content is None else (path.parent, model.config.vocab_size)
            tokenizer = pretrained.read_tokenizer(*folder)
        if model.source is not None:
            artifacts = preprocessing.read_class_artifacts(model, tokenizer)
            if not hasattr(model, "decode") and (template := read_chat_template(path)):
                artifacts["chat_template"] = template
            if sentence_files := preprocessing.read_sentence_files(path):
                artifacts["sentence_transformers"] = sentence_files
            if hasattr(model.config, "image_size") and not allow_missing_heads:
                artifacts |= preprocessing.read_image_preprocessing(path, model.config)
            entries = [model.source.generation_config, model.source.config]
            defaults = preprocessing.parse_generation_defaults(entries)
        return set_attributes(model, path, tokenizer, artifacts, defaults)


def _read_weights(
    path: Path, content: Mapping[str, Any] | None, dtype: torch.dtype | None
) -> Model:
    """Read the config and the weights of a model, and the artifacts in the config of timm."""
    folder = path if content is None else path.parent
    settings = read_json(folder / directory.CONFIG_FILE, optional=True)
    if content is None and "model_type" not in settings and "architecture" in settings:
        content = directory.read_tensors(path)
    if content is None:
        model = transformers_format.read_model(path, dtype)
        files = pretrained.tokenizer_files(path)
        used = (files.merges or files.file) if files else None
        if used is None or used.endswith(".spm"):
            models = (*path.glob("*.spm"), *path.glob("*.model"))
            unread = sorted(file.name for file in models if str(file) != used)
            reason = "since source.spm encodes all texts" if used else "see fourfold[sentencepiece]"
            model.notes = [f"{' and '.join(unread)} not read, {reason}"] if unread else []
        return model
    for module in (name for family in families() for name in family.formats):
        found: Model | None = import_module(module).read_checkpoint(content, settings, dtype)
        if found is not None:
            return found
    message = "not a checkpoint written by fourfold, transformers, timm, nanoGPT or llama2.c"
    raise InputError(message, file=path)
