"""DataModule for language models that read from left to right, with datasets and objectives.

The datasets make blocks or documents, in which the target of each token is the next token. The
objective prefix or hybrid then changes the batch; its random choices depend only on the seed, the
epoch and the index of the row in the split.

Shapes: B rows of a batch (blocks, crops or documents), T tokens of a row.
"""

from collections.abc import Callable
from dataclasses import KW_ONLY, InitVar, dataclass
from functools import partial
from typing import Any, Literal

import numpy as np
import torch

from fourfold.core.validation import check_choice, check_positive, check_range
from fourfold.data.loading.batches import CausalBatch
from fourfold.data.loading.counter_rng import integers, uniform
from fourfold.data.loading.datamodule import BatchedDataset
from fourfold.data.loading.length_bucketing import LengthBucketedOrder
from fourfold.data.readers.documents import Documents, DocumentUnit
from fourfold.data.readers.truncation import rows_within_limit
from fourfold.data.text.base import DocumentDataModule, text_data
from fourfold.data.text.masking import Masking, MaskingConfig
from fourfold.data.text.packing import TokenStream
from fourfold.data.text.token_cache import map_bin_file
from fourfold.errors import InputError
from fourfold.losses import IGNORE_INDEX
from fourfold.tokenization.tokenizer import Tokenizer
from fourfold.tokenization.training import TokenizerConfig

Objective = Callable[[CausalBatch, np.ndarray], CausalBatch]
_PREFIX_STREAM, _HYBRID_STREAM = 5, 6  # of the counter-based random numbers


def with_prefixes(batch: CausalBatch, rows: np.ndarray, *, seed: int) -> CausalBatch:
    """Draw a prefix of each document, for a prefix LM (Raffel et al. 2019, section 3.2.1).

    Of the n targets of a document, the first P have no loss, where P is uniform from 1 to n - 1.
    The prefix consists of the inputs 0 to P, which are the first token and these P targets. A
    document with one target has no prefix. A row is one document if the batch does not separate
    documents. `rows` (B,) are indices in the split.
    """
    targets, real = batch.targets.numpy(), _is_real(batch)
    document = real if batch.documents is None else batch.documents.numpy()
    at = np.broadcast_to(np.arange(targets.shape[1]), targets.shape)
    changes = document[:, 1:] != document[:, :-1]
    edge = np.ones((len(changes), 1), bool)
    begins = np.where(np.concatenate([edge, changes], 1), at, 0)
    begins = np.maximum.accumulate(begins, 1)  # (B, T), of the document of each token
    ends = np.where(np.concatenate([changes, edge], 1), at + 1, at.shape[1])
    n_targets = np.minimum.accumulate(ends[:, ::-1], 1)[:, ::-1] - begins
    draws = uniform(seed, batch.epoch, rows, at.shape[1], _PREFIX_STREAM)
    draws = np.take_along_axis(draws, begins, 1)
    length = np.where(n_targets > 1, 1 + (draws * (n_targets - 1)).astype(np.int64), 0)
    return batch._replace(
        targets=torch.from_numpy(np.where(at - begins < length, IGNORE_INDEX, targets)),
        prefix=torch.from_numpy(real & (at - begins <= length)),
        n_bytes=0,
        n_words=0,
    )


def _is_real(batch: CausalBatch) -> np.ndarray:
    """Mark the inputs (B, T) of a batch up to the last target of each row; padding follows."""
    has_target = batch.targets.numpy() != IGNORE_INDEX
    return np.maximum.accumulate(has_target[:, ::-1], 1)[:, ::-1]


