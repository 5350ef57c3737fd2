"""Checks of config fields (types, choices, ranges) and of values in files (depth, storage)."""

import math
import reprlib
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields
from difflib import get_close_matches
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin

from fourfold.errors import InputError

# Names that other packages give to gated feed-forward layers, with the activations of the gates.
GATED = {"swiglu": "silu", "geglu": "gelu", "reglu": "relu"}

MAX_SIZE = 2**31 - 1  # of one dimension; torch counts the elements of a tensor in 64 bits
MAX_BEAMS = 1024  # width of a beam search, whose memory grows with it
MAX_DEPTH = 64  # levels of nested mappings and lists in a config or a checkpoint
MAX_IMAGE_SIDE = 2**14  # in pixels
MAX_VOCABULARY = 2**24
# Largest value of an integer field of a model config, by the end of its name, and of all others.
# The largest values are far above those of published models. They reject numbers whose layers or
# tables no machine can build, before anything is allocated.
LARGEST = {
    "layers": 1024,
    **dict.fromkeys(("heads", "channels"), 4096),
    **dict.fromkeys(("image_size", "patch_size"), MAX_IMAGE_SIDE),
    **dict.fromkeys(("d_ff", "max_len", "window"), 2**22),
    **dict.fromkeys(("vocab_size", "n_classes"), MAX_VOCABULARY),
}
LARGEST_OF_OTHERS = 2**20
ImageSize = int | tuple[int, int]  # side of a square, or height and width, in pixels
FRACTIONS = ("norm_eps", "dropout", "drop_path")  # ends of names


def check_fields(config: Any) -> None:
    """Raise InputError if a field of a model config is outside its type or range.

    Integers are from 1 to a value of `LARGEST`, and floats with a name in `FRACTIONS` from 0 and
    below 1. A class states other ranges in the class variable `ranges`: arguments of `check_range`
    by name of the field. None is always allowed. A list of height and width becomes a tuple, or a
    number for a square.
    """
    check_types(config)
    ranges: dict[str, Any] = {}
    for cls in reversed(type(config).__mro__):
        ranges |= vars(cls).get("ranges", {})
    for name, declared in ((field.name, field.type) for field in fields(config)):
        value = getattr(config, name)
        if value is None:
            continue
        if name in ranges:
            check_range(name, value, **ranges[name])
        elif isinstance(value, int) and int in (declared, *get_args(declared)):
            ends = (n for end, n in LARGEST.items() if name.endswith(end))
            check_positive(name, value, next(ends, LARGEST_OF_OTHERS))
        elif declared == ImageSize:
            object.__setattr__(config, name, canonical_size(height_width(value, name)))
        elif name.endswith(FRACTIONS):
            check_range(name, value, minimum=0.0, below=1.0)


def height_width(size: ImageSize, name: str = "image_size") -> tuple[int, int]:
    """Return height and width of an image size, which is a number for a square image.

    Raises:
        InputError: The size is not one or two numbers from 1 to `MAX_IMAGE_SIDE`.
    """
    check_type(name, size, ImageSize)
    sides = (size, size) if isinstance(size, int) else tuple(size)
    if len(sides) != 2:
        raise InputError(f"must be a number or [height, width], got {quote(size)}", option=name)
    for side in sides:
        check_positive(name, side, MAX_IMAGE_SIDE)
    return sides


def canonical_size(size: Any) -> Any:
    """Return one number for equal height and width, and another pair as a tuple."""
    if not isinstance(size, list | tuple) or len(size) != 2:
        return size
    return size[0] if size[0] == size[1] else tuple(size)


def require_sizes(config: Any) -> None:
    """Raise InputError if the field vocab_size or n_classes of a model config is None.

    A config file may omit these fields if a command with a dataset sets them.
    """
    for name in ("vocab_size", "n_classes"):
        if getattr(config, name, 0) is None:
            raise InputError("must be given: no dataset can fill it in", option=name)


