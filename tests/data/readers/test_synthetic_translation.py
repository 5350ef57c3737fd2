import pytest

import fourfold.data.embedded_pairs as module
from fourfold.core.errors import InputError
from fourfold.data.embedded_pairs import embedded_pairs


@pytest.fixture(scope="module")
def english_german():
    return embedded_pairs("en", "de", 1500)


def test_sizes_are_fixed_but_for_training(english_german):
    assert {name: len(rows) for name, rows in english_german.items()} == {
        "train": 1500,
        "val": 500,
        "test": 500,
    }


def test_no_sentence_occurs_twice_in_or_across_splits(english_german):
    for side in range(2):
        texts = [text for rows in english_german.values() for text in rows.columns[side]]
        assert len(set(texts)) == len(texts) == 2500


def test_a_sentence_seen_on_one_side_only_is_still_seen(monkeypatch):
    def few(_makers, _voices, rng):
        return [f"{rng.randrange(6000)}", f"{rng.randrange(6000)}"]

    monkeypatch.setattr(module, "_sentence", few)
    splits = module.embedded_pairs.__wrapped__("en", "de", 1000)
    for side in range(2):
        texts = [text for rows in splits.values() for text in rows.columns[side]]
        assert len(set(texts)) == len(texts) == 2000


def test_more_training_only_adds_rows(english_german):
    fewer = embedded_pairs("en", "de", 40)
    assert fewer["test"].columns == english_german["test"].columns
    assert fewer["val"].columns == english_german["val"].columns
    assert fewer["train"].columns == [c[:40] for c in english_german["train"].columns]


def test_same_again(english_german):
    embedded_pairs.cache_clear()
    again = embedded_pairs("en", "de", 1500)
    assert again is not english_german
    assert again["train"].columns == english_german["train"].columns


def test_answers_are_right_and_reordered(english_german):
    pairs = {
        src: tgt for rows in english_german.values() for src, tgt in zip(*rows.columns, strict=True)
    }
    # Whatever else is said: an English month before the day, a German one behind it.
    dates = [(s, t) for s, t in pairs.items() if s.startswith("March ") and " and " not in s]
    assert dates
    for src, tgt in dates:
        day, year = src.removeprefix("March ").split(", ")
        assert tgt == f"{day}. März {year}"
    assert any("€" in text for text in pairs.values())
    assert any("zwanzig" in text for text in pairs.values())


def test_no_identifier_and_no_odd_blank_gets_into_the_text():
    for langs in (("en", "de"), ("fr", "it"), ("es", "nl")):
        for rows in embedded_pairs(*langs, 200).values():
            for text in rows.columns[0] + rows.columns[1]:
                assert "duration-" not in text
                assert "length-" not in text
                assert text == " ".join(text.split())


def test_the_way_back_swaps_nothing_but_the_data(english_german):
    back = embedded_pairs("de", "en", 50)
    assert any("zwanzig" in text or "Euro" in text for text in back["train"].columns[0])


@pytest.mark.parametrize(
    ("langs", "size", "message"),
    [
        (("en", "xx"), 10, "no language 'xx'"),
        (("tlh", "en"), 10, "no language 'tlh'"),
        (("en", "en"), 10, "two languages"),
        (("en", "de"), 0, "0 rows"),
    ],
)
def test_what_cannot_be_made(langs, size, message):
    with pytest.raises(InputError, match=message):
        embedded_pairs(*langs, size)
