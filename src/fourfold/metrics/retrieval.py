"""How well the vectors of images and of texts find each other."""

from typing import ClassVar

import torch
from torch import Tensor

from fourfold.metrics.by_row import ByRow


class Retrieval(ByRow):
    """How well images find their texts, and texts their images, among all of a split.

    Images with the same text share it: each of them is right.
    """

    chunk: ClassVar[int] = 1024  # rows that are compared with all others at once

    def update(
        self, rows: list[int], images: Tensor, texts: Tensor, said: list[tuple[int, ...]]
    ) -> None:
        """Add vectors (B, E) of the given rows, whose dot products are logits, and the texts."""
        vectors = zip(images.detach().cpu(), texts.detach().cpu(), said, strict=True)
        self.rows.update(zip(rows, vectors, strict=True))

    def compute(self) -> dict[str, float]:
        """loss, and from 0 to 1 image_to_text and text_to_image recall at 1, 5 and 10.

        The loss is the mean of both cross-entropies with the whole split as one batch. A text that
        several images have is asked for once, and stands once among those that are found.
        """
        pairs = [pair for _, pair in sorted(self.gather().items())]
        images, texts = (torch.stack([pair[k] for pair in pairs]) for k in (0, 1))
        first: dict[tuple[int, ...], int] = {}
        rows = [first.setdefault(pair[2], row) for row, pair in enumerate(pairs)]
        distinct = sorted(first.values())
        number = {row: i for i, row in enumerate(distinct)}
        of = torch.tensor([number[row] for row in rows])  # (N,) the text of each image
        loss = (self._cross_entropy(images, texts) + self._cross_entropy(texts, images)) / 2
        scores = {"loss": loss / len(pairs)}
        own = torch.arange(len(distinct))
        found = {
            "image_to_text": self._ranks(images, texts[distinct], of, own),
            "text_to_image": self._ranks(texts[distinct], images, own, of),
        }
        for name, ranks in found.items():
            for k in (1, 5, 10):
                scores[f"{name}_recall_{k}"] = (ranks < k).double().mean().item()
        return scores

    def _cross_entropy(self, a: Tensor, b: Tensor) -> float:
        sums = ((part @ b.T).logsumexp(-1).double().sum() for part in a.split(self.chunk))
        return float(sum(sums) - (a * b).sum(-1).double().sum())

    def _ranks(self, asking: Tensor, asked: Tensor, a: Tensor, b: Tensor) -> Tensor:
        """How many wrong answers are not below the best right one, which has the same number.

        So a model to which all look alike, or whose vectors are NaN, finds nothing.
        """
        ranks = []
        for part, numbers in zip(asking.split(self.chunk), a.split(self.chunk), strict=True):
            logits = part @ asked.T
            wrong = numbers[:, None] != b
            right = logits.masked_fill(wrong, float("-inf")).amax(1, keepdim=True)
            ranks.append((wrong & ~(logits < right)).sum(1))
        return torch.cat(ranks)
