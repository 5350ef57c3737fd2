"""HTML file of a page of attention maps, and storage of the maps as bytes.

The page sends no network request. Tokens are inserted as text and never as markup.
"""

import base64
import hashlib
import html
import json
import re
import zlib
from collections.abc import Sequence
from importlib.resources import files
from typing import Any

import numpy as np

from fourfold.analysis.attention_maps import Array, dequantize, quantize

CONTROL = re.compile(
    "[\x00-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2060-\u2069\ud800-\udfff\ufeff]"
)
# Parts of a script that remain as they are: strings, templates (nested up to four times) and
# regular expressions. In the scripts of the page, a space follows each sign of a division.
STRING = r""" "(?:\\.|[^"\\\n])*" | '(?:\\.|[^'\\\n])*' """
TEMPLATE = "(?!)"
for _ in range(4):
    INNER = rf"\$\{{ (?:{STRING}|{TEMPLATE}|[^`{{}}\"'])* \}}"
    TEMPLATE = rf"`(?: \\. | {INNER} | [^`\\$] | \$(?!\{{) )*`"
REGEX = r"(?<=[(,=:!&|?[ ]) / (?![/* ]) (?: \\. | \[(?:\\.|[^\]\\\n])*\] | [^/\\[\n] )+ /"
GAP = r"(?P<gap> (?: \s | //[^\n]* | /\*.*?\*/ )+ )"
SCRIPT_PARTS = re.compile("|".join([STRING, TEMPLATE, REGEX, GAP]), re.X | re.S)
# Size of the table for browsers without scripts: queries of each input, keys of each query.
TABLE_QUERIES = 64
TABLE_KEYS = 3


def pack(
    arrays: Sequence[Array], triangles: Sequence[bool] | None = None, precision: int = 8
) -> tuple[bytes, list[int]]:
    """Convert attention maps to bytes, one map after another, each row by row.

    Args:
        arrays: Weights in [0, 1], an array (T, S) for each map.
        triangles: True for each map of which only the lower triangle is stored; None means that all
            maps are stored completely.
        precision: Bits of a stored weight. 8 stores a weight a as round(255 sqrt(a)) in a byte. 16
            stores a weight as a little-endian half float.

    Returns:
        The bytes, and the index of the first element of each map. An element has `precision` / 8
        bytes.
    """
    chunks, offsets, position = [], [], 0
    for array, triangle in zip(arrays, triangles or [False] * len(arrays), strict=True):
        values = np.asarray(array, dtype=np.float32)
        flat = values[np.tril_indices(values.shape[0], m=values.shape[1])] if triangle else values
        stored = quantize(flat) if precision == 8 else flat.astype("<f2")
        chunks.append(stored.tobytes())
        offsets.append(position)
        position += stored.size
    return b"".join(chunks), offsets


def unpack(entry: dict[str, Any], maps: bytes, precision: int = 8) -> Array:
    """Return the weights (T, S) float32 of a stored attention map, as the page shows them.

    Args:
        entry: Entry of the map in the document, with `shape`, `offset`, `triangle` and `range`.
        maps: Bytes of all maps, as `pack` returns them.
        precision: Bits of a stored weight, 8 or 16.
    """
    rows, columns = entry["shape"]
    last = 0 if entry.get("triangle") else columns  # diagonal that is stored last
    cells = np.tril_indices(rows, last, columns)
    kind = np.dtype("u1" if precision == 8 else "<f2")
    stored = np.frombuffer(maps, kind, len(cells[0]), entry["offset"] * kind.itemsize)
    weights = dequantize(stored) if precision == 8 else stored.astype(np.float32)
    low, high = entry.get("range") or (0, 1)
    result = np.zeros((rows, columns), np.float32)
    result[cells] = low + (high - low) * weights
    return result


def assemble(document: dict[str, Any], maps: bytes) -> str:
    """Return a page as one HTML file that loads no other file and sends no request.

    Args:
        document: Content of the page without the weights, a dictionary of JSON values (see
            `fourfold.explorer.document`).
        maps: Bytes of all maps, as `pack` returns them.

    Returns:
        The text of the file. Equal arguments give equal texts.
    """
    style, frame = _read("look.css"), _read("look.html")
    script = compact(_read("pure.js") + _read("look.js").removeprefix('"use strict";\n'))
    parts = {
        "title": html.escape(_printable(document["title"])),
        "policy": "default-src 'none'; base-uri 'none'; form-action 'none'; img-src data:; "
        f"style-src '{_digest(style)}'; script-src '{_digest(script)}'",
        "style": style,
        "script": script,
        "table": "".join(_tables(document, maps)),
        # `json.dumps` writes ASCII only, so the file has no line separators or lone surrogates.
        "meta": json.dumps(document, separators=(",", ":")).replace("<", "\\u003c"),
        "maps": base64.b64encode(maps if document.get("raw") else zlib.compress(maps)).decode(),
    }
    return re.sub(r"\{\{(\w+)\}\}", lambda found: parts[found[1]], frame)


