"""Replaced token detection, the pre-training of ELECTRA (Clark et al. 2020).

Shapes: B sequences, T tokens, N masked tokens of the batch, D width of the generator's output.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from fourfold.data.loading.batches import MaskedBatch
from fourfold.data.loading.counter_rng import bits, unit
from fourfold.generation.sampling import TokenSampler
from fourfold.kernels.cross_entropy import even_slices
from fourfold.losses import IGNORE_INDEX, linear_cross_entropy, token_scores, upcast_fp32
from fourfold.metrics import Perplexity
from fourfold.metrics.base import BatchSums
from fourfold.models.electra.model import Electra, ElectraConfig
from fourfold.models.masked_lm.task import masked_positions
from fourfold.optim import OptimizerConfig
from fourfold.schedules import ScheduleConfig
from fourfold.training.task import Task

STREAM = 11  # of the random numbers; masking uses the streams 1 to 3


class _Outputs(NamedTuple):
    """Outputs of generator and discriminator for a batch, and their targets."""

    generator: tuple[Tensor, Tensor, Tensor | None, Tensor]  # arguments of `linear_cross_entropy`
    ids: Tensor  # (B, T) input of the discriminator
    logits: Tensor  # (B, T) of the discriminator
    replaced: Tensor  # (B, T) bool
    real: Tensor  # (B, T) bool, False at padding


@dataclass(eq=False, repr=False)
class ReplacedTokenDetection(Task[Electra, MaskedBatch]):
    """Replaced token detection (Clark et al. 2020, section 2), on the batches of `MaskedTextData`.

    The generator learns to predict the masked tokens. A token sampled from its predictions replaces
    each masked token, and the discriminator learns to tell which tokens differ from the original
    ones. No gradient passes from the discriminator through the samples to the generator.

    The samples depend on the seed of the DataModule, the epoch and the content of the masked
    sequence, but neither on the other sequences of the batch nor on earlier random numbers.

    Args:
        optimizer: Options of the optimizer; the default is that of ELECTRA-Small (Table 6).
        schedule: Options of the schedule; the default is that of ELECTRA-Small (Table 6): 10,000
            steps of warm-up, then linear decay to 0.
        discriminator_weight: Factor on the loss of the discriminator (section 2).
    """

    model_class = Electra
    batch_class = MaskedBatch

    config: ElectraConfig = ElectraConfig()
    optimizer: OptimizerConfig = OptimizerConfig(
        lr=5e-4, eps=1e-6, weight_decay=0.01, weight_decay_params="matrices"
    )
    schedule: ScheduleConfig = ScheduleConfig(name="linear", warmup_steps=10000)
    discriminator_weight: float = 50.0

    def __post_init__(self) -> None:
        super().__post_init__()
        self.ppl = Perplexity()
        self.detection = BatchSums()

    def _run(self, batch: MaskedBatch) -> _Outputs:
        """Run the generator, sample the replacements, and run the discriminator."""
        options = {name: getattr(batch, name) for name in ("segments", "mask", "documents")}
        h = self.model.generator.encode(batch.ids, **options)
        is_target = batch.targets != IGNORE_INDEX
        positions = masked_positions(batch)
        targets = batch.targets.flatten()[positions]
        output = self.model.generator.head.output(h.flatten(0, 1)[positions])
        draws = torch.from_numpy(self._draws(batch)).to(h.device).flatten()[positions]
        original = torch.where(is_target, batch.targets, batch.ids)
        ids = original.flatten().scatter(0, positions, sample_tokens(*output, draws))
        ids = ids.view_as(original)
        real = torch.ones_like(is_target) if batch.mask is None else batch.mask
        logits = upcast_fp32(self.model(ids, **options))
        # A sampled token that equals the original token counts as original.
        return _Outputs((*output, targets), ids, logits, ids != original, real)

    def _draws(self, batch: MaskedBatch) -> np.ndarray:
        """Return uniform numbers (B, T), a function of seed, epoch and masked sequence.

        The sequence is hashed without its padding, whose length depends on the batch.
        """
        ids, length = batch.ids, batch.ids.shape[1]
        numbers = ids + 1 if batch.mask is None else (ids + 1) * batch.mask
        factors = bits(0, 0, np.zeros(1), length, STREAM)  # (1, T)
        keys = (numbers.cpu().numpy().astype(np.uint64) * factors).sum(1)
        return unit(bits(getattr(self.datamodule, "seed", 0), batch.epoch, keys, length, STREAM))

    def _losses(self, outputs: _Outputs, batch: MaskedBatch) -> Tensor:
        """Return the loss of both parts, summed over the masked tokens.

        The paper adds the mean loss of the masked tokens and the weighted mean loss of all tokens.
        Here the mean loss of the tokens of a sequence is weighted by the number of its masked
        tokens, so that the number of masked tokens normalizes both losses, for any micro-batches.
        The result equals the paper's if the share of masked tokens is the same in all sequences.
        """
        logits, real = outputs.logits, outputs.real
        losses = self._detection_losses(outputs)
        counts = (batch.targets != IGNORE_INDEX).sum(1).to(logits.dtype)
        detection = (losses * real).sum(1) / real.sum(1).clamp(min=1) @ counts
        generator = linear_cross_entropy(*outputs.generator, normalizer=1.0)
        return generator + self.discriminator_weight * detection

    def _detection_losses(self, outputs: _Outputs) -> Tensor:
        labels = outputs.replaced.to(outputs.logits.dtype)
        return F.binary_cross_entropy_with_logits(outputs.logits, labels, reduction="none")

    def step(self, batch: MaskedBatch) -> tuple[Tensor, int]:
        """Return the loss, summed over the masked tokens, and the number of masked tokens."""
        outputs = self._run(batch)
        return self._losses(outputs, batch), len(outputs.generator[-1])

    def update_metrics(self, batch: MaskedBatch, split: str) -> None:
        outputs = self._run(batch)
        targets = outputs.generator[-1]
        self.eval_loss.update(self._losses(outputs, batch), len(targets))
        if len(targets):
            self.ppl.update(*token_scores(*outputs.generator), targets)
        found, replaced, real = outputs.logits > 0, outputs.replaced, outputs.real
        masks = (found == replaced, found & replaced, found & real, replaced, real)
        losses = (self._detection_losses(outputs) * real).sum()
        self.detection.update(losses, *((mask & real).sum() for mask in masks))

    def compute_metrics(self, split: str) -> dict[str, Any]:
        """Return loss, those of both parts, ppl_token, and accuracy, precision and recall by name.

        Precision and recall are those of the replaced tokens, and 0 if there is none to divide by.
        """
        losses, correct, hits, found, replaced, real = self.detection.compute() or [0.0] * 6
        generator = self.ppl.compute()
        return {
            "loss": self.eval_loss.compute(),
            "loss_mlm": generator["loss"],
            "ppl_token": generator.get("ppl_token", 1.0),
            "loss_detection": losses / max(1.0, real),
            "accuracy": correct / max(1.0, real),
            "precision": hits / max(1.0, found),
            "recall": hits / max(1.0, replaced),
        }

    def predict_step(self, batch: MaskedBatch, batch_idx: int) -> tuple[Tensor, Tensor]:
        """Return token ids (B, T) with sampled replacements, and probabilities (B, T) of these."""
        outputs = self._run(batch)
        return outputs.ids, outputs.logits.sigmoid()


@torch.no_grad()
def sample_tokens(x: Tensor, weight: Tensor, bias: Tensor | None, draws: Tensor) -> Tensor:
    """Sample tokens (N,) from the softmax of ``x @ weight.T + bias``, by uniform `draws` (N,).

    The logits of a slice of the N tokens are in memory at a time.
    """
    sampler = TokenSampler(temperature=1.0)
    parts = [sampler(F.linear(x[s], weight, bias), draws[s]) for s in even_slices(x, weight)]
    return torch.cat([draws.new_empty(0, dtype=torch.long), *parts])
