"""Reader of token ids in litdata's chunk files, with a cache of remote files.

`litdata.optimize` with a `TokensLoader` writes the chunks, and `index.json` lists them. An item is
one array that was given to `litdata.optimize`, such as the ids of one document. A chunk file begins
with the number N of its items, followed by N + 1 byte offsets (the N starts and the end of the
items), all uint32. The ids of all items follow. This reader ignores the boundaries between items.
A chunk is read as one sequence of ids, which is divided into training examples ("rows").

Shapes: B rows of a batch, W ids of a row.
"""

import hashlib
import os
import tempfile
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any, BinaryIO, ClassVar

import numpy as np
from filelock import FileLock  # a dependency of torch

from fourfold.atomic_files import atomic_path
from fourfold.data.loading.datamodule import BatchedDataset
from fourfold.data.streaming.shuffle_window import ShuffleWindowOrder
from fourfold.errors import InputError
from fourfold.text_files import parse_json, read_text, resolve
from fourfold.tokenization.tokenizer import Tokenizer

INDEX_FILE = "index.json"
TOKENIZER_FILE = "tokenizer.json"
# Integer dtypes in the order of the numbers that litdata writes to `data_format` in index.json.
_TORCH_DTYPES = ("uint8", "int8", "int16", "int16", "int32", "int32", "int64", "int64")
_NUMPY_DTYPES = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
_DTYPES = {
    **{f"no_header_tensor:{i}": name for i, name in enumerate(_TORCH_DTYPES, start=11)},
    "no_header_tensor:20": "uint16",
    **{f"no_header_numpy:{i}": name for i, name in enumerate(_NUMPY_DTYPES)},
}


class ChunkCache:
    """Cache of remote files that all processes of a machine share.

    A process locks the cache to evict files and to download a missing file. Therefore no file is
    downloaded twice at the same time, and the cache never exceeds its `limit` in bytes. The least
    recently opened file is evicted first. A process that has an evicted file open can still read
    the file.
    """

    def __init__(self, folder: Path, limit: int) -> None:
        self.folder = folder
        self.limit = limit

    def open(self, address: str, size: int, version: str = "") -> BinaryIO:
        """Open the copy of a remote file of `size` bytes; a missing copy is downloaded first.

        `version` changes with the content of the file, such as a hash of the index. Copies of other
        versions are not used.

        Raises:
            InputError: If the file cannot be downloaded, or has another size.
        """
        digest = hashlib.blake2b(f"{address} {version}".encode(), digest_size=8).hexdigest()
        copy = self.folder / f"{digest}-{address.rpartition('/')[2]}"
        while True:  # another process may evict the copy before it is opened
            try:
                opened = copy.open("rb")
            except FileNotFoundError:
                self._download(address, size, copy)
            else:
                os.utime(opened.fileno())
                return opened

    def _download(self, address: str, size: int, copy: Path) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        with FileLock(self.folder / "cache.lock"):
            if copy.exists():
                return  # another process downloaded it while this one waited for the lock
            self._evict(size)
            with atomic_path(copy) as partial:
                fetch(address, partial, size)
                if (actual := partial.stat().st_size) != size:
                    message = f"the file has {actual} bytes, but its index lists {size}"
                    raise InputError(message, file=address)

    def _evict(self, size: int) -> None:
        """Delete the least recently opened copies until another `size` bytes fit.

        Partial copies left by killed processes are always deleted. Other files are kept.
        """
        copies = sorted(
            self.folder.glob(f"{'[0-9a-f]' * 16}-*"),
            key=lambda file: (file.suffix == ".bin", file.stat().st_mtime_ns),
        )
        free = self.limit - sum(file.stat().st_size for file in copies)
        for file in copies:
            if file.suffix != ".bin" or free < size:
                free += file.stat().st_size
                file.unlink()


def fetch(address: str, file: Path, size: int = 0) -> None:
    """Download a remote file (s3://, gs://, azure://, hf:// or local:) with litdata's downloaders.

    litdata downloads large files in parallel parts if their `size` in bytes is given.

    Raises:
        InputError: If litdata is not installed, or if the download fails.
    """
    try:
        from litdata.streaming.downloader import get_downloader
    except ImportError as error:
        message = "downloading needs litdata: pip install 'fourfold[stream]'"
        raise InputError(message, file=address) from error
    folder, _, name = address.rpartition("/")
    try:
        # A new downloader for each file, because forked workers cannot share its connections.
        described = [{"filename": name, "chunk_bytes": size}]
        get_downloader(folder, str(file.parent), described).download_file(address, str(file))
    except Exception as error:  # every store raises its own exceptions
        reason = str(error).strip().split("\n")[0]
        raise InputError(f"the file cannot be downloaded: {reason}", file=address) from error
    if not file.exists():
        raise InputError("there is no such file", file=address)


