"""Four transformer families on one attention core, trained with PyTorch Lightning.

The subpackages and the names in the stub of this file, `__init__.pyi`, are imported on first use
(PEP 562), so that `import fourfold` and `fourfold --help` do not import torch.
"""

import re
from collections.abc import Callable
from importlib import import_module
from pathlib import Path

__version__ = "0.3.0"

_SUBPACKAGES = ("callbacks", "data", "edits", "generation", "loggers", "metrics", "models", "tasks")
_IMPORT = re.compile(r"^from (\S+) import (?:\(\s+)?(\w+) as", re.MULTILINE)


def lazy_names(package: str, file: str) -> tuple[list[str], Callable[[str], object]]:
    """Return the names in the stub beside a file, and the function `__getattr__` of its package."""
    stub = Path(file).with_suffix(".pyi").read_text(encoding="utf-8")
    modules = {name: module for module, name in _IMPORT.findall(stub)}

    def import_name(name: str) -> object:
        if name not in modules:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(import_module(modules[name]), name)

    return sorted(modules), import_name


_names, _import_name = lazy_names(__name__, __file__)
__all__ = ["__version__", *_names]


def __getattr__(name: str) -> object:
    if name in _SUBPACKAGES:
        return import_module(f"fourfold.{name}")
    value = globals()[name] = _import_name(name)
    return value


def __dir__() -> list[str]:
    return sorted((*__all__, *_SUBPACKAGES))
