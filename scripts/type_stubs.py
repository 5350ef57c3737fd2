"""Write the stubs of `fourfold.models` and `fourfold.tasks`, whose names the families declare.

Type checkers and editors read an `__init__.pyi` in place of the `__init__.py` beside it.

python scripts/type_stubs.py            # write the files
python scripts/type_stubs.py --check    # exit with code 1 if a file is out of date
"""

import argparse
import sys
from pathlib import Path
from typing import Any

from fourfold.families import members

PACKAGE = Path(__file__).resolve().parents[1] / "src" / "fourfold"
HEADER = "# Written by scripts/type_stubs.py; do not edit.\n\nfrom typing import Any\n\n"
OTHER = "\ndef __getattr__(name: str) -> Any: ...\n"  # families of other packages add names


def make_stub(section: Any) -> str:
    """Return the text of the stub of "models" or "tasks", formatted as by ruff."""
    imports = []
    for name, module in sorted(members(section).items(), key=lambda pair: pair[::-1]):
        line = f"from {module} import {name} as {name}\n"
        long = f"from {module} import (\n    {name} as {name},\n)\n"
        if module.startswith("fourfold."):
            imports.append(line if len(line) <= 101 else long)
    return HEADER + "".join(imports) + OTHER


def main() -> int:
    """Write the stubs, or check that the committed files are up to date."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--check", action="store_true", help="compare the files, write nothing")
    stubs = {PACKAGE / name / "__init__.pyi": make_stub(name) for name in ("models", "tasks")}
    if parser.parse_args().check:
        return int(any(text != file.read_text(encoding="utf-8") for file, text in stubs.items()))
    for file, text in stubs.items():
        file.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
