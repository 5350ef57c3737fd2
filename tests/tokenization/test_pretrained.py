"""Pretrained tokenizers: BERT's, GPT-2's and GPT-1's files, tokenizer.json, invalid files."""

import json
import random
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer as Backend
from tokenizers import models, normalizers, pre_tokenizers, trainers

from fourfold.errors import InputError
from fourfold.tokenization.pretrained import make_tokenizer, read_tokenizer
from fourfold.tokenization.tokenizer import Tokenizer
from fourfold.tokenization.training import TokenizerConfig

BERT = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "un", "##aff", "##able", "hello", ","]
GPT2 = '{"a": 0, "b": 1, "ab": 2, "<|endoftext|>": 3}'


def load(*, mask: bool = False, **config: Any) -> Tokenizer:
    return make_tokenizer(TokenizerConfig(**config), [], mask=mask)


def write(path: Path, text: str) -> str:
    path.write_text(text, "utf-8")
    return str(path)


def test_bert_vocabulary_is_loaded(tmp_path: Path) -> None:
    file = write(tmp_path / "vocab.txt", "\n".join(BERT) + "\n")
    tokenizer = load(file=file, lowercase=True, mask=True)
    assert tokenizer.encode("Hello, unaffable") == [8, 9, 5, 6, 7]
    roles = (tokenizer.pad_id, tokenizer.bos_id, tokenizer.eos_id, tokenizer.unk_id)
    assert (*roles, tokenizer.mask_id) == (0, 2, 3, 1, 4)
    assert tokenizer.special_ids == [0, 1, 2, 3, 4]


def test_gpt2_files_are_loaded(tmp_path: Path) -> None:
    vocab = {"a": 0, "b": 1, "Ġ": 2, "ab": 3, "Ġa": 4, "<|endoftext|>": 5}
    file = write(tmp_path / "encoder.json", json.dumps(vocab))
    merges = write(tmp_path / "vocab.bpe", "#version: 0.2\na b\nĠ a\n")
    tokenizer = load(file=file, merges=merges)
    assert tokenizer.encode("ab ab a") == [3, 2, 3, 4]
    assert {tokenizer.pad_id, tokenizer.bos_id, tokenizer.eos_id} == {5}
    assert tokenizer.vocab_size == 6


@pytest.fixture
def gpt1_folder(tmp_path: Path) -> Path:
    """Files of a small GPT-1 tokenizer."""
    backend = Backend(models.BPE(unk_token="<unk>", end_of_word_suffix="</w>"))
    backend.normalizer = normalizers.BertNormalizer(lowercase=True)
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    text = "the quick brown fox's den, the lazy dog: 42 times! naïve café 漢字 ça va? no. so so"
    trainer = trainers.BpeTrainer(
        vocab_size=90, special_tokens=["<unk>"], end_of_word_suffix="</w>", show_progress=False
    )
    backend.train_from_iterator([text] * 3, trainer)
    backend.model.save(str(tmp_path))
    return tmp_path


def test_gpt1_files_agree_with_transformers(gpt1_folder: Path) -> None:
    hf = pytest.importorskip("transformers")
    (gpt1_folder / "config.json").write_text('{"model_type": "openai-gpt"}')
    reference = hf.OpenAIGPTTokenizer.from_pretrained(gpt1_folder)
    tokenizer = load(file=str(gpt1_folder / "vocab.json"), merges=str(gpt1_folder / "merges.txt"))
    roles = {tokenizer.pad_id, tokenizer.bos_id, tokenizer.eos_id, tokenizer.unk_id}
    assert roles == {tokenizer.special_ids[0]}
    rng = random.Random(0)
    letters = (
        "thequickbrownfoxdenlazy  \n\t  ,.:!?'-42ÀÉÇçñüßİœ漢字語가e\u0301\u00a0\u200b\x07ΣŁ€🙂"
    )
    n_unknown = 0
    for _ in range(2000):
        text = "".join(rng.choices(letters, k=rng.randint(0, 60)))
        ids = tokenizer.encode(text)
        assert ids == reference(text, add_special_tokens=False)["input_ids"], text
        assert tokenizer.decode(ids) == reference.decode(ids, skip_special_tokens=True)
        n_unknown += tokenizer.unk_id in ids
    assert 0 < n_unknown < 2000
    ids = tokenizer.encode("The quick  FOX, naïve!")
    assert tokenizer.decode(ids) == "the quick fox , naive !"


