"""Dataset of pairs of segments with labels for next-sentence prediction (BERT).

Shapes: B pairs, T tokens of the longest pair.
"""

from dataclasses import dataclass

import numpy as np
import torch

from fourfold.data.loading.batches import MaskedBatch
from fourfold.data.loading.counter_rng import uniform
from fourfold.data.loading.datamodule import BatchedDataset
from fourfold.data.loading.ragged import RaggedArray
from fourfold.data.text.masking import Masking, masked_batch
from fourfold.data.text.packing import Sentences
from fourfold.data.text.segments import join_segments, segment_ids
from fourfold.errors import InputError

_PAIR_STREAM = 4  # stream of the counter-based random numbers; Masking uses 1 to 3


@dataclass(eq=False)
class SegmentPairDataset(BatchedDataset):
    """Dataset of pairs BOS A EOS B EOS for next-sentence prediction (Devlin et al. 2019, A.2).

    A pair is made from a chunk, which is several consecutive sentences of one document. A random
    boundary between two sentences of the chunk divides it into the segments A and B. With a
    probability of one half, B is then replaced by consecutive sentences of another document, which
    have at least as many tokens, unless that document ends earlier. A chunk of a single sentence
    has no continuation, so its segment B is always sampled from another document.

    As in BERT's own code, the last sentence of a chunk may exceed the maximum length, and the pair
    is then truncated. Without this sentence, pairs in which B follows A would be shorter than other
    pairs, and the model could infer the label from the length.

    Args:
        single: Make each segment a single sentence (SENTENCE-PAIR, Liu et al. 2019, section 4.2);
            otherwise a chunk has as many sentences as are needed to reach `max_len`.

    Attributes:
        chunks: (chunks + 1,) first sentence of each chunk, and the number of sentences.

    Raises:
        InputError: If there are fewer than two documents.
    """

    sentences: Sentences
    max_len: int
    masking: Masking
    single: bool = False
    has_static_shape = False  # a batch is as long as its longest pair

    def __post_init__(self) -> None:
        self.max_length = self.max_len
        self.max_tokens = self.max_len - 3  # without BOS and two EOS
        if self.single:
            borders = self.sentences.pairs()
        else:
            borders = self.sentences.pack(self.max_tokens, cross_documents=False, overflow=True)
        self.chunks = np.concatenate([[0], borders, [len(self.sentences)]])
        self.documents = self.sentences.starts
        if (n_documents := len(self.documents) - 1) < 2:
            message = "must give each split at least two documents for next-sentence prediction"
            raise InputError(f"{message}, got {n_documents}", option="documents")

    def batch(self, rows: np.ndarray, epoch: int, position: int) -> MaskedBatch:
        masking = self.masking
        numbers = uniform(masking.seed, masking.mask_epoch(epoch), rows, 4, _PAIR_STREAM)
        pairs = [self._pair(row, random) for row, random in zip(rows, numbers, strict=True)]
        a, b, is_next = zip(*pairs, strict=True)
        columns = [RaggedArray.from_rows(a), RaggedArray.from_rows(b)]
        joined, first_lengths = join_segments(columns, masking.tokenizer, self.max_len, 1)
        ids, mask = joined.padded(np.arange(len(rows)), masking.tokenizer.pad_id)  # (B, T)
        batch = masked_batch(masking, ids.numpy(), mask.numpy(), rows, epoch, position)
        return batch._replace(
            segments=segment_ids(first_lengths, mask), is_next=torch.tensor(is_next).long()
        )

    def _pair(self, row: int, random: np.ndarray) -> tuple[np.ndarray, np.ndarray, bool]:
        """Return the segments A and B of the chunk `row`, and True if B follows A in the document.

        The four numbers `random` choose the boundary, whether B follows, and the other sentences.
        """
        begin, end = self.chunks[row : row + 2]
        middle = begin + 1 + int(random[0] * (end - begin - 1))
        is_next = bool(end - begin > 1 and random[1] < 0.5)
        flat = self.sentences.ids.ids
        offsets = self.sentences.ids.offsets
        a = flat[offsets[begin] : offsets[middle]]
        start, stop = middle, end
        if not is_next:  # as long as the replaced segment, or as fits if the chunk has one sentence
            n_tokens = offsets[end] - offsets[middle] or self.max_tokens - len(a)
            other = int(random[2] * (len(self.documents) - 2))
            other += other >= int(np.searchsorted(self.documents, begin, side="right")) - 1
            first, last = self.documents[other : other + 2].tolist()
            start = first + int(random[3] * (last - first))
            stop = start + 1
            if not self.single:
                end_of_b = int(np.searchsorted(offsets, offsets[start] + n_tokens))
                stop = min(max(end_of_b, stop), last)
        b = flat[offsets[start] : offsets[stop]]
        # Truncate the beginning of A and the end of B, the longer segment first.
        a = a[-max(self.max_tokens // 2, self.max_tokens - len(b)) :]
        return a, b[: self.max_tokens - len(a)], is_next
