"""The recipes of prefix LM, GPT-BERT and span corruption: exact resume, metrics, error messages."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from fourfold.cli import main

RECIPES = {
    "gpt2/tiny_prefix": {"loss", "accuracy", "ppl_token"},
    "gpt_bert/tiny": {
        "loss",
        *(f"{k}_{x}" for k in ("causal", "masked") for x in ("loss", "accuracy", "ppl_token")),
    },
    "t5/tiny_span": {"loss", "accuracy", "ppl_token", "loss_without_sentinels"},
}
SMALL = [
    *("--tensorboard=false", "--log_samples=false", "--trainer.accelerator=cpu"),
    *("--model.config.d_model=16", "--model.config.n_layers=1", "--model.config.d_ff=16"),
    *("--model.config.dropout=0.1", "--model.schedule.total_steps=60", "--data.batch_size=2"),
    "--data.tokenizer.kind=char",
    *("--trainer.limit_val_batches=2", "--trainer.limit_train_batches=2"),
]


@pytest.mark.timeout(900)
@pytest.mark.parametrize("recipe", RECIPES)
def test_a_resumed_run_ends_with_the_same_weights(
    recipe: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    """The first part ends in the first epoch, the second in another epoch with other masks."""
    monkeypatch.chdir(tmp_path)
    for run, steps in (("whole", 5), ("halves", 1), ("halves", 5)):
        call = ["fit", "--config", recipe, *SMALL, f"--run_dir={run}"]
        assert main([*call, f"--trainer.max_steps={steps}", "--trainer.max_epochs=-1"]) == 0
    whole, halves = (
        torch.load(tmp_path / run / "checkpoints/last.ckpt", weights_only=True)
        for run in ("whole", "halves")
    )
    assert whole["global_step"] == halves["global_step"] == 5
    torch.testing.assert_close(halves["state_dict"], whole["state_dict"], rtol=0, atol=0)
    assert main(["test", "--run_dir=halves", "--trainer.limit_test_batches=2"]) == 0
    found = json.loads((tmp_path / "halves/metrics.json").read_text())
    assert {name.removeprefix("test/") for name in found if "/" in name} == RECIPES[recipe]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            ["--config=t5/tiny_span", "--data.tokenizer.extra_ids=2"],
            "data.tokenizer must have 3 sentinels (<extra_id_0>, ...), got 2: set"
            " data.tokenizer.extra_ids",
        ),
        (
            ["--config=gpt2/tiny", "--data=SpanCorruptionData"],
            "--data must make a CausalBatch for CausalLanguageModeling, but SpanCorruptionData"
            " makes a PairBatch",
        ),
        (["--config=gpt2/tiny", "--data.objective=mlm"], "data.objective must be one of"),
        (
            ["--config=gpt2/tiny_prefix", "--model.config.window=16"],
            "prefix needs a causal mask without a window",
        ),
        (
            ["--config=convolution/tiny", "--data.objective=prefix"],
            "prefix must be None for convolutions",
        ),
    ],
)
def test_errors_are_one_line(
    call: list[str],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["fit", *call, "--tensorboard=false", "--trainer.max_steps=1"]) == 2
    lines = capsys.readouterr().err.strip().splitlines()
    assert message in lines[-1]
