"""Damaged text files: plain text, parallel text, tables, CoNLL columns and SQuAD JSON."""

import bz2
import gzip
import io
import json
import lzma
import zipfile
from typing import TYPE_CHECKING, Any

from hypothesis import strategies as st

from tests.fuzz.damage import ODD, Draw, changed, spoilt
from tests.fuzz.invariant import Case, Files

if TYPE_CHECKING:
    from tests.fuzz.conftest import World

WORDS = ["one", "two", "three", "four", "five", "six"]
# Fragments of lines, some of which are invalid.
PIECES = [
    *WORDS,
    *WORDS,
    "",
    " ",
    "\t",
    "\x00",
    "\r",
    "\u2028",
    "\u0085",
    "\ufeff",
    "\u200b",
    "é",
    "e\u0301",
    "ß" * 40,
    "漢字",
    "👩‍👩‍👧",
    "\U0010ffff",
    "\ufffd",
    "<unk>",
    "<s>",
    "</s>",
    "[MASK]",
    "<mask>",
    "<pad>",
    "[CLS]",
    "x" * 6000,
    "- " * 300,
    '"',
    "'",
    ",",
    '"a,b',
    "\\",
    "\\n",
    "-DOCSTART-",
    "##a",
    "▁",
    "Ġ",
    "{lang}",
]
PACKERS = {".gz": gzip.compress, ".xz": lzma.compress, ".bz2": bz2.compress, "": bytes}
TOKENIZERS = ["bpe", "byte_bpe", "wordpiece", "unigram", "word", "char"]

line = st.lists(st.sampled_from(PIECES), min_size=1, max_size=5).map(" ".join)
plain = st.lists(st.sampled_from(WORDS), min_size=1, max_size=5).map(" ".join)


def squad() -> str:
    """Return a small valid file."""
    context = "one two three four five six seven eight"
    asked = [
        {
            "id": f"q{i}",
            "question": f"what is {word}",
            "answers": [{"text": word, "answer_start": context.index(word)}],
        }
        for i, word in enumerate(context.split())
    ]
    return json.dumps({"data": [{"paragraphs": [{"context": context, "qas": asked}]}]})


@st.composite
def encoded(draw: Draw, text: str) -> bytes:
    """Encoded text, with one of several encodings and line ends."""
    ends = draw(st.sampled_from(("\n",) * 5 + ("\r\n", "\r")))
    names = ("utf-8",) * 8 + ("utf-8-sig", "utf-16", "latin-1")
    how = draw(st.sampled_from(names))
    data = text.replace("\n", ends).encode(how, "replace")
    return draw(spoilt(data)) if draw(st.integers(0, 3)) == 0 else data


@st.composite
def lines(draw: Draw) -> str:
    """Lines of a plain text file, most of them valid."""
    odd = draw(st.lists(line, max_size=6))
    good = draw(st.lists(plain, min_size=0, max_size=12))
    return "\n".join(draw(st.permutations(odd + good))) + draw(st.sampled_from(("\n", "")))


def odd_json(draw: Draw) -> str:
    """JSON value, possibly invalid."""
    written = [
        "NaN",
        "Infinity",
        "1e999",
        "9" * 5000,
        "[" * 9999,
        '"\\ud800"',
        "nul",
        "{1: 2}",
        '{"a": 1, "a": 2}',
        "'x'",
        "\ufeff{}",
    ]
    plain_values = [json.dumps(value) for value in ODD[:26]]
    return str(draw(st.sampled_from(written + plain_values)))


@st.composite
def table(draw: Draw, kind: str) -> str:
    """Table with two texts and a label per row, possibly incomplete."""
    labels = st.sampled_from(["yes", "no", "yes", "no", "", "1", "nan", "maybe"])
    rows = draw(st.lists(st.tuples(line | plain, plain, labels), max_size=10))
    rows += draw(st.sampled_from(([("a", "b", "yes"), ("c", "d", "no")], [])))
    head = draw(st.sampled_from((("a", "b", "label"),) * 5 + (("a", "b"), ("b", "label"), ())))
    if kind == ".jsonl":
        records = [json.dumps(dict(zip(("a", "b", "label"), row, strict=True))) for row in rows]
        if draw(st.booleans()):
            at = draw(st.integers(0, len(records)))
            value = odd_json(draw)
            wrong = draw(st.sampled_from((value, f'{{"a": {value}, "b": "x", "label": "no"}}')))
            records.insert(at, wrong)
        return "\n".join(records) + "\n"
    between = "," if kind == ".csv" else "\t"
    short = draw(st.integers(0, 4)) == 0
    return "\n".join(between.join(row[: 2 if short else 3]) for row in (head, *rows)) + "\n"