class TokenChunks:
    """Reader of the chunks of one split, the files in which litdata stores token ids.

    Args:
        address: Path of the folder of the chunks, or address of a folder in an object store, which
            begins with s3://, gs://, azure://, hf:// or local:. The files of a path are read
            directly. The files of an address are first copied to the cache. "local:PATH" is the
            folder PATH, treated like an address.
        cache: Cache for copies of remote chunks.

    Raises:
        InputError: If there is no index.json, or if index.json does not list uncompressed chunks of
            token ids.
    """

    def __init__(self, address: str, cache: ChunkCache) -> None:
        self.address = address.rstrip("/")
        self.cache = cache
        self.is_remote = "://" in address or address.startswith("local:")
        text = self.read_text(INDEX_FILE)
        self.version = hashlib.blake2b(text.encode()).hexdigest()
        path = f"{self.address}/{INDEX_FILE}"
        index = parse_json(text, path)
        try:
            config = index["config"]
            (data_format,) = config["data_format"]
            self.dtype = np.dtype(_DTYPES[data_format])
            if config.get("compression") or config.get("encryption"):
                raise ValueError
            self.names: list[str] = [chunk["filename"] for chunk in index["chunks"]]
            self.n_bytes, self.n_items, self.n_tokens = (
                np.array([int(chunk[key]) for chunk in index["chunks"]], np.int64)
                for key in ("chunk_bytes", "chunk_size", "dim")
            )
        except (KeyError, TypeError, ValueError) as error:
            message = "the index does not list chunks of token ids: write them uncompressed with"
            hint = "litdata.optimize and a TokensLoader"
            raise InputError(f"{message} {hint}", file=path) from error
        if not self.names:
            raise InputError("the index lists no chunks", file=path)

    def read_text(self, name: str) -> str:
        """Return the content of the small text file `name` in the folder of the chunks."""
        if not self.is_remote:
            return read_text(f"{self.address}/{name}")
        with tempfile.TemporaryDirectory() as folder:
            copy = Path(folder) / name
            fetch(f"{self.address}/{name}", copy)
            return read_text(str(copy))

    def check_tokenizer(self, tokenizer: Tokenizer) -> None:
        """Check that `tokenizer` has the vocabulary with which the chunks were encoded.

        This vocabulary is read from tokenizer.json in the folder of the chunks. Without this file
        nothing is checked. A warning says that a remote file cannot be downloaded, because stores
        do not tell whether it exists. `tokenizer` may have additional tokens.

        Raises:
            InputError: If a token in tokenizer.json has another id, or none, in `tokenizer`.
        """
        path = f"{self.address}/{TOKENIZER_FILE}"
        if not self.is_remote and not os.path.lexists(resolve(self.address) / TOKENIZER_FILE):
            return
        try:
            text = self.read_text(TOKENIZER_FILE)
        except InputError as error:
            if not self.is_remote:
                raise
            warnings.warn(f"the ids of the chunks are not compared: {error}", stacklevel=1)
            return
        vocabulary = Tokenizer.from_str(text, path).vocabulary
        if differences := vocabulary.items() - tokenizer.vocabulary.items():
            token, i = min(differences, key=lambda entry: entry[1])
            other = tokenizer.backend.id_to_token(i)
            message = (
                f"id {i} of these chunks is {token!r}, but the tokenizer of the data has {other!r}"
            )
            hint = "set data.tokenizer.file to this file, or encode the text anew"
            raise InputError(f"{message}: {hint}", file=path)

    def read(self, chunk: int, begins: Sequence[int], length: int) -> list[np.ndarray]:
        """Read sequences of at most `length` ids from a chunk, which begin at the indices `begins`.

        A sequence that reaches the end of the chunk may be shorter.

        Raises:
            InputError: If the file of the chunk is missing, or shorter than the index says.
        """
        width = self.dtype.itemsize
        header = 4 * (2 + int(self.n_items[chunk]))
        rows = []
        with self._open(chunk) as file:
            for begin in begins:
                n_ids = min(length, int(self.n_tokens[chunk]) - begin)
                file.seek(header + begin * width)
                data = file.read(n_ids * width)
                if len(data) != n_ids * width:
                    message = f"the file is shorter than {INDEX_FILE} says"
                    raise InputError(message, file=self.path(chunk))
                rows.append(np.frombuffer(data, self.dtype))
        return rows

    def path(self, chunk: int) -> str:
        """Return the path or address of the chunk with the index `chunk`."""
        return f"{self.address}/{self.names[chunk]}"

    def _open(self, chunk: int) -> BinaryIO:
        if self.is_remote:
            return self.cache.open(self.path(chunk), int(self.n_bytes[chunk]), self.version)
        return resolve(self.path(chunk)).open("rb")


