"""GradientNorms: gradient norms of the last hidden state by distance, as metrics of a test."""

from collections.abc import Sequence
from typing import Any

import torch
from lightning import Callback, LightningModule, Trainer
from torch import Tensor

from fourfold.analysis.gradient_norms import trained_gradient_norms


class GradientNorms(Callback):
    """Callback that adds `test/gradient_norm_K` to the metrics of a test, for each distance K.

    The metric is the spectral norm of the Jacobian of the last hidden state of a causal LM with
    respect to the embedding of the token K steps before, averaged over some sequences.

    Args:
        distances: Distances in tokens, each below the length of the sequences.
        n_sequences: Number of sequences, taken from the beginning of the test split.
    """

    def __init__(self, distances: Sequence[int] = (1, 5, 10, 20, 50), n_sequences: int = 4) -> None:
        self.distances = distances
        self.n_sequences = n_sequences

    def on_test_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._ids: list[Tensor] = []

    def on_test_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, *_: Any
    ) -> None:
        self._ids += batch.ids[: self.n_sequences - len(self._ids)]

    def on_test_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Add the gradient norms to the task's `summary`; sequences are cut to the shortest."""
        n_tokens = min(map(len, self._ids))
        model: Any = pl_module.model
        with torch.inference_mode(False), torch.enable_grad():
            ids = torch.stack([row[:n_tokens] for row in self._ids]).clone()
            norms = trained_gradient_norms(model, ids, self.distances)
        summary: Any = pl_module.summary
        for distance, norm in zip(self.distances, norms, strict=True):
            summary[f"test/gradient_norm_{distance}"] = norm
