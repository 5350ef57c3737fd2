"""Labelled pairs, tagged words and questions that follow a rule, as files of a few rows."""

import json
import random
from pathlib import Path

WORDS = ["one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten"]


def sentences(n: int, seed: int) -> list[str]:
    """N sentences of one to nine number words, each with its own number."""
    rng = random.Random(seed)
    return [" ".join(rng.choices(WORDS, k=rng.randint(1, 9))) + f" {i}." for i in range(n)]


def write_labelled(folder: Path, split: str, n: int, seed: int) -> None:
    """Labelled pairs (.tsv), tagged words (.conll) and questions (.json), n of each."""
    rng = random.Random(seed)
    rows, tagged, asked = ["a\tb\tkind\tscore"], [], []
    for i, text in enumerate(sentences(n, seed)):
        words = text.split()
        rows.append(f"{text}\t{rng.choice(WORDS)}\t{len(words) % 3}\t{len(words) / 2}")
        tags = ["B-odd" if word in WORDS[::2] else "O" for word in words]
        tagged.append("\n".join(f"{w}\t{t}" for w, t in zip(words, tags, strict=True)) + "\n")
        answer = rng.choice(words)
        answers = [{"text": answer, "answer_start": text.index(answer)}]
        qas = [{"id": str(i), "question": f"where is {answer}", "answers": answers}]
        asked.append({"context": text, "qas": qas})
    (folder / f"{split}.tsv").write_text("\n".join(rows) + "\n")
    (folder / f"{split}.conll").write_text("\n".join(tagged) + "\n")
    (folder / f"{split}.json").write_text(json.dumps({"data": [{"paragraphs": asked}]}))
