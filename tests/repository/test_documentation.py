"""Tests that the commands in README.md, CONTRIBUTING.md and docs/ run as written.

Each block of a page is one script. The blocks of a page run in order in one copy of the repository.
The word after the language of a block selects the test:

    ```sh          the commands run
    ```sh recipe   the commands need data or machines that a test does not have: their files must
                   exist, and the options of each `fourfold fit|validate|test|predict` must parse

A directive of MyST, such as {toctree}, is not run; tests/docs executes the cells of the course. For
`make`, the test checks that the target exists, and for `pytest`, that the tests are found.
Commands that create an environment do not run. README.md and CONTRIBUTING.md belong to the default
suite, docs/ to `make test-slow`.
"""

import doctest
import importlib
import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from lightning import Trainer
from PIL import Image

from fourfold.families import families
from fourfold.models.registry import create_config
from tests.fixtures import tiny_tasks

ROOT = Path(__file__).resolve().parents[2]
GUIDES = sorted(path.relative_to(ROOT).as_posix() for path in (ROOT / "docs").glob("*.md"))
PAGES = ("README.md", "CONTRIBUTING.md", *GUIDES)
RUN = ("sh", "console", "python")
SHOWN = ("text", "pycon", "yaml", "json", "toml", "csv", "mermaid")
TAGS = {"", "recipe"}

FENCE = re.compile(r"^```([^\n`]*)\n(.*?)^```\s*$", re.MULTILINE | re.DOTALL)
ENVIRONMENT = re.compile(
    r"(git clone|cd fourfold|(\S*python3? -m )?(pip install|venv)|(source|\.) )"
)
PYTEST = re.compile(r"^((\S*python3? -m |\S*/)?pytest)\b")
LIGHTNING = re.compile(r"^fourfold (fit|validate|test|predict)\b")
STARTERS = re.compile(r"^(torchrun .*?-m fourfold|sbatch scripts/tools/slurm\.sbatch)\b")
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
    """Return the commands of a shell block without comments and output."""
    lines = block.text.replace("\\\n", " ").splitlines()
    if block.language == "console":
        lines = [line[2:] for line in lines if line.startswith("$ ")]
    lines = [re.sub(r"(^|\s)#.*", "", line).strip() for line in lines]
    return [line for line in lines if line]


def script(block: Block) -> str:
    """Return the script that the test runs for a shell block."""
    if "<<" in block.text:
        return f"set -eu\n{block.text}"  # the files in it keep their comments and indentation
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


def as_test(page: str) -> object:
    marks = [pytest.mark.readme, pytest.mark.timeout(900)]  # README.md trains a model
    # Parsing one command takes seconds, and the pages in docs/ contain many commands.
    if page in GUIDES:
        marks += [pytest.mark.slow, pytest.mark.timeout(3600)]
    return pytest.param(page, marks=marks)


def copy_repository(copy: Path) -> None:
    """Copy the repository to `copy`, with the environment of this test as its .venv."""
    ignore = shutil.ignore_patterns(".git", ".venv", ".*_cache", "__pycache__")

    def ignored(folder: str, names: list[str]) -> set[str]:
        outputs = {"build", "runs", "shared", "site", "wandb"} if Path(folder) == ROOT else set()
        return ignore(folder, names) | outputs & set(names)

    shutil.copytree(ROOT, copy, ignore=ignored)
    (copy / ".venv").symlink_to(sys.prefix)
    subprocess.run(["git", "init", "--quiet"], cwd=copy, check=True)


def execute(command: list[str], copy: Path, text: str) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    env = {**os.environ, "PATH": path, "PYTHONPATH": str(copy / "src")}
    # A pytest that a block starts must not take itself for an xdist worker.
    env = {key: value for key, value in env.items() if not key.startswith("PYTEST")}
    return subprocess.run(command, cwd=copy, env=env, input=text, capture_output=True, text=True)


@pytest.mark.parametrize("page", [as_test(page) for page in PAGES])
def test_the_blocks_of_a_page_run_in_order(page: str, tmp_path: Path) -> None:
    copy = tmp_path / "fourfold"
    copy_repository(copy)
    for block in ALL:
        if block.page != page or block.language not in RUN:
            continue
        if block.language != "python":
            result = execute(["sh", "-x"], copy, script(block))
        elif block.tag == "recipe":
            compile(block.text, block.page, "exec")
            continue
        else:
            result = execute([sys.executable, "-"], copy, block.text)
        output = f"{result.stdout[-3000:]}\n{result.stderr[-3000:]}"
        assert result.returncode == 0, f"{block.page}:{block.line}\n{output}"


