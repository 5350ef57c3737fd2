"""HardAttention: base class of tasks that train hard attention with random positions.

Hard attention draws one source position for each target token. The drawn positions depend only on
the seed of the data, the epoch and the example. With hard_sample, the loss has the REINFORCE term
(Xu et al. 2015), whose baseline is a moving average of the loss of a target token, which
checkpoints store.

Shapes: B rows, T target tokens, S source positions.
"""

from functools import cache, partial
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.optim import Optimizer

from fourfold.data.loading.counter_rng import uniform
from fourfold.losses import IGNORE_INDEX, token_scores
from fourfold.models.recurrent.hard_attention import BASELINE_DECAY, reinforce_term

_ATTENTION_STREAM = 1000  # first of S streams of random numbers


class HardAttention:
    """Second base class, next to `Seq2SeqTask`, of tasks with a recurrent decoder."""

    reward_weight: float
    entropy_weight: float
    doubly_stochastic: float = 0.0

    @property
    def attention(self: Any) -> Any:
        """`RecurrentAttention` of the decoder; None without attention."""
        return self.model.decoder.cross_attn

    @property
    def data_seed(self: Any) -> int:
        """Seed of the DataModule; 0 without a DataModule or without a seed."""
        return getattr(self.datamodule, "seed", 0)

    def _attention_noise(self: Any, batch: Any, n_positions: int) -> Tensor:
        """Draw exponential random numbers (B, T + 1, S), from which attention draws positions."""
        n_tokens = self.as_pairs(batch).tgt.shape[1]
        rows, first = batch.rows.cpu().numpy(), _ATTENTION_STREAM
        draws = [
            uniform(self.data_seed, batch.epoch, rows, n_tokens, first + s)
            for s in range(n_positions)
        ]
        return torch.from_numpy(-np.log1p(-np.stack(draws, axis=2))).to(batch.rows.device)

    def step(self: Any, batch: Any) -> tuple[Tensor, Tensor]:
        """Compute the loss, summed over the target tokens, and the number of target tokens.

        The loss includes the REINFORCE term of hard_sample, whose value is 0, and the doubly
        stochastic loss.
        """
        if self.attention is None or not (self.attention.draws or self.doubly_stochastic):
            return super().step(batch)  # type: ignore[misc]
        with self.attention.recording(cache(partial(self._attention_noise, batch))) as calls:
            output = self._teacher_forced(self.as_pairs(batch))
        counts = (output[-1] != IGNORE_INDEX).view(len(batch.rows), -1)  # (B, T)
        loss = self._loss(output)
        # Calls of scheduled sampling precede those of the loss.
        columns = tuple(zip(*calls, strict=True))[:2]
        alpha, drawn = (torch.cat(x, 1)[:, -counts.shape[1] :] for x in columns)
        if hasattr(self, "reward_baseline"):
            nll = token_scores(*output)[0].view_as(counts)
            options = {name: getattr(self, name) for name in ("reward_weight", "entropy_weight")}
            options["baseline"] = self.get_buffer("reward_baseline")
            loss = loss + reinforce_term(nll, alpha, drawn, counts, **options)
        if self.doubly_stochastic:
            loss = loss + self.doubly_stochastic * doubly_stochastic_loss(alpha, counts)
        return loss, counts.sum()

    def on_before_optimizer_step(self: Any, optimizer: Optimizer) -> None:
        super().on_before_optimizer_step(optimizer)  # type: ignore[misc]
        if hasattr(self, "reward_baseline"):
            decay = BASELINE_DECAY if self.trainer.global_step else 0.0  # starts at the first loss
            self.get_buffer("reward_baseline").lerp_(self.loss_normalizer.mean, 1.0 - decay)


def doubly_stochastic_loss(alpha: Tensor, counts: Tensor) -> Tensor:
    """Compute the doubly stochastic loss of attention weights, a scalar (Xu et al. 2015, eq. 14).

    The loss of a caption is sum_i (1 - sum_t alpha_ti)^2 over the locations i, for tokens t. The
    result is the sum over the batch, like the loss of the tokens, so the ratio of both losses is
    that of the paper. The released code takes the mean over the locations and the sum over the
    batch, which is B / S times this loss. A widely used tutorial takes both means, which is 1 / S
    times this loss.

    Args:
        alpha: Attention weights (B, T, S).
        counts: (B, T) bool, True = real target token, False = padding, which is left out.
    """
    total = (alpha * counts[..., None]).sum(1)  # (B, S)
    return ((1.0 - total) ** 2).sum()
