"""The floors of the house, and proof that a breach of each would be seen."""

import ast
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest


def imports(tree: ast.AST) -> Iterator[str]:
    """Top-level package of every import in `tree`, type-checking ones included."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name.split(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield (node.module or "").split(".")[0]


def eager_imports(source: str) -> set[str]:
    """Packages imported when the module is, that is: outside any function."""
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            node.body = [ast.Pass()]
    return set(imports(tree))


def modules(root: Path, folder: str = "") -> list[Path]:
    found = sorted((root / "src" / "fourfold" / folder).rglob("*.py"))
    assert found, f"no modules under src/fourfold/{folder}"
    return found


def lint(root: Path, src: Path) -> subprocess.CompletedProcess[str]:
    command = "from importlinter.cli import lint_imports_command as main; main()"
    config = str(root / "pyproject.toml")
    return subprocess.run(
        [sys.executable, "-c", command, "--config", config, "--no-cache", "--no-logo"],
        env={**os.environ, "PYTHONPATH": str(src), "COLUMNS": "200"},
        cwd=src,
        capture_output=True,
        text=True,
    )


def test_every_arrow_points_down(root: Path) -> None:
    result = lint(root, root / "src")
    assert result.returncode == 0, result.stdout + result.stderr


@pytest.fixture
def empty_house(tmp_path: Path) -> Path:
    """All floors and nobody in them; each external package is imported where it may be."""
    package = tmp_path / "fourfold"
    for floor in (
        "kernels",
        "core",
        "data",
        "callbacks",
        "models",
        "generation",
        "tasks",
        "hub",
        "papers",
        "bench",
        "commands",
    ):
        (package / floor).mkdir(parents=True)
        for file in ("__init__.py", "here.py", "there.py"):
            (package / floor / file).touch()
    names = "__init__", "cli", "losses", "metrics", "optim", "schedules", "files"
    for file in (f"{name}.py" for name in names):
        (package / file).touch()
    (package / "core" / "there.py").write_text("import fourfold.core.here\n")
    (package / "tasks" / "there.py").write_text(
        "import lightning.pytorch\nimport fourfold.core.here\n"
    )
    (package / "hub" / "there.py").write_text(
        "import fourfold.models.here\ndef f(): import transformers\n"
    )
    (package / "bench" / "peers").mkdir()
    (package / "bench" / "peers" / "__init__.py").touch()
    (package / "bench" / "peers" / "there.py").write_text("def f(): import timm, transformers\n")
    return tmp_path


def test_an_empty_house_is_in_order(root: Path, empty_house: Path) -> None:
    result = lint(root, empty_house)
    assert result.returncode == 0, result.stdout + result.stderr


@pytest.mark.parametrize(
    ("file", "line", "contract"),
    [
        ("core/here.py", "import fourfold.models.there", "points down"),
        ("core/here.py", "import fourfold.losses", "points down"),
        ("kernels/here.py", "import fourfold.core.there", "points down"),
        ("files.py", "import fourfold.core.there", "points down"),
        ("models/here.py", "import fourfold.generation.there", "points down"),
        ("generation/here.py", "def f(): import fourfold.tasks.there", "points down"),
        ("tasks/here.py", "import fourfold.papers.there", "points down"),
        ("hub/here.py", "import fourfold.tasks.there", "points down"),
        ("core/here.py", "import fourfold.core.there", "No circles"),
        ("core/here.py", "import lightning", "plain torch"),
        ("models/here.py", "import lightning.pytorch", "plain torch"),
        ("losses.py", "import transformers", "plain torch"),
        ("papers/here.py", "import lightning.pytorch", "Lightning only"),
        ("hub/here.py", "import lightning.pytorch", "Lightning only"),
        ("tasks/here.py", "def f(): import transformers", "transformers only"),
        ("bench/here.py", "def f(): import transformers", "transformers only"),
        ("hub/here.py", "import fourfold.bench.there", "points down"),
        ("papers/here.py", "import fourfold.bench.there", "points down"),
        ("bench/here.py", "import lightning.pytorch", "Lightning only"),
    ],
)
def test_a_breach_is_seen(
    root: Path, empty_house: Path, file: str, line: str, contract: str
) -> None:
    (empty_house / "fourfold" / file).write_text(line + "\n")
    result = lint(root, empty_house)
    broken = [line for line in result.stdout.splitlines() if " BROKEN" in line]
    assert any(contract in line for line in broken), result.stdout + result.stderr


def test_a_module_on_no_floor_is_seen(root: Path, empty_house: Path) -> None:
    (empty_house / "fourfold" / "attic.py").touch()
    result = lint(root, empty_house)
    assert result.returncode == 1
    assert "fourfold.attic" in result.stdout


def test_core_imports_torch_alone(root: Path) -> None:
    allowed = {"torch", "fourfold", *sys.stdlib_module_names}
    for file in modules(root, "core"):
        strangers = set(imports(ast.parse(file.read_text()))) - allowed
        assert not strangers, f"{file.name} imports {strangers}"


@pytest.mark.parametrize(
    "package", ["transformers", "datasets", "wandb", "babel", "sklearn", "timm", "x_transformers"]
)
def test_what_an_extra_brings_is_imported_inside_functions(root: Path, package: str) -> None:
    for file in modules(root):
        assert package not in eager_imports(file.read_text()), f"{file} imports {package} eagerly"


def test_an_import_inside_a_function_is_not_eager() -> None:
    source = "import a\nfrom b.c import d\nclass E:\n  import f\n  def g(self):\n    import h\n"
    assert eager_imports(source) == {"a", "b", "f"}


@pytest.mark.parametrize("module", ["fourfold", "fourfold.cli"])
def test_the_entry_is_light(root: Path, module: str) -> None:
    heavy = "{'torch', 'lightning', 'transformers', 'jsonargparse'}"
    code = f"import sys, {module}; print(sorted({heavy} & set(sys.modules)))"
    result = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": str(root / "src")},
        capture_output=True,
        text=True,
    )
    assert result.returncode == 0, result.stderr
    assert result.stdout.strip() == "[]"
