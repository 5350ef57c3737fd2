"""Built-in translation pairs: sizes, distinct sentences, correct references, invalid options."""

import random

import pytest

import fourfold.data.readers.synthetic_translation as module
from fourfold.data.readers.synthetic_translation import synthetic_pairs
from fourfold.data.readers.text_table import TextTable
from fourfold.errors import InputError

Splits = dict[str, TextTable]


@pytest.fixture(scope="module")
def english_german() -> Splits:
    return synthetic_pairs("en", "de", 1500)


def test_only_the_training_split_depends_on_its_size(english_german: Splits) -> None:
    sizes = {name: len(table) for name, table in english_german.items()}
    assert sizes == {"train": 1500, "val": 500, "test": 500}
    smaller = synthetic_pairs("en", "de", 40)
    assert smaller["test"].columns == english_german["test"].columns
    assert smaller["val"].columns == english_german["val"].columns
    assert smaller["train"].columns == [c[:40] for c in english_german["train"].columns]


def test_no_sentence_occurs_twice(english_german: Splits) -> None:
    for side in range(2):
        texts = [text for table in english_german.values() for text in table.columns[side]]
        assert len(set(texts)) == len(texts) == 2500


def test_no_sentence_occurs_twice_on_one_side_only(monkeypatch: pytest.MonkeyPatch) -> None:
    def sample(rng: random.Random) -> module.Formatter:
        texts = {lang: f"{rng.randrange(6000)}" for lang in ("en", "de")}
        return texts.__getitem__

    monkeypatch.setattr(module, "_samplers", lambda langs: [sample])
    monkeypatch.setattr(module, "_N_VALUES", (1,))
    splits = module.synthetic_pairs.__wrapped__("en", "de", 1000)
    for side in range(2):
        texts = [text for table in splits.values() for text in table.columns[side]]
        assert len(set(texts)) == len(texts) == 2000


def test_pairs_are_reproducible(english_german: Splits) -> None:
    synthetic_pairs.cache_clear()
    again = synthetic_pairs("en", "de", 1500)
    assert again is not english_german
    assert again["train"].columns == english_german["train"].columns


def test_references_are_right_and_reordered(english_german: Splits) -> None:
    pairs = {
        src: tgt
        for table in english_german.values()
        for src, tgt in zip(*table.columns, strict=True)
    }
    # An English date has the month before the day, a German one after it.
    dates = [(s, t) for s, t in pairs.items() if s.startswith("March ") and " and " not in s]
    assert dates
    for src, tgt in dates:
        day, year = src.removeprefix("March ").split(", ")
        assert tgt == f"{day}. März {year}"
    assert any("€" in text for text in pairs.values())
    assert any("zwanzig" in text for text in pairs.values())


def test_text_has_no_identifiers_and_no_unusual_spaces() -> None:
    for langs in (("en", "de"), ("fr", "it"), ("es", "nl")):
        for table in synthetic_pairs(*langs, 200).values():
            for text in table.columns[0] + table.columns[1]:
                assert "duration-" not in text
                assert "length-" not in text
                assert text == " ".join(text.split())


def test_languages_can_be_swapped() -> None:
    back = synthetic_pairs("de", "en", 50)
    assert any("zwanzig" in text or "Euro" in text for text in back["train"].columns[0])


@pytest.mark.parametrize(
    ("langs", "size", "message"),
    [
        (("en", "xx"), 10, "langs must be .*got 'xx'"),
        (("tlh", "en"), 10, "langs must be .*got 'tlh'"),
    ],
)
def test_invalid_options_are_rejected(langs: tuple[str, str], size: int, message: str) -> None:
    with pytest.raises(InputError, match=message):
        synthetic_pairs(*langs, size)


@pytest.mark.parametrize("langs", [("ja", "ko"), ("en", "ca"), ("th", "vi")])
def test_forms_that_num2words_cannot_write_are_left_out(langs: tuple[str, str]) -> None:
    pairs = synthetic_pairs(*langs, 50)["train"].columns
    assert [len(column) for column in pairs] == [50, 50]
