"""Initialization of token embeddings from text files of word2vec, GloVe and fastText.

Each line of such a file holds a token and the d numbers of its vector, separated by single spaces.
word2vec and fastText write a first line with the number of vectors and d, which GloVe omits.
Shapes: V rows of an embedding, d width of a vector.
"""

import re
from collections.abc import Collection, Iterator
from itertools import islice
from pathlib import Path

import numpy as np
import torch
from torch import nn

from fourfold.errors import InputError
from fourfold.layers.token_embedding import TokenEmbedding
from fourfold.text_files import iterate_lines
from fourfold.tokenization.tokenizer import Tokenizer

_NAME = re.compile(r"\.(txt|vec)(\.(gz|xz|bz2))?$")


def is_vector_file(path: str) -> bool:
    """Return True if a path ends in .txt or .vec (and .gz, .xz or .bz2) and is no directory."""
    return bool(_NAME.search(path)) and not Path(path).is_dir()


def read_vectors(path: str, wanted: Collection[bytes], width: int) -> dict[bytes, np.ndarray]:
    """Read the vectors of the tokens in `wanted` from a text file of word2vec, GloVe or fastText.

    A token may contain any bytes except a line feed, also spaces. The last `width` fields of a line
    are the vector. Lines of other tokens are only checked for their number of fields. Of several
    lines of a token, the first counts. The result has float32 arrays (d,) by token.

    Args:
        path: Path of the file, which may be compressed or a member of a zip archive.
        wanted: UTF-8 bytes of each token to read.
        width: Width d of the vectors.

    Raises:
        InputError: The file cannot be read, has vectors of another width, has fewer vectors than
            its first line says, or has a line that is not a token with a vector.
    """
    n_expected = _read_first_line(path, width)
    found: dict[bytes, np.ndarray] = {}
    n_vectors = 0
    for number, line in islice(_lines(path), n_expected is not None, None):
        token, *fields = line.rsplit(b" ", width)
        if len(fields) < width:
            raise InputError(_width_problem(len(fields), width), file=path, line=number)
        n_vectors += 1
        if token in wanted and token not in found:
            found[token] = _parse(fields, path, number)
    if n_vectors < (n_expected or 0):
        message = f"the file has {n_vectors} vectors, but its first line gives {n_expected}"
        raise InputError(message, file=path, line=1)
    return found


def _lines(path: str) -> Iterator[tuple[int, bytes]]:
    """Yield the number, from 1, and the content of each line that is not empty.

    Spaces at the end of a line are removed.
    """
    for number, line in enumerate(iterate_lines(path), 1):
        line = line.removeprefix(b"\xef\xbb\xbf" if number == 1 else b"")  # byte order mark
        line = line.rstrip(b" \r")  # fastText ends a line with a space
        if line:
            yield number, line


def _read_first_line(path: str, width: int) -> int | None:
    """Check the width of the vectors by the first line; return their number if it is there."""
    number, line = next(_lines(path), (1, b""))
    header = re.fullmatch(rb"(\d{1,18}) (\d{1,18})", line)
    given = int(header[2]) if header else len(line.split(b" ")) - 1
    if given != width:
        raise InputError(_width_problem(given, width), file=path, line=number)
    return int(header[1]) if header else None


def _parse(fields: list[bytes], path: str, line: int) -> np.ndarray:
    """Return the vector of a line as a float32 array (d,)."""
    try:
        vector = np.array([float(field) for field in fields], np.float32)
    except ValueError as error:
        message = "the line must end with numbers that are separated by single spaces"
        raise InputError(message, file=path, line=line) from error
    if not np.isfinite(vector).all():
        raise InputError("the vector must be finite", file=path, line=line)
    return vector


def _width_problem(given: int, width: int) -> str:
    return f"the vectors must have {width} numbers, the d_model of the model, got {given}"