def with_masked_rows(
    batch: CausalBatch, rows: np.ndarray, *, masking: Masking, share: float, loss_share: float
) -> CausalBatch:
    """Turn random rows into rows of masked next-token prediction, for GPT-BERT.

    Source: Charpentier and Samuel 2024. In these rows, attention is bidirectional, and the targets
    are the tokens that are masked in the input, each at the position before it. The other rows
    remain causal. On average, the masked rows are `share` of all rows, and the weights of their
    targets `loss_share` of all weights. `rows` (B,) are indices in the split.
    """
    ids, targets, real = batch.ids.numpy(), batch.targets.numpy(), _is_real(batch)
    draws = uniform(masking.seed, batch.epoch, rows, 1, _HYBRID_STREAM)
    is_masked = draws < share  # (B, 1)
    ignored = targets == IGNORE_INDEX
    # EOS is never masked.
    noised, selected = masking(
        np.where(ignored, masking.tokenizer.eos_id, targets), rows, batch.epoch
    )
    inputs = ids.copy()
    inputs[:, 1:] = np.where(ignored[:, :-1], ids[:, 1:], noised[:, :-1])
    weight = loss_share / (share * masking.config.mlm_probability)
    other = (1 - loss_share) / (1 - share) if share < 1 else 0.0
    return batch._replace(
        ids=torch.from_numpy(np.where(is_masked, inputs, ids)),
        targets=torch.from_numpy(np.where(is_masked, selected, targets)),
        prefix=torch.from_numpy(is_masked & real),
        weights=torch.from_numpy(np.where(is_masked[:, 0], weight, other).astype(np.float32)),
        n_bytes=0,
        n_words=0,
    )


@dataclass(eq=False)
class BlockDataset(BatchedDataset):
    """Dataset of blocks of T consecutive tokens from all documents, concatenated.

    The blocks follow each other, or are crops that begin at random positions. The number of blocks
    in an epoch is the same in both cases.

    Args:
        order: Division of the blocks into batches; its seed is also the seed of the crops.
        context: Number of tokens at the beginning of a block that repeat the end of the previous
            block, as inputs without a target.
        crops: Sample the beginnings of the blocks at random in every epoch.
        block_cross_document_attention: Put the index of each token's document into the batches.
        objective: Function that changes a batch of the rows (B,); None leaves it causal.
    """

    stream: TokenStream
    block_size: int
    order: LengthBucketedOrder
    context: int = 0
    crops: bool = False
    block_cross_document_attention: bool = False
    objective: Objective | None = None

    @property
    def max_length(self) -> int:
        return self.block_size

    def batch(self, rows: np.ndarray, epoch: int, position: int) -> CausalBatch:
        n_targets = len(self.stream)
        if self.crops:
            begins = integers(self.order.seed, epoch, rows, n_targets - self.block_size + 1)
        else:
            begins = rows * (self.block_size - self.context)
        positions = begins[:, None] + np.arange(self.block_size)  # (B, T)
        ends = np.minimum(begins + self.block_size, n_targets)
        first_targets = begins + np.where(begins > 0, self.context, 0)
        # The ids are unsigned, and IGNORE_INDEX is negative.
        ids, targets = (
            self.stream.ids[np.minimum(at, n_targets)].astype(np.int64)
            for at in (positions, positions + 1)
        )
        ignored = (positions >= n_targets) | (positions < first_targets[:, None])
        targets = np.where(ignored, IGNORE_INDEX, targets)
        documents = None
        if self.block_cross_document_attention:
            numbers = np.searchsorted(self.stream.offsets, positions, side="right") - 1
            documents = torch.from_numpy(numbers)
        made = CausalBatch(
            torch.from_numpy(ids),
            torch.from_numpy(targets),
            documents,
            *self.stream.count_bytes_and_words(first_targets, ends),
            epoch=epoch,
            position=position,
        )
        return self.objective(made, rows) if self.objective else made


