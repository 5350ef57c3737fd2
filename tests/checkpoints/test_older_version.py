"""Run directories of version 0.2.0 resume and load."""

import csv
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor
from torch.testing import assert_close

import fourfold
from fourfold.cli import main
from scripts.tools.kill_test import TIMED

RUNS = Path(__file__).resolve().parents[1] / "fixtures/run_0_2_0"
# Equal bit by bit where they were recorded; on another processor sums are rounded differently.
ROUNDING = {"rtol": 1e-4, "atol": 1e-4}
INPUTS = {
    "causal_lm": (torch.arange(12)[None],),
    "encoder_decoder": (torch.arange(4, 12)[None], torch.arange(6, 12)[None]),
    "vit": (torch.linspace(-1, 1, 64).view(1, 1, 8, 8),),
}


@pytest.fixture(params=INPUTS)
def name(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Name of a run, whose copy lies with its data in the current directory."""
    shutil.copytree(RUNS, tmp_path / "runs")
    monkeypatch.chdir(tmp_path / "runs")
    found: str = request.param
    return found


def expected(name: str, prefix: str) -> dict[str, Tensor]:
    tensors = load_file(f"{name}/expected.safetensors")
    return {n.removeprefix(prefix): tensors[n] for n in tensors if n.startswith(prefix)}


def rows(file: str) -> list[dict[str, str]]:
    with Path(file).open() as lines:
        found = list(csv.DictReader(lines))
    return [{k: v for k, v in row.items() if not k.endswith(TIMED)} for row in found]


def test_it_resumes_and_ends_as_it_did(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["fit", "--config", f"{name}/recipe.yaml", "--run_dir", name]) == 0
    assert "resumed after step 6" in capsys.readouterr().out
    last = torch.load(f"{name}/checkpoints/last.ckpt", weights_only=True)
    assert last["global_step"] == 10
    for part in ("state_dict", "current_model_state"):
        assert_close(dict(last[part]), expected(name, f"{part}/"), **ROUNDING)
    found, wanted = rows(f"{name}/metrics.csv"), rows(f"{name}/expected.csv")
    assert [list(row) for row in found] == [list(row) for row in wanted]
    for row, other in zip(found, wanted, strict=True):
        for key in row:
            if row[key] != other[key]:
                assert float(row[key]) == pytest.approx(float(other[key]), rel=1e-3), key


def test_its_model_loads(name: str) -> None:
    model = fourfold.load(name).eval()
    with torch.no_grad():
        assert_close(model(*INPUTS[name]), expected(name, "logits")[""], **ROUNDING)
