"""Sizes and habits that keep the house small: see "What we refuse" in CONTRIBUTING.md."""

import ast
import re
from pathlib import Path

import pytest

FILE_LINES = 300
CORE_LINES = 700  # of code: what is read in fifteen minutes, its explanations not counted
FAMILY_LINES = 150  # of code
FUNCTION_LINES = 70  # aim at 40; this is where a second idea has certainly moved in

FAMILY = re.compile(
    r"(gpt-?[0-9]*|(distil)?bert|roberta|vit|deit|bart|marian|t5|clip|vaswani"
    r"|causallm|maskedlm|encoderdecoder)(_(tiny|small|base|large|xl))?",
    re.IGNORECASE,
)


def sources(root: Path) -> list[Path]:
    found = sorted((root / "src").rglob("*.py"))
    assert found
    return found


def length(file: Path) -> int:
    return len(file.read_text().splitlines())


def code_length(file: Path) -> int:
    """Lines that are neither blank, nor comment, nor docstring."""
    text = file.read_text()
    explained = {
        line
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and ast.get_docstring(node)
        for line in range(node.body[0].lineno, (node.body[0].end_lineno or 0) + 1)
    }
    lines = enumerate(text.splitlines(), start=1)
    return sum(i not in explained and line.strip()[:1] not in ("", "#") for i, line in lines)


def name_tests(tree: ast.AST) -> list[int]:
    """Lines that compare something with the name of a family."""
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Compare):
            operands: list[ast.AST] = [node.left, *node.comparators]
        elif isinstance(node, ast.MatchValue):
            operands = [node.value]
        else:
            continue
        words = [
            word.value
            for operand in operands
            for word in ast.walk(operand)
            if isinstance(word, ast.Constant) and isinstance(word.value, str)
        ]
        if any(FAMILY.fullmatch(word) for word in words):
            found.append(node.lineno if isinstance(node, ast.Compare) else node.value.lineno)
    return found


def logic(tree: ast.Module) -> list[int]:
    """Lines of a module that are neither docstring, nor import, nor `__all__`."""
    plain = (ast.Import, ast.ImportFrom)
    return [
        node.lineno
        for node in tree.body
        if not isinstance(node, plain)
        and not (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant))
        and not (isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__")
    ]


def test_a_file_is_one_idea(root: Path) -> None:
    long = {str(f.relative_to(root)): n for f in sources(root) if (n := length(f)) > FILE_LINES}
    assert not long


def test_core_is_read_in_fifteen_minutes(root: Path) -> None:
    sizes = {f.name: code_length(f) for f in (root / "src" / "fourfold" / "core").rglob("*.py")}
    assert sizes, "no core"
    assert sum(sizes.values()) <= CORE_LINES, sizes


def test_a_family_is_a_small_file(root: Path) -> None:
    files = (root / "src" / "fourfold" / "models").glob("*.py")
    families = {
        f.name: code_length(f)
        for f in files
        if re.search(r"^class \w+Config\(", f.read_text(), re.M)
    }
    assert {"causal_lm.py", "encoder_decoder.py", "masked_lm.py", "vit.py"} <= families.keys()
    assert max(families.values()) < FAMILY_LINES, families


def test_functions_fit_a_screen(root: Path) -> None:
    long = {
        f"{file.relative_to(root)}:{node.lineno} {node.name}": lines
        for file in sources(root)
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.FunctionDef)
        and (lines := (node.end_lineno or 0) - node.lineno + 1) > FUNCTION_LINES
    }
    assert not long


def test_a_helper_lives_with_its_user(root: Path) -> None:
    drawers = {"utils", "util", "common", "helpers", "misc"}
    assert not [f for f in sources(root) if drawers & {f.stem, f.parent.name}]


def test_an_init_only_lists_names(root: Path) -> None:
    lazy_table = root / "src" / "fourfold" / "__init__.py"
    for file in sources(root):
        if file.name == "__init__.py" and file != lazy_table:
            assert not logic(ast.parse(file.read_text())), file


def test_no_family_is_asked_for_by_name(root: Path) -> None:
    found = {
        str(file.relative_to(root)): lines
        for file in sources(root)
        if (lines := name_tests(ast.parse(file.read_text())))
    }
    assert not found, "test a field, or look the name up in a table"


@pytest.mark.parametrize(
    ("source", "caught"),
    [
        ("if config.name == 'gpt2': pass", True),
        ("x = 'bert' in name.lower()", True),
        ("x = kind in ('roberta', 'deit')", True),
        ("x = type(model).__name__ == 'CausalLM'", True),
        ("match kind:\n  case 'vit_base': pass", True),
        ("x = TABLE['gpt2']", False),
        ("x = norm == 'rms'", False),
        ("x = key.startswith('bert.') or 'vit.embeddings.cls_token' in state", False),
    ],
)
def test_a_test_of_a_name_is_caught(source: str, caught: bool) -> None:
    assert bool(name_tests(ast.parse(source))) is caught


@pytest.mark.parametrize(
    ("source", "caught"),
    [
        ('"""Doc."""\nfrom a import b\n\n__all__ = ["b"]', False),
        ("X = 3", True),
        ("def f(): pass", True),
        ("register()", True),
    ],
)
def test_logic_in_an_init_is_caught(source: str, caught: bool) -> None:
    assert bool(logic(ast.parse(source))) is caught
