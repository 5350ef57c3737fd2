import io

import pytest
from rich.console import Console

from fourfold.callbacks.progress import duration
from fourfold.callbacks.screen import Lines, Terminal


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0 s"), (59.4, "59 s"), (59.6, "1 min 0 s"), (310, "5 min 10 s"), (3600, "1 h 0 min"),
     (12000, "3 h 20 min"), (190000, "2 d 4 h")],
)  # fmt: skip
def test_durations(seconds: float, text: str) -> None:
    assert duration(seconds) == text


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
