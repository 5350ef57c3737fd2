"""Tests of the benchmark of scores, on two pairs of two paradigms."""

import json
import lzma
from collections.abc import Callable
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import pytest

from scripts.benchmarks import scoring
from scripts.benchmarks.peers import registry
from scripts.benchmarks.scoring import measure_scoring, texts_of_rounds
from scripts.benchmarks.workloads import SIZES, Settings

SETTINGS = Settings(size="tiny", precision="fp32", rounds=2, peers=("lm_eval", "minicons"))
METHODS = {"causal_lm": ["causal"], "masked_lm": ["masked_l2r", "masked"]}


@pytest.fixture(autouse=True)
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pairs, text = tmp_path / scoring.PAIRS, tmp_path / scoring.TEXT
    for file in (pairs, text):
        file.parent.mkdir(parents=True)
    for name in ("a", "b"):
        rows = [(f"{name} cat {i} sits.", f"{name} cats {i} unsittingly sit.") for i in range(5)]
        lines = [json.dumps({"sentence_good": x, "sentence_bad": y, "UID": name}) for x, y in rows]
        with ZipFile(pairs, "a") as archive:
            archive.writestr(f"{name}.jsonl", "\n".join(lines) + "\n")
    text.write_bytes(lzma.compress(b"The cat sits.\nCats sit on mats.\n" * 3))
    monkeypatch.setenv("FOURFOLD_DATA", str(tmp_path))


def test_each_round_has_other_pairs_of_each_paradigm() -> None:
    first, second = texts_of_rounds(2, 2)
    assert len(first) == len(second) == 8
    assert not set(first) & set(second)
    assert first[0] == "a cat 0 sits."
    assert second[0] == "a cat 2 sits."


@pytest.mark.parametrize("family", METHODS)
def test_all_methods_are_measured_with_equal_sums(family: str) -> None:
    """Peers that are not installed have a note."""
    found = list(measure_scoring("score", family, SIZES["tiny"][family], SETTINGS))
    names = ["fourfold", *scoring.PEERS[family]]
    assert sorted((m.case, m.contender) for m in found) == sorted(
        (method, name) for method in METHODS[family] for name in names
    )
    for m in found:
        assert len(m.values) == 2 if m.note != "not installed" else m.contender != "fourfold"
        if m.contender == "fourfold":
            assert m.ratios == [1.0, 1.0]


def test_peer_with_other_sums_is_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    def load(folder: str, family: str) -> Callable[..., Any]:
        return lambda texts, **_: [-1.0] * len(texts)

    monkeypatch.setattr(registry, "check_available", lambda *_: None)
    monkeypatch.setattr(scoring, "fastest", lambda *_: 8)
    monkeypatch.setitem(scoring.LOADERS, "minicons", load)
    with pytest.raises(AssertionError, match="minicons: a sum differs by"):
        list(measure_scoring("score", "masked_lm", SIZES["tiny"]["masked_lm"], SETTINGS))
