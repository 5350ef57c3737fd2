"""Weight transfer between models: matching names, resized tables, and a report of each tensor.

`fourfold.layers.image_positions` resizes the position embeddings of images.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import product
from typing import Any

from torch import Tensor, nn

from fourfold.errors import InputError
from fourfold.layers.image_positions import Grid, interpolate_positions
from fourfold.layers.patch_embedding import PatchEmbedding

# New prefixes of parameter names by old prefixes, for each part of the target that can receive the
# weights. A name that already has the new prefix keeps it; all other names are not transferred.
PREFIXES_BY_ROLE: dict[str, dict[str, str]] = {
    "model": {"": ""},
    "encoder": {"embed.": "src_embed.", "stack.": "encoder."},
    "decoder": {"embed.": "tgt_embed.", "stack.": "decoder.", "head.": "head."},
}
# BERT's pooler: next-sentence prediction and classification share the layer in the authors' code.
POOLER = {"next_sentence.pool.": "classifier.pool."}
# Fields of configs that must be equal: all that describe a layer, except dropout probabilities.
# `head_width` and `value_width` stand for `d_head` and `d_value`, which may be None.
LAYER_FIELDS = (
    *("d_model", "n_heads", "d_ff", "activation", "feed_forward", "norm", "norm_placement"),
    *("norm_eps", "bias", "attn_scale", "head_width", "value_width", "hidden_size"),
    *("kv_heads", "qk_norm", "rope_theta", "rope_local_theta", "rope_scaling", "parallel"),
    *("qkv_bias", "out_bias", "layer_scale", "score_cap", "partial_rotary_factor"),
)
# Endings of the names of tensors with one row per token of the vocabulary.
VOCABULARY = ("tokens.weight", "head.own.weight", "head.bias")
# Endings of the names of tensors of which the first rows are copied if the lengths differ.
EXTENDABLE = ("positions.weight", "segments.weight", "embed.prefix")
# Names of the tensors that embed tokens or patches.
EMBEDDING = re.compile(r"(\w+_)?embed\.")
LAYER_NUMBER = re.compile(r"(?<=\.)\d+(?=\.)")
Line = tuple[str, tuple[int, ...], str]  # name, shape, description of a change or ""


@dataclass
class TransferReport:
    """Tensors of a weight transfer, in four lists.

    A tensor is listed as a tuple of its name, its shape and a description of its change, or "".

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
        """Return lines such as "  loaded    embed.tokens.weight (9, 8)", one for equal layers."""
        layers: dict[str, list[str]] = {}  # layer numbers by the text of the line around them
        for outcome, tensors in vars(self).items():
            for name, shape, rule in tensors:
                line = f"  {outcome.replace('_', ' '):<9} {name} {shape}{rule and ': ' + rule}"
                pattern = LAYER_NUMBER.sub("{}", line, count=1)
                layers.setdefault(pattern, []).extend(LAYER_NUMBER.findall(line)[:1])
        return [
            pattern.replace("{}", "-".join(numbers[:1] + numbers[1:][-1:]))
            for pattern, numbers in layers.items()
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
        role: Part of the target that receives the weights: model, encoder or decoder.
        more: Further tensors by their names in the target.
        tokens: Ids (n,) int64 of the n tokens of both vocabularies, in the source's and in the
            target's. None means that equal ids are equal tokens.
        interpolation: Interpolation of image positions, a name in `image_positions.INTERPOLATIONS`.

    Raises:
        InputError: The layers differ in width, norm, activation or number of heads; or no embedding
            matches, as between tokens and patches; or no tensor matches.
    """
    _check_same_layers(source.config, target.config, role)
    stored = {**(more or {}), **source.state_dict()}
    prefixes = PREFIXES_BY_ROLE[role]
    pools_first = getattr(target.config, "pool", None) == "first"
    if pools_first and "classifier.pool.weight" not in stored:
        prefixes = {**POOLER, **prefixes}
    tensors = {**dict(source.named_buffers()), **stored}
    available = {_rename(name, prefixes): tensor for name, tensor in tensors.items()}
    old_grids = {_rename(name, prefixes): grid for name, grid in _grids(source).items()}
    new_grids = _grids(target)
    differing = old_grids.keys() ^ new_grids.keys()  # image positions in one of the models only
    wanted = target.state_dict()
    embeddings = {n for n in wanted if EMBEDDING.match(n) and _rename(n, prefixes) == n}
    # Blocks of a model with other inputs, such as tokens instead of patches, are of no use.
    if (embeddings or wanted.keys()).isdisjoint(available.keys() - differing):
        has_patches = any(".patches." in name for name in embeddings)
        part = ("patch" if has_patches else "token") + " embeddings" if embeddings else "tensors"
        message = f"must be a model with the {part} of a {type(target).__name__}"
        raise InputError(f"{message}, got a {type(source).__name__}", option="init_from")
    folded = _fold_segment(available, wanted)
    report = TransferReport()
    for name, old in wanted.items():
        value: Tensor | None = None
        rule = ""
        if name in available and name not in differing:
            grids = (old_grids[name], new_grids[name]) if name in old_grids else None
            value, rule = _convert(name, available[name], old, grids, tokens, interpolation)
        if value is None:
            report.new.append((name, tuple(old.shape), ""))
            continue
        if name in folded:
            rule = ", ".join(filter(None, [rule, "with segment 0 added"]))
        outcome = report.resized if rule else report.loaded
        change = rule and f"to {tuple(old.shape)}, {rule}"
        outcome.append((name, tuple(available[name].shape), change))
        old.copy_(value)
    used = {name for name, _, _ in report.loaded + report.resized}
    report.left_out = [
        (_rename(name, prefixes) or name, tuple(tensor.shape), "")
        for name, tensor in stored.items()
        if _rename(name, prefixes) not in used
    ]
    return report


def _convert(
    name: str,
    old: Tensor,
    new: Tensor,
    grids: tuple[Grid, Grid] | None,
    tokens: tuple[Tensor, Tensor] | None,
    interpolation: str,
) -> tuple[Tensor | None, str]:
    """Convert a tensor of the source to the shape of the tensor of the target."""
    has_token_rows = name.endswith(VOCABULARY)
    value = new.clone()
    if has_token_rows and tokens is not None:
        old_ids, new_ids = tokens
        # A tokenizer may have more tokens than its model has rows.
        shared = (old_ids < len(old)) & (new_ids < len(new))
        value[new_ids[shared]] = old[old_ids[shared]].to(new)
        return value, f"{int(shared.sum())} of its rows, token by token"
    if old.shape == new.shape and (not grids or grids[0] == grids[1]):
        return old, ""
    if grids:
        value = interpolate_positions(old, new, interpolation, grids)
        return value, f"{interpolation} interpolation"
    if (has_token_rows or name.endswith(EXTENDABLE)) and old.shape[1:] == new.shape[1:]:
        n_rows = min(len(old), len(new))
        value[:n_rows] = old[:n_rows].to(new)
        return value, f"its first {n_rows} rows"
    return None, ""  # a head with another number of classes


def _fold_segment(available: dict[str, Tensor], wanted: Mapping[str, Tensor]) -> set[str]:
    """Add the vector of segment 0 to the position vectors if the target has no segments."""
    tables = {
        name.replace("segments", "positions"): tensor
        for name, tensor in available.items()
        if name.endswith("segments.weight") and name not in wanted
    }
    folded = tables.keys() & available.keys() & wanted.keys()
    for positions in folded:
        available[positions] = available[positions] + tables[positions][0]
    return folded


def _grids(model: nn.Module) -> dict[str, Grid]:
    """Return the grid of patches of each position embedding of images, by parameter name."""
    return {
        f"{name}.positions.weight": module.grid
        for name, module in model.named_modules()
        if isinstance(module, PatchEmbedding)
    }


def _check_same_layers(old: Any, new: Any, role: str) -> None:
    """Raise InputError if the transformer blocks of source and target are not of the same kind."""
    # Attributes of configs that describe a stack; without them, the config itself describes it.
    stacks = ("", "encoder", "decoder", "image_tower") if role == "model" else (role,)
    for stack, name in product(stacks, LAYER_FIELDS):
        given = getattr(getattr(old, stack, old), name, None)
        expected = getattr(getattr(new, stack, new), name, None)
        is_initial = name == "layer_scale" and None not in (given, expected)  # replaced by a tensor
        if given != expected and not is_initial:
            raise InputError(
                f"of the source must be that of the model, {expected}, got {given}", option=name
            )


def _rename(name: str, prefixes: Mapping[str, str]) -> str:
    """Convert the name of a tensor of the source to its name in the target; "" if it has none."""
    for old, new in prefixes.items():
        if name.startswith((old, new)):
            return new + name.removeprefix(new).removeprefix(old)
    return ""
