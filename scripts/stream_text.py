"""Encode text files into chunks that `StreamedTextData` and `StreamedMaskedData` read.

python scripts/stream_text.py mine/*.txt --tokenizer tokenizer.json --out mine_chunks

Plain or packed text; each line is a document with `--documents line`. Validation text goes into a
folder of its own. The folder can then be copied to where it shall live, tokenizer.json included.
"""

import argparse
import os
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import numpy as np
import torch

from fourfold.core.errors import InputError
from fourfold.data.chunk_cache import ChunkCache
from fourfold.data.documents import TextSource, Unit
from fourfold.data.token_chunks import INDEX, TOKENIZER, TokenChunks
from fourfold.data.tokenizer import Tokenizer
from fourfold.data.tokenizer_files import make_tokenizer
from fourfold.data.tokenizer_training import TokenizerConfig

_PIECE = 1 << 12  # ids that are handed on at a time; a chunk is filled with whole pieces


def encode(file: str, tokenizer: str, documents: Unit) -> Iterator[torch.Tensor]:
    """The ids of a file's documents, each with EOS behind it, in pieces."""
    read = Tokenizer.from_str(tokenizer)
    parts = {"train": file, "val": None, "test": None}
    texts = TextSource("files", parts, documents=documents).read()["train"].columns[0]
    ids = read.encode_corpus(texts).wrap(after=read.eos_id).ids
    kind = torch.uint16 if read.vocab_size <= 1 << 16 else torch.int32
    for begin in range(0, len(ids), _PIECE):
        yield torch.from_numpy(ids[begin : begin + _PIECE].astype(np.int64)).to(kind)


def write(arguments: argparse.Namespace) -> TokenChunks:
    # litdata would ask a package index for newer versions of itself.
    os.environ.setdefault("LITDATA_DISABLE_VERSION_CHECK", "1")
    try:
        from litdata import TokensLoader, optimize
    except ImportError as error:
        raise InputError("Writing chunks needs litdata: pip install -e '.[stream]'.") from error
    out: Path = arguments.out
    if (out / INDEX).exists():
        raise InputError(f"{out} already holds chunks.")
    if arguments.chunk_mb <= 0 or arguments.workers < 1:
        raise InputError("--chunk-mb and --workers must be positive.")
    config = TokenizerConfig(file=arguments.tokenizer, merges=arguments.merges)
    tokenizer = make_tokenizer(config, [], mask=False)
    for file in arguments.files:
        if not Path(file).is_file():
            raise InputError(f"There is no file {file}.")
    try:
        optimize(
            partial(encode, tokenizer=tokenizer.to_str(), documents=arguments.documents),
            inputs=arguments.files,
            output_dir=str(out),
            chunk_bytes=int(arguments.chunk_mb * 1e6),
            item_loader=TokensLoader(),
            num_workers=arguments.workers,
            verbose=False,
        )
    except RuntimeError as error:  # the text of what a worker raised
        _, wrong, sentence = str(error).partition("InputError: ")
        if not wrong:
            raise
        raise InputError(sentence.split("\n")[0]) from error
    tokenizer.save(out / TOKENIZER)
    return TokenChunks(str(out), ChunkCache(out, 0))


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("files", nargs="+", help="text files, at least one a worker")
    parser.add_argument(
        "--tokenizer", required=True, help="tokenizer.json, vocab.txt, a checkpoint"
    )
    parser.add_argument("--merges", help="GPT-2's vocab.bpe, where --tokenizer is its vocab.json")
    parser.add_argument("--out", type=Path, required=True, help="folder to be made")
    parser.add_argument("--documents", choices=("file", "line", "paragraph"), default="file")
    parser.add_argument("--chunk-mb", type=float, default=64)
    parser.add_argument("--workers", type=int, default=1)
    try:
        chunks = write(parser.parse_args())
    except InputError as error:
        print(f"stream_text: {error}", file=sys.stderr)
        return 2
    size, ids = chunks.n_bytes.sum() / 1e6, chunks.n_tokens.sum()
    print(f"{len(chunks.names)} chunks, {ids} ids, {size:.1f} MB in {chunks.place}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