def test_saved_tokenizer_is_loaded_unchanged(tmp_path: Path) -> None:
    trained = make_tokenizer(TokenizerConfig("bpe", 60), ["ab ab abc"] * 3, mask=True)
    trained.save(tmp_path / "tokenizer.json")
    loaded = load(file=str(tmp_path / "tokenizer.json"), mask=True)
    assert loaded.to_str() == trained.to_str()


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (["[PAD]", "[UNK]"], r"vocab.txt: .*no token \[CLS\], \[SEP\]"),
        ([*BERT, "un"], "vocab.txt:11: .*that no earlier line has, got 'un'"),
        ([*BERT[:6], "", *BERT[6:]], "vocab.txt:7: .*must hold a token .*, got ''"),
        ([*BERT[:4], *BERT[5:]], r"vocab.txt: .*must contain a mask token \(<mask> or \[MASK\]\)"),
    ],
)
def test_invalid_bert_vocabularies_are_rejected(
    tmp_path: Path, lines: list[str], message: str
) -> None:
    file = write(tmp_path / "vocab.txt", "\n".join(lines) + "\n")
    with pytest.raises(InputError, match=message):
        load(file=file, mask=True)


@pytest.mark.parametrize(
    ("encoder", "merges", "message"),
    [
        ('{"a": 0,\n "b"}', "a b", "encoder.json:2: invalid JSON"),
        ("[1, 2]", "a b", "encoder.json: .*must map its 2 tokens to ids"),
        ('{"a": 0, "<|endoftext|>": 2}', "", "its 2 tokens to ids from 0, without gaps"),
        (GPT2, "#version: 0.2\na c", "vocab.bpe: the merges do not suit .*: .*`c` out of"),
        (GPT2, "a b\na b a", "vocab.bpe: the merges do not suit"),
        ('{"a": 0, "b": 1, "ab": 2}', "a b", r"encoder.json: .*neither GPT-2's vocabulary"),
        ('{"a</w>": 0, "<|endoftext|>": 1}', "", "neither GPT-2's vocabulary, .*, nor GPT-1's"),
        ('{"a</w>": 0, "b": 1}', "", "no pad token"),
        ('{"a": 0, "b</w>": 1, "<unk>": 2}', "#v\na b</w>", "vocab.bpe: the merges do not suit"),
    ],
)
def test_invalid_gpt_files_are_rejected(
    tmp_path: Path, encoder: str, merges: str, message: str
) -> None:
    file = write(tmp_path / "encoder.json", encoder)
    merges_file = write(tmp_path / "vocab.bpe", merges or "#version: 0.2")
    with pytest.raises(InputError, match=message):
        load(file=file, merges=merges_file)


def test_missing_and_invalid_json_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"missing\.json: there is no such file"):
        load(file="missing.json")
    with pytest.raises(InputError, match=r"tokenizer\.json: this is not a tokenizer"):
        load(file=write(tmp_path / "tokenizer.json", '{"model": 1}'))


def test_checkpoint_without_a_tokenizer_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"x\.ckpt: .*not a checkpoint with a tokenizer"):
        load(file=write(tmp_path / "x.ckpt", "text"))


def test_corrupted_checkpoint_is_rejected(tmp_path: Path) -> None:
    file = tmp_path / "x.ckpt"
    text = load(file=write(tmp_path / "vocab.txt", "\n".join(BERT) + "\n")).to_str()
    torch.save({"fourfold": {"data": {"tokenizer": text}}}, file)
    assert load(file=str(file)).vocab_size == len(BERT)
    intact = file.read_bytes()
    file.write_bytes(intact.replace(b"hello", b"hellm"))
    with pytest.raises(InputError, match=r"x\.ckpt: .*or it is corrupted"):
        load(file=str(file))


def test_published_vocabularies_are_loaded(data_dir: Path) -> None:
    gpt2 = load(
        file=f"{data_dir}/vocab/gpt2.encoder.json", merges=f"{data_dir}/vocab/gpt2.vocab.bpe"
    )
    assert gpt2.vocab_size == 50257
    assert gpt2.encode("Hello world") == [15496, 995]
    assert gpt2.special_ids == [50256]
    bert = load(file=f"{data_dir}/vocab/bert-base-uncased.vocab.txt", lowercase=True, mask=True)
    assert bert.vocab_size == 30522
    assert bert.encode("Hello world") == [7592, 2088]
    assert bert.special_ids == [0, 100, 101, 102, 103]


@pytest.mark.parametrize("key", ["strip_accents", "tokenize_chinese_chars"])
def test_options_of_a_vocabulary_that_would_be_ignored_are_rejected(
    key: str, tmp_path: Path
) -> None:
    write(tmp_path / "vocab.txt", "\n".join(BERT) + "\n")
    config = tmp_path / "tokenizer_config.json"
    config.write_text(json.dumps({key: True}))
    assert read_tokenizer(tmp_path) is not None
    config.write_text(json.dumps({key: False}))
    with pytest.raises(InputError, match=rf"tokenizer_config\.json: {key} must be True"):
        read_tokenizer(tmp_path)
