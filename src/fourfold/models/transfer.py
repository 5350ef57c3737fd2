"""Weights of one model into another, of the same family or not: what fits, and by which rule.

Shapes: V vocabulary, N positions, D model width, S side of a grid of patches.
"""

import math
import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fourfold.core.config import check_word
from fourfold.core.embeddings import PatchEmbedding
from fourfold.core.errors import InputError

# What becomes which part of an encoder-decoder, of a model that is nothing but that part or of
# another encoder-decoder; nothing else does.
ROLES: dict[str, dict[str, str]] = {
    "model": {"": ""},
    "encoder": {"embed.": "src_embed.", "stack.": "encoder.",
                "src_embed.": "src_embed.", "encoder.": "encoder."},
    "decoder": {"embed.": "tgt_embed.", "stack.": "decoder.", "head.": "head.",
                "tgt_embed.": "tgt_embed.", "decoder.": "decoder."},
}  # fmt: skip
# BERT's pooler: what the first token says, whether of the next sentence or of a class, goes through
# one and the same layer, as in the authors' code.
POOLER = {"next_sentence.pool.": "classifier.pool."}
# Where a config describes a second stack, of which the rest of its fields say nothing.
TOWERS = ("encoder", "image_tower")
# How a grid of position vectors becomes one of another size: four conventions for one sentence
# of the ViT paper (section 3.2).
RESIZES: dict[str, dict[str, object]] = {
    "bicubic_antialias": {"mode": "bicubic", "antialias": True},  # timm
    "bicubic": {"mode": "bicubic"},  # DeiT
    "bilinear": {"mode": "bilinear"},  # timm, for Google's own files
    "zoom": {"mode": "bilinear", "align_corners": True},  # Google: scipy's zoom of order 1
}
# What two stacks must agree on: weights do not show all of it, but mean nothing without it.
LAYERS = ("d_model", "d_ff", "n_heads", "head_width", "value_width", "bias", "activation",
          "feed_forward", "norm", "norm_placement", "norm_eps", "attn_scale")  # fmt: skip
VOCABULARY = ("tokens.weight", "head.own.weight", "head.bias")
GROWING = ("positions.weight", "segments.weight", "embed.prefix")
Line = tuple[str, tuple[int, ...], str]


@dataclass
class Report:
    """What became of each tensor: its name, its shape, and how where that is not plain.

    Args:
        loaded: Taken over as it is.
        resized: Taken over by a rule.
        new: Of the target, still with its first random values.
        left_out: Of the source, with no place in the target.
    """

    loaded: list[Line] = field(default_factory=list)
    resized: list[Line] = field(default_factory=list)
    new: list[Line] = field(default_factory=list)
    left_out: list[Line] = field(default_factory=list)

    def lines(self) -> list[str]:
        """For the reader: layers that fared alike share a line."""
        return [
            f"  {word.replace('_', ' '):<9} {name} {shape}{how and ': ' + how}"
            for word, part in vars(self).items()
            for name, shape, how in _together(part)
        ]


def transfer(
    target: nn.Module,
    source: nn.Module,
    role: str = "model",
    *,
    more: Mapping[str, Tensor] | None = None,
    tokens: tuple[Tensor, Tensor] | None = None,
    resize: str = "bicubic_antialias",
) -> Report:
    """Copy what fits from `source` into `target`, in place.

    Args:
        target: Whose parameters are overwritten.
        source: A model of any family.
        role: A row of ROLES: which part of the target the source becomes.
        more: Tensors that came with the source and that it has no place for, by the target's names.
        tokens: Rows of the source's vocabulary and of the target's that are the same word, each
            (n,) int64; None means that both number them alike.
        resize: A row of RESIZES, for grids of positions.

    Raises:
        InputError: The layers cannot be the same: another width, norm, activation or number of
            heads.
    """
    check_word("resize", resize, tuple(RESIZES))
    check_word("role", role, tuple(ROLES))
    _refuse_other_layers(source.config, target.config, role)
    stored = {**(more or {}), **source.state_dict()}
    report, used, ours = Report(), set[str](), target.state_dict()
    prefixes = {**_pooler(stored, target), **ROLES[role]}
    theirs = _renamed({**dict(source.named_buffers()), **stored}, prefixes)
    how = _Rules(_renamed(_grids(source), prefixes).keys(), _grids(target), tokens, resize)
    folded = _fold_segment(theirs, ours)
    for name, old in ours.items():
        made, rule = how.fit(name, theirs.get(name), old)
        if made is None:
            report.new.append((name, tuple(old.shape), ""))
            continue
        used.add(name)
        shown = tuple(theirs[name].shape)
        rule = ", ".join(filter(None, [rule, "with segment 0 added" if name in folded else ""]))
        if rule:
            report.resized.append((name, shown, f"to {tuple(old.shape)}, {rule}"))
        else:
            report.loaded.append((name, shown, ""))
        with torch.no_grad():
            old.copy_(made)
    report.left_out = [
        (_rename(name, prefixes) or name, tuple(tensor.shape), "")
        for name, tensor in stored.items()
        if _rename(name, prefixes) not in used
    ]
    if not used:
        raise InputError(f"nothing of a {type(source).__name__} fits a {type(target).__name__}")
    return report


