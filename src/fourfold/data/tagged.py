"""Sentences whose words are tagged, as files give them: CoNLL's columns, or JSON lines."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from fourfold.core.errors import InputError
from fourfold.data.sources import read_json_lines, read_lines


@dataclass(frozen=True)
class Sentence:
    """Words with a tag each.

    Args:
        words: at least one.
        tags: as many.
        where: like "train.conll, line 7", for messages.
    """

    words: list[str]
    tags: list[str]
    where: str


def read_tagged(path: str, word: int | str, tag: int | str) -> list[Sentence]:
    """The sentences of a file.

    A .jsonl or .json holds `{"tokens": [...], "tags": [...]}` a line; any other file a word a line,
    columns apart by tabs or blanks, with an empty line between sentences and `-DOCSTART-` between
    documents. Of CoNLL-U (`word: 1, tag: 3`) comments are left out, and lines with a range of words
    (2-3) or with one that is not in the text (2.1); of GermEval those that name the source.

    Args:
        path: plain or compressed; a relative one may also lie under $FOURFOLD_DATA.
        word: key of the words, or number of their column from 0.
        tag: key of the tags, or number of their column; -1 is the last.

    Raises:
        InputError: a line has too few columns, a sentence not as many tags as words, or there is
            no sentence (names file and line).
    """
    is_json = not {".jsonl", ".json"}.isdisjoint(Path(path).suffixes)
    sentences = list(_json(path, str(word), str(tag)) if is_json else _columns(path, word, tag))
    if not sentences:
        raise InputError(f"{path} has no sentence.")
    return sentences


def _columns(path: str, word: int | str, tag: int | str) -> Iterator[Sentence]:
    if not isinstance(word, int) or not isinstance(tag, int):
        raise InputError(f"{path} has columns: say which by numbers from 0, not {word!r}, {tag!r}.")
    lines = read_lines(path)
    # Else "# O" is a word and its tag.
    tabbed = any("\t" in line for line in lines if not line.startswith("#"))
    numbered = 0 not in (word, tag)  # the first column is neither
    words: list[str] = []
    tags: list[str] = []
    begin = 1
    for number, line in enumerate([*lines, ""], start=1):
        line = line.strip("\ufeff")  # files that were pasted together have one in their middle
        # Not at a no-break space, which stands inside words.
        fields = line.split("\t") if "\t" in line else re.split(" +", line.strip(" "))
        if not line.strip() or fields[0] == "-DOCSTART-":
            if words:
                yield Sentence(words, tags, f"{path}, line {begin}")
            words, tags = [], []
            continue
        if line.startswith("#") and tabbed != ("\t" in line):  # a comment (CoNLL-U, MultiCoNER)
            continue
        # A range of words or one that is not there; "#" before where a sentence is from (GermEval).
        if numbered and re.fullmatch(r"\d+[-.]\d+|#", fields[0]):
            continue
        begin = begin if words else number
        try:
            words.append(fields[word].strip())
            tags.append(fields[tag].strip())
        except IndexError as error:
            raise InputError(
                f"{path}, line {number}: there are only {len(fields)} columns in {line!r}."
            ) from error
        if len(fields) < 2 or not words[-1] or not tags[-1]:
            raise InputError(f"{path}, line {number}: {line!r} has no tag.")


def _json(path: str, word: str, tag: str) -> Iterator[Sentence]:
    for where, _, record in read_json_lines(path):
        for key in (word, tag):
            if not isinstance(record, dict) or not isinstance(record.get(key), list):
                raise InputError(f"{where}: {key!r} is no list.")
        words, tags = ([str(item) for item in record[key]] for key in (word, tag))
        if len(words) != len(tags):
            raise InputError(f"{where}: {len(words)} words, but {len(tags)} tags.")
        if words:
            yield Sentence(words, tags, where)
