"""`fourfold look`: rows of the test data, texts and images, and errors in one line."""

import base64
import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import transformers as hf
from PIL import Image

import fourfold
from fourfold.commands.look import make_parser, parse_layers, shown_command
from fourfold.models import RecurrentLM, RecurrentLMConfig
from tests.fixtures.hf_models import DINOV2, DINOV3, MODELS


def read_document(file: Path) -> dict[str, Any]:
    """Return the document of a page."""
    text = file.read_text(encoding="utf-8")
    (meta,) = re.findall(r'<script[^>]*id="?meta"?[^>]*>(.*?)</script>', text, re.DOTALL)
    found: dict[str, Any] = json.loads(meta)
    return found


def read_maps(file: Path) -> bytes:
    """Return the stored maps of a page, without unpacking them."""
    (text,) = re.findall(r'id="maps">(.*?)</script>', file.read_text(encoding="utf-8"), re.DOTALL)
    return base64.b64decode(text)


def test_the_page_of_a_run_shows_rows_of_its_test_data(
    trained: Callable[[str], Path], run: Callable[..., Any], tmp_path: Path
) -> None:
    out = tmp_path / "look.html"
    folder = trained("vit")
    result = run("look", folder, "--rows", 3, "--layers", "last", "--out", out)
    assert result.code == 0, result.err
    size = out.stat().st_size / 1e6
    assert result.out.startswith(f"{out}: {size:.2f} MB, 3 inputs and ")
    found = read_document(out)
    assert [row["title"] for row in found["rows"]] == [f"test image {i}" for i in range(3)]
    assert found["title"] == f"Attention of {folder.name}"
    (kept,) = [
        x for x in ("best", "last") if found["provenance"]["checkpoint"].endswith(f"{x}.ckpt")
    ]
    assert found["provenance"]["checkpoint"] == f"{folder.name}/{kept}.ckpt"
    assert str(tmp_path) not in out.read_text()
    image = Image.new("L", (9, 9), 99)
    image.save(tmp_path / "grey.png")
    broken = tmp_path / "broken.png"
    broken.write_text("no image")
    arguments = ("look", folder, "--overwrite", "--out", out, "--image", tmp_path / "grey.png")
    assert run(*arguments).code == 0
    found = read_document(out)
    assert [row["title"] for row in found["rows"]] == ["grey.png"]
    before = out.read_bytes()
    for wrong, problem in ((broken, "broken.png"), (tmp_path / "none.png", "none.png")):
        result = run(*arguments, wrong)
        assert result.code == 2
        assert problem in result.err
        assert result.err.count("\n") == 1
    assert out.read_bytes() == before
    assert not list(tmp_path.glob("*.part"))


def test_one_page_shows_models_of_several_families(
    trained: Callable[[str], Path], run: Callable[..., Any], tmp_path: Path
) -> None:
    out = tmp_path / "look.html"
    folders = [trained(name) for name in ("vit", "lm", "mt")]
    result = run("look", *folders, "--rows", 2, "--out", out)
    assert result.code == 0, result.err
    found = read_document(out)
    assert [row["family"] for row in found["rows"]] == [
        *("vit", "vit", "causal_lm", "causal_lm", "translation", "translation")
    ]
    names = [row["provenance"]["name"] for row in found["rows"][::2]]
    assert names == [folder.name for folder in folders]
    assert [row["title"].split(": ")[0] for row in found["rows"][::2]] == names
    assert result.out.startswith(f"{out}: ")
    assert "6 inputs and " in result.out
    result = run("look", *folders, "--text", "a", "--out", tmp_path / "b.html")
    assert result.code == 2
    assert result.err == "fourfold: error: --text needs a single checkpoint, got 3\n"


