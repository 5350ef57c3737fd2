"""Only `fourfold.lightning_internals` uses private attributes of Lightning objects."""

import ast
import importlib
import inspect
import re
import textwrap
from functools import cache
from pathlib import Path

import lightning
import pytest

# Folders and files of lightning.pytorch whose objects tasks, callbacks, loggers and commands hold.
LIGHTNING = ("callbacks", "cli.py", "core", "loggers", "loops", "strategies", "trainer")


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")


def private_names(tree: ast.AST) -> set[str]:
    """Private methods, class attributes and attributes of `self` in `tree`."""
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef):
            names.add(node.name)
        elif isinstance(node, ast.ClassDef):
            names.update(
                target.id
                for item in node.body
                if isinstance(item, ast.Assign | ast.AnnAssign)
                for target in (item.targets if isinstance(item, ast.Assign) else [item.target])
                if isinstance(target, ast.Name)
            )
        elif isinstance(node, ast.Attribute) and ast.unparse(node) == f"self.{node.attr}":
            names.add(node.attr)
    return {name for name in names if is_private(name)}


@cache
def lightning_names() -> frozenset[str]:
    folder = Path(lightning.__file__).parent / "pytorch"
    files = [f for entry in LIGHTNING for f in (folder / entry).rglob("*.py")]
    files += [folder / entry for entry in LIGHTNING if entry.endswith(".py")]
    return frozenset().union(*(private_names(ast.parse(f.read_text())) for f in files))


def foreign_uses(tree: ast.AST, own_names: set[str]) -> list[str]:
    """Private attributes of Lightning that `tree` reads from objects other than `self`."""
    return [
        f"line {node.lineno}: {ast.unparse(node)}"
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute)
        and ast.unparse(node.value) not in ("self", "cls", "super()")
        and node.attr in lightning_names() - own_names
    ] + [
        f"line {node.lineno}: {ast.unparse(node)}"
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id in ("getattr", "setattr", "hasattr")
        and isinstance(node.args[1], ast.Constant)
        and node.args[1].value in lightning_names() - own_names
    ]


def inherited_uses(cls: type) -> list[str]:
    """Private attributes of Lightning that a class overrides or reads from `self`."""
    bases = [base for base in cls.__mro__ if base.__module__.startswith("lightning.")]
    names = set().union(*(private_names(ast.parse(_source(base))) for base in bases))
    tree = ast.parse(_source(cls))
    used = {
        node.attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and ast.unparse(node.value) in ("self", "super()")
    }
    return sorted((used | private_names(tree)) & names)


def _source(cls: type) -> str:
    return textwrap.dedent(inspect.getsource(cls))


def package_files(root: Path) -> list[Path]:
    folder = root / "src" / "fourfold"
    files = sorted(folder.rglob("*.py"))
    assert len(files) > 100
    return [file for file in files if file != folder / "lightning_internals.py"]


def test_no_private_attribute_of_lightning_objects(root: Path) -> None:
    trees = {file: ast.parse(file.read_text()) for file in package_files(root)}
    own_names = set().union(*map(private_names, trees.values()))
    uses = {
        str(file.relative_to(root)): foreign_uses(tree, own_names)
        for file, tree in trees.items()
        # They hold tensors only, whose `_version` has such a name.
        if not {"kernels", "edits"} & {*file.parts}
    }
    assert not {file: found for file, found in uses.items() if found}


def test_no_private_attribute_of_lightning_base_classes(root: Path) -> None:
    uses = {}
    for file in package_files(root):
        if not re.search(r"^(from|import) lightning", file.read_text(), re.MULTILINE):
            continue
        name = ".".join(file.relative_to(root / "src").with_suffix("").parts)
        module = importlib.import_module(name.removesuffix(".__init__"))
        for cls in vars(module).values():
            if inspect.isclass(cls) and cls.__module__ == module.__name__:
                uses[f"{name}.{cls.__name__}"] = inherited_uses(cls)
    assert len(uses) > 20
    assert not {name: found for name, found in uses.items() if found}


@pytest.mark.parametrize(
    "code",
    [
        "trainer.fit_loop._data_fetcher",
        "if module._trainer is None: pass",
        "getattr(strategy, '_ddp_kwargs', None)",
        "x = trainer._checkpoint_connector.dump_checkpoint(True)",
    ],
)
def test_use_on_another_object_is_detected(code: str) -> None:
    assert foreign_uses(ast.parse(code), own_names=set())


@pytest.mark.parametrize("code", ["batch._asdict()", "self._trainer", "torch._dynamo.config"])
def test_other_private_attributes_are_ignored(code: str) -> None:
    assert not foreign_uses(ast.parse(code), own_names=set())


class ReadsTrainer(lightning.LightningModule):
    def f(self) -> bool:
        return self._trainer is None


class OverridesMethod(lightning.Trainer):
    def _run_stage(self) -> None:
        pass


@pytest.mark.parametrize(
    ("cls", "name"), [(ReadsTrainer, "_trainer"), (OverridesMethod, "_run_stage")]
)
def test_use_in_a_subclass_is_detected(cls: type, name: str) -> None:
    assert inherited_uses(cls) == [name]
