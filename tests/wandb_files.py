"""What a run in Weights & Biases really holds: its file, read record by record.

A `.wandb` file is LevelDB's log: 7 bytes of header, then blocks of 32 KiB with records of a
checksum (4 bytes), a length (2) and a type (1); a record that crosses a block is in pieces. Each is
a message of wandb's own protocol.
"""

import json
import struct
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

BLOCK, HEADER = 32 * 1024, 7
FULL, FIRST, MIDDLE, LAST = 1, 2, 3, 4


def records(file: Path) -> Iterator[bytes]:
    """The records of a file; one that a kill has cut off is left out."""
    data = file.read_bytes()
    assert data[:4] == b":W&B"
    place, pieces = HEADER, b""
    while place + HEADER <= len(data):
        room = BLOCK - place % BLOCK
        if room < HEADER:  # filled up with zeros
            place += room
            continue
        _, length, kind = struct.unpack("<IHB", data[place : place + HEADER])
        if kind not in (FULL, FIRST, MIDDLE, LAST) or place + HEADER + length > len(data):
            return
        piece = data[place + HEADER : place + HEADER + length]
        place += HEADER + length
        pieces = piece if kind in (FULL, FIRST) else pieces + piece
        if kind in (FULL, LAST):
            yield pieces


class WandbFile:
    """A run as one process wrote it.

    Args:
        folder: wandb's own, offline-run-*.
    """

    def __init__(self, folder: Path) -> None:
        from wandb.proto.wandb_internal_pb2 import Record

        (file,) = folder.glob("run-*.wandb")
        self.folder = folder
        self.run: Any = None
        self.config: dict[str, Any] = {}
        self.summary: dict[str, Any] = {}
        self.history: list[dict[str, Any]] = []
        self.artifacts: list[Any] = []
        self.exit_code: int | None = None
        for content in records(file):
            record = Record()
            record.ParseFromString(content)
            self._take(record)

    def _take(self, record: Any) -> None:
        kind = record.WhichOneof("record_type")
        if kind == "run":
            self.run = record.run
            self.config |= values(record.run.config.update)
        elif kind == "config":
            self.config |= values(record.config.update)
        elif kind == "summary":
            self.summary |= values(record.summary.update)
        elif kind == "history":
            self.history.append(values(record.history.item))
        elif kind == "artifact":
            self.artifacts.append(record.artifact)
        elif kind == "exit":
            self.exit_code = record.exit.exit_code

    def table(self, key: str) -> dict[str, Any]:
        """A logged table: its columns and data."""
        found: dict[str, Any] = json.loads(
            (self.folder / "files" / self.last(key)["path"]).read_text()
        )
        return found

    def last(self, key: str) -> Any:
        """What was last logged under a name, into the history or the summary."""
        return (
            next((row[key] for row in reversed(self.history) if key in row), None)
            or self.summary[key]
        )


def values(items: Any) -> dict[str, Any]:
    """Keys and their JSON as plain values; what was logged as one thing is one again."""
    found: dict[str, Any] = {}
    for item in items:
        *path, key = item.nested_key or [item.key]
        inner = found
        for name in path:
            inner = inner.setdefault(name, {})
        inner[key] = json.loads(item.value_json)
    return found


def runs_in(run: Path) -> list[WandbFile]:
    """What the processes of a run directory wrote, in the order of their start.

    The end of each is awaited: wandb's own process writes it a moment later.
    """
    folders = sorted((run / "wandb").glob("offline-run-*"))
    for _ in range(100):
        found = [WandbFile(folder) for folder in folders]
        if all(part.exit_code is not None for part in found):
            break
        time.sleep(0.1)
    return found
