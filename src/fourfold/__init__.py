"""One attention core, four transformers.

The names below are looked up on first use (PEP 562), so that `import fourfold`, `fourfold --help`
and shell completion answer without waiting for torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fourfold.generation import beam_search, generate
    from fourfold.tasks.load import load, save

__version__ = "0.1.0"
__all__ = ["__version__", "beam_search", "generate", "load", "save"]

_HOME = {
    "beam_search": "fourfold.generation",
    "generate": "fourfold.generation",
    "load": "fourfold.tasks.load",
    "save": "fourfold.tasks.load",
}


def __getattr__(name: str) -> object:
    if name not in _HOME:
        raise AttributeError(f"module 'fourfold' has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(_HOME[name]), name)
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
