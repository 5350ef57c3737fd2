"""Minimal pairs and last words: benchmarks as files, and the accuracy of language models on them.

A model may have several runs with different seeds. Shapes: N questions, S runs.
"""

import zipfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

import numpy as np

from fourfold.core.validation import quote
from fourfold.errors import InputError
from fourfold.generation.score import Request, fitting_methods, score
from fourfold.layers.base_model import Model
from fourfold.metrics.significance import holm, mcnemar, share_interval
from fourfold.text_files import parse_json, read_lines, resolve

SUFFIXES = {"blimp": ".jsonl", "zorro": ".txt", "pairs": ".tsv", "lambada": ".jsonl"}
# The paper has 12 groups; the files name two of the paradigms of argument structure differently.
MERGED = {"s-selection": "argument_structure"}
NEAR_TIE = 1e-4  # nats; rounding may change the sign of a smaller difference

Rows = list[dict[str, Any]]


class Question(NamedTuple):
    """Item of a benchmark.

    Args:
        group: Group of paradigms.
        paradigm: Template of the item.
        requests: A correct and an incorrect sentence; or a single word with its context.
    """

    group: str
    paradigm: str
    requests: tuple[Request, ...]


def read_questions(benchmark: str, path: str) -> list[Question]:
    """Read a benchmark, a key of `SUFFIXES`, from a zip archive, a folder or a file.

    Raises:
        InputError: There are no files of the benchmark, or a line is invalid.
    """
    place, suffix, files = resolve(path), SUFFIXES[benchmark], [path]
    if place.is_dir():
        files = sorted(str(file) for file in place.rglob(f"*{suffix}"))
    elif zipfile.is_zipfile(place):
        names = zipfile.ZipFile(place).namelist()
        files = [f"{path}/{name}" for name in sorted(names) if name.endswith(suffix)]
    if not files:
        raise InputError(f"there is no file *{suffix}", file=path)
    return [question for file in files for question in _read(benchmark, file)]


def _read(benchmark: str, file: str) -> Iterator[Question]:
    name, lines, keys = Path(file).stem, read_lines(file), ("sentence_good", "sentence_bad")
    if benchmark == "zorro":  # each pair is an ungrammatical line and a grammatical one
        lines = ["\t".join(lines[i : i + 2][::-1]) for i in range(0, len(lines), 2)]
    for number, line in enumerate(lines, 1):
        content = parse_json(line, file, number) if file.endswith(".jsonl") else None
        row = content if isinstance(content, dict) else {}
        texts: Any = [row.get(key) for key in keys] if row else line.split("\t")
        if benchmark == "lambada":
            texts = str(row.get("text", line)).strip().rpartition(" ")[::2]
        if len(texts) != 2 or not all(isinstance(x, str) and x.strip() for x in texts):
            needed = "two words" if benchmark == "lambada" else "two sentences (separated by a tab)"
            message = f"must have {needed}, got {quote(line)!r}"
            raise InputError(message, option="the line", file=file, line=number)
        paradigm = str(row.get("UID", name))
        group = str(row.get("linguistics_term", paradigm))
        if benchmark == "zorro":
            group = name.rpartition("-")[0] or name
        pair, word = tuple(("", text) for text in texts), ((texts[0], f" {texts[1]}"),)
        yield Question(MERGED.get(group, group), paradigm, word if benchmark == "lambada" else pair)


def answer(model: Model, questions: Sequence[Question], **options: Any) -> np.ndarray:
    """Score questions; the options are those of `fourfold.score`.

    The default method of an encoder-decoder is prefix, since a sentence has no source.

    Returns:
        (2, N): the score of each correct sentence or word; and its difference to that of the
        incorrect sentence, or for a word 1 if all its tokens are the most likely ones, else -1.

    Raises:
        InputError: As in `fourfold.score`; or a masked LM is to predict words, although the number
            of masks reveals the length of a word.
    """
    n_texts = len(questions[0].requests)
    if n_texts == 1 and not model.can_generate:
        raise InputError("must be a causal LM or an encoder-decoder", option="model")
    if options.get("method") is None and "prefix" in fitting_methods(model):
        options["method"] = "prefix"
    texts = [request for question in questions for request in question.requests]
    found = score(model, texts, together=n_texts, **options)
    totals = np.array([result.total for result in found])
    if n_texts == 1:
        return np.stack([totals, [2.0 * result.is_greedy - 1.0 for result in found]])
    return np.stack([totals[::2], totals[::2] - totals[1::2]])


def tabulate(questions: Sequence[Question], models: Mapping[str, np.ndarray]) -> dict[str, Rows]:
    """Return the rows "all", "groups" and "paradigms" of a table with columns for each model.

    The values of a model are arrays (S, 2, N) of `answer`. Accuracies are in percent, with Wilson's
    interval over the items. p-values are those of McNemar's test of a model and the first one; for
    paradigms, they have Holm's correction, for each model by itself.
    """
    tables = {"all": [_row("all items", np.arange(len(questions)), models)]}
    for kind in ("group", "paradigm"):
        items = items_by(kind, questions)
        rows = tables[f"{kind}s"] = [_row(name, items[name], models) for name in items]
        means = {key: fmean(row[key] for row in rows) for key in models}
        tables["all"].append({"": f"mean of {kind}s", "n": len(rows), **means})
    for key in (f"p({letter}-A)" for letter in [*models][1:]):
        adjusted = holm([row[key] for row in tables["paradigms"]])
        for row, p in zip(tables["paradigms"], adjusted, strict=True):
            row[key] = p
    return tables


def items_by(kind: str, questions: Sequence[Question]) -> dict[str, np.ndarray]:
    """Return the indices of the questions of each group or paradigm."""
    names = np.array([getattr(question, kind) for question in questions])
    return {name: np.flatnonzero(names == name) for name in dict.fromkeys(names.tolist())}


def _row(name: str, items: np.ndarray, models: Mapping[str, np.ndarray]) -> dict[str, Any]:
    row: dict[str, Any] = {"": name, "n": len(items)}
    shares = {letter: (x[:, 1, items] > 0).mean(0) for letter, x in models.items()}
    for letter, share in shares.items():
        total, difference = models[letter][:, :, items].swapaxes(0, 1)
        low, high = share_interval(share.mean(), len(items))
        n_ties, n_near = (int((np.abs(difference) <= limit).sum()) for limit in (0, NEAR_TIE))
        row |= {letter: 100 * float(share.mean()), f"{letter} low": 100 * float(low)}
        row |= {f"{letter} high": 100 * float(high), f"{letter} ties": n_ties}
        row |= {f"{letter} near": n_near - n_ties, f"{letter} nats": float(total.mean())}
        if letter != "A":
            change = share - shares["A"]
            row[f"{letter}-A"] = 100 * float(change.mean())
            row[f"p({letter}-A)"] = mcnemar(int((change > 0).sum()), int((change < 0).sum()))
    return row
