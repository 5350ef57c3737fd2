"""Masked image modelling task: a masked autoencoder predicts the pixels of masked patches (MAE).

Shapes: B images, C channels, N patches, V visible patches, P pixels of a patch.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fourfold.data.loading.batches import MaskedImageBatch
from fourfold.loggers.media import MAX_IMAGES_IN_ROW, ImageGrid, Media
from fourfold.models import MaskedAutoencoder, MaskedAutoencoderConfig
from fourfold.optim import OptimizerConfig
from fourfold.schedules import ScheduleConfig
from fourfold.training.task import Task

VARIANCE_EPS = 1e-6  # added to the variance of the pixels of a patch, as in the authors' code


@dataclass(eq=False, repr=False)
class MaskedImageModeling(Task[MaskedAutoencoder, MaskedImageBatch]):
    """Masked image modelling (He et al. 2021), the pre-training of a ViT on images without labels.

    The loss of a masked patch is the mean squared error of its predicted pixels. The loss of a
    batch is the mean over all masked patches. The DataModule, `MaskedImageData`, chooses the
    patches that the encoder sees. `fourfold plan` and `fourfold export` do not support this task.
    The option `--model.init_from` of `ImageClassification`, `Captioning` and this task accepts a
    checkpoint of this task.

    Args:
        optimizer: Options of the optimizer; the default is the paper's for a batch of 4,096 (Table
            8), whose learning rate is 1.5e-4 for each 256 images.
        schedule: Options of the schedule; the default is linear warm-up, then cosine decay to 0.
        normalize_pixels: Predict pixels that are normalized by the mean and the standard deviation
            of their patch (section 4.1), instead of the pixels of the transformed image.
    """

    model_class = MaskedAutoencoder
    batch_class = MaskedImageBatch
    unit = "images"
    inferred_from_data = ("image_size", "n_channels", "patch_size")
    must_equal_data = inferred_from_data

    config: MaskedAutoencoderConfig = MaskedAutoencoderConfig()
    optimizer: OptimizerConfig = OptimizerConfig(
        lr=2.4e-3, betas=(0.9, 0.95), weight_decay=0.05, weight_decay_params="linear"
    )
    schedule: ScheduleConfig = ScheduleConfig(name="cosine", min_lr=0.0)
    normalize_pixels: bool = True

    def step(self, batch: MaskedImageBatch) -> tuple[Tensor, int]:
        """Return the loss, summed over the masked patches, and the number of masked patches."""
        predicted = self.model(batch.images, visible=batch.visible)  # (B, N, P)
        targets, _, _ = self._targets(batch.images)
        errors = (predicted.to(targets.dtype) - targets).square().mean(-1)  # (B, N)
        errors = errors.scatter(1, batch.visible, 0.0)
        return errors.sum(), errors.numel() - batch.visible.numel()

    def _targets(self, images: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the target pixels (B, N, P), and mean and standard deviation (B, N, 1) of a patch.

        Without `normalize_pixels`, the mean is 0 and the standard deviation is 1.
        """
        patches = self.model.patchify(images)
        mean, variance = patches.mean(-1, keepdim=True), patches.var(-1, keepdim=True)
        std = (variance + VARIANCE_EPS).sqrt()
        if not self.normalize_pixels:
            mean, std = torch.zeros_like(mean), torch.ones_like(std)
        return (patches - mean) / std, mean, std

    def update_metrics(self, batch: MaskedImageBatch, split: str) -> None:
        self.eval_loss.update(*self.step(batch))

    def compute_metrics(self, split: str) -> dict[str, Any]:
        return {"loss": self.eval_loss.compute()}

    def predict_step(self, batch: MaskedImageBatch, batch_idx: int) -> tuple[Tensor, Tensor]:
        """Reconstruct images from their visible patches, which are kept as they are.

        With `normalize_pixels`, predictions are converted to pixels by the mean and the standard
        deviation of each patch of the given images, as in the authors' pictures.

        Returns:
            A tuple of tensors on the CPU: indices of the images in the split (B,), and images (B,
            C, height, width) in fp32, normalized like the input.
        """
        _, mean, std = self._targets(batch.images)
        patches = self.model(batch.images, visible=batch.visible).to(mean.dtype) * std + mean
        images = self._keep_visible(batch, self.model.unpatchify(patches))
        return batch.rows.cpu(), images.float().cpu()

    def _keep_visible(self, batch: MaskedImageBatch, others: Tensor) -> Tensor:
        """Combine the visible patches of a batch with the masked patches of other images."""
        own, patches = self.model.patchify(batch.images), self.model.patchify(others)
        index = batch.visible[..., None].expand(-1, -1, own.shape[-1])
        return self.model.unpatchify(patches.scatter(1, index, own.gather(1, index)))

    def sample_outputs(self, batch: MaskedImageBatch, split: str) -> dict[str, Media]:
        """Build "images", a grid of the first images, their visible patches and reconstructions."""
        first = batch._replace(
            images=batch.images[:MAX_IMAGES_IN_ROW],
            visible=batch.visible[:MAX_IMAGES_IN_ROW],
            rows=batch.rows[:MAX_IMAGES_IN_ROW],
        )
        images = first.images
        low, high = images.amin((1, 2, 3), keepdim=True), images.amax((1, 2, 3), keepdim=True)
        _, predicted = self.predict_step(first, 0)
        rows = {
            "image": images,
            "visible": self._keep_visible(first, ((low + high) / 2).expand_as(images)),
            "predicted": predicted.to(images).clamp(low, high),  # the range of the image
        }
        captions = [name for name in rows for _ in images]
        return {"images": ImageGrid(list(torch.cat(list(rows.values()))), captions)}