@pytest.mark.parametrize("name", ["vit", "dinov2", "dinov2-encoder", "dinov3", "siglip"])
def test_an_image_model_of_transformers_is_shown(
    name: str, run: Callable[..., Any], tmp_path: Path
) -> None:
    config: Any = hf.DINOv3ViTConfig(**DINOV3, num_register_tokens=2)
    without_head = {
        "dinov2-encoder": lambda: hf.Dinov2Model(hf.Dinov2Config(**DINOV2)),
        "dinov3": lambda: hf.DINOv3ViTModel(config),
    }
    model = (without_head | MODELS)[name]()
    model.save_pretrained(tmp_path / "there")
    side = 20 if name == "dinov3" else 12
    crop = {"do_center_crop": True, "crop_size": {"height": 224, "width": 224}}
    settings = {**crop, "size": {"shortest_edge": 256}}
    if name.startswith("dino"):
        (tmp_path / "there" / "preprocessor_config.json").write_text(json.dumps(settings))
    Image.new("RGB", (30, 20), (9, 90, 200)).save(tmp_path / "x.png")
    result = run("look", tmp_path / "there", "--image", tmp_path / "x.png", "--out", tmp_path / "a")
    assert result.code == 0, result.err
    (row,) = read_document(tmp_path / "a")["rows"]
    assert row["image"]["grid"] == [side // 4] * 2
    assert len(row["classes"]) == (5 if name in ("vit", "dinov2") else 0)
    loaded = fourfold.load(tmp_path / "there")
    assert loaded.artifacts["crop_pct"] == (224 / 256 if name.startswith("dino") else 1.0)
    if name in ("vit", "dinov2"):
        assert fourfold.classify(loaded, [str(tmp_path / "x.png")]).shape == (1, 5)


def test_texts_with_masks_are_shown(
    trained: Callable[[str], Path], run: Callable[..., Any], tmp_path: Path
) -> None:
    out = tmp_path / "a.html"
    arguments = (
        "look",
        trained("mlm"),
        "--text",
        "one [MASK]",
        "--text",
        "<img src=x>",
        "--out",
        out,
    )
    assert run(*arguments).code == 0
    found = read_document(out)
    assert [len(row["steps"]) for row in found["rows"]] == [1, 0]
    assert found["rows"][1]["title"] == "<img src=x>"
    assert "<img" not in out.read_text().replace("&lt;", "")
    other = trained("mlm") / "checkpoints" / "last.ckpt"
    assert run(*arguments, "--overwrite", "--compare", other).code == 0
    assert read_document(out)["compare"] == {"title": f"{trained('mlm').name}/last.ckpt"}
    result = run(*arguments)
    assert result.code == 2
    assert "--out must be a new file" in result.err
    assert "--overwrite replaces it" in result.err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--text", "one " * 30), "the text has 32 tokens, but the model reads 16; --truncate"),
        (("--text", "a", "--layers", "0,x"), "--layers: invalid parse_layers value: '0,x'"),
        (("--text", "a", "--layers", "2"), "--layers must be from 0 to 0, got 2"),
        (("--image", "a.png"), "--image must not be given: the model reads no images"),
        (("--target", "a"), "--target"),
        (("--text", "a", "--out", "none/a.html"), "--out must be in a folder that exists"),
        (("--text", "a", "--rows", "0"), "--rows must be at least 1"),
        (("--text", "a", "--compare", "missing.ckpt"), "missing.ckpt"),
    ],
)
def test_invalid_input_is_reported_in_one_line(
    trained: Callable[[str], Path],
    run: Callable[..., Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    arguments: tuple[str, ...],
    message: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    result = run("look", trained("mlm"), *arguments)
    assert result.code == 2
    assert message in result.err
    assert result.err.count("\n") == 1
    assert not list(tmp_path.iterdir())


def test_a_checkpoint_in_no_run_directory_needs_inputs(
    trained: Callable[[str], Path], run: Callable[..., Any], tmp_path: Path
) -> None:
    moved = tmp_path / "moved.ckpt"
    shutil.copy(trained("mlm") / "checkpoints" / "last.ckpt", moved)
    result = run("look", moved, "--out", tmp_path / "a.html")
    assert result.code == 2
    assert "is in no run directory whose test data can be shown; give --text" in result.err
    assert run("look", moved, "--text", "one two", "--out", tmp_path / "a.html").code == 0


def test_checkpoints_without_attention_are_rejected(
    run: Callable[..., Any], tmp_path: Path
) -> None:
    fourfold.save(RecurrentLM(RecurrentLMConfig(vocab_size=9, d_model=4)), tmp_path / "lstm")
    result = run("look", tmp_path / "lstm", "--text", "a", "--out", tmp_path / "a.html")
    assert result.code == 2
    assert "the model must have attention, got RecurrentLM without it" in result.err
    assert not (tmp_path / "a.html").exists()


def test_the_help_names_what_a_checkpoint_may_be() -> None:
    text = " ".join(make_parser().format_help().split())
    assert "a checkpoint file, a run directory, or a directory of transformers" in text


def test_layers_are_numbers_or_last() -> None:
    assert parse_layers("0, 3,last") == (0, 3, -1)


def test_the_shown_command_has_no_folders(tmp_path: Path) -> None:
    (tmp_path / "best.ckpt").touch()
    argv = [str(tmp_path / "best.ckpt"), "--text", "a/b c", f"--out={tmp_path / 'new.html'}"]
    assert shown_command(argv) == "fourfold look best.ckpt --text 'a/b c' --out=new.html"
