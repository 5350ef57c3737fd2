"""Peak memory of greedy decoding, measured with a tiny model."""

import pytest

from scripts.benchmarks import decoding_memory


def test_peak_grows_with_the_prompt(capsys: pytest.CaptureFixture[str]) -> None:
    options = ["fourfold", "--size", "tiny", "--new", "2", "--precision", "fp32"]
    short, long = (
        decoding_memory.main([*options, "--prompt", str(n), "--batch", "8"]) for n in (16, 4096)
    )
    assert long > short
    assert "fourfold, fp32, batch 8: " in capsys.readouterr().out
