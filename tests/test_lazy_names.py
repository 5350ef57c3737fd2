"""Tests of the names that are imported when they are first accessed, and of their stubs."""

import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

import fourfold
from fourfold import lazy_names
from scripts.type_stubs import PACKAGE, make_stub


@pytest.mark.parametrize("section", ["models", "tasks"])
def test_committed_stub_is_that_of_the_families(section: str) -> None:
    """If not: python scripts/type_stubs.py."""
    assert (PACKAGE / section / "__init__.pyi").read_text(encoding="utf-8") == make_stub(section)


@pytest.mark.parametrize("package", ["fourfold", "fourfold.data", "fourfold.metrics"])
def test_each_name_of_a_stub_can_be_imported(package: str) -> None:
    module = import_module(package)
    stub = Path(str(module.__file__)).with_suffix(".pyi").read_text(encoding="utf-8")
    names = set(module.__all__) - {"__version__"}
    assert len(names) == stub.count(" as ")
    for name in names:
        assert getattr(module, name).__module__.startswith("fourfold."), name
    with pytest.raises(AttributeError, match=f"module '{package}' has no attribute 'nothing'"):
        _ = module.nothing


def test_names_come_from_the_stub(tmp_path: Path) -> None:
    stub = "# A comment.\nfrom json import loads as loads\nfrom math import (\n    pi as pi,\n)\n"
    (tmp_path / "__init__.pyi").write_text(f"{stub}\n__all__: list[str]\n")
    names, import_name = lazy_names("mine", str(tmp_path / "__init__.py"))
    assert names == ["loads", "pi"]
    assert import_name("pi") == import_module("math").pi
    with pytest.raises(AttributeError, match="module 'mine' has no attribute 'dumps'"):
        import_name("dumps")


def test_import_of_the_package_does_not_import_torch() -> None:
    code = "import sys, fourfold, fourfold.data, fourfold.metrics; print('torch' in sys.modules)"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout == "False\n"
    assert "load" in dir(fourfold)
