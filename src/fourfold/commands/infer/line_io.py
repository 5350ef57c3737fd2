"""Lines in, lines out: as many, in the same order, however the work is batched."""

from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Any, BinaryIO, NamedTuple, TextIO

from fourfold.core.errors import InputError


class Item(NamedTuple):
    """A line made ready for the model.

    Attributes:
        content: What the model reads: ids, or an image.
        size: How long it is.
        group: Only lines of equal group may share a batch.
    """

    content: Any
    size: int
    group: int = 0


def read_lines(stream: BinaryIO) -> Iterator[str]:
    """The lines of a stream without their ends.

    Raises:
        InputError: A line is not UTF-8.
    """
    for number, line in enumerate(stream, 1):
        try:
            # A byte-order mark is no text.
            yield line.decode("utf-8-sig" if number == 1 else "utf-8").rstrip("\r\n")
        except UnicodeDecodeError as error:
            raise InputError(
                f"line {number} is not UTF-8: byte {error.start + 1} is {line[error.start]:#04x}"
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
        prepare: From a line to an item.
        run: From a batch of items to their lines.
        out: The output.
        batch_size: Most items of a batch.
        chunk_size: Lines that are read, and sorted by length, at a time.

    Raises:
        InputError: A line cannot be prepared; says which.
    """
    numbered = enumerate(lines, 1)
    while chunk := list(islice(numbered, chunk_size)):
        answers = [""] * len(chunk)
        items = {place: _prepare(prepare, number, line)
                 for place, (number, line) in enumerate(chunk) if line.strip()}  # fmt: skip
        # Lines of like length together: hardly any padding.
        order = sorted(items, key=lambda place: (items[place].group, items[place].size))
        for batch in _batches(order, items, batch_size):
            for place, answer in zip(batch, run([items[p] for p in batch]), strict=True):
                answers[place] = answer
        out.writelines(answer + "\n" for answer in answers)
        out.flush()


def _prepare(prepare: Callable[[str], Item], number: int, line: str) -> Item:
    try:
        return prepare(line)
    except InputError as error:
        raise InputError(f"line {number}: {error}") from error


def _batches(order: list[int], items: dict[int, Item], batch_size: int) -> Iterator[list[int]]:
    batch: list[int] = []
    for place in order:
        if batch and (len(batch) == batch_size or items[place].group != items[batch[0]].group):
            yield batch
            batch = []
        batch.append(place)
    if batch:
        yield batch
