"""Input and output of an inference command: lines of UTF-8."""

from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import BinaryIO, TextIO

from fourfold.errors import InputError
from fourfold.generation.text_model import INPUTS

STDIN = "<stdin>"  # name of standard input in messages
ESCAPES = {
    **{code: f"\\x{code:02x}" for code in (*range(32), *range(127, 160))},
    **str.maketrans({"\\": "\\\\", "\t": "\\t", "\n": "\\n", "\r": "\\r"}),
}


def read_lines(stream: BinaryIO) -> Iterator[str]:
    """Yield the lines of a stream without their line ends and without a byte-order mark.

    Raises:
        InputError: A line is not UTF-8.
    """
    for number, line in enumerate(stream, 1):
        try:
            yield line.decode("utf-8-sig" if number == 1 else "utf-8").rstrip("\r\n")
        except UnicodeDecodeError as error:
            message = f"the line is not UTF-8: byte {error.start + 1} is {line[error.start]:#04x}"
            raise InputError(message, file=STDIN, line=number) from error


def process(
    lines: Iterable[str], answer: Callable[[list[str]], list[str]], out: TextIO, chunk_size: int
) -> None:
    """Write one line to `out` for each line of input, in the same order.

    `answer` gets at most `chunk_size` lines at a time, without empty lines, whose answers are
    empty.

    Raises:
        InputError: A line is invalid. The error names the line number.
    """
    numbered = enumerate(lines, 1)
    while chunk := list(islice(numbered, chunk_size)):
        filled = [(number, line) for number, line in chunk if line.strip()]
        try:
            answers = iter(answer([line for _, line in filled]))
        except InputError as error:
            if error.file != INPUTS or error.line is None:
                raise
            number, _ = filled[error.line - 1]
            raise InputError(error.message, option=error.option, file=STDIN, line=number) from error
        out.writelines((next(answers) if line.strip() else "") + "\n" for _, line in chunk)
        out.flush()


def escape(text: str) -> str:
    r"""Replace backslash, tab, newline and carriage return by `\\`, `\t`, `\n` and `\r`.

    Tabs separate the outputs of a line, and line breaks separate lines. Other control characters,
    with which a text could change a terminal, become `\x1b` and so on.
    """
    return text.translate(ESCAPES)
