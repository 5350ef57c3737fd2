import os
import subprocess
import sys
from pathlib import Path

import pytest

from fourfold import __version__
from fourfold.cli import COMMANDS, main, one_line_message, run_main
from fourfold.errors import InputError

CALLS = [["--help"], ["--version"], ["translate", "--help"], ["fitt"], ["translate", "--bem", "2"]]
CALLS += [["fit", "--config", "gpt2/tiny", "--model.nlayers", "2"], ["fit", "mine.yaml"]]
CALLS += [[command, "--help"] for command in ("fit", "validate", "test", "predict", "plan")]


def test_help_version_and_misspelt_commands_and_keys_do_not_import_torch(root: Path) -> None:
    code = (
        f"import sys\nfrom fourfold.cli import main\nfor call in {CALLS}: main(call)\n"
        "heavy = {'torch', 'lightning', 'numpy', 'transformers', 'jsonargparse', 'rich'}\n"
        "sys.exit(str(heavy & set(sys.modules)) if heavy & set(sys.modules) else 0)"
    )
    env = {**os.environ, "PYTHONPATH": str(root / "src")}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=env)
    assert done.returncode == 0, done.stderr


def test_every_command_is_listed_and_has_help(capsys: pytest.CaptureFixture[str]) -> None:
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
    ("arguments", "message"),
    [
        (["tranlsate"], "'tranlsate' is not a command; did you mean 'translate'?"),
        (["xyz"], "'xyz' is not a command; `fourfold --help` lists the commands"),
        (["translate"], "--checkpoint must be given"),
        *(
            (
                [x, "--checkpont=x"],
                f"--checkpont is not an option of `fourfold {x}`; did you mean {y}",
            )
            for names, y in (
                (("translate", "generate", "fill", "classify", "caption"), "--checkpoint?"),
                (("look", "export"), "CHECKPOINT without an option name?"),
            )
            for x in names
        ),
        (["generate", "--only_new"], "--checkpoint must be given"),
        (["translate", "--checkpoint", "x", "--bem", "2"], "--bem is not an option of"),
        (["fill", "--checkpoint", "x", "--top", "2"], "--top is not an option of"),
        (
            ["generate", "--checkpoint", "x", "--num-beams", "0"],
            "--num-beams must be at least 1, got 0",
        ),
        (
            ["generate", "--checkpoint", "x", "--num-beams", "y"],
            "--num-beams: invalid int value: 'y'",
        ),
        (["fit", "mine.yaml"], "mine.yaml is not an option; did you mean --config mine.yaml?"),
        (["test", "gpt2/tiny"], "gpt2/tiny is not an option; did you mean --config gpt2/tiny?"),
        (
            ["fit", "--config", "gpt2/tiny", "--model.nlayers", "2"],
            "model.nlayers is not a known key; did you mean model.config.n_layers?",
        ),
        (["fit", "--config", "gpt2/tny"], "--config must be a file or a name that"),
    ],
)
def test_input_error_is_one_line_with_exit_code_2(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    printed = capsys.readouterr()
    assert printed.err.startswith(f"fourfold: error: {message}")
    assert printed.err.count("\n") == 1
    assert printed.out == ""


def test_traceback_of_an_input_error_is_shown_on_request(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert main(["tranlsate", "--traceback"]) == 2
    assert "Traceback (most recent call last)" in capsys.readouterr().err
    monkeypatch.setenv("FOURFOLD_DEBUG", "1")
    assert main(["tranlsate"]) == 2
    error = capsys.readouterr().err
    assert "Traceback (most recent call last)" in error
    assert error.splitlines()[-1].startswith("fourfold: error: ")


@pytest.mark.parametrize("error", [ValueError("bad"), KeyError("bad"), OSError(2, "bad", "file")])
def test_other_exceptions_pass_through(error: Exception) -> None:
    def command(argv: list[str]) -> int:
        raise error

    with pytest.raises(type(error)):
        run_main(command, [])


def test_message_omits_the_traceback_of_a_data_worker() -> None:
    wrapped = "Caught InputError in worker 0.\nOriginal Traceback:\n  File\nx.InputError: bad\nrow"
    assert one_line_message(InputError(wrapped)) == "bad row"


def test_long_messages_are_shortened() -> None:
    word = one_line_message(InputError(f"{'x' * 3000} is not a number"))
    assert word == f"{'x' * 300} ... {'x' * 84} is not a number"
    quoted = one_line_message(InputError(f"{'- ' * 300} has no tag", file="a.conll", line=7))
    assert quoted.startswith("a.conll:7: - - -")
    assert quoted.endswith("- - has no tag")
    assert len(quoted) < 450
    path = "/".join(["folder"] * 25)
    assert one_line_message(InputError("does not exist", file=path)) == f"{path}: does not exist"
