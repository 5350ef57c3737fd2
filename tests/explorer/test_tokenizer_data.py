"""Encoders of the page in node: the same ids, tokens and texts as of the tokenizers library."""

import json
import random
import shutil
import subprocess
import unicodedata
from collections.abc import Callable
from importlib.resources import files
from pathlib import Path
from pydoc_data.topics import topics
from typing import Any, get_args

import pytest
from tokenizers import Regex, decoders, models, normalizers, pre_tokenizers

from fourfold.errors import InputError
from fourfold.explorer.inputs import token_texts
from fourfold.explorer.tokenizer_data import tokenizer_data
from fourfold.generation.text_model import MASK, TextModel
from fourfold.models import MaskedLM, MaskedLMConfig
from fourfold.tokenization.tokenizer import Tokenizer
from fourfold.tokenization.training import Kind, TokenizerConfig, train_tokenizer

N_TEXTS = 5000
# White space of Unicode, what JavaScript or Python also takes for it, and invisible characters.
SPACES = "\t\n\x0b\x0c\r \x85\xa0\u1680\u2000\u2003\u200a\u2028\u2029\u202f\u205f\u3000"
SPACES += "\ufeff\x1c\x1d\x1e\x1f\u180e\u200b\u200d\0\x7f\xad"
TRAPS = [
    *SPACES,
    *("  ", "   ", "\n\n", " \n ", "\r\n", " \ufeff "),
    *(
        "ΟΔΟΣ",
        "ΣΑΣ ΟΔΟΣ.",
        "İstanbul",
        "ẞ",
        "ǅ",
        "ŉ",
        "ﬁ",
        "Å",
        "é",
        "e\u0301",
        "a\u0323\u0307",
        "각",
    ),
    *("\ud800", "\udc00", "\udfff\ud83d", "\ufffd", "😀", "👩\u200d👧", "🇩🇪", "𝐀𝟏", "𐐀"),
    *(
        "中",
        "中文字",
        "\U00020000",
        "\U0002a6df",
        "\U0002b740",
        "\U0002b81f\U0002b820",
        "\U0002f800",
    ),
    *(
        "\uf900",
        "가나",
        "かな",
        "עברית",
        "ग़",
        "①",
        "²",
        "½",
        "٣",
        "_",
        "–",
        "„“",
        "¿",
        "$",
        "^",
        "`",
        "~",
    ),
    *(
        "'s",
        "'ll",
        "'S",
        "don't",
        " n't",
        "it 's",
        "a_b",
        "x=1",
        "1,234.5",
        "##ing",
        "Ġ",
        "▁",
        "▁▁a",
    ),
    *(
        "<s>",
        "</s>",
        "<pad>",
        "<unk>",
        "<mask>",
        "<mask",
        "[CLS]",
        "[UNK]",
        "<extra_id_0>",
        "<",
        ">",
    ),
    "w" * 101,
    "Ω" * 100,
]
MASKS = ["[MASK]", "<mask>", "[MASK", "[mask]", *(f"a{space}[MASK]b" for space in SPACES)]


def random_character(draw: random.Random) -> str:
    """Return a character that has had one category since Unicode 3.2, and so in each browser."""
    while True:
        found = chr(draw.randrange(0x30000))
        category = unicodedata.category(found)
        if category == unicodedata.ucd_3_2_0.category(found) not in ("Cn", "Cs"):
            return found