MODULES = sorted(
    path.relative_to(ROOT / "src")
    .with_suffix("")
    .as_posix()
    .replace("/", ".")
    .removesuffix(".__init__")
    for path in (ROOT / "src").rglob("*.py")
    if ">>> " in path.read_text(encoding="utf-8")
)


@pytest.mark.parametrize("module", MODULES)
def test_the_examples_of_a_module_run(module: str) -> None:
    result = doctest.testmod(importlib.import_module(module))
    assert result.failed == 0


def test_a_checkpoint_of_each_family_gives_a_decoded_result_in_two_lines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    texts = tiny_tasks.write_texts(tmp_path)
    runs = {"causal_lm": "causal", "masked_lm": "masked", "vit": "images"}
    runs |= {"translation": "translation", "languages": "documents"}
    for run, family in runs.items():
        trainer = Trainer(
            max_steps=1,
            accelerator="cpu",
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            limit_val_batches=0,
            use_distributed_sampler=False,
        )
        task, data = {**tiny_tasks.TASKS, **tiny_tasks.FAMILIES}[family](texts)
        trainer.fit(task, data)
        trainer.save_checkpoint(tmp_path / "runs" / run / "checkpoints" / "last.ckpt")
    Image.new("L", (8, 8), 99).save("digit.png")
    blocks = [b for b in ALL if b.page == "docs/python.md" and b.language == "pycon"]
    text, parser, names = "\n\n".join(b.text for b in blocks), doctest.DocTestParser(), {}
    example = parser.get_doctest(text, names, blocks[0].page, None, blocks[0].line)
    result = doctest.DocTestRunner().run(example, clear_globs=False)
    assert result.failed == 0
    assert isinstance(example.globs["text"], str)
    assert isinstance(example.globs["class_name"], str)
    assert len(example.globs["languages"]) == 2


def test_no_command_hides_in_an_unmarked_block() -> None:
    for block in ALL:
        if block.language.startswith("{"):
            continue
        assert block.language in RUN + SHOWN, f"{block.page}:{block.line} is {block.language!r}"
        assert block.tag in TAGS, f"{block.page}:{block.line} has the tag {block.tag!r}"
        if block.language == "python":
            compile(block.text, f"{block.page}:{block.line}", "exec")


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
pytest tests/repository -k files
fourfold generate \\
  --checkpoint x
```

```console recipe
$ fourfold fit --config configs/a.yaml
Epoch 1
$ torchrun big.py
$ torchrun --nnodes 2 -m fourfold fit --config configs/a.yaml
$ sbatch scripts/tools/slurm.sbatch --config configs/a.yaml
```
"""


def test_a_page_is_read_as_meant() -> None:
    first, second = blocks("SAMPLE", SAMPLE)
    assert script(first).splitlines() == [
        "set -eu",
        "make test --dry-run > /dev/null",
        "pytest --collect-only --quiet tests/repository -k files",
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


# Title of an option of the core, the field with an example of its value, and the test for it.
OPTIONS: dict[str, tuple[str, Callable[[Any], bool]]] = {
    "rotary positions": ("rope_theta: 10000", lambda c: c.rope_theta is not None),
    "learned positions": ("positions: learned", lambda c: str(c.positions).startswith("learned")),
    "sinusoidal positions": ("positions: sinusoidal", lambda c: str(c.positions).startswith("sin")),
    "grouped key/value heads": ("n_kv_heads: 2", lambda c: c.n_kv_heads is not None),
    "RMSNorm": ("norm: rms", lambda c: c.norm == "rms"),
    "norm before a sub-layer": ("norm_placement: pre", lambda c: c.norm_placement == "pre"),
    "norm after the residual": ("norm_placement: post", lambda c: c.norm_placement == "post"),
    "norm of queries and keys": ("qk_norm: head", lambda c: c.qk_norm != "none"),
    "gated feed-forward": ("feed_forward: glu", lambda c: c.feed_forward == "glu"),
    "window": ("window: 64", lambda c: c.window is not None),
    "layer scale": ("layer_scale: 1.0e-5", lambda c: c.layer_scale is not None),
}


def test_table_of_options_has_the_first_model_of_each_family_with_an_option(root: Path) -> None:
    lines = ["| option | example in `model.config` | published models |", "| --- | --- | --- |"]
    for title, (field, is_used) in OPTIONS.items():
        names = []
        for family in families():
            for name in family.sizes:
                with suppress(AttributeError):  # a ResNet has none of the options
                    if is_used(create_config(name)):
                        names.append(f"`{name}`")
                        break
        lines.append(f"| {title} | `{field}` | {', '.join(names)} |")
    assert "\n".join(lines) in (root / "README.md").read_text()
