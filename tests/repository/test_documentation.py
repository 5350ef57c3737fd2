"""README.md, CONTRIBUTING.md and docs/ do what they say: every command block is run, as written.

A block is one script; the blocks of a page share one copy of the repository and run in order. What
follows the language on the opening fence says how:

    ```sh          run in the default suite: seconds
    ```sh slow     run with `make test-slow`: minutes
    ```sh recipe   needs data or machines that a test has not: its files must exist, and the
                   settings of each `fourfold fit|validate|test|predict` in it must parse

`make` is asked whether it knows the target, and pytest whether it finds the tests: running the
suite inside the suite would never end. Lines that make an environment are read, not run.
"""

import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).resolve().parents[2]
GUIDES = sorted(path.relative_to(ROOT).as_posix() for path in (ROOT / "docs").glob("*.md"))
PAGES = ("README.md", "CONTRIBUTING.md", *GUIDES)
RUN = ("sh", "console", "python")
SHOWN = ("text", "yaml", "json", "toml", "csv", "mermaid")
TAGS = {"", "slow", "recipe"}

FENCE = re.compile(r"^```([^\n`]*)\n(.*?)^```\s*$", re.MULTILINE | re.DOTALL)
ENVIRONMENT = re.compile(
    r"(git clone|cd fourfold|(\S*python3? -m )?(pip install|venv)|(source|\.) )"
)
PYTEST = re.compile(r"^((\S*python3? -m |\S*/)?pytest)\b")
LIGHTNING = re.compile(r"^fourfold (fit|validate|test|predict)\b")
STARTERS = re.compile(r"^(torchrun .*?-m fourfold|sbatch scripts/slurm\.sbatch)\b")
OURS = re.compile(r"(?<![\w./-])((?:configs|scripts|tests|src|docs)/[\w./-]*\w)(?![\w<{*])")


class Block(NamedTuple):
    page: str
    line: int
    language: str
    tag: str
    text: str


def blocks(page: str, text: str) -> list[Block]:
    found = []
    for match in FENCE.finditer(text):
        language, _, tag = match[1].strip().partition(" ")
        line = text.count("\n", 0, match.start()) + 1
        found.append(Block(page, line, language, tag, match[2]))
    return found


def commands(block: Block) -> list[str]:
    """The commands of a shell block, one an entry, without comments and shown output."""
    lines = block.text.replace("\\\n", " ").splitlines()
    if block.language == "console":
        lines = [line[2:] for line in lines if line.startswith("$ ")]
    lines = [re.sub(r"(^|\s)#.*", "", line).strip() for line in lines]
    return [line for line in lines if line]


def script(block: Block) -> str:
    """What is run for a shell block."""
    lines = ["set -eu"]
    for command in commands(block):
        if ENVIRONMENT.match(command):
            continue
        if command.startswith("make"):
            command += " --dry-run > /dev/null"
        elif PYTEST.match(command):
            command = PYTEST.sub(r"\1 --collect-only --quiet", command)
        elif block.tag == "recipe":
            fit = "fourfold fit" if command.startswith("sbatch") else "fourfold"
            command = STARTERS.sub(fit, command)  # its own options: see below
            if not LIGHTNING.match(command):
                continue
            command += " --print_config > /dev/null"
        lines.append(command)
    return "\n".join(lines) + "\n"


ALL = [b for page in PAGES for b in blocks(page, (ROOT / page).read_text(encoding="utf-8"))]


def as_test(block: Block) -> object:
    marks = [pytest.mark.readme, pytest.mark.xdist_group(block.page)]
    # A command needs seconds to be parsed, and the guides have many.
    if block.tag == "slow" or block.page in GUIDES:
        marks += [pytest.mark.slow, pytest.mark.timeout(3600)]
    return pytest.param(block, id=f"{block.page}:{block.line}", marks=marks)


