"""Teacher: frozen image classifier whose logits train a student (Touvron et al. 2020)."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fourfold.checkpoints.load import read_model
from fourfold.checkpoints.schema import as_list
from fourfold.errors import InputError

# Artifacts that teacher and student must share, since both see the same pixels.
SHARED_ARTIFACTS = ("class_names", "image_size", "n_channels", "mean", "std")


class Teacher:
    """Frozen image classifier whose predictions are targets in the training of a student model.

    `Teacher` is not an `nn.Module`, so the teacher's weights are not part of the student's state
    dict.

    Args:
        path: Path of the classifier, in any format that `fourfold.load` accepts.
        artifacts: Artifacts of the student's data, such as class names and image size.

    Raises:
        InputError: There is no such checkpoint; the model is not an image classifier; or the model
            has other classes or another preprocessing than the student's data.
    """

    def __init__(self, path: str, artifacts: Mapping[str, Any]) -> None:
        source = read_model(path)
        if "class_names" not in source.artifacts or "image_size" not in source.artifacts:
            raise InputError(
                f"must be an image classifier, but {path} holds a {type(source.model).__name__}",
                option="model.teacher",
            )
        for name in SHARED_ARTIFACTS:
            of_teacher = as_list(source.artifacts.get(name))
            of_student = as_list(artifacts.get(name))
            is_float = name in ("mean", "std") and of_teacher
            # Mean and standard deviation may have been rounded to fp32.
            if of_teacher != of_student and not (
                is_float and np.allclose(of_teacher, of_student, atol=1e-6)
            ):
                raise InputError(
                    f"must have the {name} of the data, {of_student}, but {path} has {of_teacher}",
                    option="model.teacher",
                )
        self.model: nn.Module = source.model.requires_grad_(False)

    @torch.no_grad()
    def __call__(self, images: Tensor) -> Tensor:
        """Compute the logits (B, K) of images (B, C, height, width), without gradients.

        The teacher is moved to the device of the images.
        """
        model = self.model.to(images.device)
        return model(images.to(next(model.parameters()).dtype))
