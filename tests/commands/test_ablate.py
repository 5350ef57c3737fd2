"""`fourfold ablate` on runs of four families."""

import json
from pathlib import Path

import pytest

from fourfold.cli import main

SHORT = ["--trainer.max_steps", "2", "--trainer.limit_val_batches", "1", "--log_samples", "false"]


@pytest.mark.parametrize("recipe", ["vaswani2017/tiny", "bert/tiny", "gpt2/tiny", "vit/tiny"])
def test_effects_of_each_family(
    recipe: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["fit", "--config", recipe, "--run_dir", "run", *SHORT]) == 0
    call = ["ablate", "--checkpoint", "run", "--rows", "3", "--out", "out"]
    capsys.readouterr()
    tables = {}
    for options in (["--by", "layer"], ["--by", "layer", "--kind", "mean"], []):
        assert main([*call, *options]) == 0
        said = capsys.readouterr().out
        assert "over 3 rows of the val split" in said
        found = json.loads(Path("out/ablation.json").read_text())
        tables[tuple(options)] = found
        assert all(x["low"] <= x["change"] <= x["high"] for x in found["effects"])
    layers, means, heads = tables.values()
    assert layers["loss"] == means["loss"] == heads["loss"]
    assert len(heads["effects"]) > 1
    assert all(".head." in effect["name"] for effect in heads["effects"])
    assert {x["name"] for x in layers["effects"]} == {x["name"] for x in means["effects"]}
    assert any(
        x["change"] != y["change"]
        for x, y in zip(*(t["effects"] for t in (layers, means)), strict=True)
    )
    assert Path("out/ablation.png").read_bytes().startswith(b"\x89PNG")


def test_a_checkpoint_outside_a_run_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("a.ckpt").write_bytes(b"")
    assert main(["ablate", "--checkpoint", "a.ckpt"]) == 2
    assert "must be in a run directory" in capsys.readouterr().err
    assert main(["ablate", "--checkpoint", "a.ckpt", "--rows", "0"]) == 2
