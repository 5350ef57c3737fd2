"""Contrastive learning tasks from images and their captions: CLIP and SigLIP.

The papers are Radford et al. 2021 and Zhai et al. 2023.

Shapes: b pairs in the batch of this process, B pairs in the batches of all processes together, E
width of the embeddings.
"""

import math
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor
from torch.distributed import _functional_collectives as collectives

from fourfold.data.loading.batches import CaptionBatch
from fourfold.metrics import RetrievalScores
from fourfold.metrics.retrieval import SigmoidRetrievalScores
from fourfold.models import CLIP, CLIPConfig, SigLIP, SigLIPConfig
from fourfold.optim import OptimizerConfig
from fourfold.schedules import ScheduleConfig
from fourfold.training.task import Task


@dataclass(eq=False, repr=False)
class ContrastiveLearning(Task[CLIP, CaptionBatch]):
    """Contrastive learning of images and captions (CLIP, section 2.3 and Figure 3).

    Source: Radford et al. 2021.

    The loss of a pair is the mean of two cross-entropies: of the pair's text among all texts of the
    batch, given the image, and of the pair's image among all images, given the text. The loss of a
    batch is the mean over its pairs, and depends on the batch size. Embeddings are gathered over
    all devices, so training on N devices with b pairs each equals training on one device with N x b
    pairs. With gradient accumulation, a pair is compared with the pairs of its micro-batch only.

    Evaluation compares every image with every text of the split, for any batch size. Its loss is
    that of the complete split as one batch, so it grows with the logarithm of the number of pairs.

    Args:
        config: Config of the model. The field `eos_id` is taken from the tokenizer.
        optimizer: Options of the optimizer; the default is that of the paper's Vision Transformers
            (Tables 18 and 20).
        schedule: Options of the schedule; the default is the paper's warm-up and cosine decay.
    """

    model_class = CLIP
    batch_class = CaptionBatch
    unit = "images"
    compares_rows = True
    # Of the learned scale (section 2.5), or training becomes unstable.
    max_log_scale: ClassVar[float] = math.log(100)

    config: CLIPConfig = CLIPConfig()
    optimizer: OptimizerConfig = OptimizerConfig(
        lr=5e-4, betas=(0.9, 0.98), eps=1e-6, weight_decay=0.2
    )
    schedule: ScheduleConfig = ScheduleConfig(name="cosine", warmup_steps=2000)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.retrieval = RetrievalScores()

    def _complete_config(self) -> None:
        """Take missing sizes of the config from the data, and `eos_id` from the tokenizer.

        The model takes the embedding of a text from the position of the end token.
        """
        super()._complete_config()
        tokenizer = getattr(self.datamodule, "tokenizer", None)
        # Without an `eos_id`, the model takes the largest id for the end token.
        if tokenizer is not None and (
            self.config.eos_id is not None or tokenizer.eos_id != tokenizer.vocab_size - 1
        ):
            self.config = replace(self.config, eos_id=tokenizer.eos_id)

    def step(self, batch: CaptionBatch) -> tuple[Tensor, int]:
        """Return the loss, summed over the pairs of this process, and the number of these pairs."""
        images, texts = self._encode(batch)
        all_images, offset = gather(images)
        all_texts, _ = gather(texts)
        targets = torch.arange(offset, offset + len(images), device=images.device)
        to_texts = self.model.similarity(images, all_texts)  # (b, B)
        to_images = self.model.similarity(all_images, texts).T  # (b, B)
        losses = [F.cross_entropy(x, targets, reduction="sum") for x in (to_texts, to_images)]
        return (losses[0] + losses[1]) / 2, len(images)

    def _encode(self, batch: CaptionBatch) -> tuple[Tensor, Tensor]:
        """Compute the embeddings of images and texts, (b, E) each, which are not normalized.

        The causal mask hides the padding after the end token, so the texts need no padding mask.
        """
        return self.model.encode_image(batch.images), self.model.encode_text(batch.ids)

    def optimizer_step(self, *args: Any, **kwargs: Any) -> None:
        """Run an optimizer step, and then limit the learned scale of the similarities to 100.

        The limit is not applied in a later hook. A callback that Lightning calls before that hook
        could save a checkpoint with a larger scale.
        """
        super().optimizer_step(*args, **kwargs)
        with torch.no_grad():
            self.model.log_scale.clamp_(max=self.max_log_scale)

    def update_metrics(self, batch: CaptionBatch, split: str) -> None:
        images, texts = self._vectors(batch)
        pairs = zip(batch.ids.cpu(), batch.mask.cpu(), strict=True)
        captions = [tuple(ids[mask].tolist()) for ids, mask in pairs]
        self.retrieval.update(batch.rows.tolist(), images, texts, captions)

    def _vectors(self, batch: CaptionBatch) -> tuple[Tensor, Tensor]:
        """Return vectors of images and texts whose dot products are the logits."""
        scale = self.model.scale
        images, texts = (F.normalize(x.to(scale.dtype), dim=-1) for x in self._encode(batch))
        return scale * images, texts

    def compute_metrics(self, split: str) -> dict[str, Any]:
        """Return the loss, and the recall at 1, 5 and 10 of both directions of search, by name.

        In image_to_text_recall_at_5, images are the queries and texts the results.
        """
        return self.retrieval.compute()

    def predict_step(self, batch: CaptionBatch, batch_idx: int) -> tuple[Tensor, Tensor, Tensor]:
        """Return the rows (b,) and the fp32 embeddings (b, E) of images and texts, on the CPU."""
        images, texts = self._encode(batch)
        return batch.rows.cpu(), images.float().cpu(), texts.float().cpu()


