"""A trained classifier from which another one learns (DeiT, Touvron et al. 2020, section 4)."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fourfold.core.errors import InputError
from fourfold.hub import directory
from fourfold.tasks.checkpoint import checkpoint_of, load_task
from fourfold.tasks.plain import listed

# What teacher and student must see alike, for they look at the same pixels.
SAME = ("class_names", "image_size", "n_channels", "mean", "std")


class Teacher:
    """No module, so that neither its weights nor its gradients are the student's.

    Args:
        path: A checkpoint of ours, or a run directory, whose best one is taken.
        artifacts: Of the student's data.

    Raises:
        InputError: There is none, it classifies no images, or it was trained on other classes or
            other pixels.
    """

    def __init__(self, path: str, artifacts: Mapping[str, Any]) -> None:
        place: Path = directory.located(path)
        if place.is_dir():
            place = checkpoint_of(place)
        task = load_task(place, "ImageClassification")
        for name in SAME:
            theirs, ours = (listed(found.get(name)) for found in (task.artifacts, artifacts))
            # Numbers of an older checkpoint went through fp32.
            near = name in ("mean", "std") and theirs and np.allclose(theirs, ours, atol=1e-6)
            if theirs != ours and not near:
                raise InputError(f"teacher {path}: its {name} is {theirs}, but the data's {ours}")
        self.model: nn.Module = task.model.requires_grad_(False)

    @torch.no_grad()
    def __call__(self, images: Tensor) -> Tensor:
        """Images (B, C, side, side) to logits (B, K), in eval mode and where the images are."""
        model = self.model.to(images.device)
        logits: Tensor = model(images.to(next(model.parameters()).dtype))
        return logits