@pytest.fixture(scope="module")
def copies(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A copy of the repository for each page, with this environment as its .venv."""
    kept = shutil.ignore_patterns(
        ".git", ".venv", "runs", "wandb", ".*_cache", "__pycache__", "shared"
    )
    found = {}
    for page in PAGES:
        copy = tmp_path_factory.mktemp("readme") / "fourfold"
        shutil.copytree(ROOT, copy, ignore=kept)
        (copy / ".venv").symlink_to(sys.prefix)
        subprocess.run(["git", "init", "--quiet"], cwd=copy, check=True)
        found[page] = copy
    return found


def execute(command: list[str], copy: Path, text: str) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    env = {**os.environ, "PATH": path, "PYTHONPATH": str(copy / "src")}
    # A session of its own: what a block starts must not believe it is an xdist worker.
    env = {key: value for key, value in env.items() if not key.startswith("PYTEST")}
    return subprocess.run(command, cwd=copy, env=env, input=text, capture_output=True, text=True)


@pytest.mark.parametrize("block", [as_test(b) for b in ALL if b.language in RUN])
def test_a_block_runs_as_written(block: Block, copies: dict[str, Path]) -> None:
    if block.language == "python":
        if block.tag == "recipe":
            compile(block.text, block.page, "exec")
            return
        result = execute([sys.executable, "-"], copies[block.page], block.text)
    else:
        result = execute(["sh", "-x"], copies[block.page], script(block))
    assert result.returncode == 0, f"{result.stdout[-3000:]}\n{result.stderr[-3000:]}"


def test_no_command_hides_in_an_unmarked_block() -> None:
    for block in ALL:
        assert block.language in RUN + SHOWN, f"{block.page}:{block.line} is {block.language!r}"
        assert block.tag in TAGS, f"{block.page}:{block.line} has the tag {block.tag!r}"


@pytest.mark.parametrize("page", PAGES)
def test_the_files_a_page_names_are_there(page: str) -> None:
    named = set(OURS.findall((ROOT / page).read_text(encoding="utf-8")))
    assert not sorted(name for name in named if not (ROOT / name).exists())


def test_the_extras_a_page_installs_exist() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    for block in ALL:
        for command in commands(block) if block.language in ("sh", "console") else []:
            for word in shlex.split(command, comments=True) if "pip install" in command else []:
                if extras := re.search(r"\[([\w,]+)\]$", word):
                    assert set(extras[1].split(",")) <= set(project["optional-dependencies"]), word


def test_the_options_of_torchrun_exist() -> None:
    from torch.distributed.run import get_args_parser

    given = [c for b in ALL if b.language == "sh" for c in commands(b) if c.startswith("torchrun")]
    assert given
    for command in given:
        found = get_args_parser().parse_args(shlex.split(command)[1:])
        assert (found.module, found.training_script) == (True, "fourfold")


SAMPLE = """
```sh
git clone somewhere/fourfold
cd fourfold
make test   # everything
pytest tests/house -k files
fourfold generate \\
  --checkpoint x
```

```console recipe
$ fourfold fit --config configs/a.yaml
Epoch 1
$ torchrun big.py
$ torchrun --nnodes 2 -m fourfold fit --config configs/a.yaml
$ sbatch scripts/slurm.sbatch --config configs/a.yaml
```
"""


def test_a_page_is_read_as_meant() -> None:
    first, second = blocks("SAMPLE", SAMPLE)
    assert script(first).splitlines() == [
        "set -eu",
        "make test --dry-run > /dev/null",
        "pytest --collect-only --quiet tests/house -k files",
        "fourfold generate    --checkpoint x",
    ]
    assert (second.tag, second.line) == ("recipe", 11)
    parsed = "fourfold fit --config configs/a.yaml --print_config > /dev/null"
    assert script(second).splitlines()[1:] == [parsed] * 3
    assert OURS.findall("`configs/a.yaml`, tests/x.py; not tests/<name>.py nor runs/tests/y") == [
        "configs/a.yaml",
        "tests/x.py",
    ]


def test_a_command_that_fails_fails_its_block(tmp_path: Path) -> None:
    wrong = Block("SAMPLE", 1, "sh", "", "make no-such-target\ntrue\n")
    (tmp_path / "Makefile").write_text("here:\n\ttrue\n")
    assert execute(["sh"], tmp_path, script(wrong)).returncode != 0
    right = wrong._replace(text="make here\n")
    assert execute(["sh"], tmp_path, script(right)).returncode == 0
