"""Names of a package that are imported when they are first accessed (PEP 562).

The stub of the package, `__init__.pyi`, lists them for type checkers and for `lazy_names`.
"""

import re
from collections.abc import Callable
from importlib import import_module
from pathlib import Path

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
