"""Tokenizers of sentencepiece after their conversion, compared with sentencepiece itself."""

import contextlib
import io
import json
import random
from pathlib import Path
from typing import Any

import pytest
import transformers as hf

import fourfold
from fourfold.errors import InputError
from fourfold.tokenization import sentencepiece_files
from fourfold.tokenization.pretrained import make_tokenizer, read_tokenizer
from fourfold.tokenization.tokenizer import Tokenizer
from fourfold.tokenization.training import TokenizerConfig
from tests.conftest import ROOT
from tests.fixtures.hf_models import make_model

spm = pytest.importorskip("sentencepiece")

CORPUS = [line for line in (ROOT / "LICENSE").read_text().split("\n") if line]
CORPUS += [
    "The cat sat on the mat, and the dog (a big one) barked at 7:30 p.m.",
    "x  y\tz <html> </s> naïve café déjà vu",
    "日本語のテスト です。 カタカナ",
    "Привет мир, как дела?",
] * 20
MARKS = ["\u0301", "\u0323", "\u0302", "\u3099", "\u309a", "\u200d", "\ufe0f", "\u0338", "", ""]
ALPHABETS = [
    " \t\n\r\u3000\u00a0\u2003\u200b▁",
    "aeoAEか①ｶﾞﬁ…½™Å\u212b\u1112\u1161\u11ab ",
    ["😀", "👍🏽", "👩‍👩‍👧", "🇩🇪", "é", " "],
    [*map(chr, range(32)), *map(chr, range(127, 160)), *"ab "],
    [*map(chr, range(0x100, 0xD800, 7)), *map(chr, range(0x10000, 0x20000, 31))],
    ["<s>", "</s>", "<unk>", "<0x41>", "<pad>", "s>", "<", "/s", "<sep>", "@#", "the", " ", "é"],
]
EDGES = ["", "▁", "▁▁ a", " ▁ ", "a ▁", "\x01", "\x00", "\x01 a", " \x01", "\u0301a", "\ufeffa"]


def hostile_lines(n: int = 1000) -> list[str]:
    draw = random.Random(0)
    lines = [*EDGES, *(x * k for x in ("a", "ab", " ", "▁", "the ", "é") for k in (7, 250))]
    while len(lines) < n:
        length = draw.randrange(1, 14)
        part = "".join(draw.choices(draw.choice([*ALPHABETS, draw.choice(CORPUS)]), k=length))
        if draw.random() < 0.3:
            part = "".join(c + draw.choice(MARKS) for c in part)
        words = draw.choice(CORPUS)[draw.randrange(9) : draw.randrange(9, 40)].replace(" ", "  ")
        lines.append(draw.choice([part, part + words, words + part, words]))
    return lines


LINES = hostile_lines()


def train(path: Path, **options: Any) -> tuple[Any, str]:
    """Train a model, and return its processor and its path."""
    stream = io.BytesIO()
    settings = {"vocab_size": 300, "character_coverage": 0.98, "minloglevel": 2}
    settings["vocab_size"] += 256 * options.get("byte_fallback", False)
    settings |= {"normalization_rule_name": "identity", **options}
    spm.SentencePieceTrainer.train(sentence_iterator=iter(CORPUS), model_writer=stream, **settings)
    path.write_bytes(stream.getvalue())
    return spm.SentencePieceProcessor(model_proto=stream.getvalue()), str(path)


def load(file: str) -> Tokenizer:
    return make_tokenizer(TokenizerConfig(file=file), [], mask=False)


def check_equal(processor: Any, tokenizer: Tokenizer) -> None:
    restored = Tokenizer.from_str(tokenizer.to_str())
    expected = processor.encode(LINES)
    for line, wanted, found, again in zip(
        LINES, expected, tokenizer.encode_batch(LINES), restored.encode_batch(LINES), strict=True
    ):
        assert found == again == wanted, ascii(line)
        if processor.unk_id() not in wanted:  # sentencepiece decodes it to another character
            assert tokenizer.decode(wanted) == processor.decode(wanted), ascii(line)


@pytest.mark.parametrize("kind", ["unigram", "bpe"])
@pytest.mark.parametrize("byte_fallback", [False, True])
@pytest.mark.parametrize("prefix", [False, True])
@pytest.mark.parametrize("remove", [False, True])
@pytest.mark.parametrize("symbols", [[], ["<sep>", "@#", "the"]])
def test_ids_equal_those_of_sentencepiece(
    kind: str, byte_fallback: bool, prefix: bool, remove: bool, symbols: list[str], tmp_path: Path
) -> None:
    spaces = {"add_dummy_prefix": prefix, "remove_extra_whitespaces": remove}
    options = {"model_type": kind, "byte_fallback": byte_fallback, "user_defined_symbols": symbols}
    check_equal(*map_second(load, train(tmp_path / "x.model", **options, **spaces)))


