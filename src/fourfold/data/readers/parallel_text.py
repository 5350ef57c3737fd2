"""Sentence pairs for translation, from aligned files, tables or the Hugging Face hub."""

from collections.abc import Sequence

from fourfold.data.readers.text_table import TextTable, read_aligned_lines, read_table
from fourfold.errors import InputError


def read_pairs(
    sources: Sequence[str], langs: tuple[str, str], columns: Sequence[str] | None
) -> TextTable:
    """Read sentence pairs from files.

    Args:
        sources: One of: `[source file, target file]`, aligned by line; one or several names that
            contain `{lang}`, replaced by each language; with `columns`, one or several tables (see
            `read_table`).
        langs: Source and target language.
        columns: Names of the source and the target column.

    Raises:
        InputError: If a file is missing, empty or invalid, or if two files are not aligned.
    """
    if columns is not None:
        return TextTable.concat([read_table(source, columns) for source in sources])
    if sources and all("{lang}" in source for source in sources):
        pairs = [[source.replace("{lang}", lang) for lang in langs] for source in sources]
        return TextTable.concat([read_aligned_lines(pair) for pair in pairs])
    if len(sources) == 2:
        return read_aligned_lines(sources)
    raise InputError(
        "must be [source file, target file], a name with {lang} in it, or a table together with"
        f" `columns`, got {sources}",
        option="train, val and test",
    )
