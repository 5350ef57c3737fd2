"""Line processor of `fourfold caption`: image files described by beam search.

Shapes: B lines of a batch, C channels, H height, W width.
"""

from argparse import Namespace
from typing import Any

import torch

from fourfold.commands.infer.base import TextProcessor, escape
from fourfold.commands.infer.line_io import Item
from fourfold.data.vision.features import input_transform


class ImageCaptioner(TextProcessor):
    """Line processor that describes image files. Each line of input is the path of a file.

    Beam width and length penalty are those of the checkpoint unless they are given as options.
    """

    batches_ahead = 1  # images have one size and need memory

    def __init__(self, task: Any, options: Namespace) -> None:
        super().__init__(task, options)
        self.load = input_transform(task.artifacts)

    def prepare(self, line: str) -> Item:
        """Return an item with the pair (path, preprocessed image (C, H, W)) as content.

        Args:
            line: Path of the image file.

        Raises:
            InputError: The image cannot be decoded.
        """
        return Item((line, self.load(line)), 0)

    def run(self, items: list[Item]) -> list[str]:
        """Return a line for each image: its path and `--n-best` captions, separated by tabs."""
        images = torch.stack([item.content[1] for item in items])  # (B, C, H, W)
        images = images.to(self.device, next(self.model.parameters()).dtype)
        limit = self.options.max_new or self.task.longest_caption
        texts = self.write_targets(images, None, limit)
        return [f"{escape(x.content[0])}\t{text}" for x, text in zip(items, texts, strict=True)]
