"""`caption`: images described by beam search.

Shapes: B images of a batch, C channels, H height, W width.
"""

from collections.abc import Sequence
from typing import Any, Unpack

import torch

from fourfold.data.vision.features import input_transform
from fourfold.generation.renamed import renamed
from fourfold.generation.text_model import Item, TextModel, check_model, check_penalty, run_batches
from fourfold.layers.base_model import Model
from fourfold.layers.generation_defaults import BeamOptions


@renamed(n_best="num_return_sequences")
def caption(
    model: Model,
    images: Sequence[Any],
    *,
    suppress_tokens: Sequence[str] = (),
    batch_size: int = 32,
    **options: Unpack[BeamOptions],
) -> list[Any]:
    """Describe images as `fourfold caption` does.

    Options that are not described here are those of `fourfold.translate`.

    Args:
        model: Captioning model that `fourfold.load` returned.
        images: Paths of image files, or opened images (PIL.Image).

    Returns:
        One caption for each image, or with N > 1 a list of captions.

    Raises:
        InputError: The model does not describe images, an option is invalid, or an image cannot be
            decoded.
    """
    check_model(model, model.can_generate and model.accepts_images, "a captioning model")
    check_penalty(**options)
    text = TextModel(model, suppress_tokens=suppress_tokens)
    load, like = input_transform(dict(model.artifacts)), next(model.parameters())

    def run(items: list[Item]) -> list[Any]:
        stacked = torch.stack([item.content for item in items]).to(like)  # (B, C, H, W)
        return text.targets(stacked, None, **options)

    # Images have one size and need memory.
    return run_batches(images, lambda image: Item(load(image), 0), run, batch_size, batches_ahead=1)


def caption_lines(model: Model, lines: Sequence[str], **options: Any) -> list[list[str]]:
    """Return the path of each image, followed by its captions, for `fourfold caption`."""
    captions = [[x] if isinstance(x, str) else x for x in caption(model, lines, **options)]
    return [[path, *texts] for path, texts in zip(lines, captions, strict=True)]