def map_second(function: Any, pair: tuple[Any, str]) -> tuple[Any, Any]:
    return pair[0], function(pair[1])


@pytest.mark.parametrize(
    ("kind", "rules", "options"),
    [
        ("unigram", "nmt_nfkc", {"user_defined_symbols": ["<sep>", "@#"]}),
        ("bpe", "nfkc", {"split_by_whitespace": False, "byte_fallback": True}),
    ],
)
def test_rules_of_normalization_are_applied_longest_first(
    kind: str, rules: str, options: dict[str, Any], tmp_path: Path
) -> None:
    options = {"model_type": kind, "normalization_rule_name": rules, **options}
    check_equal(*map_second(load, train(tmp_path / "x.model", **options)))


def test_offsets_are_those_of_the_text(tmp_path: Path) -> None:
    """Inserted and removed characters have no effect on the spans of later tokens."""
    options = {"model_type": "bpe", "byte_fallback": True, "normalization_rule_name": "nmt_nfkc"}
    _, file = train(tmp_path / "x.model", **options)
    text = "  the \x01 cafe\u0301 is a cat"
    ((ids, spans),) = load(file).encode_with_offsets([text])
    assert len(ids) == len(spans)
    assert next(text[i:j] for i, j in spans if text[i:j].strip()).strip() in "the"
    found = "".join(text[i:j] for i, j in spans)
    assert found.replace(" ", "").endswith("isacat")
    assert spans[-1][1] == len(text)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"model_type": "word"}, "model_type has a value that is not supported"),
        ({"treat_whitespace_as_suffix": True}, "treat_whitespace_as_suffix has a value"),
        ({"user_defined_symbols": ["①"], "normalization_rule_name": "nfkc"}, "user-defined"),
        ({"user_defined_symbols": ["日本語", "😀😀"]}, "symbols must not begin as another .* ends"),
        ({"user_defined_symbols": ["<s", "s>"], "model_type": "bpe"}, "<s> cannot be told"),
        ({"normalization_rule_name": "nmt_nfkc_cf"}, "rules of normalization are not those of"),
        ({"normalization_rule_tsv": "rules.tsv"}, "rules of normalization are not those of"),
    ],
)
def test_unsupported_model_is_rejected(
    options: dict[str, Any], message: str, tmp_path: Path
) -> None:
    if "normalization_rule_tsv" in options:  # "ab" becomes "x"
        (tmp_path / "rules.tsv").write_text("61 62\t78\n")
        options = {"normalization_rule_tsv": str(tmp_path / "rules.tsv")}
    _, file = train(tmp_path / "x.model", hard_vocab_limit=False, **options)
    with pytest.raises(InputError, match=message) as error:
        load(file)
    assert str(error.value).startswith(file)
    assert "\n" not in str(error.value)


def test_damaged_model_is_rejected_or_read(tmp_path: Path) -> None:
    _, file = train(tmp_path / "x.model")
    content = Path(file).read_bytes()
    for at in range(0, len(content), 41):
        for data in (content[:at], content[:at] + bytes([content[at] ^ 0x55]) + content[at + 1 :]):
            Path(file).write_bytes(data)
            with contextlib.suppress(InputError):  # another class fails the test
                load(file).encode("the cat")


def test_missing_package_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _, file = train(tmp_path / "x.model")
    monkeypatch.setitem(__import__("sys").modules, "sentencepiece", None)
    with pytest.raises(InputError, match=r"needs pip install 'fourfold\[sentencepiece\]'"):
        load(file)


