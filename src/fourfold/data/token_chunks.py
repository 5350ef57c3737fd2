"""Token ids in chunks, as `litdata.optimize` writes them with a `TokensLoader`, on disk or remote.

A chunk is a file: the number N of its items, their N + 1 offsets (uint32), and the ids of all items
on end. `index.json` lists the chunks. Which items there are is of no interest here: a chunk is one
stream of ids, from which rows of any length can be cut.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from hashlib import blake2b
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from fourfold.core.errors import InputError
from fourfold.data.chunk_cache import ChunkCache, fetch
from fourfold.data.json_text import parse_json
from fourfold.data.sources import read_text, resolve
from fourfold.data.tokenizer import Tokenizer

INDEX, TOKENIZER = "index.json", "tokenizer.json"

# How litdata numbers types of whole numbers, and what they are.
_FORMATS = {
    "no_header_tensor": {
        11: "uint8", 12: "int8", 13: "int16", 14: "int16", 15: "int32", 16: "int32",
        17: "int64", 18: "int64", 20: "uint16",
    },
    "no_header_numpy": dict(
        enumerate(("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"))
    ),
}  # fmt: skip


class TokenChunks:
    """A data set of chunks.

    Args:
        place: its folder, or its address: s3://, gs://, azure://, hf:// or local: (a folder that is
            treated as if it were far away).
        cache: where copies of remote chunks live.

    Raises:
        InputError: no index, or one of something else than tokens; a chunk larger than the cache.
    """

    def __init__(self, place: str, cache: ChunkCache) -> None:
        self.place, self.cache = place.rstrip("/"), cache
        self.remote = "://" in place or place.startswith("local:")
        text = self.read_text(INDEX)
        self.version, index = blake2b(text.encode()).hexdigest(), self._index(text)
        try:
            self.dtype = _dtype(index["config"])
            chunks = index["chunks"]
            self.names: list[str] = [chunk["filename"] for chunk in chunks]
            self.n_bytes, self.n_items, self.n_tokens = (
                np.array([int(chunk[key]) for chunk in chunks], np.int64)
                for key in ("chunk_bytes", "chunk_size", "dim")
            )
        except (KeyError, TypeError, ValueError) as error:
            raise InputError(
                f"{self.place}/{INDEX} does not list chunks of tokens: write them with"
                " litdata.optimize and a TokensLoader, uncompressed."
            ) from error
        if not self.names:
            raise InputError(f"{self.place}/{INDEX} lists no chunks.")

    def _index(self, text: str) -> dict[str, Any]:
        index = parse_json(text, f"{self.place}/{INDEX}")
        return index if isinstance(index, dict) else {}

    def read_text(self, name: str) -> str:
        """A small file that lies beside the chunks.

        Raises:
            InputError: it is not there.
        """
        if not self.remote:
            file = resolve(self.place) / name
            if not file.is_file():
                raise InputError(f"There is no {name} in {self.place}, so it holds no chunks.")
            return read_text(str(file))
        with tempfile.TemporaryDirectory() as folder:
            fetch(f"{self.place}/{name}", copy := Path(folder) / name)
            return read_text(str(copy))

    def refuse_other(self, tokenizer: Tokenizer) -> None:
        """Make sure that the ids stand for the same words to `tokenizer`, which may know more.

        Raises:
            InputError: a tokenizer lies beside the chunks to which they stand for others.
        """
        try:
            text = self.read_text(TOKENIZER)
        except InputError:
            return  # litdata alone writes none
        where = f"{self.place}/{TOKENIZER}"
        theirs = Tokenizer.from_str(text, where).vocabulary
        ours = tokenizer.vocabulary
        if strange := sorted(theirs.items() - ours.items(), key=lambda entry: entry[1]):
            word, i = strange[0]
            other = next((repr(own) for own, number in ours.items() if number == i), "nothing")
            raise InputError(
                f"{where} says what the ids of these chunks are, and to it {i} is {word!r}; to the"
                f" tokenizer given it is {other}: name that file in data.tokenizer.file, or encode"
                " the text with the other one."
            )

    def read(self, chunk: int, begins: Sequence[int], length: int) -> list[np.ndarray]:
        """Stretches of a chunk: at most `length` ids from each of `begins` on.

        Raises:
            InputError: the chunk is missing or shorter than the index says.
        """
        width = self.dtype.itemsize
        head = 4 * (2 + int(self.n_items[chunk]))
        found = []
        with self._open(chunk) as file:
            for begin in begins:
                wanted = min(length, int(self.n_tokens[chunk]) - begin)
                file.seek(head + begin * width)
                data = file.read(wanted * width)
                if len(data) != wanted * width:
                    raise InputError(
                        f"{self.place}/{self.names[chunk]} is shorter than its index says."
                    )
                found.append(np.frombuffer(data, self.dtype))
        return found

    def _open(self, chunk: int) -> BinaryIO:
        name = self.names[chunk]
        if self.remote:
            address, size = f"{self.place}/{name}", int(self.n_bytes[chunk])
            return self.cache.open(address, size, self.version)
        try:
            return (resolve(self.place) / name).open("rb")
        except FileNotFoundError as error:
            raise InputError(f"There is no {name} in {self.place}, though {INDEX} lists it.") from (
                error
            )


def _dtype(config: dict[str, Any]) -> np.dtype:
    """The type of the ids.

    Raises:
        ValueError: they are packed, encrypted, or not ids alone.
    """
    (form,) = config["data_format"]
    serializer, _, number = form.partition(":")
    if config.get("compression") or config.get("encryption"):
        raise ValueError(form)
    return np.dtype(_FORMATS[serializer][int(number)])
