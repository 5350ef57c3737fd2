"""Bounds of a tokenizer.json: patterns, replacements and token ids."""

import json
import time
from typing import Any

import pytest
from tokenizers import Regex, models, normalizers, pre_tokenizers
from tokenizers import Tokenizer as Backend

from fourfold.errors import InputError
from fourfold.tokenization.checks import pattern_problem
from fourfold.tokenization.tokenizer import Tokenizer

GPT4 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
PUBLISHED = {
    "gpt2": r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",
    "gpt4": GPT4,
    "gpt4o": (
        r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+"
    ),
    "clip": r"<\|startoftext\|>|<\|endoftext\|>|'s|'t|[\p{L}]+|[\p{N}]|[^\s\p{L}\p{N}]+",
    "bloom": r" ?[^(\s|[.,!?…。，、।۔،])]+",
    "groups of three digits": r"(?=(\d{3})+(?!\d))",
    "deepseek": r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+| ?[\p{P}\p{S}]+[\r\n]*|\s+$",
    "brackets": r"[\[\]]|\(|\\",
}
SLOW = (
    *(r"(a+)+$", r"(a|a)*$", r"(a|aa)+$", r"(a?a)*b", r"(?:(?:a+))*", r"(?>a+)+b", r"(a+){2,}"),
    *(r"(?:a{0,30}){0,30}", r".*.*.*.*x", "a?" * 30 + "a" * 30, "(a|a)" * 30 + "b", r"a{1,9}{1,9}"),
    *(r"(.*)\1*", r"(?<x>a|b\g<x>c)", r"(a # )" + "\n" + r"+)+(?x)", r"(a+\c))+", r"[]a+]+(b+)+"),
)


def backend(vocab: dict[str, int] | None = None) -> Backend:
    roles = {"<pad>": 0, "<s>": 1, "</s>": 2, "<unk>": 3, "a": 4}
    return Backend(models.WordLevel(roles | (vocab or {}), unk_token="<unk>"))


@pytest.mark.parametrize("name", PUBLISHED)
def test_pattern_of_a_published_tokenizer_is_accepted(name: str) -> None:
    assert pattern_problem(PUBLISHED[name]) is None
    Regex(PUBLISHED[name])  # the library reads the pattern


@pytest.mark.parametrize("pattern", SLOW)
def test_pattern_that_may_need_exponential_time_is_rejected(pattern: str) -> None:
    assert pattern_problem(pattern) is not None


@pytest.mark.parametrize("part", ["pre_tokenizer", "normalizer"])
def test_tokenizer_with_a_catastrophic_pattern_is_rejected_in_one_sentence(part: str) -> None:
    made, slow = backend(), Regex(r"(a+)+$")
    made.pre_tokenizer = pre_tokenizers.Split(slow, "isolated")
    if part == "normalizer":
        made.pre_tokenizer = pre_tokenizers.Whitespace()
        made.normalizer = normalizers.Sequence([normalizers.Replace(slow, "_")])
    begin = time.process_time()
    with pytest.raises(InputError, match=r"^t.json: the pattern '\(a\+\)\+\$' repeats a group"):
        Tokenizer.from_str(made.to_str(), "t.json")
    assert time.process_time() - begin < 1


def test_panic_of_the_library_becomes_an_input_error() -> None:
    made = Tokenizer(backend())
    made.backend.pre_tokenizer = pre_tokenizers.Split(Regex(r"(a+)+$"), "isolated")
    with pytest.raises(InputError, match=r"fails for this text: .*retry-limit"):
        made.encode("a" * 40 + "b")


def test_replacements_that_multiply_a_text_are_rejected() -> None:
    made = backend()
    double = normalizers.Replace("a", "aa")
    made.normalizer = normalizers.Sequence([double] * 30)
    with pytest.raises(InputError, match="may lengthen a text 1073741824 times, at most 64"):
        Tokenizer.from_str(made.to_str())
    made.normalizer = normalizers.Sequence([double] * 2)
    assert Tokenizer.from_str(made.to_str()).encode("a") == [3]


@pytest.mark.parametrize("place", ["vocab", "added_tokens"])
def test_token_id_near_a_billion_is_rejected(place: str) -> None:
    content: dict[str, Any] = json.loads(backend().to_str())
    if place == "vocab":
        content["model"]["vocab"]["b"] = 10**9
    else:
        made = backend()
        made.add_special_tokens(["<mask>"])
        content = json.loads(made.to_str())
        content["model"]["vocab"]["<mask>"] = content["added_tokens"][0]["id"] = 10**9
    with pytest.raises(InputError, match=r"must be below 65536 for \d tokens, got 1000000000"):
        Tokenizer.from_str(json.dumps(content))


def test_vocabulary_of_several_hundred_thousand_tokens_is_accepted() -> None:
    made = Tokenizer(backend({f"w{i}": i + 5 for i in range(300_000)}))
    assert made.encode("w299999") == [300_004]