@dataclass(eq=False, repr=False)
class SigmoidContrastiveLearning(ContrastiveLearning):
    """Contrastive learning of images and captions with the sigmoid loss (SigLIP).

    Source: Zhai et al. 2023, section 3.2.

    Each pair of an image and a text of the batch is classified by itself: the two belong together,
    or do not. The loss of a batch is the sum of the losses of all pairs, divided by the number of
    images. Batches, gradient accumulation and evaluation are those of `ContrastiveLearning`. The
    learned scale has no limit.

    Args:
        config: Config of the model. The field `pad_id` is taken from the tokenizer.
        optimizer: Options of the optimizer; the default is that of the paper.
    """

    model_class = SigLIP  # type: ignore[assignment]
    max_log_scale = math.inf

    config: SigLIPConfig = SigLIPConfig()
    optimizer: OptimizerConfig = OptimizerConfig(lr=1e-3, betas=(0.9, 0.95), weight_decay=1e-4)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.retrieval = SigmoidRetrievalScores()

    def _complete_config(self) -> None:
        """Take missing sizes of the config from the data, and `pad_id` from the tokenizer."""
        Task._complete_config(self)
        tokenizer = getattr(self.datamodule, "tokenizer", None)
        if tokenizer is not None:
            self.config = replace(self.config, pad_id=tokenizer.pad_id)

    def step(self, batch: CaptionBatch) -> tuple[Tensor, int]:
        images, texts = self._encode(batch)
        all_texts, offset = gather(texts)
        logits = self.model.similarity(images, all_texts)  # (b, B)
        own = logits.diagonal(offset)  # the pairs that belong together
        return F.softplus(logits).sum() - own.sum(), len(images)

    def _encode(self, batch: CaptionBatch) -> tuple[Tensor, Tensor]:
        return self.model.encode_image(batch.images), self.model.encode_text(batch.ids, batch.mask)

    def _vectors(self, batch: CaptionBatch) -> tuple[Tensor, Tensor]:
        """Return vectors of images and texts, whose last component adds the bias of the logits."""
        images, texts = super()._vectors(batch)
        model: Any = self.model
        bias = model.logit_bias.to(images.dtype).expand(len(images), 1)
        return torch.cat([images, bias], -1), torch.cat([texts, torch.ones_like(bias)], -1)


def gather(x: Tensor) -> tuple[Tensor, int]:
    """Concatenate the embeddings of all processes, such that gradients flow back to each process.

    Args:
        x: Embeddings (b, E) of this process; b may differ between processes.

    Returns:
        Embeddings (B, E) of all processes in the order of the ranks, and the index at which the
        embeddings of this process begin.
    """
    if not (dist.is_available() and dist.is_initialized()) or dist.get_world_size() == 1:
        return x, 0
    name = "all_gather_single_autograd"  # "all_gather_tensor_autograd" before torch 2.13
    all_gather = getattr(collectives, name, None) or collectives.all_gather_tensor_autograd
    world: Any = dist.group.WORLD
    lengths = all_gather(torch.tensor([len(x)], device=x.device), 0, world).tolist()
    padded = all_gather(F.pad(x, (0, 0, 0, max(lengths) - len(x))), 0, world)
    parts = zip(padded.chunk(len(lengths)), lengths, strict=True)
    return torch.cat([part[:length] for part, length in parts]), sum(lengths[: dist.get_rank()])
