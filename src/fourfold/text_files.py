r"""Text and JSON files: readers of plain, compressed and zipped files; lookup in $FOURFOLD_DATA.

A file may be compressed or a member of a zip archive. A relative path is also looked up in the
folder $FOURFOLD_DATA.

Only "\n" ends a line. Real corpora contain the characters U+0085 and U+2028 inside sentences.
`str.splitlines` would split such sentences. In a parallel corpus, all later lines of one language
would then be paired with wrong lines of the other language.
"""

import bz2
import gzip
import hashlib
import io
import json
import lzma
import os
import re
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fourfold.errors import InputError

_OPENERS: dict[str, Any] = {".gz": gzip.open, ".xz": lzma.open, ".bz2": bz2.open}
_ARCHIVE = re.compile(r"\.(zip|7z|rar|tar(\.\w+)?|t(gz|xz|bz2?))$")
_BLOCK_CHARS = 1 << 18
_READ_ERRORS = (
    *(EOFError, OSError, lzma.LZMAError, zlib.error, zipfile.BadZipFile, KeyError),
    *(NotImplementedError, RuntimeError),  # of zipfile, for unknown methods and encryption
)


def resolve(path: str) -> Path:
    """Find an existing file or folder, in the working directory or under $FOURFOLD_DATA.

    Raises:
        InputError: There is no file or folder at either place.
    """
    root = os.environ.get("FOURFOLD_DATA", "")
    for folder in ("", root):
        candidate = folder / Path(path).expanduser()
        if os.path.lexists(candidate):  # opening a link without a target is an error
            return candidate
    elsewhere = f" (nor under FOURFOLD_DATA={root})" if root else ""
    raise InputError(f"there is no such file{elsewhere}", file=path)


def read_bytes(path: str) -> bytes:
    """Return the decompressed content of a file, or of a member of a zip archive.

    Args:
        path: Path of the file, or archive.zip/member. `resolve` finds the file or the archive. A
            file with the suffix .gz, .xz or .bz2 is decompressed.

    Raises:
        InputError: The file is missing or corrupted, or `path` is a folder or an archive without a
            member.
    """
    with _opened(path) as stream:
        return bytes(stream.read())


def iterate_lines(path: str) -> Iterator[bytes]:
    """Yield the lines of a file of any size, as `read_bytes` reads it, without their newline."""
    with _opened(path) as stream:
        for line in stream:
            yield line.removesuffix(b"\n")


def iterate_text(path: str, *, lines: bool = False) -> Iterator[str]:
    r"""Yield the text of a UTF-8 file in blocks, with "\n" in place of "\r\n".

    The blocks together are the text that `read_text` returns. With `lines`, each block is a line
    that ends with "\n", except perhaps the last.

    Raises:
        InputError: As in `read_text`.
    """
    is_empty = True
    try:
        with _opened(path) as stream:
            text = io.TextIOWrapper(stream, "utf-8-sig", newline="\n")
            for block in text if lines else iter(lambda: text.read(_BLOCK_CHARS), ""):
                while block.endswith("\r") and (more := text.read(1)):
                    block += more
                is_empty = is_empty and not block.strip()
                yield block.replace("\r\n", "\n")
    except UnicodeDecodeError:
        read_text(path)  # raises an error with the line
        raise
    if is_empty:
        raise InputError("the file is empty", file=path)


def hash_file(path: str) -> str:
    """Return a hash of the content of a file, as `read_bytes` reads it."""
    with _opened(path) as stream:
        return hashlib.file_digest(stream, "blake2b").hexdigest()


@contextmanager
def _opened(path: str) -> Iterator[Any]:
    """Open a file as a stream of decompressed bytes."""
    archive, is_member, member = path.partition(".zip/")
    file = resolve(archive + ".zip" if is_member else path)
    if file.is_dir():
        raise InputError("this is a folder, not a file", file=path)
    if not is_member and _ARCHIVE.search(file.name):
        problem = "this is an archive of files: unpack it, or name a file as archive.zip/member"
        raise InputError(problem, file=path)
    try:
        if is_member:
            with zipfile.ZipFile(file) as opened, opened.open(member) as stream:
                yield stream
        else:
            with _OPENERS.get(file.suffix, open)(file, "rb") as stream:
                yield stream
    except _READ_ERRORS as error:
        raise InputError(f"the file cannot be read: {error}", file=path) from error


def read_text(path: str) -> str:
    """Return the content of a UTF-8 file, as `read_bytes` reads it, without its byte order mark.

    Raises:
        InputError: The file cannot be read, has only white space, or is not UTF-8.
    """
    data = read_bytes(path)
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        message = f"byte 0x{data[error.start]:02x} is not valid UTF-8"
        raise InputError(message, file=path, line=line) from error
    if not text.strip():
        raise InputError("the file is empty", file=path)
    return text


def read_lines(path: str) -> list[str]:
    """Return the lines of a UTF-8 file, as `read_text` reads it, without line endings."""
    return [line.removesuffix("\r") for line in read_text(path).removesuffix("\n").split("\n")]


def parse_json(text: str, file: str, line: int | None = None) -> Any:
    """Parse the JSON text of the file `file`, or of one line of it, and return its value.

    Raises:
        InputError: The JSON is invalid, is nested too deeply, or contains a number with too many
            digits or half of a surrogate pair.
    """
    try:
        value = json.loads(text)
    except RecursionError as error:
        raise InputError("the JSON is nested too deeply", file=file, line=line) from error
    except ValueError as error:  # also of a number with too many digits, which has no line
        message, at = getattr(error, "msg", error), getattr(error, "lineno", None)
        raise InputError(f"invalid JSON ({message})", file=file, line=line or at) from error
    if re.search(r"\\u[dD][89a-fA-F]", text):
        try:
            json.dumps(value, ensure_ascii=False).encode()
        except UnicodeEncodeError as error:
            message = "an escape is half of a surrogate pair, which is no character"
            raise InputError(message, file=file, line=line) from error
    return value