def make_texts(extra: list[str]) -> list[str]:
    """Return texts of a corpus, each trap, and random mixtures of both and `extra`."""
    draw = random.Random(0)
    corpus = [line for name in sorted(topics) for line in topics[name].splitlines() if line]
    words = [word for line in corpus[:2000] for word in line.split(" ")]
    whole = ["", *TRAPS, *extra, *draw.sample(corpus, N_TEXTS // 2)]
    makers: list[Callable[[], str]] = [
        lambda: draw.choice(words),
        lambda: draw.choice(words).upper(),
        lambda: draw.choice([*TRAPS, *extra]),
        lambda: draw.choice(SPACES),
        lambda: random_character(draw),
    ]
    while len(whole) < N_TEXTS:
        parts = [draw.choice(makers)() for _ in range(draw.randrange(1, 12))]
        whole.append(draw.choice(["", " "]).join(parts))
    return whole


def repaired(text: str) -> str:
    """Return a text in which each half of a surrogate pair is U+FFFD, and halves form pairs."""
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def case(name: str, tokenizer: Tokenizer, texts: list[str], **options: Any) -> dict[str, Any]:
    """Return the input and the expected output of the test in node."""
    encode: Callable[[str], list[int]] = tokenizer.encode
    if options:
        config = MaskedLMConfig(d_model=4, n_layers=1, n_heads=1, vocab_size=tokenizer.vocab_size)
        model = MaskedLM(config)
        model.tokenizer = tokenizer
        reader = TextModel(model, truncate=True)
        reader.max_len = None

        def masked(text: str) -> list[int]:
            return reader.masked(text)[0][1:-1]

        encode = masked

    draw = random.Random(1)
    ids = [encode(repaired(text)) for text in texts]
    rows = [
        [draw.randrange(tokenizer.vocab_size + 3) for _ in range(draw.randrange(12))]
        for _ in range(500)
    ]
    return {
        "name": name,
        "tokenizer": tokenizer_data(tokenizer, **options),
        "texts": texts,
        "ids": ids,
        "tokens": [token_texts(tokenizer, row) for row in ids],
        "decoded": [tokenizer.decode(row) for row in ids],
        "rows": rows,
        "decodedRows": [tokenizer.decode(row) for row in rows],
    }


def trained(kind: Kind, texts: list[str], *, lowercase: bool = False) -> Tokenizer:
    config = TokenizerConfig(kind, vocab_size=700, lowercase=lowercase, extra_ids=2)
    return train_tokenizer(config, [repaired(text) for text in texts[:1500]], mask=True)


def run_in_node(root: Path, folder: Path, cases: list[dict[str, Any]]) -> None:
    file = folder / "cases.json"
    file.write_text(json.dumps(cases))
    script = str(files("fourfold.explorer") / "tokenize.js")
    result = subprocess.run(
        ["node", "--test", str(root / "tests" / "explorer" / "tokenize.test.cjs")],
        env={"CASES": str(file), "TOKENIZE": script},
        capture_output=True,
        text=True,
    )
    assert result.returncode == 0, result.stdout
    assert f"# pass {3 * len(cases)}" in result.stdout


needs_node = pytest.mark.skipif(shutil.which("node") is None, reason="needs node")


@needs_node
@pytest.mark.parametrize("kind", get_args(Kind))
def test_five_thousand_texts_have_the_ids_of_the_library(
    root: Path, tmp_path: Path, kind: Kind
) -> None:
    texts = make_texts([])
    masked = [text for text in make_texts(MASKS * 20) if MASK.search(text)]
    cases = []
    for lowercase in (False, True):
        tokenizer = trained(kind, texts, lowercase=lowercase)
        name = f"{kind}, lowercase {lowercase}"
        cases.append(case(name, tokenizer, texts))
        cases.append(case(f"{name}, masked", tokenizer, masked, has_masks=True))
    used = {i for row in cases[0]["ids"] for i in row}
    assert len(used) > len(cases[0]["tokenizer"]["model"]["tokens"]) / 2
    assert len(masked) > 500
    run_in_node(root, tmp_path, cases)


def changed(kind: Kind, **parts: Any) -> Tokenizer:
    """Return a trained tokenizer in which some components are replaced."""
    texts = [line for name in sorted(topics)[:20] for line in topics[name].splitlines()]
    backend = trained(kind, texts).backend
    for name, part in parts.items():
        setattr(backend, name, part)
    return Tokenizer(backend)


@needs_node
def test_components_of_other_tokenizers_are_known(root: Path, tmp_path: Path) -> None:
    texts = make_texts([])[::10]
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=True)
    fused = changed("bpe", decoder=decoders.Metaspace(prepend_scheme="never"))
    fused.backend.model.fuse_unk = True
    no_clean_up = changed(
        "wordpiece",
        decoder=decoders.WordPiece(cleanup=False),
        normalizer=normalizers.BertNormalizer(
            clean_text=False, handle_chinese_chars=False, strip_accents=True, lowercase=False
        ),
    )
    bare = changed("char")
    bare.backend.decoder = None
    cases = [
        case("prefix", changed("byte_bpe", pre_tokenizer=byte_level), texts),
        case("fused", Tokenizer.from_str(fused.to_str()), texts),
        case("plain BERT", no_clean_up, texts),
        case("no decoder", bare, texts),
    ]
    run_in_node(root, tmp_path, cases)


@pytest.mark.parametrize(
    ("parts", "component", "field"),
    [
        ({"normalizer": normalizers.NFKC()}, "NFKC", "type"),
        ({"normalizer": normalizers.Strip()}, "Strip", "content"),
        ({"pre_tokenizer": pre_tokenizers.Digits()}, "Digits", "type"),
        ({"pre_tokenizer": pre_tokenizers.Metaspace()}, "Metaspace", "prepend_scheme"),
        ({"pre_tokenizer": pre_tokenizers.Split(Regex("a+"), "isolated")}, "Split", "pattern"),
        ({"pre_tokenizer": pre_tokenizers.Split("a", "removed")}, "Split", "behavior"),
        ({"decoder": decoders.ByteFallback()}, "ByteFallback", "type"),
        ({"decoder": decoders.Strip(" ", 0, 1)}, "Strip", "start"),
        ({"model": models.BPE(byte_fallback=True)}, "BPE", "byte_fallback"),
    ],
)
def test_unknown_components_are_refused(parts: dict[str, Any], component: str, field: str) -> None:
    tokenizer = changed("char", **parts)
    message = f"^the tokenizer has a {component} that the page lacks: see its {field}$"
    with pytest.raises(InputError, match=message):
        tokenizer_data(tokenizer)


def test_added_words_are_refused() -> None:
    tokenizer = changed("char")
    tokenizer.backend.add_tokens(["word"])
    with pytest.raises(InputError, match="the tokenizer has added tokens that are not special"):
        tokenizer_data(tokenizer)
