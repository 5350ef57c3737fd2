"""Chunks of token ids as litdata writes them, without litdata."""

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np

UINT16 = "no_header_tensor:20"


def write_chunks(folder: Path, streams: Sequence[np.ndarray], form: str = UINT16) -> Path:
    """A chunk for each stream of ids, cut into two items that no reader should notice."""
    folder.mkdir(parents=True, exist_ok=True)
    listed = []
    for number, stream in enumerate(streams):
        ids = np.asarray(stream, np.uint16)
        offsets = 16 + 2 * np.array([0, len(ids) // 2, len(ids)])
        data = np.array([2, *offsets], np.uint32).tobytes() + ids.tobytes()
        name = f"chunk-0-{number}.bin"
        (folder / name).write_bytes(data)
        size = {"chunk_bytes": len(data), "chunk_size": 2, "dim": len(ids)}
        listed.append({"filename": name, **size})
    config = {"data_format": [form], "compression": None, "encryption": None}
    (folder / "index.json").write_text(json.dumps({"chunks": listed, "config": config}))
    return folder
