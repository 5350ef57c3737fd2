"""Initialization of a model with weights of one or two other models (option `init_from`)."""

from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fourfold.checkpoints.classes import model_name
from fourfold.checkpoints.load import read_model
from fourfold.checkpoints.word_vectors import copy_vectors, is_vector_file
from fourfold.core.validation import check_choice
from fourfold.errors import errors_in
from fourfold.finetuning.weight_transfer import PREFIXES_BY_ROLE, TransferReport, transfer
from fourfold.layers.base_model import Model
from fourfold.tokenization.tokenizer import Tokenizer

# Path of one source model, or {"encoder": path, "decoder": path}.
InitFrom = str | dict[str, str] | None


@lru_cache(maxsize=1)  # several callers read the same model one after another
def read_source(
    path: str | Path, classes: tuple[type[Any] | str, ...] = (), images_only: bool = False
) -> Model:
    """Read the model whose weights initialize another model; the last result is cached.

    An image model of another library may lack its classification heads.

    Args:
        path: A path, or `hf://owner/name`, that `fourfold.load` accepts.
        classes: The user's model classes that the checkpoint may name, or their import paths.
        images_only: Return the image encoder of a SigLIP, as a ViT with `pool="mean"`.
    """
    source: Any = read_model(path, classes=classes, allow_missing_heads=True)
    has_tower = images_only and hasattr(source, "image_classifier")
    return source.image_classifier() if has_tower else source


def initialize_from(
    model: Model,
    init_from: InitFrom,
    tokenizer: str | None,
    interpolation: str,
    classes: tuple[type[Any] | str, ...] = (),
) -> str:
    """Copy the matching weights of one or two source models, or word vectors, into a model.

    Args:
        model: The model whose weights are overwritten.
        init_from: Path of the source model, or {"encoder": PATH, "decoder": PATH}. A path may also
            be that of a text file of word vectors for token embeddings (see `copy_vectors`).
        tokenizer: Tokenizer of the data as JSON. If a source has another tokenizer, the embeddings
            of the tokens in both vocabularies are copied to the rows of their ids in `tokenizer`.
            If one of both is None, equal ids are assumed to mean equal tokens.
        interpolation: Method that resizes position embeddings if the image size differs, a key of
            `image_positions.INTERPOLATIONS`.
        classes: The user's model classes that the sources may name, or their import paths. The
            class of `model` is always allowed.

    Returns:
        Text of several lines that reports which tensors were loaded, resized, left at their initial
        values or unused; empty if `init_from` is None.

    Raises:
        InputError: A source cannot be read, or its layers do not match those of the model.
    """
    from fourfold.hub.transformers_format import unmapped_tensors_for  # imports all architectures

    if init_from is None:
        return ""
    if isinstance(init_from, str):
        init_from = {"" if hasattr(model, "tgt_embed") else "model": init_from}
    if "." in model_name(type(model)):
        classes = (*classes, type(model))
    lines, filled, reports = list[str](), set[str](), list[TransferReport]()
    for role, path in sorted(init_from.items(), key=lambda item: not is_vector_file(item[1])):
        if is_vector_file(path):
            check_choice("init_from", role := role or "model", tuple(PREFIXES_BY_ROLE))
            prefix = PREFIXES_BY_ROLE[role].get("embed.", "")
            line, names = copy_vectors(model, path, tokenizer, prefix)
            lines.append(line)
            filled |= names
            continue
        source = read_source(path, classes, hasattr(model, "heads"))
        lines += _describe(path, source, tokenizer)
        role = role or ("model" if hasattr(source, "tgt_embed") else "encoder")
        check_choice("init_from", role, tuple(PREFIXES_BY_ROLE))
        old = source.tokenizer.to_str() if source.tokenizer else None
        with errors_in(path):
            more, tokens = unmapped_tensors_for(source, model), shared_vocabulary(old, tokenizer)
            report = transfer(
                model, source, role, more=more, tokens=tokens, interpolation=interpolation
            )
        reports.append(report)
        lines += replace(report, new=[]).lines()
    read_source.cache_clear()
    if not reports:
        return "\n".join(lines)
    if len(reports) > 1:
        lines.append("init_from: tensors that no source has")
    # A tensor that one source lacks may have been loaded from the other source.
    new = [line for line in reports[0].new if all(line in report.new for report in reports)]
    new = [line for line in new if line[0] not in filled]
    return "\n".join(lines + TransferReport(new=new).lines())


def _describe(path: str, source: Model, tokenizer: str | None) -> list[str]:
    n_parameters = sum(p.numel() for p in source.parameters())
    lines = [f"init_from {path}: {type(source).__name__}, {n_parameters:,} parameters"]
    lines += [f"  {note}" for note in source.notes]
    if tokenizer and not source.tokenizer and hasattr(source.config, "vocab_size"):
        lines.append("  the source has no tokenizer: token ids are assumed to be those of the data")
    return lines


def shared_vocabulary(old: str | None, new: str | None) -> tuple[Tensor, Tensor] | None:
    """Return the ids of the tokens that two tokenizers (JSON) share, as two (N,) int64 tensors.

    The first tensor has the ids in the old vocabulary, the second those of the same tokens in the
    new one. Special tokens match by role (padding, begin, end, unknown, mask), other tokens by
    spelling. The result is None if one tokenizer is missing or if both vocabularies are equal.
    """
    if old is None or new is None:
        return None
    old_tokenizer, new_tokenizer = Tokenizer.from_str(old), Tokenizer.from_str(new)
    old_ids, new_ids = old_tokenizer.vocabulary, new_tokenizer.vocabulary
    if old_ids == new_ids:
        return None
    # Dictionary from the new id of each shared token to its old id.
    matches = {new_ids[token]: number for token, number in old_ids.items() if token in new_ids}
    # If one token has several roles, the last assignment wins: the embedding of the end token is
    # trained most, that of the unknown token least.
    for role in ("unk_id", "pad_id", "bos_id", "eos_id", "mask_id"):
        old_id, new_id = getattr(old_tokenizer, role), getattr(new_tokenizer, role)
        if old_id is not None and new_id is not None:
            matches[new_id] = old_id
    # On the CPU, like the weights of the source, even if Lightning builds models on a GPU.
    old_rows = torch.tensor(list(matches.values()), device="cpu")
    return old_rows, torch.tensor(list(matches), device="cpu")
