"""Tests of scripts/profile_step.py."""

import csv
import sys
from collections import defaultdict
from pathlib import Path

import pytest

from scripts import profile_step


def test_profile_lists_the_operations_of_a_step_by_share(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "profile"
    options = [
        "--size",
        "tiny",
        "--family",
        "vit",
        "causal_lm",
        "--precision",
        "fp32",
        "--out",
        str(out),
    ]
    monkeypatch.setattr(sys, "argv", ["profile_step.py", *options])
    profile_step.main()
    with out.with_suffix(".csv").open() as file:
        rows = list(csv.DictReader(file))
    shares: defaultdict[str, float] = defaultdict(float)
    for row in rows:
        shares[row["workload"]] += float(row["share"])
    assert len(shares) == 4  # two training steps, and decoding with two batch sizes
    assert list(shares.values()) == pytest.approx([1] * 4)
    products = {row["operation"]: row["rate"] for row in rows if row["rate"]}
    assert float(products["aten::addmm"]) > 0
    listed = out.with_suffix(".md").read_text()
    assert rows[0]["operation"] in listed
    assert rows[-1]["operation"] not in listed