def test_directories_of_t5_and_llama_are_read(tmp_path: Path) -> None:
    special = {"pad_id": 0, "eos_id": 1, "unk_id": 2, "bos_id": -1}
    processor, _ = train(tmp_path / "spiece.model", **special)
    settings = {"tokenizer_class": "T5Tokenizer", "extra_ids": 3}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    t5 = Tokenizer.from_str(str(read_tokenizer(tmp_path)))
    assert t5.encode("the cat") == processor.encode("the cat")
    assert (t5.pad_id, t5.bos_id, t5.eos_id, t5.unk_id) == (0, 0, 1, 2)
    assert t5.sentinel_ids == [302, 301, 300]
    (tmp_path / "tokenizer_config.json").write_text('{"tokenizer_class": "T5Tokenizer"}')
    t5 = Tokenizer.from_str(str(read_tokenizer(tmp_path)))
    assert t5.sentinel_ids == list(range(399, 299, -1))
    (tmp_path / "spiece.model").unlink()
    processor, _ = train(tmp_path / "tokenizer.model", model_type="bpe", byte_fallback=True)
    settings = {"tokenizer_class": "LlamaTokenizer", "add_bos_token": True}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    llama = Tokenizer.from_str(str(read_tokenizer(tmp_path)))
    assert llama.encode("the cat") == processor.encode("the cat")
    assert llama.prepended_id == llama.bos_id == 1
    del settings["add_bos_token"]
    pieces = processor.get_piece_size()
    added = {"added_tokens_decoder": {pieces: {"content": "<|im_start|>", "special": True}}}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings | added))
    llama = Tokenizer.from_str(str(read_tokenizer(tmp_path)))
    assert llama.prepended_id == 1  # by default
    assert llama.encode_special("<|im_start|>")[0] == pieces
    for wrong in (
        {"additional_special_tokens": ["<|im_start|>"]},
        {"added_tokens_decoder": {pieces: {"content": "<|im_start|>", "special": False}}},
        {"added_tokens_decoder": {pieces + 1: {"content": "<|im_start|>", "special": True}}},
        {"added_tokens_decoder": {5: {"content": "<|im_start|>", "special": True}}},
    ):
        (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings | wrong))
        with pytest.raises(InputError, match=r"added tokens must be special.*<\|im_start\|>"):
            read_tokenizer(tmp_path)
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings | {"add_eos_token": True}))
    with pytest.raises(InputError, match="add_eos_token has a value that is not supported"):
        read_tokenizer(tmp_path)
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    (tmp_path / "added_tokens.json").write_text(json.dumps({"[PAD]": pieces}))
    with pytest.raises(InputError, match="PAD"):
        read_tokenizer(tmp_path)
    # Pegasus and others shift the ids.
    (tmp_path / "tokenizer_config.json").write_text('{"tokenizer_class": "PegasusTokenizer"}')
    assert read_tokenizer(tmp_path) is None


def test_marian_directory_is_read(tmp_path: Path) -> None:
    """Texts are encoded by source.spm with the ids of vocab.json, as MarianTokenizer does."""
    source, _ = train(tmp_path / "source.spm")
    target, _ = train(tmp_path / "target.spm", model_type="bpe")
    names = {x.id_to_piece(i) for x in (source, target) for i in range(x.get_piece_size())}
    ordered = ["</s>", "<unk>", *sorted(names - {"<s>", "</s>", "<unk>"}), "<pad>", ">>fra<<"]
    vocabulary = {name: i for i, name in enumerate(ordered)}
    (tmp_path / "vocab.json").write_text(json.dumps(vocabulary))
    reference = hf.MarianTokenizer(
        *(str(tmp_path / x) for x in ("source.spm", "target.spm", "vocab.json"))
    )
    config = {**make_model("marian").config.to_dict(), "vocab_size": len(vocabulary)}
    config["decoder_vocab_size"] = len(vocabulary)
    hf.MarianMTModel(hf.MarianConfig.from_dict(config)).save_pretrained(tmp_path)
    model = fourfold.load(tmp_path)
    assert model.notes == ["target.spm not read, since source.spm encodes all texts"]
    tokenizer = model.tokenizer
    known = [x for x in LINES if source.unk_id() not in source.encode(x)]
    assert len(known) > 200
    for line in known:
        wanted = [vocabulary[x] for x in source.encode(line, out_type=str)]
        assert tokenizer.encode(line) == wanted
        if not {"<", "\x00"} & {*line}:  # the reference takes names of special tokens for tokens
            assert reference(line)["input_ids"] == [*wanted, 0]
    text = ">>fra<< the cat"
    assert reference(text)["input_ids"] == [*tokenizer.encode(text), 0]
    assert tokenizer.encode(text)[0] == vocabulary[">>fra<<"]
    ids = [vocabulary[x] for x in target.encode("the tokenizer cat", out_type=str)]
    assert tokenizer.decode([*ids, 0]) == "the tokenizer cat"
    (tmp_path / "vocab.json").write_text(json.dumps(dict.fromkeys(vocabulary, 0)))
    with pytest.raises(InputError, match=r"vocab\.json: the vocabulary must map all pieces"):
        read_tokenizer(tmp_path)


def test_separators_of_clusters_are_unassigned() -> None:
    import unicodedata

    names = ("_BREAK", "_INNER_BREAK", "_HIDDEN", "_START")
    assert all(unicodedata.category(getattr(sentencepiece_files, x)) == "Cn" for x in names)
