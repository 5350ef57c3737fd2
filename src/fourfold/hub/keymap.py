"""Tables that map parameter names and tensor layouts of another library to fourfold and back.

"Native" names and tensors are those of fourfold, "external" names and tensors are those of the
other library. A rule pairs native names with external names. A placeholder in braces stands for one
component of a dotted name, and for the same component on both sides. For example, `{i}` stands for
a layer index, and `{p}` for `weight` or `bias`.

Example:
    >>> keymap = KeyMap(Rule("norm.{p}", "LayerNorm.{p}"), Rule("up.weight", "fc.w", TRANSPOSE))
    >>> tensors, unmatched = keymap.to_external({"up.weight": torch.zeros(3, 2)}, {})
    >>> {name: tuple(tensor.shape) for name, tensor in tensors.items()}, unmatched
    ({'fc.w': (2, 3)}, [])
"""

import re
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from functools import cache
from itertools import islice
from typing import Any

import torch
from torch import Tensor

from fourfold.core.validation import check_kinds, check_stored
from fourfold.errors import InputError
from fourfold.hub.directory import ModelT, Tensors, build_on_meta, build_with, copy_tensor

_MAX_LISTED = 8  # names in an error message
Names = str | tuple[str, ...]
# Native names of the query, key and value projections, for libraries with one matrix for all three.
QKV = tuple("stack.blocks.{i}.attn." + projection + ".{p}" for projection in "qkv")


@dataclass(frozen=True)
class TensorOp:
    """Pair of functions that convert the tensors of one `Rule` between fourfold and a library.

    Args:
        to_native: Function from the tensors of the other library to those of fourfold. Arguments
            and results are in the order of the names in the rule.
        to_external: Inverse function. It writes zeros in the rows that `to_native` drops. If the
            model was imported, `KeyMap.to_external` then overwrites the zeros with the original
            rows.
        n_unmapped: Number of rows that `to_native` drops at the beginning of the external tensor,
            such as the rows for padding in a position table. `KeyMap.to_native` returns the dropped
            rows separately.
        rounds: True if both functions round their result. `KeyMap.to_native` then also returns the
            external tensors, and an export writes those that still have the native values.
    """

    to_native: Callable[..., tuple[Tensor, ...]]
    to_external: Callable[..., tuple[Tensor, ...]]
    n_unmapped: int = 0
    rounds: bool = False


def _transpose(x: Tensor) -> Tensor:
    """Return the transpose of a matrix; return a vector unchanged."""
    return x.mT if x.ndim == 2 else x


def _join_tokens(*tokens: Tensor) -> tuple[Tensor]:
    """Return one table (N, D) of tokens (1, n, D)."""
    return (torch.cat([x[0] for x in tokens]),)


# Tensors that have the same layout in both libraries.
KEEP = TensorOp(lambda *x: x, lambda *x: x)
# Conv1D of GPT and GPT-2 stores weights as (in, out); torch.nn.Linear stores (out, in).
TRANSPOSE = TensorOp(lambda x: (_transpose(x),), lambda x: (_transpose(x),))
# Query, key and value projections in one matrix (3 * out, in).
SPLIT_QKV = TensorOp(lambda x: x.chunk(3), lambda *qkv: (torch.cat(qkv),))
# Query, key and value projections in one matrix (in, 3 * out).
SPLIT_QKV_T = TensorOp(lambda x: _transpose(x).chunk(3), lambda *qkv: (_transpose(torch.cat(qkv)),))
# The matrices `up` and `gate` of a gated layer in one matrix (2 * d_ff, in).
SPLIT_GATED = TensorOp(lambda x: x.chunk(2), lambda up, gate: (torch.cat([up, gate]),))
# Classes in reverse order.
FLIP_CLASSES = TensorOp(lambda x: (x.flip(0),), lambda x: (x.flip(0),))
# The external tensor has one more leading dimension of size 1.
SQUEEZE_0 = TensorOp(lambda x: (x[0],), lambda x: (x[None],))
# The external tensor is a vector, the native tensor a table with one row.
UNSQUEEZE_0 = TensorOp(lambda x: (x[None],), lambda x: (x[0],))
# Class and distillation tokens, each (1, 1, D); the native tensor is one table (N, D).
PREFIX_TOKENS = TensorOp(_join_tokens, lambda table: tuple(row[None, None] for row in table))
# A class token (1, 1, D) and registers (1, n, D); the native tensor is one table.
CLASS_AND_REGISTERS = TensorOp(_join_tokens, lambda table: (table[None, :1], table[None, 1:]))
# Gemma stores the weights of a norm minus 1. The sum is computed in at least fp32.
ADD_ONE = TensorOp(
    lambda x: (x.to(torch.promote_types(x.dtype, torch.float32)) + 1,),
    lambda x: (x.to(torch.promote_types(x.dtype, torch.float32)) - 1,),
    rounds=True,
)


