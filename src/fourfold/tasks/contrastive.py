"""Learning from images and their captions which belong together (CLIP; Radford et al. 2021)."""

import math
from dataclasses import replace
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor
from torch.distributed.nn.functional import all_gather

from fourfold.core.errors import InputError
from fourfold.data.batch import CaptionBatch
from fourfold.metrics import Retrieval
from fourfold.models import CLIP, CLIPConfig
from fourfold.optim import OptimizerConfig
from fourfold.schedules import ScheduleConfig
from fourfold.tasks.base import Task
from fourfold.tasks.window import count_of

LARGEST = math.log(100)  # of the learned scale (section 2.5), or training becomes unstable


class ContrastiveLearning(Task):
    """Each image is to find its text in the batch, and each text its image (section 2.3, Figure 3).

    The loss is the mean over the pairs of both cross-entropies, halved. That of one pair depends on
    the others it is compared with, so here, and only here, the cut into batches is part of the
    recipe. Over several devices the vectors of all are gathered, and the loss is that of the global
    batch: N devices with a batch of B are one device with N x B. Accumulation is not: a pair is
    compared with its micro-batch alone, and the gradient is the mean over the pairs of the window.

    Evaluation compares every image with every text of the split, whatever the batches: `loss` is
    that of the whole split as one batch, so it grows with the logarithm of the split's size, and
    recall at 1, 5 and 10 says how often what belongs together is among so many best.

    Args:
        config: The model; an end of text that is left out is the tokenizer's.
        optimizer: Default: that of the paper's Vision Transformers (Tables 18, 20).
        schedule: Default: the paper's warm-up and cosine.
        start: `init_from` and `tuning` of `Task`.
    """

    model_class = CLIP
    batch_class = CaptionBatch
    config_class = CLIPConfig
    config: CLIPConfig
    unit = "images"

    def __init__(
        self,
        config: CLIPConfig = CLIPConfig(),  # noqa: B008  (frozen)
        optimizer: OptimizerConfig = OptimizerConfig(  # noqa: B008
            lr=5e-4, betas=(0.9, 0.98), eps=1e-6, weight_decay=0.2
        ),
        schedule: ScheduleConfig = ScheduleConfig(  # noqa: B008
            name="cosine", warmup_steps=2000
        ),
        **start: Any,
    ) -> None:
        super().__init__(config, optimizer, schedule, **start)
        self.retrieval = Retrieval()

    def configure_model(self) -> None:
        """Build the model, which reads texts off at the tokenizer's end of text.

        Raises:
            InputError: The config names another end of text than the tokenizer.
        """
        if self.model is None and self._trainer is not None:
            tokenizer = self.trainer.datamodule.tokenizer  # type: ignore[attr-defined]
            given, end = self.config.eos_id, tokenizer.eos_id
            if given not in (None, end):
                raise InputError(f"the model's eos_id is {given}, but the tokenizer's is {end}")
            if given is None and end != tokenizer.vocab_size - 1:  # else the highest is the end
                self.config = replace(self.config, eos_id=end)
                self.init_args["config"]["eos_id"] = end
        super().configure_model()

    def size(self, batch: CaptionBatch) -> int:
        """Images in the batch."""
        return len(batch.images)

    def step(self, batch: CaptionBatch) -> tuple[Tensor, Tensor]:
        """Both cross-entropies of this device's pairs among those of all devices, halved."""
        images, texts = self._encode(batch)
        (all_images, first), (all_texts, _) = gather(images), gather(texts)
        places = torch.arange(first, first + len(images), device=images.device)
        to_texts = self.model.similarity(images, all_texts)  # (b, B)
        to_images = self.model.similarity(all_images, texts).T  # (b, B)
        losses = [F.cross_entropy(x, places, reduction="sum") for x in (to_texts, to_images)]
        return (losses[0] + losses[1]) / 2, count_of(len(images), images)

    def _encode(self, batch: CaptionBatch) -> tuple[Tensor, Tensor]:
        # Padding is behind the end of a text, where it does not matter; a mask would be slower.
        return self.model.encode_image(batch.images), self.model.encode_text(batch.ids)

    def optimizer_step(self, *args: Any, **kwargs: Any) -> None:
        """Step, then keep the scale from growing; before a callback saves what was stepped to."""
        super().optimizer_step(*args, **kwargs)
        with torch.no_grad():
            self.model.log_scale.clamp_(max=LARGEST)

    def evaluate(self, batch: CaptionBatch, split: str) -> None:
        """Keep the vectors of the batch."""
        scale = self.model.scale
        images, texts = (F.normalize(x.to(scale.dtype), dim=-1) for x in self._encode(batch))
        ids, mask = batch.ids.cpu(), batch.mask.cpu()  # at once, and not row by row
        said = [tuple(row[real].tolist()) for row, real in zip(ids, mask, strict=True)]
        self.retrieval.update(batch.index.tolist(), scale * images, texts, said)

    def results(self, split: str) -> dict[str, Any]:
        """loss, and recall at 1, 5 and 10 of texts for images and of images for texts."""
        results: dict[str, Any] = self.retrieval.compute()
        self.retrieval.reset()
        return results

    def predict_step(self, batch: CaptionBatch, batch_idx: int) -> tuple[Tensor, Tensor, Tensor]:
        """Rows (B,) of the split, and the vectors of their images and texts (B, E)."""
        images, texts = self._encode(batch)
        return batch.index.cpu(), images.float().cpu(), texts.float().cpu()


def gather(x: Tensor) -> tuple[Tensor, int]:
    """The rows of all ranks, gradients included, and where ours begin among them.

    Args:
        x: (b, E), on each rank as many rows as it has: the last batch may be shared unevenly.
    """
    if not (dist.is_available() and dist.is_initialized()) or dist.get_world_size() == 1:
        return x, 0
    counts = [
        torch.zeros(1, dtype=torch.long, device=x.device) for _ in range(dist.get_world_size())
    ]
    dist.all_gather(counts, torch.tensor([len(x)], device=x.device))
    lengths = [int(count) for count in counts]
    parts = all_gather(F.pad(x, (0, 0, 0, max(lengths) - len(x))))
    rows = [part[:length] for part, length in zip(parts, lengths, strict=True)]
    return torch.cat(rows), sum(lengths[: dist.get_rank()])