def check_types(config: Any, *, prefix: str = "") -> None:
    """Raise InputError if a field of a dataclass has a value of another type than declared.

    jsonargparse checks types on the command line, but not those of a checkpoint or a config.json.
    The message shows `prefix`, such as "optimizer.", before the name of the field.
    """
    for field in fields(config):
        check_type(prefix + field.name, getattr(config, field.name), field.type)


def check_type(name: str, value: object, declared: Any) -> None:
    """Raise InputError unless `value` has the type `declared`, such as `int | None`.

    A list is accepted for a tuple, and an int for a float, but no bool for a number. Items are
    checked if the type declares one type for all of them, such as `dict[str, int]`. `name` is the
    option in the error message.
    """
    members = get_args(declared) if get_origin(declared) in (Union, UnionType) else (declared,)
    choices = [c for member in members if get_origin(member) is Literal for c in get_args(member)]
    types = [
        get_origin(member) or member for member in members if get_origin(member) is not Literal
    ]
    types += [int] * (float in types) + [list] * (tuple in types)
    is_wrong_bool = isinstance(value, bool) and bool not in types  # a bool is also an int
    if value in choices or (isinstance(value, tuple(types)) and not is_wrong_bool):
        for member in members:
            _check_items(name, value, member)
        return
    names = [t.__name__ for t in types if t is not type(None)]
    if choices and (isinstance(value, str) or not names):
        check_choice(name, value, choices)
    allowed = " or ".join([*map(repr, choices), *names])
    raise InputError(f"must be of type {allowed}, got {quote(value)!r}", option=name)


def _check_items(name: str, value: object, declared: Any) -> None:
    """Check the items of a list, or the values of a dict, if all have one declared type."""
    inner = {x for x in get_args(declared)[get_origin(declared) is dict :] if x is not ...}
    if len(inner) == 1 and Any not in inner and isinstance(value, list | tuple | dict):
        for item in value.values() if isinstance(value, dict) else value:
            check_type(name, item, *inner)


def quote(value: object) -> str:
    """Return the first 80 characters of a value as text, for an error message.

    Long numbers and nested values are abbreviated: writing them out could exhaust the memory.
    """
    if isinstance(value, str):
        return value[:80]
    if isinstance(value, int) and value.bit_length() > 2048:
        return f"an integer of {value.bit_length()} bits"
    is_nested = isinstance(value, list | tuple | dict | set | frozenset)
    return (reprlib.repr(value) if is_nested else str(value))[:80]


def check_nesting(
    root: Any, children: Callable[[Any], Iterable[Any]], maximum: int, file: Any
) -> None:
    """Raise InputError if nested values have too many parts or more than `MAX_DEPTH` levels.

    A part that occurs several times counts several times: a few lines of YAML with aliases, or a
    small pickle, can describe more than 10^12 parts. `children` returns the parts of a value.
    """
    known: dict[int, tuple[int, int]] = {}  # number of parts and of levels of each value

    def measure(value: Any, depth: int) -> tuple[int, int]:
        if id(value) not in known:
            parts = [measure(part, depth + 1) for part in children(value) if depth <= MAX_DEPTH]
            n_levels = max((levels for _, levels in parts), default=0)
            known[id(value)] = 1 + sum(n for n, _ in parts), 1 + n_levels
        if depth + known[id(value)][1] > MAX_DEPTH + 1:
            raise InputError(f"must have at most {MAX_DEPTH} levels of nested values", file=file)
        if known[id(value)][0] > maximum:
            message = f"must have at most {maximum} values once shared parts are written out"
            raise InputError(message, file=file)
        return known[id(value)]

    measure(root, 0)


def check_stored(tensors: Mapping[str, Any]) -> None:
    """Raise InputError if a tensor that was read from a file has more elements than its storage.

    A file of a few bytes can describe a tensor of any size, on the meta device, sparse or with
    stride 0. A copy would exhaust the memory, or have arbitrary values. Other values are ignored.
    """
    for name, x in tensors.items():
        if hasattr(x, "layout") and x.numel() * x.itemsize > _n_bytes(x):
            message = f"has {x.numel()} elements, more than its storage holds"
            raise InputError(message, option=str(name)[:80])


