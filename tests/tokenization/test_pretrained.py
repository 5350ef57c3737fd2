import json
import random

import pytest
from tokenizers import Tokenizer as Core
from tokenizers import models, normalizers, pre_tokenizers, trainers

from fourfold.core.errors import InputError
from fourfold.data.tokenizer_files import make_tokenizer
from fourfold.data.tokenizer_training import TokenizerConfig

BERT = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "un", "##aff", "##able", "hello", ","]
GPT2 = '{"a": 0, "b": 1, "ab": 2, "<|endoftext|>": 3}'


def read(*, mask=False, **config):
    return make_tokenizer(TokenizerConfig(**config), [], mask=mask)


def write(path, text):
    path.write_text(text, "utf-8")
    return str(path)


def test_bert_vocabulary(tmp_path):
    file = write(tmp_path / "vocab.txt", "\n".join(BERT) + "\n")
    tokenizer = read(file=file, lowercase=True, mask=True)
    assert tokenizer.encode("Hello, unaffable") == [8, 9, 5, 6, 7]
    roles = (tokenizer.pad_id, tokenizer.bos_id, tokenizer.eos_id, tokenizer.unk_id)
    assert (*roles, tokenizer.mask_id) == (0, 2, 3, 1, 4)
    assert tokenizer.special_ids == [0, 1, 2, 3, 4]


def test_gpt2_files(tmp_path):
    vocab = {"a": 0, "b": 1, "Ġ": 2, "ab": 3, "Ġa": 4, "<|endoftext|>": 5}
    file = write(tmp_path / "encoder.json", json.dumps(vocab))
    merges = write(tmp_path / "vocab.bpe", "#version: 0.2\na b\nĠ a\n")
    tokenizer = read(file=file, merges=merges)
    assert tokenizer.encode("ab ab a") == [3, 2, 3, 4]
    assert {tokenizer.pad_id, tokenizer.bos_id, tokenizer.eos_id} == {5}
    assert tokenizer.vocab_size == 6


@pytest.fixture
def gpt1(tmp_path):
    """GPT-1's two files, of merges learnt from words with their ends marked."""
    core = Core(models.BPE(unk_token="<unk>", end_of_word_suffix="</w>"))
    core.normalizer = normalizers.BertNormalizer(lowercase=True)
    core.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    words = "the quick brown fox's den, the lazy dog: 42 times! naïve café 漢字 ça va? no. so so"
    trainer = trainers.BpeTrainer(
        vocab_size=90, special_tokens=["<unk>"], end_of_word_suffix="</w>", show_progress=False
    )
    core.train_from_iterator([words] * 3, trainer)
    core.model.save(str(tmp_path))
    return tmp_path


def test_gpt1_files_against_transformers(gpt1):
    hf = pytest.importorskip("transformers")
    (gpt1 / "config.json").write_text('{"model_type": "openai-gpt"}')
    theirs = hf.OpenAIGPTTokenizer.from_pretrained(gpt1)
    ours = read(file=str(gpt1 / "vocab.json"), merges=str(gpt1 / "merges.txt"))
    assert {ours.pad_id, ours.bos_id, ours.eos_id, ours.unk_id} == {ours.special_ids[0]}
    rng = random.Random(0)
    letters = (
        "thequickbrownfoxdenlazy  \n\t  ,.:!?'-42ÀÉÇçñüßİœ漢字語가e\u0301\u00a0\u200b\x07ΣŁ€🙂"
    )
    unknown = 0
    for _ in range(2000):
        text = "".join(rng.choices(letters, k=rng.randint(0, 60)))
        ids = ours.encode(text)
        assert ids == theirs(text, add_special_tokens=False)["input_ids"], text
        assert ours.decode(ids) == theirs.decode(ids, skip_special_tokens=True)
        unknown += ours.unk_id in ids
    assert 0 < unknown < 2000
    assert ours.decode(ours.encode("The quick  FOX, naïve!")) == "the quick fox , naive !"


def test_our_own_json(tmp_path):
    trained = make_tokenizer(TokenizerConfig("bpe", 60), ["ab ab abc"] * 3, mask=True)
    trained.save(tmp_path / "tokenizer.json")
    again = read(file=str(tmp_path / "tokenizer.json"), mask=True)
    assert again.to_str() == trained.to_str()


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (["[PAD]", "[UNK]"], r"vocab.txt has no entry \[CLS\], \[SEP\]"),
        ([*BERT, "un"], "vocab.txt, line 11: repeats the entry 'un'"),
        ([*BERT[:6], "", *BERT[6:]], "vocab.txt, line 7: is empty"),
        ([*BERT[:4], *BERT[5:]], r"no mask token \(<mask> or \[MASK\]\)"),
    ],
)
def test_broken_bert_vocabularies(tmp_path, lines, message):
    file = write(tmp_path / "vocab.txt", "\n".join(lines) + "\n")
    with pytest.raises(InputError, match=message):
        read(file=file, mask=True)


@pytest.mark.parametrize(
    ("encoder", "merges", "message"),
    [
        ('{"a": 0,\n "b"}', "a b", "encoder.json, line 2: broken JSON"),
        ("[1, 2]", "a b", "must map tokens to numbers"),
        ('{"a": 0, "<|endoftext|>": 2}', "", "number its 2 tokens from 0 without gaps"),
        (GPT2, "#version: 0.2\na c", "vocab.bpe, line 2: 'c' is not in the vocab"),
        (GPT2, "a b\na b a", "vocab.bpe, line 2: 'a b a' is not a pair"),
        ('{"a": 0, "b": 1, "ab": 2}', "a b", "no entry <|endoftext|>"),
        ('{"a</w>": 0, "<|endoftext|>": 1}', "", "marks the ends of words, as GPT-2 does not"),
        ('{"a</w>": 0, "b": 1}', "", "has no pad token"),
        ('{"a": 0, "b</w>": 1, "<unk>": 2}', "#v\na b</w>", "line 1: '#v' is not a pair"),
    ],
)
def test_broken_gpt2_files(tmp_path, encoder, merges, message):
    file = write(tmp_path / "encoder.json", encoder)
    merges = write(tmp_path / "vocab.bpe", merges or "#version: 0.2")
    with pytest.raises(InputError, match=message):
        read(file=file, merges=merges)


def test_missing_and_broken_json(tmp_path):
    with pytest.raises(InputError, match=r"no file nowhere\.json"):
        read(file="nowhere.json")
    with pytest.raises(InputError, match=r"tokenizer\.json is not a tokenizer"):
        read(file=write(tmp_path / "tokenizer.json", '{"model": 1}'))


def test_the_published_vocabularies(data_dir):
    gpt2 = read(
        file=f"{data_dir}/vocab/gpt2.encoder.json", merges=f"{data_dir}/vocab/gpt2.vocab.bpe"
    )
    assert gpt2.vocab_size == 50257
    assert gpt2.encode("Hello world") == [15496, 995]
    assert gpt2.special_ids == [50256]
    bert = read(file=f"{data_dir}/vocab/bert-base-uncased.vocab.txt", lowercase=True, mask=True)
    assert bert.vocab_size == 30522
    assert bert.encode("Hello world") == [7592, 2088]
    assert bert.special_ids == [0, 100, 101, 102, 103]
