"""Batched processing of lines: one line of output per line of input, in the same order."""

from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Any, BinaryIO, NamedTuple, TextIO

from fourfold.errors import InputError

STDIN = "<stdin>"  # name of standard input in messages


class Item(NamedTuple):
    """Line that is prepared for the model.

    Attributes:
        content: Input of the model: ids or an image.
        size: Length by which lines are sorted.
        group: Lines of different groups never share a batch.
    """

    content: Any
    size: int
    group: int = 0


def read_lines(stream: BinaryIO) -> Iterator[str]:
    """Yield the lines of a stream without their line ends and without a byte-order mark.

    Raises:
        InputError: A line is not UTF-8.
    """
    for number, line in enumerate(stream, 1):
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
    """Write one line to `out` for each of `lines`; an empty line stays empty.

    Args:
        lines: The input.
        prepare: Function from a line to an item.
        run: Function from a batch of items to their lines of output.
        out: The output.
        batch_size: Maximum number of items in a batch.
        chunk_size: Number of lines that are read and sorted by length at a time.

    Raises:
        InputError: A line cannot be prepared.
    """
    numbered = enumerate(lines, 1)
    while chunk := list(islice(numbered, chunk_size)):
        answers = [""] * len(chunk)
        items = {
            index: _prepare(prepare, number, line)
            for index, (number, line) in enumerate(chunk)
            if line.strip()
        }
        # Lines of similar length share a batch, which saves padding.
        order = sorted(items, key=lambda index: (items[index].group, items[index].size))
        for batch in _batches(order, items, batch_size):
            for index, answer in zip(batch, run([items[i] for i in batch]), strict=True):
                answers[index] = answer
        out.writelines(answer + "\n" for answer in answers)
        out.flush()


def _prepare(prepare: Callable[[str], Item], number: int, line: str) -> Item:
    try:
        return prepare(line)
    except InputError as error:
        raise error.in_file(STDIN, number) from error


def _batches(order: list[int], items: dict[int, Item], batch_size: int) -> Iterator[list[int]]:
    batch: list[int] = []
    for index in order:
        if batch and (len(batch) == batch_size or items[index].group != items[batch[0]].group):
            yield batch
            batch = []
        batch.append(index)
    if batch:
        yield batch
