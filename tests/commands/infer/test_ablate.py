"""`fourfold ablate` on runs of four families."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from fourfold.cli import main
from fourfold.commands.infer import ablate

SHORT = ["--trainer.max_steps", "2", "--trainer.limit_val_batches", "1", "--log_samples", "false"]


@pytest.mark.parametrize(
    "recipe", ["vaswani2017/tiny", "bert/tiny", "gpt2/tiny", "vit/tiny", "clip/tiny"]
)
def test_effects_of_each_family(
    recipe: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["fit", "--config", recipe, "--run_dir", "run", *SHORT]) == 0
    call = ["ablate", "--checkpoint", "run", "--rows", "24", "--out", "out"]
    capsys.readouterr()
    tables = {}
    for options in (["--by", "layer"], ["--by", "layer", "--kind", "mean"], []):
        assert main([*call, *options]) == 0
        said = capsys.readouterr().out
        assert "over 24 rows of the val split" in said
        found = json.loads(Path("out/ablation.json").read_text())
        tables[tuple(options)] = found
        assert all(x["low"] <= x["change"] <= x["high"] for x in found["effects"])
    layers, means, heads = tables.values()
    assert layers["loss"] == means["loss"] == heads["loss"] > 0
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


def test_rows_for_means_are_other_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["fit", "--config", "gpt2/tiny", "--run_dir", "run", *SHORT]) == 0
    seen: dict[str, list[list[int]]] = {}
    original = ablate.batches

    def keep(data: Any, split: str, rows: Any, *arguments: Any) -> Any:
        seen.setdefault(split, []).append(rows.tolist())
        return original(data, split, rows, *arguments)

    monkeypatch.setattr(ablate, "batches", keep)
    call = ["ablate", "--checkpoint", "run", "--by", "layer", "--kind", "mean", "--rows", "5"]
    assert main([*call, "--split", "train"]) == 0
    examples, others = seen["train"]
    assert len(examples) == len(others) == 5
    assert not {*examples} & {*others}
    capsys.readouterr()


@pytest.mark.parametrize("recipe", ["vaswani2017/tiny", "vit/tiny"])
def test_curves_of_removed_heads(
    recipe: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["fit", "--config", recipe, "--run_dir", "run", *SHORT]) == 0
    splits: list[str] = []
    original = ablate.batches

    def keep(data: Any, split: str, *arguments: Any) -> Any:
        splits.append(split)
        return original(data, split, *arguments)

    monkeypatch.setattr(ablate, "batches", keep)
    call = ["ablate", "--checkpoint", "run", "--rows", "4", "--out", "out"]
    capsys.readouterr()
    assert main([*call, "--curve"]) == 0
    assert splits == ["val", "train"]  # the orders come from other rows
    said = capsys.readouterr().out.splitlines()
    assert re.split(" {2,}", said[0])[1:] == [
        "gradient",
        "ablation",
        *(f"random {i}" for i in (1, 2, 3)),
    ]
    found = json.loads(Path("out/curve.json").read_text())
    curves = {name: found[name] for name in ("gradient", "ablation", "random 1", "random 2")}
    numbers = [int(effect["name"]) for effect in curves["gradient"]]
    assert numbers == [int(line.split()[0]) for line in said[1 : 1 + len(numbers)]]
    # Without any head, the order does not matter.
    assert len({round(curve[-1]["change"], 6) for curve in curves.values()}) == 1
    assert len({curve[0]["change"] for curve in curves.values()}) > 1
    for name, column in zip(curves, said[1 + len(numbers)].split()[4:], strict=False):
        free = 0
        for effect in curves[name]:
            if effect["low"] > 0:
                break
            free = int(effect["name"])
        assert free == int(column)
    assert Path("out/curve.png").read_bytes().startswith(b"\x89PNG")
    assert main([*call, "--curve", "--by", "layer"]) == 2
    assert "--curve must not be given with another --by or --kind" in capsys.readouterr().err
