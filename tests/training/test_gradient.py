"""The gradient of a step does not depend on the division into micro-batches and processes."""

from pathlib import Path

import pytest
import torch

from tests.fixtures.tiny_tasks import TASKS, train

# Contrastive learning compares pairs within a micro-batch by design: see test_contrastive.py.
LOSSES = {name: make for name, make in TASKS.items() if name != "image and text"}


@pytest.mark.parametrize("family", LOSSES)
def test_accumulation_does_not_change_the_gradient(
    family: str, texts: Path, tmp_path: Path
) -> None:
    # All rows make one optimizer step, for every size of the micro-batches.
    whole = train(*LOSSES[family](texts, max_rows=2000), tmp_path)
    whole_batch_only = ("images", "masked images", "captions", "recurrent captions")
    for rows in (500,) if family in whole_batch_only else (7, 3):
        cut = train(*LOSSES[family](texts, max_rows=rows), tmp_path, accumulate_grad_batches=10_000)
        for name, weight in whole.items():
            torch.testing.assert_close(cut[name], weight, rtol=1e-12, atol=1e-12, msg=name)


@pytest.mark.parametrize("family", LOSSES)
def test_two_processes_make_the_same_step(family: str, texts: Path, tmp_path: Path) -> None:
    whole = train(*LOSSES[family](texts, max_rows=2000), tmp_path)
    _, data = LOSSES[family](texts)
    rows = -(-len(data.split("train")) // 2)  # two batches, one for each process
    pair = LOSSES[family](texts, max_rows=rows)
    halves = train(*pair, tmp_path, devices=2, strategy="ddp_fork")
    for name, weight in whole.items():
        torch.testing.assert_close(halves[name], weight, rtol=1e-12, atol=1e-12, msg=name)


@pytest.mark.parametrize("mode", ["block", "attention", 2])
@pytest.mark.parametrize("family", ["translation", "causal LM", "captions", "masked images"])
def test_activation_checkpointing_does_not_change_the_step(
    family: str, mode: str | int, texts: Path, tmp_path: Path
) -> None:
    whole = train(*LOSSES[family](texts, max_rows=500), tmp_path)
    task, data = LOSSES[family](texts, max_rows=500)
    task.activation_checkpointing = mode
    again = train(task, data, tmp_path)
    for name, weight in whole.items():
        torch.testing.assert_close(again[name], weight, rtol=1e-12, atol=1e-12, msg=name)
