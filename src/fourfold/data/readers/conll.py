"""Sentences with one tag per word, from CoNLL columns (CoNLL-2003, CoNLL-U, GermEval) or JSON."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from fourfold.data.readers.text_table import read_json_lines
from fourfold.errors import InputError
from fourfold.text_files import read_lines


@dataclass(frozen=True)
class Sentence:
    """Sentence: words with one tag each.

    Args:
        words: One or more words.
        tags: Tag of each word.
        location: Location such as "train.conll:7", for error messages.
    """

    words: list[str]
    tags: list[str]
    location: str


def read_tagged_sentences(path: str, word: int | str, tag: int | str) -> list[Sentence]:
    """Read the tagged sentences of one file, in CoNLL columns or JSON lines.

    A .jsonl or .json file has a record `{"tokens": [...], "tags": [...]}` in each line. Any other
    file has a word in each line, in columns separated by tabs or spaces, with an empty line between
    sentences and `-DOCSTART-` between documents. In CoNLL-U files (`word: 1, tag: 3`) comments,
    ranges of words (2-3) and words that are not in the text (2.1) are skipped. In GermEval files
    the lines that name the source of a sentence are skipped.

    Args:
        path: Plain or compressed file; a relative path may also lie under $FOURFOLD_DATA.
        word: Key of the words, or number of their column from 0.
        tag: Key of the tags, or number of their column; -1 is the last.

    Raises:
        InputError: If a line has too few columns, if the numbers of words and tags of a sentence
            differ, or if the file has no sentence.
    """
    is_json = not {".jsonl", ".json"}.isdisjoint(Path(path).suffixes)
    sentences = list((_read_json if is_json else _read_columns)(path, word, tag))
    if not sentences:
        raise InputError("the file has no sentence", file=path)
    return sentences


def _read_columns(path: str, word: int | str, tag: int | str) -> Iterator[Sentence]:
    lines = read_lines(path)
    # In a file with tabs, a comment has no tab; without this rule the word "#" would be a comment.
    has_tabs = any("\t" in line for line in lines if not line.startswith("#"))
    has_word_numbers = 0 not in (word, tag)
    words: list[str] = []
    tags: list[str] = []
    first_line = 1
    for number, line in enumerate([*lines, ""], start=1):
        line = line.strip("\ufeff")  # concatenated files have byte order marks between them
        # Only spaces: a no-break space may be part of a word.
        fields = line.split("\t") if "\t" in line else re.split(" +", line.strip(" "))
        if not line.strip() or fields[0] == "-DOCSTART-":
            if words:
                yield Sentence(words, tags, f"{path}:{first_line}")
            words = []
            tags = []
            continue
        if line.startswith("#") and has_tabs != ("\t" in line):  # comment (CoNLL-U, MultiCoNER)
            continue
        # Ranges of words and words that are not in the text (CoNLL-U), or a source (GermEval).
        if has_word_numbers and re.fullmatch(r"\d+[-.]\d+|#", fields[0]):
            continue
        first_line = first_line if words else number
        try:
            words.append(fields[int(word)].strip())
            tags.append(fields[int(tag)].strip())
        except (IndexError, ValueError) as error:
            message = f"the line has no columns {word!r} and {tag!r}, numbered from 0: {line!r}"
            raise InputError(message, file=path, line=number) from error
        if len(fields) < 2 or not words[-1] or not tags[-1]:
            raise InputError(f"the word has no tag: {line!r}", file=path, line=number)


def _read_json(path: str, word: int | str, tag: int | str) -> Iterator[Sentence]:
    for number, record in read_json_lines(path):
        for key in (str(word), str(tag)):
            if not isinstance(record, dict) or not isinstance(record.get(key), list):
                raise InputError(f"{key!r} must be a list", file=path, line=number)
        words, tags = ([str(item) for item in record[str(key)]] for key in (word, tag))
        if len(words) != len(tags):
            message = f"there are {len(words)} words, but {len(tags)} tags"
            raise InputError(message, file=path, line=number)
        if words:
            yield Sentence(words, tags, f"{path}:{number}")
