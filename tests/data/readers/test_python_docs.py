import re

from fourfold.data.embedded_text import _without_leaks, embedded_text


def lines(rows):
    return {" ".join(line.split()) for text in rows.columns[0] for line in text.split("\n")} - {""}


def sentences(rows):
    text = "\n\n".join(rows.columns[0])
    return {" ".join(s.split()) for s in re.split(r"\n\n|(?<=[.!?])\s+", text)} - {""}


def test_no_line_and_no_sentence_is_in_two_splits():
    splits = embedded_text()
    for left, right in (("train", "val"), ("train", "test"), ("val", "test")):
        for units in (lines, sentences):
            assert not units(splits[left]) & units(splits[right])


def test_there_is_enough_of_it_and_it_is_english():
    splits = embedded_text()
    assert sum(len(text) for text in splits["train"].columns[0]) > 500_000
    for name in ("val", "test"):
        assert sum(len(text) for text in splits[name].columns[0]) > 20_000
        assert len(splits[name]) > 5
    text = "\n".join(text for rows in splits.values() for text in rows.columns[0])
    assert "Recursively copy a directory tree" in text  # a function of shutil
    assert text.split().count("the") > 3000


def test_leaks_go_by_paragraph_and_repetitions_stay_out():
    seen = set()
    long = "A paragraph that is long enough to make a document of its own."
    train = _without_leaks("train", [("a", f"{long}\n\nShared line.\nMore."), ("b", long)], seen)
    assert train.columns == [[f"{long}\n\nShared line.\nMore."]]
    text = "Its own words, many of them, so that it is kept.\n\nBefore. Shared   line."
    val = _without_leaks("val", [("c", text)], seen)
    assert val.columns == [["Its own words, many of them, so that it is kept."]]
