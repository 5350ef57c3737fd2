"""Four transformer families on one attention core, trained with PyTorch Lightning.

The names below and the subpackages are imported on first use (PEP 562), so that `import fourfold`
and `fourfold --help` do not import torch.
"""

from importlib import import_module

from fourfold.lazy_names import lazy_names

__version__ = "0.3.0"

_SUBPACKAGES = ("callbacks", "data", "edits", "generation", "loggers", "metrics", "models", "tasks")
_names, _import_name = lazy_names(__name__, __file__)
__all__ = ["__version__", *_names]


def __getattr__(name: str) -> object:
    if name in _SUBPACKAGES:
        return import_module(f"fourfold.{name}")
    value = globals()[name] = _import_name(name)
    return value


def __dir__() -> list[str]:
    return sorted((*__all__, *_SUBPACKAGES))
