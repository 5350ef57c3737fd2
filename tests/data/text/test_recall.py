"""Recall task: its examples, and the window with which a model must fail."""

from typing import Any

import numpy as np
import pytest
import torch

from fourfold.data import RecallData
from fourfold.errors import InputError
from fourfold.losses import IGNORE_INDEX
from fourfold.models import CausalLM, CausalLMConfig
from fourfold.tokenization.training import TokenizerConfig


def test_question_is_answered_by_the_letter_at_the_distance() -> None:
    data = RecallData(distance=5, n_letters=3, train_rows=40, eval_rows=20)
    data.setup()
    batch: Any = data.split("train").batch(np.arange(40), 0, 1)
    assert batch.ids.shape == batch.targets.shape == (40, 6)
    assert torch.equal(batch.targets[:, 5], batch.ids[:, 0])
    assert (batch.targets[:, :5] == IGNORE_INDEX).all()
    question = data.tokenizer.encode("?")
    assert (batch.ids[:, 5] == question[0]).all()
    assert len(batch.targets[:, 5].unique()) == 3
    other: Any = data.split("val").batch(np.arange(20), 0, 1)
    assert not torch.equal(other.ids, batch.ids[:20])
    again = RecallData(distance=5, n_letters=3, train_rows=40, eval_rows=20)
    again.setup()
    repeated: Any = again.split("train").batch(np.arange(40), 0, 1)
    assert torch.equal(repeated.ids, batch.ids)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"n_letters": 27}, "n_letters must be at least 1 and at most 26, got 27"),
        ({"tokenizer": TokenizerConfig(kind="bpe")}, "kind must be one of char, got 'bpe'"),
    ],
)
def test_invalid_options_raise(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        RecallData(**options)


def test_window_that_does_not_reach_the_letter_fails() -> None:
    """Two layers with a window of 4 reach 6 positions, with 5 they reach 8."""
    data = RecallData(distance=8, n_letters=4, train_rows=2048, eval_rows=256)
    data.setup()
    train, val = data.split("train"), data.split("val")
    correct = {}
    for window in (None, 4):
        torch.manual_seed(0)
        shape: dict[str, Any] = {"d_model": 32, "n_layers": 2, "n_heads": 4, "d_ff": 64}
        config = CausalLMConfig(
            **shape, dropout=0.0, attn_dropout=0.0, vocab_size=data.vocab_size, window=window
        )
        model = CausalLM(config)
        optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
        for step in range(150):
            rows = np.arange(64 * step, 64 * (step + 1)) % 2048
            batch: Any = train.batch(rows, 0, step)
            loss = torch.nn.functional.cross_entropy(model(batch.ids)[:, -1], batch.targets[:, -1])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        batch = val.batch(np.arange(256), 0, 1)
        with torch.no_grad():
            answers = model(batch.ids)[:, -1].argmax(-1)
        correct[window] = (answers == batch.targets[:, -1]).double().mean().item()
    assert correct[None] == 1.0
    assert correct[4] < 0.4  # a guess is right in one of four cases