@dataclass(eq=False)
class DocumentDataset(BatchedDataset):
    """Dataset in which each row of a batch is one document, with an EOS before and after it.

    The batches need no padding mask: the padding, which is EOS, follows the document, and causal
    attention never sees later positions.

    Args:
        ids: Token ids of all documents, as in `TokenStream`.
        begins: (rows,) index in `ids` of the EOS before each document.
        lengths: (rows,) number of tokens of each document, without EOS.
        sizes: (2, rows) numbers of UTF-8 bytes and of words of each document.
        eos_id: Id of EOS.
        order: Division of the rows into batches.
        objective: As in `BlockDataset`.
    """

    ids: np.ndarray
    begins: np.ndarray
    lengths: np.ndarray
    sizes: np.ndarray
    eos_id: int
    order: LengthBucketedOrder
    objective: Objective | None = None

    def batch(self, rows: np.ndarray, epoch: int, position: int) -> CausalBatch:
        lengths = self.lengths[rows, None]
        at = np.arange(lengths.max() + 2)  # (T+1,)
        ids = self.ids[np.minimum(self.begins[rows, None] + at, len(self.ids) - 1)]  # (B, T+1)
        ids = np.where(at <= lengths, ids, self.eos_id).astype(np.int64)
        targets = torch.from_numpy(np.where(at <= lengths + 1, ids, IGNORE_INDEX)[:, 1:])
        n_bytes, n_words = self.sizes[:, rows].sum(1).tolist()
        inputs = torch.from_numpy(ids[:, :-1])
        made = CausalBatch(inputs, targets, None, n_bytes, n_words, epoch=epoch, position=position)
        return self.objective(made, rows) if self.objective else made


