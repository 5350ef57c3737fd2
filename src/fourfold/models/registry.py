"""Model registry: published architectures by name, and functions that build and list them.

The names are those of timm, transformers, torchvision and tensor2tensor. A name selects the
architecture and the dropout rates of the paper that introduced the model. `create` builds a model
with random weights, and `fourfold.load` reads trained weights. The families declare the names.
"""

from collections.abc import Mapping
from contextlib import nullcontext
from fnmatch import fnmatchcase
from typing import Any

import torch

from fourfold.core.config import ModelConfig
from fourfold.core.validation import check_choice
from fourfold.families import families, import_member
from fourfold.layers.base_model import Model, on_meta


def _sizes() -> dict[str, tuple[str, Mapping[str, Any]]]:
    return {name: size for family in families() for name, size in family.sizes.items()}


def create(
    name: str,
    *,
    device: torch.device | str | None = None,
    dtype: torch.dtype | None = None,
    **overrides: Any,
) -> Model:
    """Build a model with random weights from the name of an architecture.

    Args:
        name: One of the names that `list_models` returns, such as "gpt2-medium".
        device: Device of the weights. On "meta", they have no memory. None means torch's default.
        dtype: Data type of the weights. None means torch's default.
        overrides: Values of config fields that replace those of the architecture.

    Raises:
        InputError: `name` or a field is unknown, or a field has a value that is not allowed.

    Example:
        >>> model = create("vit_tiny_patch16_224", n_classes=10, n_layers=2, dtype=torch.bfloat16)
        >>> model.dtype, model.config.n_classes
        (torch.bfloat16, 10)
    """
    config = create_config(name, **overrides)
    with on_meta() if str(device) == "meta" else nullcontext():
        model: Model = import_member("models", _sizes()[name][0])(config)
    return model.to(device=device, dtype=dtype)


def create_config(name: str, **overrides: Any) -> ModelConfig:
    """Return the config of `create(name, **overrides)`, without building a model."""
    check_choice("name", name, list_models())
    class_name, fields = _sizes()[name]
    config_class: Any = import_member("models", f"{class_name}Config")
    for field in overrides:
        known = list(config_class.__dataclass_fields__)
        check_choice(f"field of {config_class.__name__}", field, known)
    return config_class(**{**fields, **overrides})


def list_models(pattern: str = "*") -> list[str]:
    """Return the names that `create` accepts and that match a shell pattern, sorted.

    Example:
        >>> list_models("gpt2*")
        ['gpt2', 'gpt2-large', 'gpt2-medium', 'gpt2-xl']
    """
    return sorted(name for name in _sizes() if fnmatchcase(name, pattern))
