"""Import contracts between the layers of the package, and tests that violations are detected."""

import ast
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import grimp
import pytest


def imports(tree: ast.AST) -> Iterator[str]:
    """Iterate over the top-level packages that `tree` imports, including type-checking imports."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name.split(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield (node.module or "").split(".")[0]


def eager_imports(source: str) -> set[str]:
    """Return the packages imported outside functions."""
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


def test_import_contracts_are_kept(root: Path) -> None:
    result = lint(root, root / "src")
    assert result.returncode == 0, result.stdout + result.stderr


PACKAGES = (
    "kernels",
    "core",
    "layers",
    "finetuning",
    "analysis",
    "learn",
    "training",
    "data",
    "tokenization",
    "metrics",
    "models",
    "generation",
    "checkpoints",
    "hub",
    "callbacks",
    "loggers",
    "tasks",
    "commands",
    "explorer",
    "reproduce",
)
MODULES = (
    "__init__",
    "cli",
    "errors",
    "families",
    "atomic_files",
    "edits",
    "environment",
    "lightning_internals",
    "losses",
    "optim",
    "schedules",
)


@pytest.fixture
def skeleton(tmp_path: Path) -> Path:
    """A package with all layers, two empty modules in each, and allowed external imports."""
    package = tmp_path / "fourfold"
    for folder in PACKAGES:
        (package / folder).mkdir(parents=True)
        for file in ("__init__.py", "a.py", "b.py"):
            (package / folder / file).touch()
    for module in MODULES:
        (package / f"{module}.py").touch()
    (package / "core" / "b.py").write_text("import fourfold.core.a\n")
    (package / "training" / "b.py").write_text("import lightning.pytorch\nimport fourfold.core.a\n")
    (package / "hub" / "b.py").write_text(
        "import fourfold.layers.a\ndef f(): import transformers\n"
    )
    return tmp_path


def test_skeleton_keeps_the_contracts(root: Path, skeleton: Path) -> None:
    result = lint(root, skeleton)
    assert result.returncode == 0, result.stdout + result.stderr


@pytest.mark.parametrize(
    ("file", "line", "contract"),
    [
        ("core/a.py", "import fourfold.models.b", "point downwards"),
        ("core/a.py", "import fourfold.losses", "point downwards"),
        ("kernels/a.py", "import fourfold.core.b", "point downwards"),
        ("atomic_files.py", "import fourfold.core.b", "point downwards"),
        ("layers/a.py", "import fourfold.checkpoints.b", "point downwards"),
        ("training/a.py", "import fourfold.models.b", "point downwards"),
        ("generation/a.py", "def f(): import fourfold.tasks.b", "point downwards"),
        ("checkpoints/a.py", "import fourfold.tasks.b", "point downwards"),
        (
            "checkpoints/a.py",
            "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import fourfold.tasks.b",
            "point downwards",
        ),
        ("tasks/a.py", "import fourfold.reproduce.b", "point downwards"),
        ("commands/a.py", "import fourfold.reproduce.b", "point downwards"),
        ("hub/a.py", "import fourfold.tasks.b", "point downwards"),
        ("core/a.py", "import fourfold.core.b", "No cycles"),
        ("core/a.py", "import lightning", "plain torch"),
        ("layers/a.py", "import lightning.pytorch", "plain torch"),
        ("losses.py", "import transformers", "plain torch"),
        ("reproduce/a.py", "import lightning.pytorch", "Lightning only"),
        ("checkpoints/a.py", "import lightning.pytorch", "Lightning only"),
        ("hub/a.py", "import lightning.pytorch", "Lightning only"),
        ("tasks/a.py", "def f(): import transformers", "transformers only"),
    ],
)
def test_violations_are_detected(
    root: Path, skeleton: Path, file: str, line: str, contract: str
) -> None:
    (skeleton / "fourfold" / file).write_text(line + "\n")
    result = lint(root, skeleton)
    broken = [line for line in result.stdout.splitlines() if " BROKEN" in line]
    assert any(contract in line for line in broken), result.stdout + result.stderr


def test_modules_outside_the_layers_are_detected(root: Path, skeleton: Path) -> None:
    (skeleton / "fourfold" / "extra.py").touch()
    result = lint(root, skeleton)
    assert result.returncode == 1
    assert "fourfold.extra" in result.stdout


def level(module: str) -> int | None:
    """Return the level of a module in its family: model 0, hub 1, task 2, family 3."""
    parts = module.split(".")
    if len(parts) < 4 or parts[:2] != ["fourfold", "models"]:
        return None
    name = parts[-1]
    return 3 if name == "family" else 2 if name.endswith("task") else int(name.startswith("hub"))


def family_violations(graph: grimp.ImportGraph) -> list[str]:
    """Return the imports of families that point upwards, and models that import Lightning."""
    found = []
    for module in graph.modules:
        if (here := level(module)) is None:
            continue
        for imported in graph.find_modules_directly_imported_by(module):
            there = level(imported)
            # Families meet in `fourfold.families`, which no import statement names.
            if there is not None and (there > here or there == 3):
                found.append(f"{module} -> {imported}")
        if here < 2 and (chain := graph.find_shortest_chain(module, "lightning")):
            found.append(" -> ".join(chain))
    return sorted(found)


def test_levels_of_a_family_point_downwards() -> None:
    graph = grimp.build_graph("fourfold", include_external_packages=True)
    assert level("fourfold.models.vit.task") == 2
    assert not family_violations(graph)


@pytest.mark.parametrize(
    ("module", "imported"),
    [
        ("fourfold.models.vit.model", "fourfold.models.vit.task"),
        ("fourfold.models.vit.model", "fourfold.models.vit.hub"),
        ("fourfold.models.vit.hub", "fourfold.models.causal_lm.task"),
        ("fourfold.models.vit.task", "fourfold.models.causal_lm.family"),
        ("fourfold.models.vit.model", "fourfold.callbacks.runtime.required"),
        ("fourfold.models.vit.hub_timm", "lightning"),
    ],
)
def test_violations_in_a_family_are_detected(module: str, imported: str) -> None:
    graph = grimp.build_graph("fourfold", include_external_packages=True)
    graph.add_import(importer=module, imported=imported)
    assert any(found.startswith(module) for found in family_violations(graph))


def test_core_imports_torch_alone(root: Path) -> None:
    allowed = {"torch", "fourfold", *sys.stdlib_module_names}
    for file in modules(root, "core"):
        others = set(imports(ast.parse(file.read_text()))) - allowed
        assert not others, f"{file.name} imports {others}"


@pytest.mark.parametrize(
    "package", ["transformers", "datasets", "wandb", "babel", "sklearn", "timm", "x_transformers"]
)
def test_optional_packages_are_imported_inside_functions(root: Path, package: str) -> None:
    for file in modules(root):
        assert package not in eager_imports(file.read_text()), f"{file} imports {package} eagerly"


def test_imports_inside_functions_are_not_eager() -> None:
    source = "import a\nfrom b.c import d\nclass E:\n  import f\n  def g(self):\n    import h\n"
    assert eager_imports(source) == {"a", "b", "f"}


@pytest.mark.parametrize("module", ["fourfold", "fourfold.cli"])
def test_entry_points_import_no_heavy_package(root: Path, module: str) -> None:
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


def defined_names(file: Path) -> set[str]:
    """Return the names that the top level of a module defines or imports."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            names.update((alias.asname or alias.name).split(".")[0] for alias in node.names)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
    return names


def test_names_imported_by_scripts_exist(root: Path) -> None:
    """Type checking covers only src/, and some scripts run only in slow tests."""
    checked = 0
    for script in sorted((root / "scripts").rglob("*.py")):
        for node in ast.walk(ast.parse(script.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("fourfold"):
                path = root / "src" / (node.module or "").replace(".", "/")
                file = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
                stub = file.with_suffix(".pyi")
                file = stub if stub.exists() else file
                for alias in node.names:
                    is_module = (path / f"{alias.name}.py").exists() or (path / alias.name).is_dir()
                    message = f"{script.name}: {node.module} has no {alias.name}"
                    assert is_module or alias.name in defined_names(file), message
                    checked += 1
    assert checked > 50
