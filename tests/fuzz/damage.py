"""Hypothesis strategies that damage bytes and nested dictionaries and lists."""

import copy
import math
from collections.abc import Callable
from typing import Any

from hypothesis import strategies as st

Draw = Callable[[st.SearchStrategy[Any]], Any]

# Values that are invalid for most options.
ODD: list[Any] = [
    None,
    True,
    -1,
    0,
    1,
    2**31,
    2**63,
    10**30,
    -(2**40),
    0.5,
    -0.5,
    1e-300,
    1e308,
    math.nan,
    math.inf,
    -math.inf,
    "",
    " ",
    "x",
    "nan",
    "None",
    "1e999",
    "0x10",
    "é\u2028",
    "a\x00b",
    "\ud800",
    "[",
    "{",
    "${x}",
    "../..",
    "y" * 2000,
    [],
    [None],
    [1, "x"],
    [[]],
    {},
    {"x": 1},
    {"class_path": "os.system"},
    {"class_path": "fourfold.tasks.Translation"},
]


@st.composite
def spoilt(draw: Draw, data: bytes) -> bytes:
    """Bytes that are truncated, flipped, zeroed, removed, duplicated or inserted."""
    ways = ("cut", "flip", "flip", "zero", "drop", "double", "insert", "empty", "grow")
    way = draw(st.sampled_from(ways))
    at = draw(st.integers(0, max(0, len(data) - 1)))
    n = draw(st.sampled_from((1, 2, 7, 64, 1000)))
    if way == "cut":
        return data[:at]
    if way == "flip":
        turned = bytes(byte ^ (1 << (at % 8)) for byte in data[at : at + min(n, 4)])
        return data[:at] + turned + data[at + len(turned) :]
    if way == "zero":
        return data[:at] + bytes(len(data[at : at + n])) + data[at + n :]
    if way == "drop":
        return data[:at] + data[at + n :]
    if way == "double":
        return data[: at + n] + data[at:]
    if way == "empty":
        return b""
    added = draw(st.sampled_from((b"\xff", b"\x00" * 9, b"\r", b"\xef\xbb\xbf", b"\xed\xa0\x80")))
    return data + added if way == "grow" else data[:at] + added + data[at:]


def paths(tree: Any, above: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Return the path of keys to each value in nested dictionaries and lists."""
    inside = tree.items() if isinstance(tree, dict) else enumerate(tree[:20])
    found = []
    for key, value in inside:
        found.append((*above, key))
        if isinstance(value, dict | list):
            found += paths(value, (*above, key))
    return found


@st.composite
def changed(draw: Draw, tree: Any, odd: st.SearchStrategy[Any] | None = None) -> Any:
    """Nested dictionaries and lists with one key removed, renamed or set to another value."""
    tree = copy.deepcopy(tree)
    *above, last = draw(st.sampled_from(paths(tree)))
    inner = tree
    for key in above:
        inner = inner[key]
    way = draw(st.sampled_from(("odd", "odd", "odd", "gone", "renamed", "listed")))
    if way == "gone":
        del inner[last]
    elif way == "renamed" and isinstance(inner, dict):
        name = str(last)
        at = draw(st.integers(0, len(name) - 1))
        inner[name[:at] + name[at + 1 :] + "_"] = inner.pop(last)
    elif way == "listed":
        inner[last] = [inner[last]]
    else:
        inner[last] = draw(odd if odd is not None else st.sampled_from(ODD))
    return tree
