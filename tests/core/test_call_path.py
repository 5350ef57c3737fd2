"""Length of the way from `forward` to the kernels: files and depth of the calls of this package."""

import sys
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
import torch

import fourfold
from fourfold.data.loading.batches import CausalBatch
from fourfold.models import CausalLM, CausalLMConfig
from fourfold.tasks import CausalLanguageModeling

MAX_FILES, MAX_DEPTH = 12, 9
ROOT = str(Path(fourfold.__file__).parent)
SHAPE: dict[str, Any] = {"d_model": 16, "n_layers": 2, "n_heads": 2, "d_ff": 32, "vocab_size": 50}


class Calls:
    """Calls of functions of this package in a context, by file, and the deepest chain of them."""

    def __enter__(self) -> "Calls":
        self.files: dict[str, int] = {}
        self.chain: list[str] = []
        sys.setprofile(self.record)
        return self

    def __exit__(self, *_: object) -> None:
        sys.setprofile(None)

    def record(self, frame: FrameType | None, event: str, _: object) -> None:
        if event != "call" or frame is None or not frame.f_code.co_filename.startswith(ROOT):
            return
        name = frame.f_code.co_filename
        self.files[name] = self.files.get(name, 0) + 1
        chain = []
        while frame is not None:
            if frame.f_code.co_filename.startswith(ROOT):
                chain.append(frame.f_code.co_qualname)
            frame = frame.f_back
        self.chain = max(self.chain, chain, key=len)


ROTARY = {"positions": "none", "rope_theta": 1e4, "n_kv_heads": 1, "feed_forward": "glu"}


@pytest.mark.parametrize("dropout", [0.0, 0.1])  # on a CPU, dropout has an attention kernel of ours
@pytest.mark.parametrize("options", [{}, ROTARY], ids=["gpt2", "llama"])
def test_forward_and_loss_of_a_causal_lm(dropout: float, options: dict[str, Any]) -> None:
    config = CausalLMConfig(**SHAPE, dropout=dropout, attn_dropout=dropout, **options)
    model, ids = CausalLM(config).train(), torch.randint(50, (2, 9))
    with Calls() as calls:
        model.head.loss(model.hidden(ids[:, :-1]), ids[:, 1:]).backward()
    assert len(calls.files) <= MAX_FILES, sorted(calls.files)
    assert len(calls.chain) <= MAX_DEPTH, calls.chain
    assert sum(calls.files.values()) > 50  # the calls were seen


def test_step_of_a_task() -> None:
    task = CausalLanguageModeling(CausalLMConfig(**SHAPE, dropout=0.0, attn_dropout=0.0))
    task.configure_model()
    ids = torch.randint(50, (2, 9))
    with Calls() as calls:
        task.step(CausalBatch(ids[:, :-1], ids[:, 1:]))[0].backward()
    assert len(calls.files) <= MAX_FILES, sorted(calls.files)
    assert len(calls.chain) <= MAX_DEPTH, calls.chain
