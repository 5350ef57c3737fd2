"""HardAttention: base class of tasks that train hard attention with random positions.

Shapes: B rows, T target tokens, S source positions.
"""

from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.optim import Optimizer

from fourfold.core.validation import check_range
from fourfold.data.loading.counter_rng import uniform
from fourfold.lightning_internals import attached_trainer
from fourfold.models.recurrent.hard_attention import BASELINE_DECAY, reinforce_term

_ATTENTION_STREAM = 1000  # first of S streams of random numbers


class HardAttention:
    """Second base class, next to `Task`, of tasks that train hard attention.

    Hard attention draws one source position for each target token. The drawn positions depend only
    on the seed of the data, the epoch and the example. The class also computes the REINFORCE
    gradient (Xu et al. 2015). The baseline of REINFORCE is a moving average of the loss of a target
    token, which checkpoints store.

    Attributes:
        reward_weight: Factor lambda_r (section 4.1) on the REINFORCE term; 1 is unbiased.
        entropy_weight: Factor lambda_e (section 4.1) on the entropy of the attention weights.
    """

    reward_weight: float
    entropy_weight: float

    def check_weights(self) -> None:
        """Raise InputError if `reward_weight` or `entropy_weight` is negative."""
        for name in ("reward_weight", "entropy_weight"):
            check_range(name, getattr(self, name), minimum=0.0)

    def register_baseline(self: Any) -> None:
        """Register the buffer `reward_baseline`, a scalar 0, which checkpoints store."""
        self.register_buffer("reward_baseline", torch.zeros(()))

    @property
    def data_seed(self) -> int:
        """Seed of the DataModule; 0 without a DataModule or without a seed."""
        trainer = attached_trainer(self)  # type: ignore[arg-type]
        return getattr(getattr(trainer, "datamodule", None), "seed", 0)

    def attention_noise(self, rows: Tensor, epoch: int, n_tokens: int, n_positions: int) -> Tensor:
        """Draw the random numbers from which `RecurrentAttention` chooses source positions.

        A number depends only on the seed of the data, the epoch, the example, the target token and
        the source position.

        Args:
            rows: Indices of the examples in the split, (B,) int64.
            epoch: Index of the epoch, from 0.
            n_tokens: Number of target tokens T.
            n_positions: Number of source positions S.

        Returns:
            Exponential random numbers (B, T, S) with the mean 1.
        """
        numbers, first = rows.cpu().numpy(), _ATTENTION_STREAM
        draws = [
            uniform(self.data_seed, epoch, numbers, n_tokens, first + s) for s in range(n_positions)
        ]
        return torch.from_numpy(-np.log1p(-np.stack(draws, axis=2))).to(rows.device)

    def reinforce(
        self: Any, nll: Tensor, calls: list[tuple[Tensor, Tensor]], counts: Tensor
    ) -> Tensor:
        """Compute a term of the loss with the value 0 whose gradient is that of REINFORCE.

        Args:
            nll: Loss (B, T) of each target token.
            calls: Recorded weights, as yielded by `RecurrentAttention.recording`: for each call, a
                pair of probabilities and one-hot vectors, with tensors (B, tokens of the call, S).
                The last T tokens of all calls together are the target tokens.
            counts: (B, T) bool, True = real target token, False = padding.

        Returns:
            A scalar tensor, to be added to the loss.
        """
        alpha, drawn = (torch.cat(x, dim=1)[:, -nll.shape[1] :] for x in zip(*calls, strict=True))
        return reinforce_term(
            nll,
            alpha,
            drawn,
            counts,
            baseline=self.get_buffer("reward_baseline"),
            reward_weight=self.reward_weight,
            entropy_weight=self.entropy_weight,
        )

    def on_before_optimizer_step(self: Any, optimizer: Optimizer) -> None:
        """Normalize the gradients as `Task` does, and update the baseline of hard attention."""
        super().on_before_optimizer_step(optimizer)  # type: ignore[misc]
        if hasattr(self, "reward_baseline"):
            decay = BASELINE_DECAY if self.trainer.global_step else 0.0  # starts at the first loss
            self.get_buffer("reward_baseline").lerp_(self.loss_normalizer.mean, 1.0 - decay)
