"""Training and test tables of published results, made from files in their published form.

    python scripts/tools/published_data.py DATA OUT

DATA is the folder with seq2seq/{scan,cmudict,conll2017_inflection} and translation/multi30k, whose
files are as published, compressed by gzip or zip. `fourfold reproduce` finds the following files if
FOURFOLD_DATA is OUT, or if OUT is the current directory:

- prepared/scan/{train,test}.tsv: command, tab, actions; the simple split of SCAN. The file
  train_2_percent.tsv has as many random training commands as 2 % of both files.
- prepared/cmudict/{train,val,test}.tsv: letters of a word, tab, phonemes without stress. A word is
  in the test split, or in the validation split, for one in 20 values of its hash each. Further
  pronunciations of a word are left out.
- prepared/modular/{train,test}.tsv: "a + b =", tab, (a + b) mod 97, for half of all pairs each.
- prepared/inflection/{train,val}.tsv: letters of a German lemma and its morphological features,
  tab, letters of the inflected form; the training data "high" and the development data of 2017.
- prepared/multi30k/{train,val,test}.tsv: English and German captions in lower case; the split test
  is test_2016_flickr.
"""

import gzip
import random
import re
import sys
import zlib
from collections.abc import Iterable
from pathlib import Path
from zipfile import ZipFile

MODULUS = 97
Pair = tuple[str, str]


def scan(lines: Iterable[str]) -> list[Pair]:
    """Divide lines "IN: command OUT: actions" into commands and actions."""
    found = [re.fullmatch(r"IN: (.+) OUT: (.+)", line.strip()) for line in lines]
    return [(match[1], match[2]) for match in found if match]


def cmudict(lines: Iterable[str]) -> dict[str, list[Pair]]:
    """Divide a dictionary into letters and phonemes of the words of each split."""
    splits: dict[str, list[Pair]] = {"train": [], "val": [], "test": []}
    for line in lines:
        word, *phonemes = line.partition("#")[0].split()
        if not re.fullmatch(r"[a-z']+", word):  # a further pronunciation ends with (2)
            continue
        name = {0: "test", 1: "val"}.get(zlib.crc32(word.encode()) % 20, "train")
        splits[name].append((" ".join(word), re.sub(r"\d", "", " ".join(phonemes))))
    return splits


def modular() -> dict[str, list[Pair]]:
    """Return all sums modulo 97, divided at random into halves."""
    numbers = range(MODULUS)
    sums = [(f"{a} + {b} =", str((a + b) % MODULUS)) for a in numbers for b in numbers]
    random.Random(0).shuffle(sums)
    half = len(sums) // 2
    return {"train": sums[:half], "test": sums[half:]}


def with_sample(splits: dict[str, list[Pair]]) -> dict[str, list[Pair]]:
    """Add a random sample of the training split, 2 % of all pairs, as a further split."""
    size = sum(map(len, splits.values())) // 50
    return splits | {"train_2_percent": random.Random(0).sample(splits["train"], size)}


def inflection(lines: Iterable[str]) -> list[Pair]:
    """Divide lines "lemma TAB form TAB features" into lemma with features, and form."""
    rows = [line.split("\t") for line in lines]

    def letters(word: str) -> str:
        return " ".join(word.replace(" ", "_"))

    return [(f"{letters(row[0])} {row[2].replace(';', ' ')}", letters(row[1])) for row in rows]


def read(file: Path) -> list[str]:
    """Read the lines of a file that is compressed by gzip."""
    return gzip.decompress(file.read_bytes()).decode("utf-8").splitlines()


def caption_lines(file: Path) -> list[str]:
    """Read captions in lower case, with one space in the place of tabs and several spaces."""
    return [" ".join(line.lower().split()) for line in read(file)]


def main(data: Path, out: Path) -> None:
    """Write the tables of all tasks."""
    letters, captions = data / "seq2seq", data / "translation/multi30k"
    simple = {
        name: scan(read(letters / f"scan/tasks_{name}_simple.txt.gz")) for name in ("train", "test")
    }
    with ZipFile(letters / "conll2017_inflection/traindev_12languages.zip") as members:
        forms = {
            split: inflection(members.read(f"german-{name}").decode("utf-8").splitlines())
            for split, name in (("train", "train-high"), ("val", "dev"))
        }
    lower = {
        split: list(
            zip(
                caption_lines(captions / f"{name}.en.gz"),
                caption_lines(captions / f"{name}.de.gz"),
                strict=True,
            )
        )
        for split, name in (("train", "train"), ("val", "val"), ("test", "test_2016_flickr"))
    }
    tasks = {
        "scan": with_sample(simple),
        "cmudict": cmudict(read(letters / "cmudict/cmudict.dict.gz")),
        "modular": modular(),
        "inflection": forms,
        "multi30k": lower,
    }
    for task, splits in tasks.items():
        folder = out / "prepared" / task
        folder.mkdir(parents=True, exist_ok=True)
        for name, pairs in splits.items():
            text = "".join(f"{given}\t{wanted}\n" for given, wanted in pairs)
            (folder / f"{name}.tsv").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
