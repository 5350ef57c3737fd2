import shutil
import subprocess

import pytest

from fourfold.cli import COMMANDS, main


def complete(script: str, *words: str) -> set[str]:
    """What bash offers for the last of `words`."""
    typed = " ".join(f"'{word}'" for word in words)
    ask = f"COMP_WORDS=({typed}); COMP_CWORD={len(words) - 1}; _fourfold"
    done = subprocess.run(
        ["bash", "-c", f'{script}\n{ask}\nprintf "%s\\n" "${{COMPREPLY[@]}}"'],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    return set(done.stdout.split())


@pytest.mark.skipif(not shutil.which("bash"), reason="needs bash")
def test_bash_completes(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", "bash"]) == 0
    script = capsys.readouterr().out
    assert len(script) < 10_000
    assert complete(script, "fourfold", "") == set(COMMANDS)
    assert complete(script, "fourfold", "tr") == {"translate"}
    assert complete(script, "fourfold", "fit", "--re") == {"--resume"}
    assert "--checkpoint.keep_best" in complete(script, "fourfold", "fit", "--check")
    assert {"--model", "--model."} <= complete(script, "fourfold", "fit", "--mod")
    assert complete(script, "fourfold", "generate", "--top") == {"--top-k", "--top-p"}
    assert complete(script, "fourfold", "plan", "--mem") == {"--memory"}
    assert complete(script, "fourfold", "fit", "configs/") == set()  # bash offers files itself


def test_zsh_and_others(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", "zsh"]) == 0
    assert capsys.readouterr().out.startswith("autoload -Uz bashcompinit")
    assert main(["completion", "fish"]) == 2
