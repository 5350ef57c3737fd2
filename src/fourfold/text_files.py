r"""Text and JSON files: paths under $FOURFOLD_DATA, compressed files, members of zip archives.

Lines end with "\n" only. Real corpora contain U+0085 and U+2028 inside sentences. `str.splitlines`
would split such sentences, and shift all later lines of one language against the other language.
"""

import bz2
import gzip
import json
import lzma
import os
import re
import zipfile
import zlib
from pathlib import Path
from typing import Any

from fourfold.errors import InputError

_OPENERS: dict[str, Any] = {".gz": gzip.open, ".xz": lzma.open, ".bz2": bz2.open}
_ARCHIVE = re.compile(r"\.(zip|7z|rar|tar(\.\w+)?|t(gz|xz|bz2?))$")
_READ_ERRORS = (EOFError, OSError, lzma.LZMAError, zlib.error, zipfile.BadZipFile, KeyError)


def resolve(path: str) -> Path:
    """Return the file or folder at `path`, or at a relative path under $FOURFOLD_DATA.

    Raises:
        InputError: There is no file or folder at either place.
    """
    root = os.environ.get("FOURFOLD_DATA", "")
    for folder in ("", root):
        candidate = folder / Path(path).expanduser()
        if candidate.exists():
            return candidate
    elsewhere = f" (nor under FOURFOLD_DATA={root})" if root else ""
    raise InputError(f"there is no such file{elsewhere}", file=path)


def read_bytes(path: str) -> bytes:
    """Return the decompressed content of a file; `archive.zip/member` reads from an archive.

    Raises:
        InputError: The file is missing, a folder, an archive of files, or corrupted.
    """
    archive, is_member, member = path.partition(".zip/")
    file = resolve(archive + ".zip" if is_member else path)
    if file.is_dir():
        raise InputError("this is a folder, not a file", file=path)
    if not is_member and _ARCHIVE.search(file.name):
        raise InputError(
            "this is an archive of files: unpack it, or name a file in it as archive.zip/member",
            file=path,
        )
    try:
        if is_member:
            with zipfile.ZipFile(file) as opened:
                return opened.read(member)
        with _OPENERS.get(file.suffix, open)(file, "rb") as stream:
            return stream.read()
    except _READ_ERRORS as error:
        raise InputError(f"the file cannot be read: {error}", file=path) from error


def read_text(path: str) -> str:
    """Return the content of a UTF-8 file.

    Raises:
        InputError: As `read_bytes`, or the file is empty or not UTF-8.
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
    """Return the lines of a UTF-8 file without line endings.

    Raises:
        InputError: As `read_text`.
    """
    lines = read_text(path).split("\n")
    if not lines[-1]:
        lines.pop()
    return [line.removesuffix("\r") for line in lines]


def parse_json(text: str, file: str, line: int | None = None) -> Any:
    """Return the value of a JSON text.

    Args:
        text: Content of a file, or one line of a file.
        file: Path of the file, for error messages.
        line: Number of the line; None if `text` is the whole file.

    Raises:
        InputError: The JSON is invalid, is nested too deeply, or contains a number with too many
            digits or half of a surrogate pair.
    """
    try:
        value = json.loads(text)
    except json.JSONDecodeError as error:
        message = f"invalid JSON ({error.msg})"
        raise InputError(message, file=file, line=line or error.lineno) from error
    except RecursionError as error:
        raise InputError("the JSON is nested too deeply", file=file, line=line) from error
    except ValueError as error:  # Python limits the digits of an int
        raise InputError("a number has too many digits", file=file, line=line) from error
    if re.search(r"\\u[dD][89a-fA-F]", text):
        try:
            json.dumps(value, ensure_ascii=False).encode()
        except UnicodeEncodeError as error:
            message = "an escape is half of a surrogate pair, which is no character"
            raise InputError(message, file=file, line=line) from error
    return value
