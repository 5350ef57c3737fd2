"""GradientNorms: metrics of a test of recurrent and transformer language models."""

from typing import Any

import pytest
import torch
from lightning import Trainer

from fourfold.analysis.gradient_norms import input_gradient_norms
from fourfold.callbacks.monitoring.gradient_norms import GradientNorms
from fourfold.core.masks import Mask
from fourfold.data import SyntheticSequenceData
from fourfold.models import CausalLMConfig, RecurrentLMConfig
from fourfold.tasks import CausalLanguageModeling, RecurrentLanguageModeling

TRANSFORMER = CausalLMConfig(
    d_model=8, n_layers=1, n_heads=2, d_ff=8, dropout=0.5, vocab_size=None, max_len=40
)
LSTM = RecurrentLMConfig(d_model=8, hidden_size=6, dropout=0.5, vocab_size=None, max_len=40)


def evaluate(task: Any, callback: GradientNorms) -> Any:
    data = SyntheticSequenceData("copy", length=4, eval_rows=5, batch_size=2)
    options: dict[str, Any] = {"logger": False, "enable_progress_bar": False, "accelerator": "cpu"}
    trainer = Trainer(callbacks=[callback], use_distributed_sampler=False, **options)
    trainer.test(task, data, verbose=False)
    return data.split("test")


@pytest.mark.parametrize(
    "task", [CausalLanguageModeling(TRANSFORMER), RecurrentLanguageModeling(LSTM)]
)
def test_metrics_are_the_norms_of_the_first_sequences(task: Any) -> None:
    torch.manual_seed(0)
    split = evaluate(task, GradientNorms((1, 5, 23), n_sequences=3))
    assert "test/loss" in task.summary
    model = task.model.double().eval()
    ids = torch.cat([split.batch(rows, 0, 0).ids for rows in split.order.batches(0)])[:3]
    expected = torch.zeros(3, dtype=torch.float64)

    def layers(x: torch.Tensor) -> torch.Tensor:
        if hasattr(model.stack, "lstm"):
            return model.stack.lstm(x)[0]
        return model.stack(x, Mask(causal=True))

    for row in ids:
        x = model.embed(row[None], slice(0, len(row)))[0].detach()
        expected += torch.tensor(input_gradient_norms(layers, x, (1, 5, 23)), dtype=torch.float64)
    found = [task.summary[f"test/gradient_norm_{k}"] for k in (1, 5, 23)]
    assert found == pytest.approx((expected / 3).tolist())
    assert all(p.grad is None for p in task.parameters())
