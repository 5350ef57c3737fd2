"""Documents one after the other as one stream of tokens, and how much text a stretch of it covers.

The stream begins with EOS, and every document ends with one. So each token has a predecessor and is
predicted exactly once, and the token before a document is always the same.

Legend: B rows.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fourfold.data.documents import sizes
from fourfold.data.ragged import Ragged


class Stream:
    """A flat token stream. Target p is token p + 1, and it belongs to the document of input p.

    Args:
        documents: the encoded documents.
        texts: the documents themselves.
        eos_id: separator.
    """

    def __init__(self, documents: Ragged, texts: Sequence[str], eos_id: int) -> None:
        closed = documents.wrap(after=eos_id)
        self.ids = np.concatenate([[eos_id], closed.ids]).astype(np.int32)
        self.offsets = closed.offsets
        self._sizes = [np.array(size, np.int64) for size in sizes(texts)]
        self._before = [np.concatenate([[0], np.cumsum(size)]) for size in self._sizes]

    def __len__(self) -> int:
        """Number of targets."""
        return len(self.ids) - 1

    def document(self, places: np.ndarray) -> np.ndarray:
        """The number of the document at each place."""
        return np.searchsorted(self.offsets, places, side="right") - 1

    def measure(self, begins: np.ndarray, ends: np.ndarray) -> tuple[int, int]:
        """Bytes and words of the text behind targets [begin, end), summed over rows.

        A document's text is spread evenly over its tokens (EOS has its share), so a stretch is
        approximate while stretches that cover the stream add up to the text exactly.
        """
        n_bytes, n_words = (
            int((self._upto(i, ends) - self._upto(i, begins)).sum()) for i in range(2)
        )
        return n_bytes, n_words

    def _upto(self, which: int, places: np.ndarray) -> np.ndarray:
        documents = np.minimum(self.document(places), len(self.offsets) - 2)
        tokens = np.diff(self.offsets)[documents]
        inside = places - self.offsets[documents]
        return self._before[which][documents] + self._sizes[which][documents] * inside // tokens