class _Rules:
    """What fits, and what is made to fit; of both models, which positions are on a grid."""

    def __init__(
        self,
        old_grids: Collection[str],
        new_grids: Collection[str],
        tokens: tuple[Tensor, Tensor] | None,
        resize: str,
    ) -> None:
        self.old_grids, self.new_grids = old_grids, new_grids
        self.tokens, self.resize = tokens, resize

    def fit(self, name: str, old: Tensor | None, new: Tensor) -> tuple[Tensor | None, str]:
        """What to write in place of `new`, None for nothing; and the rule, if there was one."""
        grid = name in self.new_grids
        if old is None or grid != (name in self.old_grids):
            return None, ""
        words = name.endswith(VOCABULARY)
        if words and self.tokens is not None:
            made = new.clone()
            theirs, ours = self.tokens
            # A tokenizer may know more words than its model has rows.
            there = (theirs < len(old)) & (ours < len(new))
            made[ours[there]] = old[theirs[there]].to(new)
            return made, f"{int(there.sum())} of its rows, word by word"
        if old.shape == new.shape:
            return old, ""
        if grid:
            return resize_grid(old, new, self.resize), f"{self.resize} interpolation"
        if (words or name.endswith(GROWING)) and old.shape[1:] == new.shape[1:]:
            made, n = new.clone(), min(len(old), len(new))
            made[:n] = old[:n].to(new)
            return made, f"its first {n} rows"
        return None, ""  # a head for other classes


def resize_grid(old: Tensor, new: Tensor, method: str) -> Tensor:
    """Positions (prefix + S*S, D) of a square grid, as those of another.

    Rows in front of the grid (class and distillation token) are kept where both have them.

    Args:
        old: The table to read.
        new: A table of the shape wanted, with values for rows that `old` cannot give.
        method: A row of RESIZES.
    """
    check_word("resize", method, tuple(RESIZES))
    sides = [math.isqrt(len(table)) for table in (old, new)]
    front = [len(table) - side**2 for table, side in zip((old, new), sides, strict=True)]
    grid = old[front[0] :].float().T.reshape(1, -1, sides[0], sides[0])  # (1, D, S, S)
    shape = (sides[1], sides[1])
    made = grid
    if sides[0] != sides[1]:
        made = F.interpolate(grid, size=shape, **RESIZES[method])  # type: ignore[arg-type]
    result, kept = new.clone(), min(front)
    result[front[1] :] = made[0].flatten(1).T.to(new)
    result[:kept] = old[:kept].to(new)
    return result


def _fold_segment(theirs: dict[str, Tensor], ours: Mapping[str, Tensor]) -> set[str]:
    """Add the first segment vector, which a source adds to every token, to its positions.

    Done where the target has no segments; returns the names that hold it now.
    """
    folded = set()
    for name in [n for n in theirs if n.endswith("segments.weight") and n not in ours]:
        positions = name.replace("segments", "positions")
        if positions in theirs and positions in ours:
            theirs[positions] = theirs[positions] + theirs[name][0]
            folded.add(positions)
    return folded


def _grids(model: nn.Module) -> dict[str, Tensor]:
    """The tables of positions that belong to patches, by name."""
    return {
        f"{name}.positions.weight": module.positions.weight
        for name, module in model.named_modules()
        if isinstance(module, PatchEmbedding) and module.positions is not None
    }


def _refuse_other_layers(old: Any, new: Any, role: str) -> None:
    """Raise InputError unless the stacks that meet are made of the same layers."""
    # A model that is nothing but one part has one config, which describes that part.
    meet = [part for part in TOWERS if hasattr(old, part) or hasattr(new, part)]
    meet = ["", *meet] if role == "model" else [role]
    for part in meet:
        theirs, ours = (getattr(config, part, config) for config in (old, new))
        for name in LAYERS:
            before, wanted = (getattr(config, name, None) for config in (theirs, ours))
            if before != wanted:
                raise InputError(f"its layers have {name} {before}, but the model's have {wanted}")


def _pooler(stored: Mapping[str, Tensor], target: nn.Module) -> dict[str, str]:
    """POOLER, where the target's classifier reads the first token and none came by its own name."""
    name, ours = "classifier.pool.weight", target.state_dict()
    missing = name in ours and name not in stored
    return POOLER if missing and getattr(target.config, "pool", None) == "first" else {}


def _renamed(state: Mapping[str, Tensor], prefixes: Mapping[str, str]) -> dict[str, Tensor]:
    named = {_rename(name, prefixes): tensor for name, tensor in state.items()}
    return {name: tensor for name, tensor in named.items() if name}


def _rename(name: str, prefixes: Mapping[str, str]) -> str:
    """What a tensor is called in the target; "" if it plays no part there."""
    for old, new in prefixes.items():
        if name.startswith(old):
            return new + name.removeprefix(old)
    return ""


def _together(lines: Iterable[Line]) -> list[Line]:
    """Lines that differ in the number of a layer alone, as one."""
    groups: dict[tuple[str, tuple[int, ...], str], list[str]] = {}
    for name, shape, how in lines:
        number = re.search(r"\.(\d+)\.", name)
        key = re.sub(r"\.\d+\.", ".{}.", name, count=1), shape, how
        groups.setdefault(key, []).append(number[1] if number else "")
    found = []
    for (name, shape, how), numbers in groups.items():
        span = numbers[0] if len(numbers) == 1 else f"{numbers[0]}-{numbers[-1]}"
        found.append((name.replace("{}", span), shape, how))
    return found
