"""Weight transfer between models: matching names, resized tables, and a report of each tensor.

`fourfold.models.vit_positions` resizes the position embeddings of images.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from itertools import product
from typing import Any

import torch
from torch import Tensor, nn

from fourfold.core.config import TransformerConfig
from fourfold.core.patch_embedding import PatchEmbedding
from fourfold.errors import InputError
from fourfold.models.vit_positions import interpolate_positions

# Prefixes of names in the source and in the target, by the role of the source: the whole model, or
# the encoder or decoder of an encoder-decoder. Names with other prefixes are not transferred.
PREFIXES_BY_ROLE: dict[str, dict[str, str]] = {
    "model": {"": ""},
    "encoder": {
        "embed.": "src_embed.",
        "stack.": "encoder.",
        "src_embed.": "src_embed.",
        "encoder.": "encoder.",
    },
    "decoder": {
        "embed.": "tgt_embed.",
        "stack.": "decoder.",
        "head.": "head.",
        "tgt_embed.": "tgt_embed.",
        "decoder.": "decoder.",
    },
}
# BERT's pooler: next-sentence prediction and classification share the layer in the authors' code.
POOLER = {"next_sentence.pool.": "classifier.pool."}
# Attributes of configs that describe a second stack.
SECOND_STACKS = ("encoder", "image_tower")
# Fields in which two stacks may differ, beside dropout probabilities. The widths of a head are
# compared as `head_width` and `value_width`, which are never None.
STACK_FIELDS = ("n_layers", "d_head", "d_value")
# Fields that must be equal in two stacks. Some of them do not change the shape of a weight.
LAYER_FIELDS = (
    *(
        field.name
        for field in fields(TransformerConfig)
        if field.name not in STACK_FIELDS and "drop" not in field.name
    ),
    *("head_width", "value_width", "hidden_size"),
)
# Endings of the names of tensors with one row per token of the vocabulary.
VOCABULARY = ("tokens.weight", "head.own.weight", "head.bias")
# Endings of the names of tensors of which the first rows are copied if the lengths differ.
EXTENDABLE = ("positions.weight", "segments.weight", "embed.prefix")
Line = tuple[str, tuple[int, ...], str]  # name, shape, description of a change or ""


@dataclass
class TransferReport:
    """Tensors of a weight transfer, each with its name, its shape and a description of its change.

    Args:
        loaded: Tensors that were copied unchanged.
        resized: Tensors that were changed while they were copied, such as interpolated positions.
        new: Tensors of the target that keep their initial values.
        left_out: Tensors of the source that the target does not have.
    """

    loaded: list[Line] = field(default_factory=list)
    resized: list[Line] = field(default_factory=list)
    new: list[Line] = field(default_factory=list)
    left_out: list[Line] = field(default_factory=list)

    def lines(self) -> list[str]:
        """Format the report as text; tensors that differ only in the layer number share a line."""
        return [
            f"  {outcome.replace('_', ' '):<9} {name} {shape}{rule and ': ' + rule}"
            for outcome, tensors in vars(self).items()
            for name, shape, rule in _group_layers(tensors)
        ]


def transfer(
    target: nn.Module,
    source: nn.Module,
    role: str = "model",
    *,
    more: Mapping[str, Tensor] | None = None,
    tokens: tuple[Tensor, Tensor] | None = None,
    interpolation: str = "bicubic_antialias",
) -> TransferReport:
    """Copy the weights of `source` into the tensors of `target` with matching names, in place.

    Args:
        target: Model whose parameters are overwritten.
        source: A model of any family.
        role: Part of the target that receives the weights: model, encoder or decoder.
        more: Further tensors to copy, which `source` has no parameter for, by their names in the
            target.
        tokens: Ids of the n tokens that both vocabularies have, in the vocabulary of the source and
            in that of the target, (n,) int64 each. None means that both vocabularies are equal.
        interpolation: Interpolation of the position embeddings of images, a name in
            `vit_positions.INTERPOLATIONS`.

    Raises:
        InputError: The layers differ in width, norm, activation or number of heads, or no tensor
            matches.
    """
    _check_same_layers(source.config, target.config, role)
    stored = {**(more or {}), **source.state_dict()}
    prefixes = PREFIXES_BY_ROLE[role]
    pools_first = getattr(target.config, "pool", None) == "first"
    if pools_first and "classifier.pool.weight" not in stored:
        prefixes = {**POOLER, **prefixes}
    available = _rename_all({**dict(source.named_buffers()), **stored}, prefixes)
    source_grids = _rename_all(_grids(source), prefixes)
    target_grids = _grids(target)
    wanted = target.state_dict()
    folded = _fold_segment(available, wanted)
    report = TransferReport()
    used = set[str]()
    for name, old in wanted.items():
        value: Tensor | None = None
        rule = ""
        is_grid = name in target_grids
        if name in available and is_grid == (name in source_grids):
            value, rule = _convert(name, available[name], old, is_grid, tokens, interpolation)
        if value is None:
            report.new.append((name, tuple(old.shape), ""))
            continue
        used.add(name)
        folding = "with segment 0 added" if name in folded else ""
        rule = ", ".join(filter(None, [rule, folding]))
        outcome = report.resized if rule else report.loaded
        shape = tuple(available[name].shape)
        outcome.append((name, shape, rule and f"to {tuple(old.shape)}, {rule}"))
        with torch.no_grad():
            old.copy_(value)
    report.left_out = [
        (_rename(name, prefixes) or name, tuple(tensor.shape), "")
        for name, tensor in stored.items()
        if _rename(name, prefixes) not in used
    ]
    if not used:
        raise InputError(
            f"must have tensors in common with a {type(target).__name__},"
            f" got a {type(source).__name__}",
            option="source",
        )
    return report


def _convert(
    name: str,
    old: Tensor,
    new: Tensor,
    is_grid: bool,
    tokens: tuple[Tensor, Tensor] | None,
    interpolation: str,
) -> tuple[Tensor | None, str]:
    """Convert a tensor of the source to the shape of the tensor of the target.

    Args:
        name: Name of the tensor in the target.
        old: Tensor of the source.
        new: Tensor of the target.
        is_grid: Both tensors are position embeddings of image patches.
        tokens: As for `transfer`.
        interpolation: As for `transfer`.

    Returns:
        The converted tensor, or None if the tensor of the target keeps its initial value; and a
        description of the change for the report, "" if there is none.
    """
    has_token_rows = name.endswith(VOCABULARY)
    value = new.clone()
    if has_token_rows and tokens is not None:
        old_ids, new_ids = tokens
        # A tokenizer may have more tokens than its model has rows.
        shared = (old_ids < len(old)) & (new_ids < len(new))
        value[new_ids[shared]] = old[old_ids[shared]].to(new)
        return value, f"{int(shared.sum())} of its rows, token by token"
    if old.shape == new.shape:
        return old, ""
    if is_grid:
        return interpolate_positions(old, new, interpolation), f"{interpolation} interpolation"
    if (has_token_rows or name.endswith(EXTENDABLE)) and old.shape[1:] == new.shape[1:]:
        n_rows = min(len(old), len(new))
        value[:n_rows] = old[:n_rows].to(new)
        return value, f"its first {n_rows} rows"
    return None, ""  # a head with another number of classes


def _fold_segment(available: dict[str, Tensor], wanted: Mapping[str, Tensor]) -> set[str]:
    """Add the vector of segment 0 to the position vectors if the target has no segments.

    Args:
        available: Tensors of the source by their names in the target; changed in place.
        wanted: State dict of the target.

    Returns:
        The names of the position tables in `available` that were changed.
    """
    folded = set()
    for name in [n for n in available if n.endswith("segments.weight") and n not in wanted]:
        positions = name.replace("segments", "positions")
        if positions in available and positions in wanted:
            available[positions] = available[positions] + available[name][0]
            folded.add(positions)
    return folded


def _grids(model: nn.Module) -> dict[str, Tensor]:
    """Return the position tables of image patches in a model by parameter name."""
    return {
        f"{name}.positions.weight": module.positions.weight
        for name, module in model.named_modules()
        if isinstance(module, PatchEmbedding) and module.positions is not None
    }


def _check_same_layers(old: Any, new: Any, role: str) -> None:
    """Raise InputError unless the stacks of source and target have layers of the same kind.

    Args:
        old: Config of the source.
        new: Config of the target.
        role: As for `transfer`.
    """
    stacks = [role]
    if role == "model":
        stacks = ["", *(s for s in SECOND_STACKS if hasattr(old, s) or hasattr(new, s))]
    for stack, name in product(stacks, LAYER_FIELDS):
        # The config of a model with one stack describes that stack.
        given = getattr(getattr(old, stack, old), name, None)
        expected = getattr(getattr(new, stack, new), name, None)
        if given != expected:
            raise InputError(
                f"of the source must be that of the model, {expected}, got {given}", option=name
            )


def _rename_all(state: Mapping[str, Tensor], prefixes: Mapping[str, str]) -> dict[str, Tensor]:
    named = {_rename(name, prefixes): tensor for name, tensor in state.items()}
    return {name: tensor for name, tensor in named.items() if name}


def _rename(name: str, prefixes: Mapping[str, str]) -> str:
    """Return the name in the target of a tensor of the source, or "" if it is not transferred.

    Args:
        name: Name of the tensor in the source.
        prefixes: Prefix in the target of each prefix in the source; the first match is replaced.
    """
    for old, new in prefixes.items():
        if name.startswith(old):
            return new + name.removeprefix(old)
    return ""


def _group_layers(lines: Iterable[Line]) -> list[Line]:
    """Merge lines that differ only in the number of the layer."""
    groups: dict[Line, list[str]] = {}
    for name, shape, rule in lines:
        number = re.search(r"\.(\d+)\.", name)
        key = re.sub(r"\.\d+\.", ".{}.", name, count=1), shape, rule
        groups.setdefault(key, []).append(number[1] if number else "")
    merged = []
    for (name, shape, rule), numbers in groups.items():
        span = numbers[0] if len(numbers) == 1 else f"{numbers[0]}-{numbers[-1]}"
        merged.append((name.replace("{}", span), shape, rule))
    return merged
