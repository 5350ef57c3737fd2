"""`fourfold classify` for images: from the path of a file to class and probability.

Shapes: B images of a batch, C channels, H height, W width, K classes.
"""

from argparse import Namespace
from typing import Any

import torch

from fourfold.commands.infer.base import LineProcessor, escape
from fourfold.commands.infer.line_io import Item
from fourfold.data.vision.transforms import eval_transform
from fourfold.hub.preprocessing import default_class_names


class ImageClassifier(LineProcessor):
    """Classification of one image per line, preprocessed as in evaluation."""

    batches_ahead = 1  # images have one size and need memory

    def __init__(self, task: Any, options: Namespace) -> None:
        super().__init__(task, options)
        self.load = eval_transform(task.artifacts)
        n_classes: int = task.config.n_classes
        self.names: list[str] = task.artifacts["class_names"] or default_class_names(n_classes)

    def prepare(self, line: str) -> Item:
        """Return the image (C, H, W) of a file."""
        return Item((line, self.load(line)), 0)

    @torch.inference_mode()
    def run(self, items: list[Item]) -> list[str]:
        """Return path, class and probability, or K classes and probabilities, tab-separated."""
        images = torch.stack([item.content[1] for item in items])  # (B, C, H, W)
        images = images.to(self.device, next(self.model.parameters()).dtype)
        probabilities = self.model(images).float().softmax(-1)  # (B, K)
        top_k = min(self.options.top_k, probabilities.shape[-1])
        best, classes = probabilities.topk(top_k)
        lines = []
        for item, row, numbers in zip(items, best.tolist(), classes.tolist(), strict=True):
            columns = [f"{self.names[n]}\t{p:.4f}" for p, n in zip(row, numbers, strict=True)]
            lines.append("\t".join([escape(item.content[0]), *columns]))
        return lines
