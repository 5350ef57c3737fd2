"""`fourfold predict --input`: the answers of the line commands, for tables of one's own."""

import csv
import io
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

from fourfold.checkpoints.files import read_file
from fourfold.commands.infer.predict_table import main

CELLS = ['one, "two"', "two one", "three, four", "five"]


def answers(run: Any, monkeypatch: Any, verb: str, folder: Path, lines: list[str]) -> list[str]:
    text = "".join(line + "\n" for line in lines).encode()
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text)))
    result = run(verb, "--checkpoint", folder, *([] if verb == "caption" else ["--truncate"]))
    assert result.code == 0, result.err
    return list(result.out.splitlines())


def predicted(run: Any, *options: object) -> list[dict[str, str]]:
    result = run("predict", *options)
    assert result.code == 0, result.err
    return list(csv.DictReader(io.StringIO(result.out)))


def write_table(file: Path, columns: dict[str, list[str]]) -> None:
    rows = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
    with file.open("w", newline="", encoding="utf-8") as out:
        if file.suffix == ".jsonl":
            out.writelines(json.dumps(row) + "\n" for row in rows)
        else:
            writer = csv.DictWriter(
                out, columns, dialect={".csv": "excel", ".tsv": "excel-tab"}[file.suffix]
            )
            writer.writeheader()
            writer.writerows(rows)


@pytest.mark.parametrize("suffix", [".csv", ".tsv", ".jsonl"])
def test_pairs_have_the_classes_of_classify(
    suffix: str, run: Any, trained: Callable[[str], Path], here: Path, monkeypatch: Any
) -> None:
    folder, second = trained("classes"), CELLS[::-1]
    write_table(here / f"own{suffix}", {"number": list("0123"), "first": CELLS, "second": second})
    options = ["--input", f"own{suffix}", "--text", "first", "second"]
    found = predicted(run, "--run_dir", folder, *options)
    pairs = zip(CELLS, second, strict=True)
    expected = answers(run, monkeypatch, "classify", folder, ["\t".join(pair) for pair in pairs])
    assert [f"{row['name']}\t{float(row['probability']):.4f}" for row in found] == expected
    assert [row["row"] for row in found] == list("0123")
    assert run("predict", "--run_dir", folder, *options, "--out", "o/p.csv").code == 0
    assert list(csv.DictReader((here / "o/p.csv").open(encoding="utf-8"))) == found


def test_images_texts_and_tags(
    run: Any, trained: Callable[[str], Path], here: Path, monkeypatch: Any
) -> None:
    (here / "in").mkdir()
    for number in range(3):
        Image.new("L", (8, 8), number * 100).save(here / f"in/{number}.png")
    names = [f"{number}.png" for number in range(3)]
    write_table(here / "in/own.csv", {"image": names})
    paths = [f"in/{name}" for name in names]
    for family, verb, column in (("vit", "classify", "name"), ("captions", "caption", "text")):
        found = predicted(run, "--run_dir", trained(family), "--input", "in/own.csv")
        expected = answers(run, monkeypatch, verb, trained(family), paths)
        assert [row[column] for row in found] == [line.split("\t")[1] for line in expected]
    write_table(here / "own.csv", {"text": ["one two", "three"]})
    for family, verb, column in (("tags", "classify", "tags"), ("mt", "translate", "text")):
        given = ["--run_dir", trained(family) / "checkpoints/last.ckpt", "--input", "own.csv"]
        found = predicted(run, *given, "--text", "text")
        expected = answers(run, monkeypatch, verb, trained(family), ["one two", "three"])
        assert [row[column] for row in found] == expected


def test_bad_tables(run: Any, trained: Callable[[str], Path], here: Path) -> None:
    folder = trained("classes")
    write_table(here / "own.csv", {"a": ["x"], "b": ["y"]})
    for family, options, said in (
        ("classes", ["--text", "a", "c"], "there is no column 'c', only a, b"),
        ("classes", ["--text", "a"], "must have 2 texts"),
        ("lm", ["--text", "a"], "model must be an encoder-decoder of texts, got CausalLM"),
        ("vit", ["--text", "a"], "own.csv, row 2: x: the image cannot be read"),
    ):
        result = run("predict", "--run_dir", trained(family), "--input", "own.csv", *options)
        assert result.code == 2
        assert said in result.err
        assert result.err.count("\n") == 1
    assert run("predict", "--run_dir", folder, "--input", "no.csv").code == 2


def test_output_is_utf8_in_any_locale(
    trained: Callable[[str], Path], here: Path, monkeypatch: Any
) -> None:
    content = read_file(trained("classes") / "checkpoints/last.ckpt")
    content["fourfold"]["data"]["class_names"] = ["ähnlich", "völlig anders"]
    torch.save(content, here / "x.ckpt")
    write_table(here / "own.csv", {"a": ["one"], "b": ["two"]})
    out = io.TextIOWrapper(io.BytesIO(), "ascii")
    monkeypatch.setattr(sys, "stdout", out)
    assert main(["--run_dir", "x.ckpt", "--input", "own.csv", "--text", "a", "b"]) == 0
    out.flush()
    header, row = out.buffer.getvalue().decode().splitlines()  # type: ignore[attr-defined]
    assert header == "row,class,name,probability"
    assert row.split(",")[2] in ("ähnlich", "völlig anders")