def offset_rows(n: int) -> TensorOp:
    """Return the conversion of a table whose first `n` rows belong to padding or are unused."""
    return TensorOp(
        lambda x: (x[n:],),
        lambda x: (torch.cat([x.new_zeros(n, x.shape[1]), x]),),
        n_unmapped=n,
    )


OFFSET_2 = offset_rows(2)  # fairseq numbers positions from 2


@dataclass(frozen=True)
class Rule:
    """Parameters with their native names (fourfold) and their external names (other library).

    `op` converts the tensors of all these names together.
    """

    native: Names
    external: Names
    op: TensorOp = KEEP


@dataclass(frozen=True)
class Extra:
    """Tensor of another library that a checkpoint may contain without a parameter in the model.

    Args:
        name: Name in the other library, which may have placeholders such as {i}.
        tied_to: Name of another tensor of the library that must be equal (tied weights); "" if
            there is none.
        is_kept: True for a tensor that an export writes again, such as the pooler of a BERT that is
            used as a language model. False for a tensor that an export leaves out, such as a causal
            mask.
    """

    name: str
    tied_to: str = ""
    is_kept: bool = False


Entry = Rule | Extra


class KeyMap:
    """Table of the tensor names and layouts of one architecture.

    Args:
        entries: Rules and extra tensors. A rule is usable if the model has all its native names
            and, on import, the checkpoint has all its external names. If several usable rules match
            a parameter, the first of them is applied.
    """

    def __init__(self, *entries: Entry) -> None:
        self.entries = entries
        self.rules = [entry for entry in entries if isinstance(entry, Rule)]
        self.extras = [entry for entry in entries if isinstance(entry, Extra)]

    def to_native(
        self, external: Tensors, expected: Tensors, dtype: torch.dtype | None = None
    ) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Convert the tensors of another library (external) to a state dict of fourfold (native).

        Args:
            external: Tensors by external name.
            expected: State dict of the model, for the required names and shapes.
            dtype: Data type of the native state dict; None keeps those of the tensors.

        Returns:
            Two dictionaries: the native state dict; and the unmapped tensors by external name,
            which an export writes again. Unmapped tensors are those of an `Extra` with `is_kept`,
            the rows that a `TensorOp` drops, and tensors whose conversion rounds. All tensors are
            copies.

        Raises:
            InputError: A name is unknown or missing, a shape does not match, or a tied tensor
                differs from the tensor that it must equal.
        """
        native: dict[str, Tensor] = {}
        unmapped: dict[str, Tensor] = {}
        used = set[str]()
        for op, names, keys in self._rules_for(expected, external):
            check_kinds(external, dict.fromkeys(keys, expected[names[0]]))
            try:
                outputs = op.to_native(*(external[key] for key in keys))
            except (ValueError, IndexError, RuntimeError) as error:
                message = f"of shape {tuple(external[keys[0]].shape)} cannot be converted: {error}"
                raise InputError(message, option=keys[0]) from error
            copies = (copy_tensor(tensor, dtype) for tensor in outputs)
            native.update(zip(names, copies, strict=True))
            if op.n_unmapped:
                unmapped[keys[0]] = external[keys[0]][: op.n_unmapped].clone()
            if op.rounds:
                unmapped |= {key: external[key].clone() for key in keys}
            used.update(keys)
        unknown = {name: x for name, x in external.items() if name not in used}
        for extra in self.extras:
            for name in [name for name in unknown if _pattern(extra.name).fullmatch(name)]:
                tensor = unknown.pop(name)
                if extra.is_kept:
                    unmapped[name] = tensor.clone()
                if extra.tied_to in external and not tensor.equal(external[extra.tied_to]):
                    message = f"differs from {extra.tied_to}, although config.json ties them"
                    raise InputError(message, option=name)
        _check_complete(native, expected, unknown)
        return native, unmapped

    def build_model(
        self, build: Callable[[], ModelT], config: Any, external: Tensors, dtype: torch.dtype | None
    ) -> ModelT:
        """Build a model in eval mode with the tensors of another library.

        The arguments are those of `build_on_meta` and `to_native`, and so are the errors.
        """
        check_stored(external)
        meta = build_on_meta(build, config, external)
        native, _ = self.to_native(external, meta.state_dict(), dtype or torch.float32)
        return build_with(build, meta, native, dtype)

    def to_native_subset(self, external: Tensors, expected: Collection[str]) -> dict[str, Tensor]:
        """Convert the unmapped tensors of an imported model to parameters of another model.

        For example, a masked LM has no parameter for BERT's pooler, but a classifier has one. Rows
        that a `TensorOp` dropped are skipped. Names without a tensor are absent in the result.
        """
        native: dict[str, Tensor] = {}
        for op, names, keys in self._rules_for(expected, external):
            if not op.n_unmapped:
                outputs = op.to_native(*(external[key] for key in keys))
                native.update(zip(names, outputs, strict=True))
        return native

    def to_external(
        self, native: Tensors, unmapped: Tensors
    ) -> tuple[dict[str, Tensor], list[str]]:
        """Convert a state dict of fourfold (native) to tensors of the other library (external).

        Args:
            native: Tensors by native name.
            unmapped: Tensors of the original checkpoint without a parameter in the model, as
                `to_native` returns them; empty for a model that was not imported.

        Returns:
            Tensors by external name, including `unmapped`; and the sorted native names that no rule
            matches.
        """
        external: dict[str, Tensor] = {}
        unmatched = set(native)
        for op, names, keys in self._rules_for(native):
            inputs = [native[name] for name in names]
            outputs = op.to_external(*inputs)
            if op.rounds and all(key in unmapped for key in keys):
                imported = op.to_native(*(unmapped[key] for key in keys))
                if all(map(torch.equal, imported, inputs)):
                    outputs = tuple(unmapped[key] for key in keys)
            # The numbers differ for a rule that is made for another number of prefix tokens.
            for key, tensor in zip(keys, outputs, strict=False):
                external[key] = tensor.contiguous()
                if op.n_unmapped and key in unmapped:
                    external[key][: op.n_unmapped] = unmapped[key]
            unmatched.difference_update(names)
        return {**unmapped, **external}, sorted(unmatched)

    def _rules_for(
        self, native: Collection[str], external: Collection[str] | None = None
    ) -> Iterator[tuple[TensorOp, list[str], list[str]]]:
        """Yield (conversion, native names, external names) for each rule that is applied.

        `external` has the names in a checkpoint; it is None for an export.
        """
        for name in native:
            for rule in self.rules:
                match = _pattern(_tuple(rule.native)[0]).fullmatch(name)
                if match is None:
                    continue
                both = (_tuple(rule.native), _tuple(rule.external))
                names, keys = ([x.format_map(match.groupdict()) for x in side] for side in both)
                is_found = external is None or all(key in external for key in keys)
                if is_found and all(n in native for n in names):
                    yield rule.op, names, keys
                    break


def _check_complete(native: Tensors, expected: Tensors, unknown: Collection[str]) -> None:
    """Check that converted tensors have exactly the names and shapes of the model's state dict.

    `unknown` has the external names in a checkpoint that no `Rule` and no `Extra` lists.
    """
    missing = [f"{n} {tuple(x.shape)}" for n, x in expected.items() if n not in native]
    problems = [f"no tensor for {listed(missing)}"] if missing else []
    if unknown:
        surplus = f"{len(unknown)} tensors that do not belong to this architecture"
        problems.append(f"{surplus}: {listed(unknown)}")
    if problems:
        raise InputError(f"have {' and '.join(problems)}", option="weights")
    for name, tensor in expected.items():
        if native[name].shape != tensor.shape:
            shapes = f"{tuple(native[name].shape)}, but config.json implies {tuple(tensor.shape)}"
            raise InputError(f"has shape {shapes}", option=f"tensor for {name}")


def listed(names: Collection[str]) -> str:
    """Return the first names of a collection, and the number of the other names."""
    shown = ", ".join(name[:80] for name in islice(names, _MAX_LISTED))
    rest = len(names) - _MAX_LISTED
    return f"{shown} and {rest} more" if rest > 0 else shown


def _tuple(names: Names) -> tuple[str, ...]:
    return (names,) if isinstance(names, str) else names


@cache
def _pattern(template: str) -> re.Pattern[str]:
    """Compile a name with placeholders, such as "norm.{p}", to a regular expression."""
    return re.compile(re.sub(r"\\\{(\w+)\\\}", r"(?P<\1>[^.]+)", re.escape(template)))