def _n_bytes(x: Any) -> int:
    """Return the size of the storage of a tensor; 0 for a sparse tensor and on the meta device."""
    is_stored = str(x.layout) == "torch.strided" and not x.is_meta
    return int(x.untyped_storage().nbytes()) if is_stored else 0


def count_stored(tensors: Iterable[Any]) -> int:
    """Return the number of elements in the storages of tensors; a shared storage counts once."""
    storages = {x.untyped_storage()._cdata: x for x in tensors}
    return sum(x.untyped_storage().nbytes() // x.itemsize for x in storages.values())


def check_kinds(tensors: Mapping[str, Any], expected: Mapping[str, Any]) -> None:
    """Raise InputError if tensors of a file replace floating-point weights by other numbers.

    `load_state_dict` would convert integers and complex numbers without an error. A name that one
    of the two lacks is not checked.
    """
    for name in tensors.keys() & expected.keys():
        if tensors[name].is_floating_point() != expected[name].is_floating_point():
            kinds = (str(x.dtype).removeprefix("torch.") for x in (expected[name], tensors[name]))
            raise InputError("must have numbers of type {}, got {}".format(*kinds), option=name)


def check_choice(name: str, value: object, choices: Sequence[object]) -> None:
    """Raise InputError unless `value` is one of `choices`; the message suggests the closest."""
    if value not in choices:
        names = [str(choice) for choice in choices]
        hint = suggestion(quote(value), names)
        shown = quote(value) if isinstance(value, int | list | tuple | dict) else repr(value)
        raise InputError(f"must be one of {', '.join(names)}, got {shown}{hint}", option=name)


def suggestion(value: str, choices: Sequence[str]) -> str:
    """Return the end of an error message, which suggests the closest choice, or "".

    Example:
        >>> suggestion("relus", ["relu", "silu"]), suggestion("swiglu", ["relu", "silu"])
        ('; did you mean relu?', '; swiglu is feed_forward: glu with activation: silu')
    """
    if (activation := GATED.get(value.lower())) in choices:
        return f"; {value} is feed_forward: glu with activation: {activation}"
    close = get_close_matches(value, choices, n=1)
    return f"; did you mean {close[0]}?" if close else ""


def check_absent(reason: str, **values: object) -> None:
    """Raise InputError for the first keyword argument that is not None."""
    for name, value in values.items():
        if value is not None:
            raise InputError(f"must be None for {reason}", option=name)


def check_positive(name: str, value: int | None, maximum: int = MAX_SIZE) -> None:
    """Raise InputError for the option `name` unless `value` is None or from 1 to `maximum`."""
    if value is not None and not 1 <= value <= maximum:
        bound = "at least 1" if value < 1 else f"at most {maximum}"
        raise InputError(f"must be {bound}, got {quote(value)}", option=name)


def check_range(
    name: str,
    value: float,
    *,
    minimum: float | None = None,
    above: float | None = None,
    maximum: float = math.inf,
    below: float = math.inf,
) -> None:
    """Raise InputError unless `value` is finite and within the bounds; above and below exclude."""
    in_range = value <= maximum and value < below and (minimum is None or value >= minimum)
    largest = sys.maxsize if isinstance(value, int) else sys.float_info.max
    in_range = in_range and abs(value) <= largest
    if not in_range or (above is not None and not value > above):
        bounds = {
            "at least": minimum,
            "above": above,
            "at most": maximum if maximum < math.inf else None,
            "below": below if below < math.inf else None,
        }
        said = [f"{word} {bound:.12g}" for word, bound in bounds.items() if bound is not None]
        if not abs(value) <= largest and maximum == below == math.inf:
            said.append("finite" if largest > sys.maxsize else "an integer of 64 bits")
        raise InputError(f"must be {' and '.join(said)}, got {quote(value)}", option=name)
