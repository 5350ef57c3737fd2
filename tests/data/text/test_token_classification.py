"""Tags of words as labels of their first tokens."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fourfold.data import TokenData
from fourfold.data.text.token_classification import read_tagged_sentences
from fourfold.errors import InputError
from fourfold.losses import IGNORE_INDEX
from fourfold.tokenization.training import TokenizerConfig

TEXT = "EU\tB-ORG\nrejects\tO\nGerman\tB-MISC\ncall\tO\n\t\nPeter\tB-PER\nBlackburn\tI-PER\n\n"


@pytest.fixture
def file(tmp_path: Path) -> str:
    (tmp_path / "x.conll").write_text(TEXT)
    return str(tmp_path / "x.conll")


def test_columns_of_conll_and_json_lines(tmp_path: Path, file: str) -> None:
    first, second = read_tagged_sentences(file, 0, -1)
    assert first.words == ["EU", "rejects", "German", "call"]
    assert second.tags == ["B-PER", "I-PER"]
    assert second.location.endswith("x.conll:6")
    (tmp_path / "y.txt").write_text("-DOCSTART- -X- O O\n\nEU NNP I-NP B-ORG\nrejects VBZ I-VP O\n")
    (only,) = read_tagged_sentences(str(tmp_path / "y.txt"), 0, -1)
    assert only.tags == ["B-ORG", "O"]
    assert read_tagged_sentences(str(tmp_path / "y.txt"), 0, 1)[0].tags == ["NNP", "VBZ"]
    (tmp_path / "z.jsonl").write_text(json.dumps({"tokens": ["a", "b"], "tags": [0, 3]}) + "\n\n")
    assert read_tagged_sentences(str(tmp_path / "z.jsonl"), "tokens", "tags")[0].tags == ["0", "3"]


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("x.conll", "a\tO\nb\n", "x.conll:2: the word has no tag: 'b'"),
        ("x.conll", "\n\n", "x.conll: the file is empty"),
        ("x.jsonl", '{"tokens": ["a"], "tags": []}', "x.jsonl:1: there are 1 words, but 0 tags"),
        ("x.jsonl", '{"tokens": "a", "tags": []}', "x.jsonl:1: 'tokens' and 'tags' must be lists"),
        ("x.jsonl", '{"tokens"', "x.jsonl:1: invalid JSON"),
    ],
)
def test_invalid_file_raises(name: str, text: str, message: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(text)
    columns: tuple[Any, Any] = ("tokens", "tags") if name.endswith("jsonl") else (0, -1)
    with pytest.raises(InputError, match=message):
        read_tagged_sentences(str(tmp_path / name), *columns)


def test_conllu_comments_and_non_word_lines_are_skipped(tmp_path: Path) -> None:
    rest = "\t_" * 4
    lines = ["# text = vámonos al mar", f"1-2\tvámonos\t_\t_{rest}", f"1\tvamos\tir\tVERB{rest}"]
    lines += [f"2\tnos\tnos\tPRON{rest}", f"2.1\tya\tya\tADV{rest}", f"3\t1-2\t1-2\tNUM{rest}"]
    (tmp_path / "x.conllu").write_text("\n".join([*lines, ""]))
    (only,) = read_tagged_sentences(str(tmp_path / "x.conllu"), 1, 3)
    assert only.words == ["vamos", "nos", "1-2"]
    assert only.tags == ["VERB", "PRON", "NUM"]
    assert only.location.endswith(":3")
    (tmp_path / "y.conll").write_text("# O\n2-3 O\n")
    assert read_tagged_sentences(str(tmp_path / "y.conll"), 0, 1)[0].words == ["#", "2-3"]


def test_source_line_of_germeval_is_skipped(tmp_path: Path) -> None:
    lines = ["#\thttp://de.example.org/x\t[2009-10-17]", "1\tAufgrund\tO\tO", "2\tBonns\tB-LOC\tO"]
    (tmp_path / "x.tsv").write_text("\n".join([*lines, ""]))
    (only,) = read_tagged_sentences(str(tmp_path / "x.tsv"), 1, 2)
    assert (only.words, only.tags) == (["Aufgrund", "Bonns"], ["O", "B-LOC"])


def test_a_no_break_space_is_inside_a_word(tmp_path: Path) -> None:
    (tmp_path / "x.conll").write_text("10\u00a0000  O \n New\u00a0York B-LOC\n")
    (only,) = read_tagged_sentences(str(tmp_path / "x.conll"), 0, 1)
    assert (only.words, only.tags) == (["10\u00a0000", "New\u00a0York"], ["O", "B-LOC"])


def test_sizes_of_wnut17(data_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FOURFOLD_DATA", str(data_dir))
    # A line of dev has only a byte-order mark, which is not a word.
    sizes = {"train": (3394, 62730), "dev": (1009, 15733), "test": (1287, 23394)}
    for split, (n, words) in sizes.items():
        sentences = read_tagged_sentences(f"ner/wnut17/{split}.conll.gz", 0, -1)
        assert (len(sentences), sum(len(s.words) for s in sentences)) == (n, words)


def test_multiconer_comments_are_skipped(tmp_path: Path) -> None:
    text = "# id 52\tdomain=en\n\nhis _ _ O\n# _ _ O\nLondon _ _ B-LOC\n"
    (tmp_path / "a.conll").write_text(text)
    (found,) = read_tagged_sentences(str(tmp_path / "a.conll"), 0, -1)
    assert (found.words, found.tags) == (["his", "#", "London"], ["O", "O", "B-LOC"])


def test_json_lines_with_either_suffix(tmp_path: Path) -> None:
    for name in ("a.json", "a.jsonl"):
        (tmp_path / name).write_text('{"tokens": ["London"], "tags": ["B-LOC"]}\n')
        (found,) = read_tagged_sentences(str(tmp_path / name), "tokens", "tags")
        assert (found.words, found.tags) == (["London"], ["B-LOC"])


@pytest.mark.parametrize("value", ["null", "NaN", "Infinity", "{}", "[]"])
@pytest.mark.parametrize("column", ["tokens", "tags"])
def test_a_missing_value_is_no_word_and_no_tag(value: str, column: str, tmp_path: Path) -> None:
    line = '{"tokens": ["Ada", 1], "tags": ["O", 2]}'
    wrong = line.replace(f'"{column}": [', f'"{column}": [{value}, ')
    (tmp_path / "a.jsonl").write_text(f"{line}\n{wrong}\n")
    with pytest.raises(InputError, match=r"a\.jsonl:2: 'tokens' and 'tags' must be lists of texts"):
        read_tagged_sentences(str(tmp_path / "a.jsonl"), "tokens", "tags")


@pytest.mark.parametrize(
    ("tag", "message"),
    [
        ("", "is empty"),
        (" O", "begins or ends with white"),
        (1.0, "is the same number as the label '1'"),
    ],
)
def test_an_ambiguous_tag_is_no_class(tag: str | float, message: str, tmp_path: Path) -> None:
    lines = [{"tokens": ["Ada"] * 2, "tags": ["O", 1]}, {"tokens": ["Ada"], "tags": [tag]}]
    (tmp_path / "a.jsonl").write_text("\n".join(map(json.dumps, lines)))
    with pytest.raises(InputError, match=rf"a.jsonl:2: the label '{tag}' {message}"):
        data(str(tmp_path / "a.jsonl"), word="tokens", tag="tags").setup()
    named = data(str(tmp_path / "a.jsonl"), word="tokens", tag="tags", tags=["O", "1", str(tag)])
    assert named.n_classes == 3


def data(file: str, **options: Any) -> TokenData:
    options = {"tokenizer": TokenizerConfig(kind="char"), **options}
    return TokenData(file, val=file, **options)


def test_labels_stand_at_the_first_token_of_a_word(file: str) -> None:
    found = data(file)
    batch: Any = found.split("train").batch(np.array([1]), 0, 0)
    tags = found.class_names
    at = {i: tags[k] for i, k in enumerate(batch.labels[0].tolist()) if k != IGNORE_INDEX}
    pieces = [len(ids) for ids in found.tokenizer.encode_words([["Peter", "Blackburn"]])[0]]
    assert at == {1: "B-PER", 1 + pieces[0]: "I-PER"}
    assert batch.ids.shape[1] == 2 + sum(pieces)
    assert tags[0] == "O"


def test_long_sentence_is_divided_into_rows(file: str) -> None:
    whole = data(file)
    divided = data(file, max_len=12)
    keys = divided.split("train").chunk_keys
    assert keys == sorted(keys)
    assert len(keys) > len(whole.split("train").chunk_keys) == 2
    rows: Any = divided.split("train").batch(np.arange(len(keys)), 0, 0)
    labels = rows.labels[rows.labels != IGNORE_INDEX].tolist()
    full: Any = whole.split("train").batch(np.arange(2), 0, 0)
    assert labels == full.labels[full.labels != IGNORE_INDEX].tolist()  # no word is lost
    with pytest.raises(InputError, match=r"x.conll.*6: a word has 9 tokens, .* max_len=10"):
        data(file, max_len=10).setup()


def test_word_without_tokens_becomes_unknown_token(tmp_path: Path) -> None:
    (tmp_path / "vocab.txt").write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\na\nb\n")
    (tmp_path / "x.conll").write_text("a\tO\n\u200d\tB-X\nb\tO\n")
    config = TokenizerConfig(file=str(tmp_path / "vocab.txt"))
    found = data(str(tmp_path / "x.conll"), tokenizer=config)
    batch: Any = found.split("train").batch(np.array([0]), 0, 0)
    assert batch.ids[0].tolist() == [2, 5, 1, 6, 3]
    assert (batch.labels[0, 1:-1] != IGNORE_INDEX).all()


def test_byte_level_words_are_encoded_with_leading_space(file: str) -> None:
    found = data(file, tokenizer=TokenizerConfig(kind="byte_bpe", vocab_size=300))
    words = ["Peter", "Blackburn"]
    joined = [i for ids in found.tokenizer.encode_words([words])[0] for i in ids]
    assert joined == found.tokenizer.encode(" ".join(words))


def test_unknown_tag_raises(tmp_path: Path, file: str) -> None:
    (tmp_path / "y.conll").write_text("Rex\tB-DOG\n")
    with pytest.raises(InputError, match=r"y.conll.*1: .* one of O, B-MISC, .* got 'B-DOG'"):
        TokenData(
            file, val=str(tmp_path / "y.conll"), tokenizer=TokenizerConfig(kind="char")
        ).setup()


def test_fraction_of_sentences_is_held_out(tmp_path: Path) -> None:
    (tmp_path / "x.conll").write_text("".join(f"w{i}\tO\nv\tB-X\n\n" for i in range(50)))
    found = TokenData(str(tmp_path / "x.conll"), val=0.2, tokenizer=TokenizerConfig(kind="char"))
    sizes = [len(found.split(name)) for name in ("train", "val")]
    assert sum(sizes) == 50
    assert 3 < sizes[1] < 20