@st.composite
def tagged(draw: Draw) -> str:
    """CoNLL file with a word and a tag per line, possibly invalid."""
    tag = st.sampled_from(["O", "B-x", "I-x", "B-", "I-y", "-", "", "é"])
    sep = draw(st.sampled_from("\t\t "))
    made = draw(st.lists(st.tuples(st.sampled_from(WORDS) | line, tag), max_size=12))
    return "\n".join(sep.join(pair) if pair[1] != "é" else "" for pair in made) + "\n"


@st.composite
def questions(draw: Draw) -> str:
    """SQuAD JSON with one changed value."""
    good = json.loads(squad())
    tree = draw(changed(good, st.sampled_from(ODD[:-2])))
    text = json.dumps(tree)
    if draw(st.integers(0, 5)) == 0:
        text = text.replace('"what is two"', odd_json(draw))
    return text


def packed(draw: Draw, name: str, data: bytes) -> tuple[str, Files]:
    """Value of a file option with its files, possibly compressed or truncated."""
    suffix = draw(st.sampled_from(("",) * 5 + (".gz", ".xz", ".bz2", "zip")))
    if suffix == "zip":
        archive = io.BytesIO()
        with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as opened:
            opened.writestr(name, data)
        content, value = archive.getvalue(), f"all.zip/{name}"
        name = "all.zip"
    else:
        honest = draw(st.integers(0, 5)) > 0
        content = PACKERS[suffix](data) if honest else data
        name = value = name + suffix
    if suffix and draw(st.integers(0, 2)) == 0:
        content = draw(spoilt(content))
    return value, {name: content}


@st.composite
def training(draw: Draw, world: "World") -> Case:
    """Training with one damaged data file."""
    family = draw(st.sampled_from(["mt", "mt", "lm", "mlm", "classes", "classes", "tags", "qa"]))
    kind = draw(st.sampled_from((".tsv", ".csv", ".jsonl")))
    options, name = [], "f.txt"
    as_table = family == "classes" or (family in ("mt", "lm") and draw(st.integers(0, 2)) == 0)
    if as_table:
        name, text = f"f{kind}", draw(table(kind))
        options = {"mt": ["--data.columns=[a, b]"], "lm": ["--data.column=a"]}.get(family, [])
    elif family == "tags":
        name, text = "f.conll", draw(tagged())
    elif family == "qa":
        name, text = "f.json", draw(questions())
    else:
        text = draw(lines())
    value, files = packed(draw, name, draw(encoded(text)))
    if family == "mt" and not as_table:
        other = draw(st.sampled_from((text, draw(lines()))))
        files["g.txt"] = draw(encoded(other))
        value = f"[{value}, g.txt]"
    part = draw(st.sampled_from(("train", "train", "train", "val")))
    options += [f"--data.{part}={value}"]
    if part == "train":
        options.append("--data.test=null")  # the test file would have other columns and labels
        options.append("--data.val=" + draw(st.sampled_from(("null", "null", "0.3"))))
    if draw(st.booleans()):
        options.append("--data.tokenizer.kind=" + draw(st.sampled_from(TOKENIZERS)))
    if family in ("mt", "classes") and draw(st.booleans()):
        options.append("--data.too_long=" + draw(st.sampled_from(("truncate", "drop"))))
    if family in ("lm", "mlm"):
        options.append("--data.documents=" + draw(st.sampled_from(("file", "line", "paragraph"))))
    if family == "mlm":
        layouts = ("full_sentences", "segment_pairs", "documents")
        options.append("--data.layout=" + draw(st.sampled_from(layouts)))
    config = ("--config", str(world.configs[family]), "--run_dir", "r")
    return Case(("fit", *config, *options), files, names=(*files, "/text/", "max_len", "split"))


@st.composite
def asking(draw: Draw, world: "World") -> Case:
    """Inference command with invalid lines as input."""
    verb, family = draw(
        st.sampled_from(
            (
                ("translate", "mt"),
                ("generate", "lm"),
                ("fill", "mlm"),
                ("classify", "classes"),
                ("classify", "tags"),
            )
        )
    )
    data = draw(encoded(draw(lines())))
    more = draw(st.sampled_from(((), ("--truncate",), ("--truncate", "--batch-size", "1"))))
    beam = ("--num-beams", "2") if verb in ("translate", "generate") and draw(st.booleans()) else ()
    new = ("--max-new-tokens", "3") if verb in ("translate", "generate") else ()
    return Case(
        (verb, "--checkpoint", str(world.runs[family]), *more, *beam, *new),
        stdin=data,
        names=("<stdin>:",),
    )


def cases(world: "World") -> st.SearchStrategy[Any]:
    """Return the strategy of trainings and inference commands, three to one."""
    return st.integers(0, 3).flatmap(lambda n: training(world) if n else asking(world))
