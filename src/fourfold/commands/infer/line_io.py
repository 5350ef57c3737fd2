"""Input and output of an inference command: lines of UTF-8, processed in batches."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import groupby, islice
from typing import Any, BinaryIO, NamedTuple, TextIO

from fourfold.atomic_files import FULL
from fourfold.errors import DiskError, InputError
from fourfold.text_files import MAX_LINE_BYTES

STDIN = "<stdin>"  # name of standard input in messages


class Item(NamedTuple):
    """Line of input, converted to the input of the model.

    Args:
        content: Input of the model, such as token ids or an image.
        size: Length in tokens, or 0 for an image. Lines are sorted by length before batching.
        group: Lines of a batch have the same group. For example, prompts with different limits of
            new tokens are in different groups.
    """

    content: Any
    size: int
    group: int = 0


@contextmanager
def stream_errors() -> Iterator[None]:
    """Context that converts an OSError, as of a network disk, to an InputError of one line.

    The errors of a broken pipe and of a full disk, which the command line reports, are not changed.
    """
    try:
        yield
    except OSError as error:
        if isinstance(error, BrokenPipeError | DiskError) or error.errno in FULL:
            raise
        name = error.filename or "the standard input or output"
        raise InputError(error.strerror or str(error), file=name) from error


def read_lines(stream: BinaryIO) -> Iterator[str]:
    """Yield the lines of a stream without their line ends and without a byte-order mark.

    Raises:
        InputError: A line is not UTF-8, or has more than `MAX_LINE_BYTES` bytes.
    """
    for number, line in enumerate(iter(partial(stream.readline, MAX_LINE_BYTES + 1), b""), 1):
        if len(line) > MAX_LINE_BYTES:
            message = f"the line has more than {MAX_LINE_BYTES} bytes"
            raise InputError(message, file=STDIN, line=number)
        try:
            yield line.decode("utf-8-sig" if number == 1 else "utf-8").rstrip("\r\n")
        except UnicodeDecodeError as error:
            raise InputError(
                f"the line is not UTF-8: byte {error.start + 1} is {line[error.start]:#04x}",
                file=STDIN,
                line=number,
            ) from error


def process(
    lines: Iterable[str],
    prepare: Callable[[str], Item],
    run: Callable[[list[Item]], list[str]],
    out: TextIO,
    batch_size: int,
    chunk_size: int,
) -> None:
    """Write one line to `out` for each line of input, in the same order.

    An empty line of input becomes an empty line of output.

    Args:
        lines: Lines of input.
        prepare: Function from a line to an `Item`, the input of the model for the line.
        run: Function from a batch of items to a list with one line of output per item.
        out: Stream that the output is written to.
        batch_size: Maximum number of items in a batch.
        chunk_size: Number of lines that are read at a time. They are sorted by length and divided
            into batches.

    Raises:
        InputError: `prepare` rejects a line. The error names the line number.
    """
    numbered = enumerate(lines, 1)
    while chunk := list(islice(numbered, chunk_size)):
        answers = [""] * len(chunk)
        items = {}
        for index, (number, line) in enumerate(chunk):
            if line.strip():
                try:
                    items[index] = prepare(line)
                except InputError as error:
                    raise error.in_file(STDIN, number) from error
        # Lines of similar length share a batch, which saves padding.
        order = sorted(items, key=lambda index: (items[index].group, items[index].size))
        for _, group in groupby(order, key=lambda index: items[index].group):
            while batch := list(islice(group, batch_size)):
                for index, answer in zip(batch, run([items[i] for i in batch]), strict=True):
                    answers[index] = answer
        out.writelines(answer + "\n" for answer in answers)
        out.flush()
