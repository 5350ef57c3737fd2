import io

import pytest

from fourfold.commands.infer.line_io import process, read_lines
from fourfold.errors import InputError
from fourfold.generation.text_model import INPUTS, Item, run_batches


def through(text: str, batch_size: int = 2) -> tuple[list[str], list[list[str]]]:
    """Lines in upper case, and the batches in which they were made."""
    batches: list[list[str]] = []

    def run(items: list[Item]) -> list[str]:
        batches.append([item.content for item in items])
        return [item.content.upper() for item in items]

    def prepare(line: str) -> Item:
        if "!" in line:
            raise InputError("too loud")
        return Item(line, len(line), group=int(line.startswith("g")))

    out = io.StringIO()
    lines = read_lines(io.BytesIO(text.encode()))
    process(lines, lambda part: run_batches(part, prepare, run, batch_size), out, 50)
    return out.getvalue().split("\n")[:-1], batches


def test_an_invalid_input_of_a_function_has_its_number() -> None:
    def prepare(text: str) -> Item:
        if "!" in text:
            raise InputError("too loud", option="the text")
        return Item(text, 1)

    with pytest.raises(InputError, match=r"^inputs:2: the text too loud") as raised:
        run_batches(["a", "b!"], prepare, lambda items: items, 1)
    assert (raised.value.file, raised.value.line) == (INPUTS, 2)


@pytest.mark.parametrize("batch_size", [1, 2, 3, 100])
def test_order_count_and_empty_lines(batch_size: int) -> None:
    text = "ccc\n\na\n  \nbb\r\n\u2028x\ng1\nlast"
    lines, _ = through(text, batch_size)
    assert lines == ["CCC", "", "A", "", "BB", "\u2028X", "G1", "LAST"]


def test_nothing_in_nothing_out() -> None:
    assert through("") == ([], [])
    assert through("\n\n") == (["", ""], [])


def test_like_lengths_share_a_batch_and_groups_do_not() -> None:
    _, batches = through("aaaa\ng\nb\naaa\nbb\nggg\n")
    assert batches == [["b", "bb"], ["aaa", "aaaa"], ["g", "ggg"]]


def test_more_lines_than_a_chunk() -> None:
    text = [f"line {n}" for n in range(300)]
    assert through("\n".join(text))[0] == [line.upper() for line in text]


def test_a_line_that_cannot_be_prepared_is_named() -> None:
    with pytest.raises(InputError, match="<stdin>:3: too loud"):
        through("a\n\nb!\n")


def test_broken_utf8_is_named() -> None:
    with pytest.raises(InputError, match="<stdin>:2: the line is not UTF-8: byte 3 is 0xff"):
        list(read_lines(io.BytesIO(b"fine\nab\xff\n")))
