"""Encode text files into token chunks for `StreamedCausalTextData` and `StreamedMaskedTextData`.

python scripts/tools/stream_text.py mine/*.txt --tokenizer tokenizer.json --out mine_chunks

Text files may be compressed. With `--documents line` each line is a document. Encode validation
text into another folder. Copy the folder, tokenizer.json included, to the object store.
"""

import argparse
import os
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import numpy as np
import torch

from fourfold.data.loading.ragged import RaggedArray
from fourfold.data.readers.documents import DocumentUnit, TextSource
from fourfold.data.streaming.chunks import INDEX_FILE, TOKENIZER_FILE, ChunkCache, TokenChunks
from fourfold.errors import InputError
from fourfold.tokenization.pretrained import make_tokenizer
from fourfold.tokenization.tokenizer import Tokenizer
from fourfold.tokenization.training import TokenizerConfig

_ITEM_IDS = 1 << 12  # ids of an item; a chunk has whole items


def encode(file: str, tokenizer: str, documents: DocumentUnit) -> Iterator[torch.Tensor]:
    """Yield the ids of a file's documents, with EOS after each document, in items of equal size."""
    encoder = Tokenizer.from_str(tokenizer)
    sources = {"train": file, "val": None, "test": None}
    texts = TextSource("files", sources, documents=documents).read()["train"].columns[0]
    ids = RaggedArray.from_lengths(*encoder.encode_corpus(texts)).wrap(after=encoder.eos_id).ids
    dtype = torch.uint16 if encoder.vocab_size <= 1 << 16 else torch.int32
    for begin in range(0, len(ids), _ITEM_IDS):
        yield torch.from_numpy(ids[begin : begin + _ITEM_IDS].astype(np.int64)).to(dtype)


def write(arguments: argparse.Namespace) -> TokenChunks:
    # Otherwise litdata looks for a newer version of itself on the package index.
    os.environ.setdefault("LITDATA_DISABLE_VERSION_CHECK", "1")
    from litdata import TokensLoader, optimize  # pip install 'fourfold[stream]'

    out: Path = arguments.out
    if (out / INDEX_FILE).exists():
        raise InputError("the folder already has chunks", file=out)
    config = TokenizerConfig(file=arguments.tokenizer, merges=arguments.merges)
    tokenizer = make_tokenizer(config, [], mask=False)
    for file in arguments.files:
        if not Path(file).is_file():
            raise InputError("there is no such file", file=file)
    optimize(
        partial(encode, tokenizer=tokenizer.to_str(), documents=arguments.documents),
        inputs=arguments.files,
        output_dir=str(out),
        chunk_bytes=int(arguments.chunk_mb * 1e6),
        item_loader=TokensLoader(),
        num_workers=arguments.workers,
        verbose=False,
    )
    tokenizer.save(out / TOKENIZER_FILE)
    return TokenChunks(str(out), ChunkCache(out, 0))


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("files", nargs="+", help="text files, at least one per worker")
    parser.add_argument(
        "--tokenizer", required=True, help="tokenizer.json, vocab.txt or a checkpoint"
    )
    parser.add_argument("--merges", help="GPT-2's vocab.bpe, if --tokenizer is its vocab.json")
    parser.add_argument("--out", type=Path, required=True, help="new folder for the chunks")
    parser.add_argument("--documents", choices=("file", "line", "paragraph"), default="file")
    parser.add_argument("--chunk-mb", type=float, default=64)
    parser.add_argument("--workers", type=int, default=1)
    try:
        chunks = write(parser.parse_args())
    except InputError as error:
        print(f"stream_text: {error}", file=sys.stderr)
        return 2
    size = chunks.n_bytes.sum() / 1e6
    n_ids = chunks.n_tokens.sum()
    print(f"{len(chunks.names)} chunks, {n_ids} ids, {size:.1f} MB in {chunks.address}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
