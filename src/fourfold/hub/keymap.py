"""Tables that map parameter names and tensor layouts of another library to fourfold and back.

"Native" names and tensors are those of fourfold, "external" ones those of the other library. A rule
pairs native names with external names. Placeholders in braces match one component of a dotted name
and are the same on both sides: `{i}` for a layer number, `{p}` for `weight` and `bias`.

Example:
    >>> keymap = KeyMap([Rule("norm.{p}", "LayerNorm.{p}"), Rule("up.weight", "fc.w", TRANSPOSE)])
    >>> tensors, unmatched = keymap.to_external({"up.weight": torch.zeros(3, 2)}, {})
    >>> {name: tuple(tensor.shape) for name, tensor in tensors.items()}, unmatched
    ({'fc.w': (2, 3)}, [])
"""

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from os import PathLike

import torch
from torch import Tensor

from fourfold.errors import InputError

Names = str | tuple[str, ...]


@dataclass(frozen=True)
class TensorOp:
    """Conversion between the external and the native layout of the tensors of one rule.

    Args:
        to_native: Converts the external tensors, in the order of the rule, to the native ones.
        to_external: Inverse of `to_native`.
        extract_rest: Returns the values of the external tensor that the native tensors do not hold,
            or None if they hold all values.
        restore_rest: Inserts these values into the result of `to_external`.
    """

    to_native: Callable[..., tuple[Tensor, ...]]
    to_external: Callable[..., tuple[Tensor, ...]]
    extract_rest: Callable[[Tensor], Tensor] | None = None
    restore_rest: Callable[[Tensor, Tensor], Tensor] | None = None


def _transpose(x: Tensor) -> Tensor:
    return x.mT.contiguous() if x.ndim == 2 else x


def _split_in_three(x: Tensor) -> tuple[Tensor, ...]:
    if len(x) % 3:
        raise ValueError(f"the first dimension must be divisible by 3, got {len(x)}")
    return tuple(chunk.clone() for chunk in x.chunk(3))


KEEP = TensorOp(lambda x: (x,), lambda x: (x,))
# Conv1D of GPT and GPT-2 stores weights as (in, out); torch.nn.Linear stores (out, in).
TRANSPOSE = TensorOp(lambda x: (_transpose(x),), lambda x: (_transpose(x),))
# Query, key and value projections in one matrix (3 * out, in).
SPLIT_QKV = TensorOp(_split_in_three, lambda *qkv: (torch.cat(qkv),))
SPLIT_QKV_T = TensorOp(
    lambda x: _split_in_three(_transpose(x)), lambda *qkv: (_transpose(torch.cat(qkv)),)
)
# Classes in reverse order.
FLIP_CLASSES = TensorOp(lambda x: (x.flip(0),), lambda x: (x.flip(0),))
# The external tensor has one more leading dimension of size 1.
SQUEEZE_0 = TensorOp(lambda x: (x[0],), lambda x: (x[None],))
# The external tensor is a vector, the native one a table with one row.
UNSQUEEZE_0 = TensorOp(lambda x: (x[None],), lambda x: (x[0],))
# Class and distillation tokens, each (1, 1, D); the native tensor is one table (N, D).
PREFIX_TOKENS = TensorOp(
    lambda *tokens: (torch.cat([x[0] for x in tokens]),),
    lambda table: tuple(row[None, None] for row in table),
)
# fairseq numbers positions from 2; rows 0 and 1 of the table belong to padding or are unused.
OFFSET_2 = TensorOp(
    lambda x: (x[2:].clone(),),
    lambda x: (torch.cat([x.new_zeros(2, x.shape[1]), x]),),
    extract_rest=lambda x: x[:2].clone(),
    restore_rest=lambda table, rest: torch.cat([rest, table[2:]]),
)


@dataclass(frozen=True)
class Rule:
    """Native names, external names, and the conversion between their tensors.

    A rule without native names matches tensors that the model has no parameter for, such as the
    pooler of a BERT that is used as a language model. They are kept and exported unchanged.
    """

    native: Names
    external: Names
    op: TensorOp = KEEP

    @cached_property
    def native_names(self) -> tuple[str, ...]:
        return (self.native,) if isinstance(self.native, str) else self.native

    @cached_property
    def external_names(self) -> tuple[str, ...]:
        return (self.external,) if isinstance(self.external, str) else self.external


@dataclass(frozen=True)
class Tied:
    """External tensor that repeats another one (tied weights); neither imported nor exported."""

    name: str
    tied_to: str


@dataclass(frozen=True)
class Ignored:
    """Constant in older checkpoints, such as a causal mask or position ids."""

    name: str


Entry = Rule | Tied | Ignored


