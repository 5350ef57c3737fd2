"""Tags of words as labels of their first tokens."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fourfold.data import TokenData
from fourfold.errors import InputError
from fourfold.losses import IGNORE_INDEX
from fourfold.tokenization.training import TokenizerConfig

TEXT = "EU\tB-ORG\nrejects\tO\nGerman\tB-MISC\ncall\tO\n\t\nPeter\tB-PER\nBlackburn\tI-PER\n\n"


@pytest.fixture
def file(tmp_path: Path) -> str:
    (tmp_path / "x.conll").write_text(TEXT)
    return str(tmp_path / "x.conll")


def data(file: str, **options: Any) -> TokenData:
    options = {"tokenizer": TokenizerConfig(kind="char"), **options}
    return TokenData(file, val=file, **options)


def test_labels_stand_at_the_first_token_of_a_word(file: str) -> None:
    found = data(file)
    batch: Any = found.split("train").batch(np.array([1]), 0, 0)
    tags = found.class_tags
    at = {i: tags[k] for i, k in enumerate(batch.labels[0].tolist()) if k != IGNORE_INDEX}
    pieces = [len(ids) for ids in found.tokenizer.encode_words([["Peter", "Blackburn"]])[0]]
    assert at == {1: "B-PER", 1 + pieces[0]: "I-PER"}
    assert batch.ids.shape[1] == 2 + sum(pieces)
    assert tags[0] == "O"


def test_long_sentence_is_divided_into_rows(file: str) -> None:
    whole = data(file)
    divided = data(file, max_len=12)
    keys = divided.chunk_keys("train")
    assert keys == sorted(keys)
    assert len(keys) > len(whole.chunk_keys("train")) == 2
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


def test_empty_tags_raise(file: str) -> None:
    with pytest.raises(InputError, match=r"tags must name at least one tag, got \[\]"):
        data(file, tags=[])