def copy_vectors(
    model: nn.Module, path: str, tokenizer: str | None, prefix: str
) -> tuple[str, set[str]]:
    """Initialize the token embeddings (V, d) of a model, in place, with the word vectors of a file.

    A token of the vocabulary is looked up in the file as it is ("▁the"), then by its text ("the"),
    then by its text in lower case. The row of a token without a vector is drawn from a normal
    distribution with mean 0 and the standard deviation of all elements of the copied vectors. The
    row of the padding token is not changed. New rows are divided by the factor with which a model
    multiplies its embeddings, such as sqrt(d_model).

    Args:
        model: The model.
        path: Path of the file, which may be compressed or in a zip archive.
        tokenizer: Tokenizer of the data as JSON.
        prefix: Prefix of the module names of the token embeddings to initialize, such as
            "src_embed."; "" for all token embeddings.

    Returns:
        A line of text that reports how many tokens have a vector, and the names of the tensors in
        the state dict that were overwritten.

    Raises:
        InputError: The file is not valid, there is no tokenizer or no such embedding, the widths
            differ, or the file has no token of the vocabulary.
    """
    if tokenizer is None:
        message = f"must be a model, since the data have no tokenizer, got the word vectors {path}"
        raise InputError(message, option="init_from")
    embeddings = _token_embeddings(model, prefix)
    vocabulary = Tokenizer.from_str(tokenizer)
    forms = _forms_of_tokens(vocabulary)
    widths = {module.tokens.embedding_dim for module in embeddings.values()}
    wanted = {form for of_token in forms.values() for form in of_token}
    for width in widths:  # a file has one width, so a second width raises the error
        vectors = read_vectors(path, wanted, width)
    chosen = {
        i: next(vectors[form] for form in of_token if form in vectors)
        for i, of_token in forms.items()
        if not vectors.keys().isdisjoint(of_token) and i != vocabulary.pad_id
    }
    if not chosen:
        raise InputError("the file has no token of the vocabulary", file=path)
    table = torch.from_numpy(np.stack([*chosen.values()]))  # (n, d)
    std = float(table.std(correction=0))
    for module in embeddings.values():
        with torch.no_grad():
            weight = module.tokens.weight  # (V, d)
            padding = weight[vocabulary.pad_id].clone()
            weight.normal_(std=std / module.scale)
            weight[vocabulary.pad_id] = padding
            weight[list(chosen)] = table.to(weight) / module.scale
    names = {f"{name}.tokens.weight" for name in embeddings}
    return (
        f"init_from {path}: vectors for {len(chosen):,} of {len(forms):,} tokens"
        f" ({len(chosen) / len(forms):.1%}), other rows with standard deviation {std:.3g},"
        f" in {' and '.join(sorted(names))}"
    ), names


def _token_embeddings(model: nn.Module, prefix: str) -> dict[str, TokenEmbedding]:
    """Return the token embedding modules of a model whose names begin with `prefix`, by name.

    A module that shares its weight with another token embedding is left out.
    """
    embeddings = {
        name: module
        for name, module in model.named_modules()
        if isinstance(module, TokenEmbedding)
        and "tokens" in dict(module.named_children())  # not shared with another embedding
        and f"{name}.".startswith(prefix)
    }
    if not embeddings:
        where = f" in {prefix.removesuffix('.')}" if prefix else ""
        message = f"must be a model, since the {type(model).__name__} has no token embedding{where}"
        raise InputError(message, option="init_from")
    return embeddings


def _forms_of_tokens(tokenizer: Tokenizer) -> dict[int, list[bytes]]:
    """Return the spellings of each token id, in order of preference, as UTF-8."""
    ids = tokenizer.vocabulary
    texts = tokenizer.decode_batch([[i] for i in ids.values()])
    return {
        i: [form.encode() for form in (token, text.strip() or token, text.strip().lower() or token)]
        for (token, i), text in zip(ids.items(), texts, strict=True)
    }
