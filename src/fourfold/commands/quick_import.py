"""Imports without what makes them slow: metrics that nobody uses, and looking for garbage.

Lightning needs two classes of torchmetrics, whose `__init__` loads every metric there is, and with
them transformers, torchvision and scipy wherever those are installed. Here the `__init__` of such
a package waits until a name of it is wanted that is not there yet; nothing else changes.
"""

import atexit
import gc
import logging
import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from threading import RLock
from types import ModuleType
from typing import Any

# Package: what Lightning wants of it, and where that is, in an order in which it can be loaded.
LAZY: dict[str, dict[str, str]] = {
    "torchmetrics": {
        "__version__": "torchmetrics.__about__",
        "Metric": "torchmetrics.utilities.checks",
        "MetricCollection": "torchmetrics.collections",
    },
    "torchmetrics.functional": {},
}


def import_quickly(name: str) -> ModuleType:
    """Import a module; what it brings stays, and is not looked through for garbage again.

    Python's collector goes through all objects ever more often while modules load, and through
    those of torch in vain as often as data are read.
    """
    if name in sys.modules:
        return sys.modules[name]
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())
    collecting = gc.isenabled()
    gc.disable()
    try:
        module = import_module(name)
    finally:
        if collecting:
            gc.enable()
    gc.freeze()
    atexit.register(gc.unfreeze)  # some extensions count at the end what was not freed
    return module


class _Finder(MetaPathFinder):
    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname not in LAZY or target is not None:  # a target is being reloaded
            return None
        spec = PathFinder.find_spec(fullname, path)
        if spec is not None and spec.loader is not None:
            spec.loader = _Loader(spec.loader)
        return spec


class _Loader(Loader):
    """Makes a `_Package` of a module, with its real loader in its place again."""

    def __init__(self, real: Loader) -> None:
        self.real = real

    def exec_module(self, module: ModuleType) -> None:
        name = module.__name__
        assert module.__spec__ is not None
        module.__loader__ = module.__spec__.loader = self.real
        module.__class__ = _Package
        vars(module)["_logger"] = logging.getLogger(name)  # its own modules want it
        try:
            for wanted, home in LAZY[name].items():
                setattr(module, wanted, getattr(import_module(home), wanted))
        except (ImportError, AttributeError):  # a version that is built otherwise: as ever
            sys.meta_path[:] = [other for other in sys.meta_path if not isinstance(other, _Finder)]
            for part in [other for other in sys.modules if other.startswith(f"{name}.")]:
                del sys.modules[part]
            _execute(module)


class _Package(ModuleType):
    """A package that runs its `__init__` when it is asked for a name that it has not got yet."""

    lock = RLock()

    def __getattr__(self, name: str) -> Any:
        with _Package.lock:
            if type(self) is _Package:
                _execute(self)
        return getattr(self, name)


def _execute(module: ModuleType) -> None:
    # First of all a plain module: what its own imports do not find is not there yet.
    module.__class__ = ModuleType
    assert module.__spec__ is not None
    assert module.__spec__.loader is not None
    module.__spec__.loader.exec_module(module)
