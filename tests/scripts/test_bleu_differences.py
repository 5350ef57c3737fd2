"""Differences of BLEU between models, on texts whose order of quality is known."""

import csv
import json
from pathlib import Path

import pytest
import sacrebleu
from PIL import Image

from scripts import bleu_differences as script

TEXTS = [[f"a dog number {i} runs on the green grass", f"the dog {i} runs"] for i in range(12)]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder of captioned images, and the captions of two rows with one and two seeds."""
    (tmp_path / "images").mkdir()
    lines = []
    for i, captions in enumerate([["a training image"], *TEXTS]):
        Image.new("RGB", (2, 2)).save(tmp_path / "images" / f"{i}.png")
        split = "val" if i else "train"
        lines.append(json.dumps({"image": f"{i}.png", "split": split, "captions": captions}))
    (tmp_path / "captions.jsonl").write_text("\n".join(lines) + "\n")
    good, poor = [texts[0] for texts in TEXTS], [f"{texts[0]} {i}" for i, texts in enumerate(TEXTS)]
    for name, captions in {"poor/seed_0": poor, "good/seed_0": good, "good/seed_1": poor}.items():
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "predictions.txt").write_text("\n".join(captions) + "\n")
    return tmp_path


def test_a_better_row_is_above_and_an_equal_row_is_not(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = [str(folder), "poor", "good", "poor", "--runs", str(folder)]
    assert script.main([*given, "--out", str(folder / "t.csv")]) == 0
    text = (folder / "t.csv").read_text()
    assert capsys.readouterr().out == text
    better, equal = csv.DictReader(text.splitlines())
    assert (better["seeds"], better["bleu4"]) == ("1", "100.00")  # the seeds of both
    assert float(better["low"]) > 0
    assert float(better["difference"]) == pytest.approx(100 - float(better["base_bleu4"]))
    assert (equal["difference"], equal["low"], equal["high"]) == ("0.00", "0.00", "0.00")


def test_missing_captions_are_an_error(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    given = [str(folder), "poor", "good", "--runs", str(folder)]
    (folder / "good/seed_0/predictions.txt").write_text("a dog\n")
    assert script.main(given) == 2
    assert "has 1 predictions for 12 examples" in capsys.readouterr().err
    (folder / "good/seed_0/predictions.txt").unlink()
    assert script.main(given) == 2  # only seed_1 is left, which "poor" lacks
    assert "no seed in common" in capsys.readouterr().err
    (folder / "good/seed_1/predictions.txt").unlink()
    assert script.main(given) == 2
    assert "there is no seed_*/predictions.txt" in capsys.readouterr().err


def test_differences_of_translations_are_those_of_sacrebleu(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    references = [f"{texts[0]}, he said." for texts in TEXTS]
    (folder / "test.de").write_text("\n".join(references) + "\n")
    with (folder / "good/seed_0/predictions.txt").open("a") as file:
        file.write("a translation of another file\n")
    assert script.main([str(folder / "test.de"), "poor", "good", "--runs", str(folder)]) == 0
    (row,) = csv.DictReader(capsys.readouterr().out.splitlines())
    for name, cell in (("good", row["bleu4"]), ("poor", row["base_bleu4"])):
        texts = (folder / name / "seed_0/predictions.txt").read_text().splitlines()[: len(TEXTS)]
        assert float(cell) == pytest.approx(
            sacrebleu.corpus_bleu(texts, [references], smooth_method="none").score, abs=0.01
        )
