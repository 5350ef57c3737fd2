"""HTML file of a page of attention maps, and storage of the maps as bytes.

The page sends no network request. Tokens are inserted as text and never as markup.
"""

import base64
import hashlib
import html
import json
import re
import zlib
from importlib.resources import files
from typing import Any

import numpy as np

from fourfold.analysis.attention_maps import Array, quantize


def pack(array: Array, triangle: bool = False, precision: int = 8) -> bytes:
    """Return the bytes of an attention map (T, S) with weights in [0, 1], row by row.

    With `triangle`, only the lower triangle is stored. A precision of 8 stores a weight a as
    round(255 sqrt(a)) in a byte, 16 stores it as a little-endian half float.
    """
    values = np.asarray(array, dtype=np.float32)
    flat = values[np.tril_indices(values.shape[0], m=values.shape[1])] if triangle else values
    return (quantize(flat) if precision == 8 else flat.astype("<f2")).tobytes()


def assemble(document: dict[str, Any], maps: bytes) -> str:
    """Return the text of one HTML file from a document and the bytes of its maps.

    The file loads no other file and sends no request. Equal arguments give equal texts.
    """
    style, frame = _read("look.css"), _read("look.html")
    live = document.get("live")
    names = ("tokenize.js", "engine.js", "pictures.js", "live.js") if live else ()
    script = _read("pure.js")
    script += "".join(_read(name).removeprefix('"use strict";\n') for name in (*names, "look.js"))
    weights = live["weights"] if live else ""
    content = {name: value for name, value in document.items() if name != "live"}
    parts = {
        # `repr` escapes control characters, line separators and lone surrogates.
        "title": html.escape(repr(document["title"])[1:-1]),
        "policy": "default-src 'none'; base-uri 'none'; form-action 'none'; img-src data:; "
        f"style-src '{_digest(style)}'; script-src '{_digest(script)}'"
        + ("; worker-src blob:" if live else ""),
        "style": style,
        "script": script,
        # `json.dumps` writes ASCII only, so the file has no line separators or lone surrogates.
        "meta": _json(content),
        "live": live
        and f'<script type="application/json" id="model-values">{_json(live["values"])}</script>',
        # The script draws the stored maps while the browser still reads the weights.
        "weights": live and f'<script type="text/plain" id="weights">{weights}</script>',
        "maps": base64.b64encode(zlib.compress(maps)).decode(),
    }
    return re.sub(r"\{\{(\w+)\}\}", lambda found: parts[found[1]] or "", frame)


def _json(values: Any) -> str:
    return json.dumps(values, separators=(",", ":")).replace("<", "\\u003c")


def _read(name: str) -> str:
    return files("fourfold.explorer").joinpath(name).read_text(encoding="utf-8")


def _digest(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"
