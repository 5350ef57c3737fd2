"""Tests that the bounds in docs/trust.md are those of the code."""

import re
from importlib import import_module
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
ROW = re.compile(
    r"^\| [^|]+ \| ([\d,]+)[^|]* \| `(fourfold[\w.]+)\.(\w+)(?:\[\"(\w+)\"\])?` \|$", re.M
)
ROWS = ROW.findall((ROOT / "docs/trust.md").read_text(encoding="utf-8"))


@pytest.mark.parametrize(("value", "module", "name", "key"), ROWS)
def test_bound_is_that_of_the_code(value: str, module: str, name: str, key: str) -> None:
    found = getattr(import_module(module), name)
    if key:
        found = found[key]
    assert found == int(value.replace(",", ""))


def test_every_row_of_the_table_is_compared() -> None:
    section = (ROOT / "docs/trust.md").read_text(encoding="utf-8").split("## Bounds")[1]
    table = [line for line in section.splitlines() if line.startswith("|")]
    assert len(ROWS) == len(table) - 2
