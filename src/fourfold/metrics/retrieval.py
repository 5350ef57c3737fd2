"""Recall at k and contrastive loss between all images and texts (CLIP and SigLIP)."""

from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from fourfold.metrics.base import RowMetric


class RetrievalScores(RowMetric):
    """Recall at 1, 5 and 10 of image-to-text and text-to-image retrieval in a split of pairs.

    Each image is a query that ranks all texts of the split, and each text one that ranks all
    images. If several images have the same text, the text counts once, and each of these images is
    a correct result for the text.
    """

    chunk_size: ClassVar[int] = 1024

    def update(
        self, rows: list[int], images: Tensor, texts: Tensor, token_ids: list[tuple[int, ...]]
    ) -> None:
        """Add the embeddings (B, E) of a batch of pairs, whose dot products are the logits.

        Texts with equal `token_ids` count as equal.
        """
        vectors = zip(images.detach().cpu(), texts.detach().cpu(), token_ids, strict=True)
        self.rows += zip(rows, vectors, strict=True)

    def compute(self) -> dict[str, float]:
        """Return the loss, and recalls such as image_to_text_recall_at_5, by name.

        The recall at k is the share of queries with a correct result among the k best results. The
        loss is that of the whole split as one batch. Unlike the recalls, it treats equal texts as
        different.
        """
        pairs = [pair for _, pair in sorted(self.gather().items())]
        images, texts = (torch.stack([pair[k] for pair in pairs]) for k in (0, 1))
        row_of_text = {ids: row for row, (_, _, ids) in enumerate(pairs)}  # one row of each text
        distinct = list(row_of_text.values())
        number = {ids: i for i, ids in enumerate(row_of_text)}
        text_of_image = torch.tensor([number[ids] for _, _, ids in pairs])  # (N,)
        text_numbers = torch.arange(len(distinct))
        scores = {"loss": self._summed_loss(images, texts) / len(pairs)}
        all_ranks = {
            "image_to_text": self._ranks(images, texts[distinct], text_of_image, text_numbers),
            "text_to_image": self._ranks(texts[distinct], images, text_numbers, text_of_image),
        }
        for name, ranks in all_ranks.items():
            for k in (1, 5, 10):
                scores[f"{name}_recall_at_{k}"] = (ranks < k).double().mean().item()
        return scores

    def _summed_loss(self, images: Tensor, texts: Tensor) -> float:
        return (self._cross_entropy(images, texts) + self._cross_entropy(texts, images)) / 2

    def _cross_entropy(self, a: Tensor, b: Tensor) -> float:
        sums = ((chunk @ b.T).logsumexp(-1).double().sum() for chunk in a.split(self.chunk_size))
        return float(sum(sums) - (a * b).sum(-1).double().sum())

    def _ranks(
        self, queries: Tensor, candidates: Tensor, query_text: Tensor, candidate_text: Tensor
    ) -> Tensor:
        """Count, for each query, the wrong candidates before the best correct candidate.

        Wrong candidates with an equal score or with NaN rank before it, so a model whose embeddings
        are all equal finds nothing.
        """
        ranks = []
        for chunk, numbers in zip(
            queries.split(self.chunk_size), query_text.split(self.chunk_size), strict=True
        ):
            logits = chunk @ candidates.T
            wrong = numbers[:, None] != candidate_text
            best = logits.masked_fill(wrong, float("-inf")).amax(1, keepdim=True)
            ranks.append((wrong & ~(logits < best)).sum(1))
        return torch.cat(ranks)


class SigmoidRetrievalScores(RetrievalScores):
    """Recalls of `RetrievalScores`, with the sigmoid loss of SigLIP over all pairs of the split."""

    def _summed_loss(self, images: Tensor, texts: Tensor) -> float:
        sums = (
            F.softplus(chunk @ texts.T).double().sum() for chunk in images.split(self.chunk_size)
        )
        return float(sum(sums) - (images * texts).sum(-1).double().sum())
