"""published_data.py: each published form is read, and no word or sum is in two splits."""

import gzip
from pathlib import Path
from zipfile import ZipFile

import pytest

from scripts.tools.published_data import (
    MODULUS,
    cmudict,
    inflection,
    main,
    modular,
    scan,
    with_sample,
)


def test_scan_lines_become_command_and_actions() -> None:
    lines = ["IN: jump left twice OUT: I_TURN_LEFT I_JUMP I_TURN_LEFT I_JUMP\n", "\n"]
    assert scan(lines) == [("jump left twice", "I_TURN_LEFT I_JUMP I_TURN_LEFT I_JUMP")]


def test_the_sample_of_scan_is_two_percent_of_all_pairs_from_the_training_split() -> None:
    train, test = ([(f"{name}{i}", "x") for i in range(n)] for name, n in (("a", 400), ("b", 100)))
    sample = with_sample({"train": train, "test": test})["train_2_percent"]
    assert len(set(sample)) == 10
    assert set(sample) <= set(train)
    assert sample != train[:10]


def test_cmudict_without_stress_comments_and_further_pronunciations() -> None:
    lines = ["aalborg AO1 L B # place", "aalborg(2) AA1 L", "a.m. EY2 EH1 M", "it's IH1 T S"]
    found = [pair for pairs in cmudict(lines).values() for pair in pairs]
    assert sorted(found) == [("a a l b o r g", "AO L B"), ("i t ' s", "IH T S")]


def test_the_split_of_cmudict_depends_on_the_word_only() -> None:
    words = [f"{a}{b}{c} AH0" for a in "abcdefgh" for b in "ijklmnop" for c in "qrstuvwxyz"]
    splits = cmudict(words)
    assert cmudict(words[::-1]) == {name: pairs[::-1] for name, pairs in splits.items()}
    n = len(words)
    assert all(0.03 * n < len(splits[name]) < 0.07 * n for name in ("val", "test"))
    assert sum(map(len, splits.values())) == n


def test_the_sums_are_right_and_divided_into_halves() -> None:
    splits = modular()
    train, test = ({given for given, _ in pairs} for pairs in splits.values())
    assert not train & test
    assert (len(train), len(test)) == (MODULUS**2 // 2, MODULUS**2 // 2 + 1)
    for given, answer in splits["train"] + splits["test"]:
        a, plus, b, equals = given.split()
        assert (plus, equals, int(answer)) == ("+", "=", (int(a) + int(b)) % MODULUS)


def test_the_features_of_a_form_follow_the_letters_of_its_lemma() -> None:
    (pair,) = inflection(["absetzen\tsetzten ab\tV;PST;PL"])
    assert pair == ("a b s e t z e n V PST PL", "s e t z t e n _ a b")


def test_the_files_are_tables_of_two_columns(tmp_path: Path) -> None:
    captions = {
        f"translation/multi30k/{name}.{language}.gz": "Two\tDogs .\n"
        for name in ("train", "val", "test_2016_flickr")
        for language in ("en", "de")
    }
    texts = {
        "seq2seq/scan/tasks_train_simple.txt.gz": "IN: jump OUT: I_JUMP\n" * 60,
        "seq2seq/scan/tasks_test_simple.txt.gz": "IN: walk OUT: I_WALK\n",
        "seq2seq/cmudict/cmudict.dict.gz": "cat K AE1 T\n",
    }
    for name, text in (texts | captions).items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(gzip.compress(text.encode()))
    words = tmp_path / "seq2seq/conll2017_inflection/traindev_12languages.zip"
    words.parent.mkdir()
    with ZipFile(words, "w") as members:
        for name in ("german-train-high", "german-dev"):
            members.writestr(name, "Hund\tHunde\tN;NOM;PL\n")
    main(tmp_path, tmp_path / "out")
    made = sorted((tmp_path / "out" / "prepared").rglob("*.tsv"))
    assert [f"{file.parent.name}/{file.stem}" for file in made] == [
        "cmudict/test",
        "cmudict/train",
        "cmudict/val",
        "inflection/train",
        "inflection/val",
        "modular/test",
        "modular/train",
        "multi30k/test",
        "multi30k/train",
        "multi30k/val",
        "scan/test",
        "scan/train",
        "scan/train_2_percent",
    ]
    assert (tmp_path / "out/prepared/scan/test.tsv").read_text() == "walk\tI_WALK\n"
    assert (tmp_path / "out/prepared/multi30k/test.tsv").read_text() == "two dogs .\ttwo dogs .\n"
    for file in made:
        assert all(line.count("\t") == 1 for line in file.read_text().splitlines())


@pytest.mark.parametrize("line", ["jump OUT: I_JUMP", "IN: jump", ""])
def test_lines_in_another_form_are_no_pairs_of_scan(line: str) -> None:
    assert scan([line]) == []
