"""Tests that type checkers see the names that can be imported, from the same modules."""

from importlib import import_module

import pytest

from scripts.type_stubs import PACKAGES, ROOT, make_stub, modules_of


@pytest.mark.parametrize("package", PACKAGES)
def test_committed_stub_names_what_can_be_imported(package: str) -> None:
    """If not: python scripts/type_stubs.py."""
    file = ROOT / package.replace(".", "/") / "__init__.pyi"
    assert file.read_text(encoding="utf-8") == make_stub(package)
    module = import_module(package)
    for name, path in modules_of(package).items():
        assert getattr(module, name) is getattr(import_module(path), name)
