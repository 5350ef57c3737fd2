"""HardAttention: random positions and REINFORCE of tasks whose recurrent decoder draws positions.

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
    """Base class, beside `Task`, of tasks that train hard attention.

    The drawn positions depend only on the seed of the data, the epoch and the example. The baseline
    of REINFORCE is a moving average of the loss of a target token, which checkpoints store.

    Attributes:
        reward_weight: Factor on the REINFORCE term; see `reinforce_term`, as for the next one.
        entropy_weight: Factor on the entropy of the attention.
    """

    reward_weight: float
    entropy_weight: float

    def check_weights(self) -> None:
        """Raise InputError if a factor is negative."""
        for name in ("reward_weight", "entropy_weight"):
            check_range(name, getattr(self, name), minimum=0.0)

    def register_baseline(self: Any) -> None:
        """Add the baseline to the values that a checkpoint stores."""
        self.register_buffer("reward_baseline", torch.zeros(()))

    @property
    def data_seed(self) -> int:
        """Seed of the DataModule; 0 without one."""
        trainer = attached_trainer(self)  # type: ignore[arg-type]
        return getattr(getattr(trainer, "datamodule", None), "seed", 0)

    def attention_noise(self, rows: Tensor, epoch: int, n_tokens: int, n_positions: int) -> Tensor:
        """Draw exponential variables (B, T, S), which depend only on seed, epoch, row, t and s."""
        numbers, first = rows.cpu().numpy(), _ATTENTION_STREAM
        draws = [
            uniform(self.data_seed, epoch, numbers, n_tokens, first + s) for s in range(n_positions)
        ]
        return torch.from_numpy(-np.log1p(-np.stack(draws, axis=2))).to(rows.device)

    def reinforce(
        self: Any, nll: Tensor, calls: list[tuple[Tensor, Tensor]], counts: Tensor
    ) -> Tensor:
        """Return the term of REINFORCE, whose value is 0.

        Args:
            nll: Loss (B, T) of each target token.
            calls: Weights of the calls of the attention, as its method `recording` yields them. The
                last T tokens are those of the loss.
            counts: (B, T) bool, True = the target token counts.
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
