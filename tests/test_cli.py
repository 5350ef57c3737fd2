import os
import subprocess
import sys
from pathlib import Path

import pytest

from fourfold import __version__
from fourfold.cli import COMMANDS, main, plain_sentence
from fourfold.core.errors import InputError

CALLS = [["--help"], ["--version"], ["translate", "--help"], ["fitt"], ["translate", "--bem", "2"]]
CALLS += [
    [command, "--help"] for command in ("fit", "validate", "test", "predict", "plan", "bench")
]
CALLS += [["completion", "bash"], ["bench", "--size", "tiy"]]


def test_help_version_and_misspelt_commands_wait_for_nothing(root: Path) -> None:
    code = (
        f"import sys\nfrom fourfold.cli import main\nfor call in {CALLS}: main(call)\n"
        "heavy = {'torch', 'lightning', 'numpy', 'transformers', 'jsonargparse', 'rich'}\n"
        "sys.exit(str(heavy & set(sys.modules)) if heavy & set(sys.modules) else 0)"
    )
    env = {**os.environ, "PYTHONPATH": str(root / "src")}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=env)
    assert done.returncode == 0, done.stderr


def test_every_command_is_listed_and_helps(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    listed = capsys.readouterr().out
    for command in COMMANDS:
        assert f"\n  {command} " in listed
    for command in ("fit", "validate", "test", "predict", "translate", "classify"):
        assert main([command, "--help"]) == 0
        assert f"fourfold {command}" in capsys.readouterr().out


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"fourfold {__version__}\n"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["tranlsate"], "there is no command 'tranlsate'; did you mean 'translate'?"),
        (["xyz"], "there is no command 'xyz'; `fourfold --help` lists them"),
        (["translate"], "the following arguments are required: --checkpoint"),
        (
            ["translate", "--checkpoint", "x", "--bem", "2"],
            "unrecognized arguments: --bem 2; did you mean --beam?",
        ),
        (["fill", "--checkpoint", "x", "--top", "2"], "unrecognized arguments: --top 2"),
        (["generate", "--checkpoint", "x", "--beam", "0"], "--beam is 0, but must be at least 1"),
    ],
)
def test_a_mistake_is_one_sentence_and_exit_code_2(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    printed = capsys.readouterr()
    assert printed.err.startswith(f"fourfold: error: {said}")
    assert printed.err.count("\n") == 1
    assert printed.out == ""


def test_a_data_workers_traceback_is_taken_off() -> None:
    wrapped = "Caught InputError in worker 0.\nOriginal Traceback:\n  File\nx.InputError: bad\nrow"
    assert plain_sentence(InputError(wrapped)) == "bad row"


def test_a_misspelt_word_gets_a_suggestion() -> None:
    said = plain_sentence(InputError("norm is 'layr', but must be one of layer, rms"))
    assert said.endswith("one of layer, rms; did you mean layer?")
    assert "mean" not in plain_sentence(InputError("norm is 'xyz', but must be one of layer, rms"))


def test_a_word_that_fills_the_screen_is_cut() -> None:
    assert plain_sentence(InputError(f"{'x' * 3000} is no number")) == (
        f"{'x' * 100}...{'x' * 40} is no number"
    )
    quoted = plain_sentence(InputError(f"a.conll, line 7: {'- ' * 300} has no tag"))
    assert quoted.startswith("a.conll, line 7: - - -")
    assert quoted.endswith("- - has no tag")
    assert len(quoted) < 450
    path = "/".join(["folder"] * 25)
    assert plain_sentence(InputError(f"{path}: is not there")) == f"{path}: is not there"
