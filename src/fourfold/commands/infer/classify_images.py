"""`fourfold classify`: the path of an image to its class and probability.

Shapes: B images of a batch, C channels, H height, W width, K classes.
"""

from argparse import Namespace

import torch

from fourfold.commands.lines import Item
from fourfold.commands.verbs.base import Verb, one_line
from fourfold.data.transforms import eval_transform
from fourfold.hub.labels import numbered
from fourfold.tasks import Task


class Classify(Verb):
    """Images prepared as in the test that the checkpoint was measured with."""

    batches_ahead = 1  # all images have one size, and take memory

    def __init__(self, task: Task, options: Namespace) -> None:
        super().__init__(task, options)
        self.load = eval_transform(task.artifacts)
        n_classes: int = task.config.n_classes
        self.names: list[str] = task.artifacts["class_names"] or numbered(n_classes)

    def prepare(self, line: str) -> Item:
        """The image (C, H, W) of a file."""
        return Item((line, self.load(line)), 0)

    @torch.inference_mode()
    def run(self, items: list[Item]) -> list[str]:
        """Path, class and probability, or K of the latter two, with tabs between."""
        images = torch.stack([item.content[1] for item in items])  # (B, C, H, W)
        images = images.to(self.device, next(self.model.parameters()).dtype)
        probabilities = self.model(images).float().softmax(-1)  # (B, K)
        p, k = probabilities.topk(min(self.options.top_k, probabilities.shape[-1]))
        lines = []
        for item, row, classes in zip(items, p.tolist(), k.tolist(), strict=True):
            found = [f"{self.names[c]}\t{x:.4f}" for x, c in zip(row, classes, strict=True)]
            lines.append("\t".join([one_line(item.content[0]), *found]))
        return lines
