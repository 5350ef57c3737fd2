"""Sentence pairs for translation, from aligned files, tables or the Hugging Face hub."""

from collections.abc import Sequence

from fourfold.data.readers.text_table import TextTable, read_aligned_lines, read_table
from fourfold.errors import InputError


def read_pairs(
    sources: Sequence[str], langs: tuple[str, str], columns: Sequence[str] | None
) -> TextTable:
    """Read sentence pairs from files; the table has a source and a target column.

    Args:
        sources: Names of files, in one of three forms. With `columns`, the names of tables for
            `read_table`. Otherwise names that contain `{lang}`, which is replaced by each language;
            or `[source file, target file]`, whose lines with equal numbers belong together.
        langs: Source and target language, such as ("en", "de").
        columns: Names of the source and the target column of tables; None if no file is a table.

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
