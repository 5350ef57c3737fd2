import json
from pathlib import Path

from PIL import Image

from fourfold.bench.report import content, line, markdown, write
from fourfold.bench.rows import Row, against_ours
from fourfold.bench.shapes import Settings

ROWS = [
    Row("train", "vit", "fourfold", "ms a step", values=[2.0, 1.0], ratios=[1.0, 1.0],
        shares=[0.5, 0.6], ceiling="matrix product", parameters=1234),
    Row("train", "vit", "timm", "ms a step", note="not installed"),
    Row("growth", "causal_lm", "fourfold", "MiB", "length", [3.0], [1.0], x=1024),
]  # fmt: skip
SETTINGS = Settings(size="tiny", nanogpt="/somewhere/model.py")
MACHINE = {"processor": "a processor", "gpu": None, "threads": 1}


def test_tables() -> None:
    text = markdown(ROWS, MACHINE, SETTINGS)
    assert "processor a processor, threads 1\n" in text
    assert "| family | way | parameters | value | times ours | share | note |" in text
    assert (
        "| vit | fourfold | 1,234 | 1.50 [1.00, 2.00] ms a step | 1.00 [1.00, 1.00]"
        " | 55.0 [50.0, 60.0] % of matrix product |  |"
    ) in text
    assert "| vit | timm |  |  |  |  | not installed |" in text
    assert "| causal_lm | length | 1,024 | fourfold | 3.00 [3.00, 3.00] MiB |" in text
    assert line(ROWS[1]) == "train: vit, timm, not installed"


def test_every_measurement_is_kept_and_no_path() -> None:
    found = json.loads(content(ROWS, MACHINE, SETTINGS))
    assert found["rows"][0]["values"] == [2.0, 1.0]
    assert found["rows"][1] == {
        "work": "train", "family": "vit", "way": "timm", "unit": "ms a step",
        "note": "not installed",
    }  # fmt: skip
    assert found["settings"]["nanogpt"] is True
    assert "somewhere" not in json.dumps(found)


def test_three_files(tmp_path: Path) -> None:
    write(ROWS, MACHINE, SETTINGS, tmp_path)
    assert sorted(f.name for f in tmp_path.iterdir()) == ["bench.json", "bench.md", "bench.png"]
    with Image.open(tmp_path / "bench.png") as image:
        assert min(image.size) > 100


def test_a_plot_of_nothing_is_empty(tmp_path: Path) -> None:
    write([ROWS[1]], MACHINE, SETTINGS, tmp_path)
    assert (tmp_path / "bench.png").stat().st_size > 0


def test_all_is_compared_with_what_users_get_unasked() -> None:
    seconds = {"fourfold": [1.0], "fourfold compiled": [0.5], "timm": [2.0], "timm compiled": [2.0]}
    assert against_ours(seconds) == {
        "fourfold": [1.0], "fourfold compiled": [0.5], "timm": [2.0], "timm compiled": [2.0],
    }  # fmt: skip