@text_data
class CausalTextData(DocumentDataModule):
    """DataModule for causal language models, prefix LMs and hybrids of causal and masked LM.

    Each batch has the fields `n_bytes` and `n_words`. Their sums over the batches of a validation
    or test split are the numbers of UTF-8 bytes and of whitespace-separated words in the text. The
    EOS after each document is a target and counts as a token, but not as a byte or a word.

    A split may also be a file NAME.bin with the ids of a tokenizer, as nanoGPT writes them (uint16,
    an EOS after each document). It is mapped as it is, and its bytes and words are not counted.

    Args:
        tokenizer: Tokenizer to train or load; by default a byte-level BPE.
        block_size: Number of tokens in a block or crop. If `batching` is "documents", the maximum
            number of tokens in a document, EOS included. None in a config of the command line means
            `max_len` of the model.
        batching: Division of the text into examples. With "blocks", the examples are consecutive
            blocks, in which each token is a target once per epoch. With "crops", the training
            examples are the same number of blocks at random positions, as in nanoGPT. Evaluation
            uses consecutive blocks. With "documents", each example is a document, and a batch holds
            documents of similar length.
        eval_context: Number of tokens at the beginning of a validation or test block that repeat
            the end of the previous block, as inputs without a target; None means half of them.
        objective: "causal" (the target of each token is the next token), "prefix" (the first tokens
            of a row see each other and have no loss; their number is random, see `with_prefixes`)
            or "hybrid" (random rows are masked and bidirectional, see `with_masked_rows`). With
            "prefix", and with "hybrid" unless `masked_rows` is 0, bytes and words are not counted.
        masked_rows: Share of the rows that are masked, if the objective is "hybrid"; 15/16 in
            GPT-BERT.
        masked_loss: Share of the loss that the masked rows have on average; None means
            `masked_rows`. A masked row has fewer targets than a causal row, so its targets have
            larger weights.
        masking: Options for the tokens of masked rows.

    Example:
        >>> data = CausalTextData(block_size=8, batch_size=4)  # Python's documentation
        >>> batch = data.split("val").batch(np.arange(4), epoch=0, position=1)
        >>> bool((batch.ids[:, 1:] == batch.targets[:, :-1]).all())
        True
    """

    batch_class = CausalBatch

    _: KW_ONLY
    documents: DocumentUnit = "file"
    tokenizer: InitVar[TokenizerConfig] = TokenizerConfig(kind="byte_bpe")
    block_size: int | None = 128
    batching: Literal["blocks", "crops", "documents"] = "blocks"
    eval_context: int | None = 0
    objective: Literal["causal", "prefix", "hybrid"] = "causal"
    masked_rows: float = 0.5
    masked_loss: float | None = None
    masking: MaskingConfig = MaskingConfig()

    def __post_init__(self, tokenizer: TokenizerConfig) -> None:
        super().__post_init__(tokenizer)
        check_range("masked_rows", self.masked_rows, minimum=0.0, maximum=1.0)
        check_range("masked_loss", self.masked_loss or 0.0, minimum=0.0, maximum=1.0)
        if self.masked_rows in (0.0, 1.0) and self.masked_loss not in (None, self.masked_rows):
            message = f"must be {self.masked_rows:g}, like masked_rows, got {self.masked_loss:g}"
            raise InputError(message, option="masked_loss")
        self.needs_mask = self.objective == "hybrid"  # type: ignore[misc]
        check_positive("block_size", self.block_size)
        if self.block_size is None:
            raise InputError("must be given for a model without max_len", option="block_size")
        size = self._block_size = self.block_size
        self._eval_context = size // 2 if self.eval_context is None else self.eval_context
        check_range("eval_context", self._eval_context, minimum=0, below=size)

    @property
    def has_masked_rows(self) -> bool:
        """True if some rows are masked, whose metrics are separate."""
        return self.objective == "hybrid" and self.masked_rows > 0.0

    def read(self) -> dict[str, Any]:
        named = {name: source for name, source in self.split_sources.items() if source is not None}
        is_bin = [isinstance(source, str) and source.endswith(".bin") for source in named.values()]
        if self.source != "files" or not any(is_bin):
            return super().read()
        if not all(is_bin):
            message = f"must each be one .bin file if one of them is, got {list(named.values())}"
            raise InputError(message, option="data.train, data.val and data.test")
        if self._tokenizer_config.file is None:
            message = "must name the tokenizer with which the .bin files were written"
            raise InputError(message, option="data.tokenizer.file")
        check_choice("data.batching", self.batching, ["blocks", "crops"])
        return named

    def encode(self, name: str, raw: Documents | str, tokenizer: Tokenizer) -> BatchedDataset:
        dataset: BlockDataset | DocumentDataset
        if isinstance(raw, str):
            dataset = self._block_dataset(name, raw, map_bin_file(raw, tokenizer))
        else:
            arrays = self.encoded_stream(name, raw, tokenizer)
            stream = TokenStream(*(arrays[key] for key in ("ids", "offsets", "bytes", "words")))
            if self.batching == "documents":
                dataset = self._document_dataset(name, raw, stream, tokenizer.eos_id)
            else:
                dataset = self._block_dataset(name, raw, stream)
        if self.objective == "prefix":
            dataset.objective = partial(with_prefixes, seed=self.seed)
        elif self.has_masked_rows:
            masking = Masking(self.masking, tokenizer, self.seed)
            share = self.masked_rows
            loss_share = share if self.masked_loss is None else self.masked_loss
            options: Any = {"masking": masking, "share": share, "loss_share": loss_share}
            dataset.objective = partial(with_masked_rows, **options)
        return dataset

    def _block_dataset(self, name: str, raw: Documents | str, stream: TokenStream) -> BlockDataset:
        crops = self.batching == "crops" and name == "train"
        if crops and len(stream) < self._block_size:
            file = raw if isinstance(raw, str) else raw.location(0)
            message = f"the training split has {len(stream)} tokens, fewer than"
            raise InputError(f"{message} block_size={self._block_size}", file=file)
        context = 0 if name == "train" else self._eval_context
        lengths = np.ones(stream.n_blocks(self._block_size, context), np.int64)
        order = self.batch_order(name, lengths, max_rows=self.batch_size)
        block = self.block_cross_document_attention
        return BlockDataset(stream, self._block_size, order, context, crops, block)

    def _document_dataset(
        self, name: str, raw: Documents, stream: TokenStream, eos_id: int
    ) -> DocumentDataset:
        limit = self._block_size - 1
        full = np.diff(stream.offsets) - 1  # without EOS
        kept = rows_within_limit(
            full, raw.location, limit, self.too_long, name, option="block_size"
        )
        full = full[kept]
        lengths = np.minimum(full, limit)
        sizes = np.diff([stream.bytes_before, stream.words_before])[:, kept]
        sizes = (sizes * (lengths / np.maximum(full, 1))).round().astype(np.int64)
        max_tokens = self.batch_size * self._block_size
        order = self.batch_order(name, lengths + 1, max_tokens=max_tokens)
        begins = stream.offsets[kept]
        return DocumentDataset(stream.ids, begins, lengths, sizes, eos_id, order)
