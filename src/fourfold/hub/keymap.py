"""How a foreign checkpoint names and lays out a model of ours: one table, read in both directions.

A rule pairs names of ours with names of theirs. `{braces}` stand for one part of a name, the same
on both sides: a layer's number, or `{p}` for weight and bias at once.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from fourfold.core.errors import InputError

Names = str | tuple[str, ...]


@dataclass(frozen=True)
class Layout:
    """How their tensors become ours, and back.

    Args:
        read: Theirs, in the rule's order, to ours.
        write: Ours to theirs.
        rest: What of theirs ours do not hold, to be given back when they are written; or None.
        restore: Puts that rest back into what `write` made.
    """

    read: Callable[..., tuple[Tensor, ...]]
    write: Callable[..., tuple[Tensor, ...]]
    rest: Callable[[Tensor], Tensor] | None = None
    restore: Callable[[Tensor, Tensor], Tensor] | None = None


def _turn(x: Tensor) -> Tensor:
    return x.mT.contiguous() if x.ndim == 2 else x


def _thirds(x: Tensor) -> tuple[Tensor, ...]:
    if len(x) % 3:
        raise ValueError("it does not hold three matrices")
    return tuple(part.clone() for part in x.chunk(3))


AS_IT_IS = Layout(lambda x: (x,), lambda x: (x,))
# GPT's Conv1D holds (in, out) where a linear layer holds (out, in).
TURNED = Layout(lambda x: (_turn(x),), lambda x: (_turn(x),))
# Queries, keys and values in one matrix, below each other.
FUSED = Layout(_thirds, lambda *parts: (torch.cat(parts),))
FUSED_TURNED = Layout(lambda x: _thirds(_turn(x)), lambda *parts: (_turn(torch.cat(parts)),))
# Classes in the opposite order.
REVERSED = Layout(lambda x: (x.flip(0),), lambda x: (x.flip(0),))
# One more dimension of size 1 in front.
WITH_ONE = Layout(lambda x: (x[0],), lambda x: (x[None],))
# A vector there is a table of one row here.
AS_ROW = Layout(lambda x: (x[None],), lambda x: (x[0],))
# Tokens in front of the patches, each (1, 1, D), here one table (N, D).
TOKENS = Layout(
    lambda *tokens: (torch.cat([x[0] for x in tokens]),),
    lambda table: tuple(row[None, None] for row in table),
)
# Positions counted from 2 (fairseq): the first two rows serve padding alone, or nothing.
FROM_TWO = Layout(
    lambda x: (x[2:].clone(),),
    lambda x: (torch.cat([x.new_zeros(2, x.shape[1]), x]),),
    rest=lambda x: x[:2].clone(),
    restore=lambda made, rest: torch.cat([rest, made[2:]]),
)


@dataclass(frozen=True)
class Rule:
    """Names of ours, names of theirs, and how the one becomes the other.

    Without names of ours, theirs is something the model has no place for: it is given back as it
    came when the checkpoint is written again (a pooler nobody uses).
    """

    ours: Names
    theirs: Names
    layout: Layout = AS_IT_IS

    @cached_property
    def our_names(self) -> tuple[str, ...]:
        return (self.ours,) if isinstance(self.ours, str) else self.ours

    @cached_property
    def their_names(self) -> tuple[str, ...]:
        return (self.theirs,) if isinstance(self.theirs, str) else self.theirs


@dataclass(frozen=True)
class Copy:
    """A tensor of theirs that repeats another one (tied weights): not read, not written."""

    name: str
    of: str


@dataclass(frozen=True)
class Ignored:
    """A constant that old checkpoints carry, a causal mask or the numbers of the positions."""

    name: str


Line = Rule | Copy | Ignored


class KeyMap:
    """A table of rules.

    Args:
        lines: The table. Where two lines fit a name, the first whose names the model has counts.
    """

    def __init__(self, lines: Iterable[Line]) -> None:
        lines = tuple(lines)
        self.rules = [line for line in lines if isinstance(line, Rule)]
        self.copies = [line for line in lines if isinstance(line, Copy)]
        self.ignored = [_pattern(line.name) for line in lines if isinstance(line, Ignored)]

    def read(
        self, theirs: Mapping[str, Tensor], wanted: Mapping[str, Tensor], where: str
    ) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Their tensors as ours.

        Args:
            theirs: Their tensors by name.
            wanted: The model's state dict: what has to be there, and in which shape.
            where: The file, for errors.

        Returns:
            Tensors by our names, and by their names what the model has no place for.

        Raises:
            InputError: A name that the table does not know, one that is missing, a shape that does
                not fit, or a tied tensor that is not what it is tied to.
        """
        ours: dict[str, Tensor] = {}
        rest: dict[str, Tensor] = {}
        unknown = []
        for name in theirs:
            found = self._rule_of(name, wanted)
            if found is not None:
                rule, parts = found
                self._apply(rule, parts, theirs, ours, rest, where)
            elif not self._is_known_copy(name, theirs, where):
                unknown.append(name)
        if unknown:
            raise InputError(
                f"{where}: {len(unknown)} tensors have no place in this model, such as {unknown[0]}"
            )
        for name, tensor in wanted.items():
            if name not in ours:
                raise InputError(f"{where}: no tensor for {name} {tuple(tensor.shape)}")
            if ours[name].shape != tensor.shape:
                raise InputError(
                    f"{where}: {name} would be {tuple(ours[name].shape)},"
                    f" but the model of config.json has {tuple(tensor.shape)}"
                )
        return ours, rest

    def read_some(
        self, theirs: Mapping[str, Tensor], wanted: Mapping[str, Tensor], where: str
    ) -> dict[str, Tensor]:
        """Those of their tensors that have a place among `wanted`, by our names.

        Not what a layout has kept under the name of a tensor that it read: that is no whole one.
        """
        ours: dict[str, Tensor] = {}
        for name in theirs:
            found = self._rule_of(name, wanted)
            if found is not None and found[0].our_names and found[0].layout.rest is None:
                self._apply(*found, theirs, ours, {}, where)
        return ours

    def write(
        self, ours: Mapping[str, Tensor], rest: Mapping[str, Tensor]
    ) -> tuple[dict[str, Tensor], list[str]]:
        """Our tensors as theirs, and the names for which the table has no place."""
        theirs: dict[str, Tensor] = {}
        left = set(ours)
        for name in ours:
            for rule in self.rules:
                parts = _match(rule.our_names, name)
                if parts is None:
                    continue
                mine = [n.format_map(parts) for n in rule.our_names]
                if name != mine[0] or not set(mine) <= set(ours):
                    continue
                made = rule.layout.write(*(ours[n] for n in mine))
                if len(made) != len(rule.their_names):
                    continue  # another number of tokens in front: another line
                for their, tensor in zip(rule.their_names, made, strict=True):
                    key = their.format_map(parts)
                    if key in rest and rule.layout.restore is not None:
                        tensor = rule.layout.restore(tensor, rest[key])
                    theirs[key] = tensor.contiguous()
                left -= set(mine)
                break
        for name, tensor in rest.items():
            theirs.setdefault(name, tensor)
        return theirs, sorted(left)

    def _rule_of(
        self, name: str, wanted: Mapping[str, Tensor]
    ) -> tuple[Rule, dict[str, str]] | None:
        for rule in self.rules:
            parts = _match(rule.their_names, name)
            if parts is not None and all(n.format_map(parts) in wanted for n in rule.our_names):
                return rule, parts
        return None

    def _apply(
        self,
        rule: Rule,
        parts: dict[str, str],
        theirs: Mapping[str, Tensor],
        ours: dict[str, Tensor],
        rest: dict[str, Tensor],
        where: str,
    ) -> None:
        keys = [name.format_map(parts) for name in rule.their_names]
        if not rule.our_names:
            rest[keys[0]] = theirs[keys[0]]
            return
        missing = [key for key in keys if key not in theirs]
        if missing:
            raise InputError(f"{where}: {keys[0]} is there, but not {missing[0]}")
        try:
            made = rule.layout.read(*(theirs[key] for key in keys))
        except (ValueError, IndexError, RuntimeError) as error:
            shape = tuple(theirs[keys[0]].shape)
            raise InputError(f"{where}: {keys[0]} {shape} cannot be read: {error}") from error
        ours.update(zip((n.format_map(parts) for n in rule.our_names), made, strict=True))
        if rule.layout.rest is not None:
            rest[keys[0]] = rule.layout.rest(theirs[keys[0]])

    def _is_known_copy(self, name: str, theirs: Mapping[str, Tensor], where: str) -> bool:
        for copy in self.copies:
            if copy.name == name:
                if copy.of in theirs and not torch.equal(theirs[name], theirs[copy.of]):
                    raise InputError(
                        f"{where}: {name} is not {copy.of}, to which config.json ties it"
                    )
                return True
        return any(pattern.fullmatch(name) for pattern in self.ignored)


def _pattern(name: str) -> re.Pattern[str]:
    """`{i}` matches one part of a dotted name."""
    parts = re.split(r"\{(\w+)\}", name)
    seen: set[str] = set()
    found = ""
    for number, part in enumerate(parts):
        if number % 2 == 0:
            found += re.escape(part)
        elif part in seen:
            found += f"(?P={part})"
        else:
            found += f"(?P<{part}>[^.]+)"
            seen.add(part)
    return re.compile(found)


_PATTERNS: dict[str, re.Pattern[str]] = {}


def _match(templates: tuple[str, ...], name: str) -> dict[str, str] | None:
    for template in templates:
        if template not in _PATTERNS:
            _PATTERNS[template] = _pattern(template)
        if found := _PATTERNS[template].fullmatch(name):
            return found.groupdict()
    return None
