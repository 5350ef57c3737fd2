"""assemble, pack, unpack: the HTML page of attention maps, and the bytes of the maps in it.

`tests/explorer/test_page.py` documents the page: no request leaves it, and tokens are never markup.
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

from fourfold.models.analysis.attention_maps import Array, dequantize, quantize

CONTROL = re.compile(
    "[\x00-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2060-\u2069\ud800-\udfff\ufeff]"
)
TABLE_QUERIES = 64  # rows of the table for browsers without scripts, for each input
TABLE_KEYS = 3


def pack(
    arrays: Sequence[Array], triangles: Sequence[bool] | None = None, precision: int = 8
) -> tuple[bytes, list[int]]:
    """Quantise maps and put them one behind the other.

    Args:
        arrays: Weights in [0, 1], one (T, S) array for each map.
        triangles: True for maps of which only the lower triangle is stored, row by row.
        precision: 8 for bytes (see `quantize`), 16 for half floats.

    Returns:
        The bytes, and the offset of each map in elements.
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
    """Return the (T, S) weights of the stored map `entry`, as the page shows them."""
    rows, columns = entry["shape"]
    cells = np.tril_indices(rows, m=columns) if entry.get("triangle") else None
    count = rows * columns if cells is None else len(cells[0])
    size = precision // 8
    kind = np.uint8 if precision == 8 else np.dtype("<f2")
    stored = np.frombuffer(maps, kind, count, entry["offset"] * size)
    weights = dequantize(stored) if precision == 8 else stored.astype(np.float32)
    low, high = entry.get("range") or (0, 1)
    result = np.zeros((rows, columns), np.float32)
    result[cells if cells is not None else ...] = (low + (high - low) * weights).reshape(
        -1 if cells is not None else (rows, columns)
    )
    return result


def assemble(document: dict[str, Any], maps: bytes) -> str:
    """Return the page as one HTML file that requests nothing.

    Args:
        document: Names, tokens, offsets and statistics of the maps; the inputs are in "rows".
        maps: Bytes of all maps, as `pack` returns them.

    Returns:
        The text of the file, which depends on the arguments alone.
    """
    style, frame = _read("look.css"), _read("look.html")
    script = _read("pure.js") + _read("look.js").removeprefix('"use strict";\n')
    parts = {
        "title": html.escape(_printable(document["title"])),
        "policy": "default-src 'none'; base-uri 'none'; form-action 'none'; img-src data:; "
        f"style-src '{_digest(style)}'; script-src '{_digest(script)}'",
        "style": style,
        "script": script,
        "table": "".join(_tables(document, maps)),
        # ASCII only, so that neither a line separator nor a lone surrogate reaches the file.
        "meta": json.dumps(document, separators=(",", ":")).replace("<", "\\u003c"),
        "maps": base64.b64encode(zlib.compress(maps)).decode(),
    }
    return re.sub(r"\{\{(\w+)\}\}", lambda found: parts[found[1]], frame)


def _read(name: str) -> str:
    return files("fourfold.explorer").joinpath(name).read_text(encoding="utf-8")


def _digest(text: str) -> str:
    digest = hashlib.sha256(text.encode()).digest()
    return f"sha256-{base64.b64encode(digest).decode()}"


def _printable(text: str) -> str:
    """Return `text` with white space and control characters as visible marks."""
    marked = text.replace("\n", "↵") if text.strip(" ") else "␣" * len(text)
    return CONTROL.sub(lambda found: f"\\u{{{ord(found[0]):x}}}", marked)


def _tables(document: dict[str, Any], maps: bytes) -> list[str]:
    """Return one HTML table for each input: the largest weights of each query."""
    parts = [
        "<p>This browser runs no scripts; the largest weights of one map are in these tables.</p>"
    ]
    for row in document["rows"]:
        entry = _summary_map(row)
        if entry is None:
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
                f"<td dir=auto>{html.escape(_printable(keys[s]))}</td><td>{line[s]:.2g}</td>"
                for s in best
            )
            parts.append(
                f"<tr><th scope=row dir=auto>{html.escape(_printable(query))}</th>{cells}</tr>"
            )
        parts.append("</tbody></table>")
    return parts


def _summary_map(row: dict[str, Any]) -> dict[str, Any] | None:
    """Return the map that a reader without scripts sees: to the source if there is one, else any.

    The mean of the heads of the last layer comes before a single head.
    """
    order = ["alpha", "cross", "rollout"]

    def rank(entry: dict[str, Any]) -> tuple[int, bool, int]:
        name = entry["name"]
        place = order.index(name) if name in order else len(order)
        return place, entry["head"] is not None, -(entry["layer"] or 0)

    return min((entry for entry in row["maps"] if not entry["model"]), key=rank, default=None)