class ChunkedRows(BatchedDataset):
    """Base class of datasets whose examples (rows) are W consecutive token ids of a chunk.

    W is `step` + `overlap`. Together, the rows of a chunk contain all ids of the chunk. The last
    row of a chunk may have fewer ids.

    Args:
        chunks: Chunks of the split.
        step: Number of ids from the beginning of a row to the beginning of the next row.
        tokenizer: Tokenizer of the ids.
        block_cross_document_attention: Put the index of each token's document into the batches.
        order_options: Keyword arguments of `ShuffleWindowOrder`, except `chunk_rows` and `content`.

    Attributes:
        overlap: Number of ids at the end of a row that the next row repeats.

    Raises:
        InputError: If the chunks are too short for a row, if they were encoded with another
            tokenizer, or if the cache of a remote split is smaller than the `shuffle_chunks`
            largest chunks together.
    """

    order: ShuffleWindowOrder
    overlap: ClassVar[int] = 0

    def __init__(
        self,
        chunks: TokenChunks,
        step: int,
        tokenizer: Tokenizer,
        *,
        block_cross_document_attention: bool = False,
        **order_options: Any,
    ) -> None:
        chunks.check_tokenizer(tokenizer)
        self.chunks = chunks
        self.step = step
        self.width = step + self.overlap
        self.max_length = step
        self.tokenizer = tokenizer
        self.block_cross_document_attention = block_cross_document_attention
        chunk_rows = -(-np.maximum(chunks.n_tokens - self.overlap, 0) // step)
        if not chunk_rows.any():
            message = f"the chunks have no row of {self.width} tokens"
            raise InputError(message, file=f"{chunks.address}/{INDEX_FILE}")
        content = repr([step, *zip(chunks.names, chunks.n_bytes.tolist(), strict=True)]).encode()
        self.order = ShuffleWindowOrder(chunk_rows, content=content, **order_options)
        window_bytes = int(np.sort(chunks.n_bytes)[-self.order.shuffle_chunks :].sum())
        if chunks.is_remote and window_bytes > chunks.cache.limit:
            largest = f"the shuffle_chunks={self.order.shuffle_chunks} largest chunks"
            message = f"must be at least {window_bytes / 1e9:.3g}, the size of {largest} of"
            message += f" {chunks.address}, got {chunks.cache.limit / 1e9:g}"
            raise InputError(message, option="max_cache_gb")

    def read(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Read the token ids of the rows with the indices `rows` (B,).

        Returns:
            Token ids (B, W) int64, each row padded with EOS at its end, and number of ids of each
            row without padding, (B,) int64.

        Raises:
            InputError: If a chunk has ids that the tokenizer does not have.
        """
        vocab_size = self.tokenizer.vocab_size
        tokens = np.full((len(rows), self.width), self.tokenizer.eos_id, np.int64)
        counts = np.zeros(len(rows), np.int64)
        chunk_of_row = np.searchsorted(self.order.first_rows, rows, side="right") - 1
        for chunk in np.unique(chunk_of_row).tolist():
            in_chunk = np.flatnonzero(chunk_of_row == chunk)
            begins = (rows[in_chunk] - self.order.first_rows[chunk]) * self.step
            ids_of_rows = self.chunks.read(chunk, begins.tolist(), self.width)
            for row, ids in zip(in_chunk, ids_of_rows, strict=True):
                tokens[row, : len(ids)] = ids
                counts[row] = len(ids)
        invalid = np.argwhere((tokens < 0) | (tokens >= vocab_size))
        if len(invalid):
            row, column = invalid[0]
            message = f"the file has id {tokens[row, column]}, but the tokenizer has"
            file = self.chunks.path(chunk_of_row[row])
            raise InputError(f"{message} {vocab_size} entries", file=file)
        return tokens, counts
