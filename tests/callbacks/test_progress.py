import io
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from fourfold.callbacks.progress import duration, step_size
from fourfold.callbacks.screen import Lines, Terminal
from fourfold.data.sampler import Order, Plan
from fourfold.data.windows import WindowPlan


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0 s"), (59.4, "59 s"), (59.6, "1 min 0 s"), (310, "5 min 10 s"), (3600, "1 h 0 min"),
     (12000, "3 h 20 min"), (190000, "2 d 4 h")],
)  # fmt: skip
def test_durations(seconds: float, text: str) -> None:
    assert duration(seconds) == text


@pytest.mark.parametrize(
    ("devices", "accumulated", "plan", "text"),
    [
        (8, 1, Plan(np.ones(9), max_tokens=25_000), "8 devices x 25,000 tokens"),
        (1, 4, Plan(np.ones(9), max_rows=512), "4 micro-batches x 512 rows"),
        (
            2,
            3,
            Plan(np.ones(9), max_rows=5, max_tokens=7),
            "2 devices x 3 micro-batches x 7 tokens",
        ),
        (2, 1, WindowPlan(np.ones(9), window=2, max_rows=4), "2 devices x 4 rows"),
    ],
)
def test_what_a_step_takes(devices: int, accumulated: int, plan: Order, text: str) -> None:
    data = SimpleNamespace(split=lambda name: SimpleNamespace(plan=plan))
    trainer: Any = SimpleNamespace(
        world_size=devices, accumulate_grad_batches=accumulated, datamodule=data
    )
    assert step_size(trainer) == text


def test_lines(capsys: pytest.CaptureFixture[str]) -> None:
    lines = Lines()
    lines.start("train", 12000, 0)
    lines.update(1500, {"loss": "2.5", "left": "3 s"})
    lines.start("test", 7, 0)
    lines.update(3, {})
    lines.stop()
    assert capsys.readouterr().out == "step 1,500/12,000  loss 2.5  left 3 s\ntest batch 3/7\n"


def test_a_terminal() -> None:
    screen, out = Terminal(), io.StringIO()
    screen._console = Console(file=out, force_terminal=True, width=100, highlight=False)
    screen.say("before [all]")
    screen.start("train", 12000, 0)
    screen.update(1500, {"loss": "2.5"})
    screen.say("between")
    screen.stop()
    screen.stop()
    shown = out.getvalue()
    assert "before [all]" in shown
    assert "between" in shown
    assert "1,500/12,000" in shown
    assert "2.5" in shown
