"""DataModule for the classification of documents that consist of sentences.

Shapes: B documents, N sentences of these documents, T words of the longest sentence.
"""

import random
import re
from collections.abc import Sequence
from dataclasses import KW_ONLY, InitVar, dataclass, field
from functools import cached_property
from typing import Literal

import numpy as np
import torch

from fourfold.core.validation import check_positive
from fourfold.data.loading.batches import DocumentBatch
from fourfold.data.loading.datamodule import BatchedDataset
from fourfold.data.loading.length_bucketing import LengthBucketedOrder
from fourfold.data.loading.ragged import RaggedArray
from fourfold.data.readers.synthetic_translation import synthetic_pairs
from fourfold.data.readers.text_table import TextTable
from fourfold.data.readers.truncation import limit_lengths
from fourfold.data.text.base import text_data
from fourfold.data.text.packing import HTML_BREAK, encode_documents
from fourfold.data.text.sequence_classification import BUILTIN_LANGUAGES, SequenceData
from fourfold.errors import InputError
from fourfold.tokenization.tokenizer import Tokenizer
from fourfold.tokenization.training import TokenizerConfig

_BUILTIN_DOCUMENTS = {"train": 1000, "val": 200, "test": 200}  # number of documents in a split
_BUILTIN_SENTENCES = (3, 8)  # smallest and largest number of sentences in a document


@dataclass(eq=False)
class DocumentDataset(BatchedDataset):
    """Dataset of labelled documents.

    Args:
        sentences: Word ids of each sentence of all documents.
        documents: For each document, the indices in `sentences` of its sentences.
        labels: Class indices (documents,) int64, or regression targets (documents,) float32.
        table: Texts and locations of the documents, for predictions on test data; otherwise None.
    """

    sentences: RaggedArray
    documents: RaggedArray
    labels: np.ndarray
    pad_id: int
    order: LengthBucketedOrder
    table: TextTable | None = None

    has_static_shape = False  # a batch is as long as its documents

    @cached_property
    def max_length(self) -> int:
        """Number of words of the longest sentence."""
        return int(self.sentences.lengths.max(initial=0))

    def batch(self, rows: np.ndarray, epoch: int, position: int) -> DocumentBatch:
        taken = self.documents.take(rows)
        ids, mask = self.sentences.padded(taken.ids, self.pad_id)  # (N, T)
        sizes = tuple(mask.sum(1).tolist()), tuple(taken.lengths.tolist())
        labels, numbers = torch.from_numpy(self.labels[rows]), torch.from_numpy(rows)
        return DocumentBatch(ids, labels, *sizes, numbers, epoch, position)


@text_data
class DocumentData(SequenceData):
    """DataModule for documents with one class or one number each.

    Files are tables (.tsv, .csv or .jsonl), in which each row is a document. Documents with similar
    numbers of sentences share a batch. See `encode_documents` for the division into sentences.

    Args:
        source: "builtin" (generated sentences, whose class is "mixed" if one sentence is German and
            "english" if all are English), "files" or "hub".
        max_len: Maximum number of words of a sentence. A longer sentence is divided.
        max_sentences: Maximum number of sentences of a document.
        tokenizer: Tokenizer to train or load; by default a word tokenizer, whose vocabulary holds
            the words that occur more than 5 times.
        text: Column of the document.
        too_long: Treatment of documents with more than `max_sentences` sentences.

    Example:
        >>> data = DocumentData(batch_size=4)
        >>> batch = next(iter(data.train_dataloader()))
        >>> data.class_names, len(batch.n_sentences)
        (['english', 'mixed'], 4)
    """

    batch_class = DocumentBatch  # type: ignore[assignment]
    artifact_names = ("max_len", "max_sentences", "class_names")  # type: ignore[assignment]

    _: KW_ONLY
    text: int | str = "text"
    n_separators: Literal[1, 2] = field(default=1, init=False)
    tokenizer: InitVar[TokenizerConfig] = TokenizerConfig(
        kind="word", vocab_size=50_000, min_frequency=6, lowercase=True
    )
    max_len: int = 50
    max_sentences: int = 30

    def __post_init__(self, tokenizer: TokenizerConfig) -> None:
        super().__post_init__(tokenizer)
        check_positive("max_sentences", self.max_sentences)

    @staticmethod
    def builtin() -> dict[str, TextTable]:
        """Generate the built-in documents and their classes, a table for each split."""
        splits = {}
        for name, pairs in synthetic_pairs(*BUILTIN_LANGUAGES, n_train=2000).items():
            rng = random.Random(name)
            # Without sentences such as "5. März", which would be divided, and equal sentences.
            sentences = [
                pair
                for pair in zip(*pairs.columns, strict=True)
                if len(set(pair)) == 2 and not re.search(r"[.!?]\s", " ".join(pair))
            ]
            texts, labels = [], []
            for number in range(_BUILTIN_DOCUMENTS[name]):
                chosen = rng.sample(sentences, rng.randint(*_BUILTIN_SENTENCES))
                languages = [0] * len(chosen)
                languages[rng.randrange(len(chosen))] = number % 2
                parts = [pair[k] for pair, k in zip(chosen, languages, strict=True)]
                texts.append(" ".join(f"{part}." for part in parts))
                labels.append(("english", "mixed")[number % 2])
            source = f"built-in documents, {name}, row "
            splits[name] = TextTable.from_columns([texts, labels], source)
        return splits

    def training_texts(self, raw: TextTable) -> Sequence[str]:
        return [HTML_BREAK.sub("\n\n", text) for text in raw.columns[0]]

    def encode(self, name: str, raw: TextTable, tokenizer: Tokenizer) -> DocumentDataset:  # type: ignore[override]
        found = encode_documents(raw.columns[0], tokenizer, self.max_len)
        if (found.document.max(initial=-1) + 1) < len(raw):
            texts = enumerate(raw.columns[0])
            empty = next(i for i, text in texts if not len(encode_documents([text], tokenizer, 1)))
            raise InputError("the document has no sentence", file=raw.location(empty))
        counts = np.bincount(found.document, minlength=len(raw))
        documents = RaggedArray.from_lengths(np.arange(len(found)), counts)
        limit = self.max_sentences
        (documents,), raw = limit_lengths(
            [documents], raw, limit, self.too_long, name, option="max_sentences", unit="sentences"
        )
        order = self.batch_order(name, documents.lengths, max_rows=self.batch_sizes[name])
        labels, table = self.encode_labels(raw), raw if name == "test" else None
        return DocumentDataset(found.ids, documents, labels, tokenizer.pad_id, order, table)