class KeyMap:
    """Table of rules for one architecture.

    Args:
        entries: Rules, tied tensors and ignored tensors. If several rules match a name, the first
            one whose native names the model has is applied.
    """

    def __init__(self, entries: Iterable[Entry]) -> None:
        entries = tuple(entries)
        self.rules = [entry for entry in entries if isinstance(entry, Rule)]
        self.tied = [entry for entry in entries if isinstance(entry, Tied)]
        self.ignored = [_pattern(entry.name) for entry in entries if isinstance(entry, Ignored)]

    def to_native(
        self,
        external: Mapping[str, Tensor],
        expected: Mapping[str, Tensor],
        file: str | PathLike[str],
    ) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Convert external tensors to a complete native state dict.

        Args:
            external: Tensors by external name.
            expected: State dict of the model: the required names and shapes.
            file: File or directory of the tensors, for error messages.

        Returns:
            Tensors by native name, and by external name the tensors (or parts of tensors) that the
            model has no parameter for.

        Raises:
            InputError: A name is unknown or missing, a shape does not match, or a tied tensor
                differs from the tensor it is tied to.
        """
        native: dict[str, Tensor] = {}
        unmapped: dict[str, Tensor] = {}
        unknown = []
        for name in external:
            match = self._find_rule(name, expected)
            if match is not None:
                rule, placeholders = match
                self._apply(rule, placeholders, external, native, unmapped, file)
            elif not self._is_redundant(name, external, file):
                unknown.append(name)
        if unknown:
            raise InputError(
                f"{len(unknown)} tensors do not belong to this architecture, such as {unknown[0]}",
                file=file,
            )
        for name, tensor in expected.items():
            if name not in native:
                raise InputError(f"no tensor for {name} {tuple(tensor.shape)}", file=file)
            if native[name].shape != tensor.shape:
                raise InputError(
                    f"the tensor for {name} has shape {tuple(native[name].shape)}, but config.json"
                    f" implies {tuple(tensor.shape)}",
                    file=file,
                )
        return native, unmapped

    def to_native_subset(
        self,
        external: Mapping[str, Tensor],
        expected: Mapping[str, Tensor],
        file: str | PathLike[str],
    ) -> dict[str, Tensor]:
        """Convert only the external tensors that match a name in `expected`.

        Rules whose operation extracts a rest are skipped, since `external` may then hold only the
        rest under that name.
        """
        native: dict[str, Tensor] = {}
        for name in external:
            match = self._find_rule(name, expected)
            if match is None:
                continue
            rule, placeholders = match
            if rule.native_names and rule.op.extract_rest is None:
                self._apply(rule, placeholders, external, native, {}, file)
        return native

    def to_external(
        self, native: Mapping[str, Tensor], unmapped: Mapping[str, Tensor]
    ) -> tuple[dict[str, Tensor], list[str]]:
        """Convert a native state dict to external tensors.

        Args:
            native: Tensors by native name.
            unmapped: Second return value of `to_native`, or an empty mapping.

        Returns:
            Tensors by external name, and the native names that no rule matches.
        """
        external: dict[str, Tensor] = {}
        unmatched = set(native)
        for name in native:
            for rule in self.rules:
                placeholders = _match(rule.native_names, name)
                if placeholders is None:
                    continue
                inputs = [template.format_map(placeholders) for template in rule.native_names]
                if name != inputs[0] or not set(inputs) <= set(native):
                    continue
                outputs = rule.op.to_external(*(native[key] for key in inputs))
                if len(outputs) != len(rule.external_names):
                    continue  # the rule is for another number of prefix tokens
                for template, tensor in zip(rule.external_names, outputs, strict=True):
                    key = template.format_map(placeholders)
                    if key in unmapped and rule.op.restore_rest is not None:
                        tensor = rule.op.restore_rest(tensor, unmapped[key])
                    external[key] = tensor.contiguous()
                unmatched -= set(inputs)
                break
        for name, tensor in unmapped.items():
            external.setdefault(name, tensor)
        return external, sorted(unmatched)

    def _find_rule(
        self, name: str, expected: Mapping[str, Tensor]
    ) -> tuple[Rule, dict[str, str]] | None:
        for rule in self.rules:
            placeholders = _match(rule.external_names, name)
            if placeholders is not None and all(
                template.format_map(placeholders) in expected for template in rule.native_names
            ):
                return rule, placeholders
        return None

    def _apply(
        self,
        rule: Rule,
        placeholders: dict[str, str],
        external: Mapping[str, Tensor],
        native: dict[str, Tensor],
        unmapped: dict[str, Tensor],
        file: str | PathLike[str],
    ) -> None:
        keys = [template.format_map(placeholders) for template in rule.external_names]
        if not rule.native_names:
            unmapped[keys[0]] = external[keys[0]]
            return
        missing = [key for key in keys if key not in external]
        if missing:
            raise InputError(f"the tensor {missing[0]} is missing", file=file)
        try:
            outputs = rule.op.to_native(*(external[key] for key in keys))
        except (ValueError, IndexError, RuntimeError) as error:
            shape = tuple(external[keys[0]].shape)
            raise InputError(
                f"{keys[0]} {shape} cannot be converted: {error}", file=file
            ) from error
        names = [template.format_map(placeholders) for template in rule.native_names]
        native.update(zip(names, outputs, strict=True))
        if rule.op.extract_rest is not None:
            unmapped[keys[0]] = rule.op.extract_rest(external[keys[0]])

    def _is_redundant(
        self, name: str, external: Mapping[str, Tensor], file: str | PathLike[str]
    ) -> bool:
        """Return True for a tied copy or an ignored constant."""
        for entry in self.tied:
            if entry.name != name:
                continue
            original = external.get(entry.tied_to)
            if original is not None and not torch.equal(external[name], original):
                raise InputError(
                    f"{name} differs from {entry.tied_to}, although config.json ties them",
                    file=file,
                )
            return True
        return any(pattern.fullmatch(name) for pattern in self.ignored)


@cache
def _pattern(template: str) -> re.Pattern[str]:
    """Compile a template; each placeholder matches one component of a dotted name."""
    components = re.split(r"\{(\w+)\}", template)
    seen: set[str] = set()
    expression = ""
    for number, component in enumerate(components):
        if number % 2 == 0:
            expression += re.escape(component)
        elif component in seen:
            expression += f"(?P={component})"
        else:
            expression += f"(?P<{component}>[^.]+)"
            seen.add(component)
    return re.compile(expression)


def _match(templates: tuple[str, ...], name: str) -> dict[str, str] | None:
    for template in templates:
        match = _pattern(template).fullmatch(name)
        if match is not None:
            return match.groupdict()
    return None
