import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fourfold.core.errors import InputError
from fourfold.data.pairs import hold_out, read_pairs
from fourfold.data.sources import Rows

LANGS = ("en", "de")


@pytest.fixture
def folder(tmp_path):
    for name, text in {
        "a.en": "one\ntwo\n",
        "a.de": "eins\nzwei\n",
        "b.en": "three\n",
        "b.de": "drei\n",
        "c.tsv": "de\ten\nvier\tfour\n",
    }.items():
        (tmp_path / name).write_text(text)
    return tmp_path


def test_three_ways_to_name_pairs(folder):
    both = read_pairs([f"{folder}/a.en", f"{folder}/a.de"], LANGS, None)
    assert both.columns == [["one", "two"], ["eins", "zwei"]]
    assert read_pairs(f"{folder}/a.{{lang}}", LANGS, None).columns == both.columns
    table = read_pairs(f"{folder}/c.tsv", LANGS, ["en", "de"])
    assert table.columns == [["four"], ["vier"]]


def test_several_templates_are_joined(folder):
    rows = read_pairs([f"{folder}/a.{{lang}}", f"{folder}/b.{{lang}}"], ("de", "en"), None)
    assert rows.columns == [["eins", "zwei", "drei"], ["one", "two", "three"]]
    assert rows.where(2) == f"{folder}/b.de + {folder}/b.en, line 1"


@pytest.mark.parametrize("entries", ["a.en", ["a.en", "a.de", "b.en"], []])
def test_names_that_do_not_say_where_the_languages_are(entries):
    with pytest.raises(InputError, match="does not say where the two languages are"):
        read_pairs(entries, LANGS, None)


@given(
    st.lists(st.tuples(st.integers(0, 30), st.integers(0, 30)), min_size=40, max_size=90),
    st.floats(0.1, 0.5),
)
@settings(max_examples=60, deadline=None)
def test_no_sentence_stays_on_both_sides(pairs, fraction):
    rows = Rows.of([[f"s{a}" for a, _ in pairs], [f"t{b}" for _, b in pairs]], "x, line")
    try:
        rest, held = hold_out(rows, fraction, "val")
    except InputError:
        return
    for left, right in zip(rest.columns, held.columns, strict=True):
        assert not set(left) & set(right)
    numbers = rest.number.tolist() + held.number.tolist()
    assert len(set(numbers)) == len(numbers)


def test_about_the_fraction_and_stable_when_data_grow():
    rows = Rows.of([[f"s{i}" for i in range(4000)], [f"t{i}" for i in range(4000)]], "x, line")
    rest, held = hold_out(rows, 0.1, "val")
    assert len(rest) + len(held) == 4000  # nothing shared, so nothing dropped
    assert len(held) == pytest.approx(400, abs=60)
    fewer = hold_out(rows.select(np.arange(1000)), 0.1, "val")[1]
    assert fewer.columns[0] == [text for text in held.columns[0] if int(text[1:]) < 1000]
    assert hold_out(rows, 0.1, "test")[1].columns != held.columns


@pytest.mark.parametrize("fraction", [0.0, 1.0, -0.5, 7.0])
def test_impossible_fractions(fraction):
    with pytest.raises(InputError, match="between 0 and 1"):
        hold_out(Rows.of([["a"]], "x, line"), fraction, "val")


def test_too_few_rows():
    with pytest.raises(InputError, match="x, line 1 and on: too few rows"):
        hold_out(Rows.of([["a"], ["b"]], "x, line"), 0.01, "val")


def test_nothing_left_since_all_rows_share_a_text_is_not_called_too_few():
    rows = Rows.of([[f"s{i}" for i in range(99)], ["yes"] * 99], "x, line")
    with pytest.raises(InputError, match=r"no row is left to learn from if 0\.1 are held out"):
        hold_out(rows, 0.1, "val")
    rest, held = hold_out(rows, 0.1, "val", n_texts=1)
    assert len(rest) + len(held) == 99
