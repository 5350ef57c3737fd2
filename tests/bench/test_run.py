"""Every work once, with ours and what a machine with the development extras has."""

import gzip
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fourfold.bench import growth, run, steps, turns
from fourfold.bench.memory import NotMeasured
from fourfold.bench.peers.table import Absent
from fourfold.bench.sentences import deal, real_tokens
from fourfold.bench.shapes import FAMILIES, SIZES, Settings, Shape
from fourfold.bench.turns import Turn, taking_turns

TINY = Settings(size="tiny", peers=("transformers", "timm"), rounds=2)


class Here:
    """A turn in this process: it starts sooner."""

    def __init__(
        self, work: str, way: str, family: str, shape: Shape, settings: Settings, *, compiled: bool
    ) -> None:
        job = {"work": work, "way": way, "family": family, "compiled": compiled}
        self.step, self.parameters = turns.make(job, shape, settings)

    def __call__(self) -> None:
        self.step()

    def close(self) -> None:
        self.step = None


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(steps, "Turn", Here)
    monkeypatch.setattr(turns, "keep_freed_memory", lambda: True)


@pytest.fixture
def no_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory is told, not measured."""

    def told(way: str, family: str, shape: Any, settings: Settings) -> int:
        if way != "fourfold" and shape.length > 8:
            raise NotMeasured("does not fit")
        return 2**20 * (1 if way == "fourfold" else 3)

    for module in (run, growth):
        monkeypatch.setattr(module, "peak_memory", told)


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize("work", ["train", "evaluate"])
@pytest.mark.parametrize("family", FAMILIES)
def test_steps(work: str, family: str) -> None:
    rows = list(run.measure(replace(TINY, works=(work,), families=(family,))))
    assert rows[0].way == "fourfold"
    assert rows[0].ratios == [1.0, 1.0]
    for row in rows:
        assert row.note or (len(row.values) == len(row.shares) == 2 and min(row.shares) > 0)


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize("family", ["masked_lm", "encoder_decoder"])
def test_sentences(family: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "glue/SST-2").mkdir(parents=True)
    (tmp_path / "translation/multi30k").mkdir(parents=True)
    words = [f"a {'small ' * (i % 5)}dog {i % 7}" for i in range(300)]
    with gzip.open(tmp_path / "glue/SST-2/train.tsv.gz", "wt") as file:
        file.write("\n".join(["sentence\tlabel", *(f"{line}\t0" for line in words)]))
    for language in ("de", "en"):
        path = tmp_path / f"translation/multi30k/train.{language}.gz"
        with gzip.open(path, "wt") as file:
            file.write("\n".join(words))
    settings = replace(TINY, works=("sentences",), families=(family,), peers=("transformers",))
    monkeypatch.setenv("FOURFOLD_DATA", str(tmp_path))
    ours, theirs = run.measure(settings)
    assert len(ours.values) == 2
    assert theirs.note or len(theirs.ratios) == 2
    shape = SIZES["tiny"][family]
    dealt = [deal(way, family, shape, settings) for way in ("fourfold", "transformers")]
    assert real_tokens(dealt[0]) == real_tokens(dealt[1])
    monkeypatch.setenv("FOURFOLD_DATA", str(tmp_path / "nowhere"))
    (row,) = run.measure(settings)
    assert "train" in row.note
    assert not row.values


def test_decoding() -> None:
    pytest.importorskip("transformers")
    rows = list(run.measure(replace(TINY, works=("greedy", "beam"), precision="fp32", rounds=1)))
    assert [row.way for row in rows] == ["fourfold", "transformers"] * 3
    assert {row.note for row in rows} == {"", "100 % of the rows alike"}
    assert [bool(row.shares) for row in rows] == [True, True, False, False, False, False]


@pytest.mark.usefixtures("no_process")
def test_memory() -> None:
    pytest.importorskip("transformers")
    settings = replace(TINY, works=("memory",), peers=("transformers", "nanogpt"))
    rows = list(run.measure(replace(settings, families=("causal_lm",))))
    assert [(row.way, row.values, row.note) for row in rows] == [
        ("fourfold", [1.0], ""),
        ("transformers", (), "does not fit"),
        ("nanogpt", (), "not given: --nanogpt FILE"),
    ]


@pytest.mark.usefixtures("no_process", "here")
def test_growth_ends_where_a_way_does_not_fit() -> None:
    pytest.importorskip("transformers")
    rows = list(run.measure(replace(TINY, works=("growth",), growth=("length",))))
    found = [(row.x, row.way, row.unit, row.note) for row in rows]
    assert found == [
        (8, "fourfold", "MiB", ""),
        (8, "transformers", "MiB", ""),
        (8, "fourfold", "ms a step", ""),
        (8, "transformers", "ms a step", ""),
        (16, "fourfold", "MiB", ""),
        (16, "transformers", "MiB", "does not fit"),
        (16, "fourfold", "ms a step", ""),
    ]
    assert rows[1].ratios == [3.0]


def test_a_peer_that_fails_is_named_and_ours_is_not_spared() -> None:
    def broken() -> None:
        raise RuntimeError("no kernel\nand more")

    with pytest.raises(Absent, match=r"failed: RuntimeError: no kernel$"):
        turns.run_once(broken, "timm")
    with pytest.raises(RuntimeError, match="no kernel"):
        turns.run_once(broken, "fourfold")


def test_a_turn_has_a_process_of_its_own() -> None:
    settings = replace(TINY, families=("causal_lm",))
    shape = SIZES["tiny"]["causal_lm"]
    with taking_turns() as found:
        turn = Turn("train", "fourfold", "causal_lm", shape, settings, compiled=False)
        found.append(turn)
        assert (
            turn.parameters
            == Here("train", "fourfold", "causal_lm", shape, settings, compiled=False).parameters
        )
        turn()
        turn()
        process = turn._process
        assert process.poll() is None
        process.kill()
        process.wait()
        with pytest.raises(Absent, match="does not fit"):
            turn._hear()
    assert process.poll() is not None


def test_a_peer_that_is_not_here_says_so_from_its_process() -> None:
    with pytest.raises(Absent, match="not given: --nanogpt FILE"):
        Turn("train", "nanogpt", "causal_lm", SIZES["tiny"]["causal_lm"], TINY, compiled=False)
