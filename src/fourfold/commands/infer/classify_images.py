"""`fourfold classify` for images: read paths of image files, write classes and probabilities.

Shapes: B images of a batch, C channels, H height, W width, K classes.
"""

from argparse import Namespace
from typing import Any

import torch

from fourfold.commands.infer.base import LineProcessor, escape, format_classes
from fourfold.commands.infer.line_io import Item
from fourfold.data.vision.transforms import eval_transform
from fourfold.hub.preprocessing import default_class_names


class ImageClassifier(LineProcessor):
    """Line processor that classifies an image file, preprocessed as in evaluation."""

    batches_ahead = 1  # images have one size and need memory

    def __init__(self, task: Any, options: Namespace) -> None:
        super().__init__(task, options)
        self.load = eval_transform(task.artifacts)
        n_classes: int = task.config.n_classes
        self.names: list[str] = task.artifacts["class_names"] or default_class_names(n_classes)

    def prepare(self, line: str) -> Item:
        """Return the image (C, H, W) of the file whose path is `line`."""
        return Item((line, self.load(line)), 0)

    @torch.inference_mode()
    def run(self, items: list[Item]) -> list[str]:
        """Return the path of each image and its `--top-k` classes with probabilities."""
        images = torch.stack([item.content[1] for item in items])  # (B, C, H, W)
        images = images.to(self.device, next(self.model.parameters()).dtype)
        classes = format_classes(self.model(images), self.names, self.options.top_k)
        paths = [escape(item.content[0]) for item in items]
        return [f"{path}\t{columns}" for path, columns in zip(paths, classes, strict=True)]