def compact(script: str) -> str:
    """Return a script of the page without comments and without white space that has no effect.

    Strings, templates and regular expressions are returned unchanged. A line break remains unless
    the character before it or after it excludes that a statement ends there.

    Args:
        script: Text of the script, without a template that is nested more than four times.
    """

    def shorten(found: re.Match[str]) -> str:
        gap, before, after = found["gap"], script[: found.start()][-1:], script[found.end() :][:1]
        if gap is None:
            return found[0]
        if before in "{([,;=:?&|<>*!" or after in ")],;:=?&|<>*}":
            return ""
        is_needed = re.fullmatch(r"[\w$]{2}|\+\+|--|/[/*]", before + after)
        return "\n" if "\n" in gap else " " if is_needed else ""

    return SCRIPT_PARTS.sub(shorten, script)


def _read(name: str) -> str:
    return files("fourfold.explorer").joinpath(name).read_text(encoding="utf-8")


def _digest(text: str) -> str:
    digest = hashlib.sha256(text.encode()).digest()
    return f"sha256-{base64.b64encode(digest).decode()}"


def _printable(text: str) -> str:
    r"""Return a text in which line breaks and control characters are visible.

    A line break becomes "↵", and a control character becomes its code point, such as "\u{200b}". A
    text of spaces only becomes as many "␣".
    """
    marked = text.replace("\n", "↵") if text.strip(" ") else "␣" * len(text)
    return CONTROL.sub(lambda found: f"\\u{{{ord(found[0]):x}}}", marked)


def _tables(document: dict[str, Any], maps: bytes) -> list[str]:
    """Return the HTML tables for browsers without scripts, one table for each input with maps.

    A table shows the attention map of the input that `_summary_map` selects. It lists the keys with
    the largest weights for each query. At most `TABLE_QUERIES` (64) queries and `TABLE_KEYS` (3)
    keys are listed.

    Args:
        document: Document of the page.
        maps: Bytes of all maps, as `pack` returns them.
    """
    parts = [
        "<p>This browser runs no scripts; the largest weights of one map are in these tables.</p>"
    ]
    for row in document["rows"]:
        if (entry := _summary_map(row)) is None:
            continue
        weights = unpack(entry, maps, document["precision"])
        queries, keys = (row["tokens"][entry[side]] for side in ("queries", "keys"))
        place = "".join(
            f", {name} {entry[name]}" for name in ("layer", "head") if entry[name] is not None
        )
        caption = f"{row['title']}: {entry['name']}{place}"
        parts.append(f"<table><caption>{html.escape(_printable(caption))}</caption><tbody>")
        for query, line in list(zip(queries, weights, strict=True))[:TABLE_QUERIES]:
            best = np.argsort(-line, kind="stable")[:TABLE_KEYS]
            cells = "".join(
                f"<td dir=auto>{html.escape(_printable(keys[s]))}</td><td>{line[s]:.3g}</td>"
                for s in best
            )
            parts.append(
                f"<tr><th scope=row dir=auto>{html.escape(_printable(query))}</th>{cells}</tr>"
            )
        parts.append("</tbody></table>")
    return parts


def _summary_map(row: dict[str, Any]) -> dict[str, Any] | None:
    """Return the entry of the map that represents a row (input) in a browser without scripts.

    Maps of the attention to an encoder are preferred ("alpha" of recurrent models, then "cross").
    Rollouts are the next choice, and other maps the last. Among maps of the same rank, a mean over
    heads is preferred to a single head, and then the last layer to other layers. The result is None
    if the row has no maps.
    """
    order = {"alpha": 0, "cross": 1, "rollout": 2}

    def rank(entry: dict[str, Any]) -> tuple[int, bool, int]:
        place = order.get(entry["name"], len(order))
        return place, entry["head"] is not None, -(entry["layer"] or 0)

    return min((entry for entry in row["maps"] if not entry["model"]), key=rank, default=None)
