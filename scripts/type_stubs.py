"""Write the stubs of the packages whose names are imported when they are first accessed.

Type checkers and editors read an `__init__.pyi` in place of the `__init__.py` beside it.

python scripts/type_stubs.py            # write the files
python scripts/type_stubs.py --check    # exit with code 1 if a file is out of date
"""

import argparse
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

from fourfold.families import members

ROOT = Path(__file__).resolve().parents[1] / "src"
HEADER = "# Written by scripts/type_stubs.py; do not edit.\n\n"
PACKAGES = ("fourfold", *(f"fourfold.{x}" for x in ("data", "metrics", "models", "tasks")))


def modules_of(package: str) -> dict[str, str]:
    """Return the modules of the names of a package."""
    lazy: Any = getattr(import_module(package), "_MODULES", None)
    if lazy is None:
        found = members(package.removeprefix("fourfold."))  # type: ignore[arg-type]
        return {name: module for name, module in found.items() if module.startswith("fourfold.")}
    prefix = "" if package == "fourfold" else f"{package}."
    return {name: prefix + module for name, module in lazy.items()}


def make_stub(package: str) -> str:
    """Return the text of a stub, formatted as by ruff."""
    imports = []
    for name, module in sorted(modules_of(package).items(), key=lambda pair: pair[::-1]):
        line = f"from {module} import {name} as {name}\n"
        long = f"from {module} import (\n    {name} as {name},\n)\n"
        imports.append(line if len(line) <= 101 else long)
    if not hasattr(import_module(package), "__all__"):  # families of other packages add names
        other = "def __getattr__(name: str) -> Any: ...\n"
        return "\n".join([HEADER + "from typing import Any\n", "".join(imports), other])
    names: Any = sorted(import_module(package).__all__)
    listed = "".join(f'    "{name}",\n' for name in names)
    own = "__version__: str\n" if "__version__" in names else ""
    return f"{HEADER}{''.join(imports)}\n{own}__all__ = [\n{listed}]\n"


def main() -> int:
    """Write the stubs, or check that the committed files are up to date."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--check", action="store_true", help="compare the files, write nothing")
    stubs = {ROOT / x.replace(".", "/") / "__init__.pyi": make_stub(x) for x in PACKAGES}
    if parser.parse_args().check:
        return int(any(text != file.read_text(encoding="utf-8") for file, text in stubs.items()))
    for file, text in stubs.items():
        file.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
