"""Limits on sizes, docstrings, messages and names in src (see CONTRIBUTING.md, "Rules")."""

import ast
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

FILE_LINES = 300  # of code
CORE_LINES = 940  # of code
# Modules of the core that say nothing about a model.
CORE_HELPERS = {"validation.py", "precision.py"}
FAMILY_LINES = 150  # of code
FUNCTION_LINES = 70  # of code and docstring; most functions should have fewer than 40
PACKAGE_LINES = 30_078
MODULES_PER_FOLDER = 15
DOCSTRING_RATIO = 0.5  # lines of docstrings for each line of code
SECTIONS = re.compile(r"^ *(Args|Returns|Raises|Yields|Attributes|Example):$", re.MULTILINE)
# A docstring starts with a noun or an imperative verb.
CLAUSE_STARTS = {"what", "whether", "how", "which", "who", "where", "that", "why", "when"}

FAMILY = re.compile(
    r"(gpt-?[0-9]*|(distil)?bert|roberta|vit|deit|bart|marian|t5|clip|vaswani"
    r"|causallm|maskedlm|encoderdecoder)(_(tiny|small|base|large|xl))?",
    re.IGNORECASE,
)


def sources(root: Path) -> list[Path]:
    found = sorted((root / "src").rglob("*.py"))
    assert found
    return found


def code_length(file: Path) -> int:
    """Count the lines that are neither blank, nor comment, nor docstring."""
    text = file.read_text()
    docstring_lines = {
        line
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and ast.get_docstring(node)
        for line in range(node.body[0].lineno, (node.body[0].end_lineno or 0) + 1)
    }
    lines = enumerate(text.splitlines(), start=1)
    return sum(i not in docstring_lines and line.strip()[:1] not in ("", "#") for i, line in lines)


def comparisons_with_families(tree: ast.AST) -> list[int]:
    """Return the lines that compare a value with the name of a model family."""
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
    """Return the lines of a module that are neither docstring, nor import, nor `__all__`."""
    plain = (ast.Import, ast.ImportFrom)
    return [
        node.lineno
        for node in tree.body
        if not isinstance(node, plain)
        and not (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant))
        and not (isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__")
    ]


def documented_nodes(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Iterate over line number and docstring of a module, its classes and its functions."""
    for node in ast.walk(tree):
        documentable = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
        if isinstance(node, documentable) and (docstring := ast.get_docstring(node)):
            yield getattr(node, "lineno", 1), docstring


def clause_docstrings(source: str) -> list[int]:
    """Return the lines of docstrings that start with a clause instead of a noun or a verb."""
    return [
        line
        for line, docstring in documented_nodes(ast.parse(source))
        if docstring.split()[0].strip("`.,:").lower() in CLAUSE_STARTS
    ]


def errors_without_origin(source: str) -> list[int]:
    """Return the lines that create an InputError with neither option nor file."""
    return [
        node.lineno
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id == "InputError"
        and not {"option", "file"} & {keyword.arg for keyword in node.keywords}
    ]


def docstring_lines(source: str) -> int:
    """Count the lines of docstrings, with those that are blank."""
    nodes = [
        node.body[0]
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and ast.get_docstring(node)
    ]
    return sum((node.end_lineno or 0) - node.lineno + 1 for node in nodes)


def docstring_faults(source: str) -> list[str]:
    """Return private docstrings with sections, heavy examples and repeated arguments."""
    found, entries = [], Counter[str]()
    for node in ast.walk(ast.parse(source)):
        documentable = ast.Module | ast.ClassDef | ast.FunctionDef
        if not isinstance(node, documentable) or not (docstring := ast.get_docstring(node)):
            continue
        name = getattr(node, "name", "module")
        if name[0] == "_" and name[:2] != "__" and SECTIONS.search(docstring):
            found.append(f"{name} is private and has a section")
        examples = [x for x in docstring.splitlines() if x.lstrip().startswith((">>>", "..."))]
        if any("Trainer(" in x or "TemporaryDirectory" in x for x in examples):
            found.append(f"the example of {name} builds a Trainer or a folder")
        if arguments := re.search(r"^Args:\n((?:    .*\n?|\n)+)", docstring, re.M):
            for entry in re.split(r"\n(?=    \S)", arguments[1].rstrip()):
                entries[" ".join(entry.split())] += "\n" in entry
    return found + [f"{n} times: {entry}" for entry, n in entries.items() if n > 2]


def test_docstrings_are_not_forms(root: Path) -> None:
    files = {str(f.relative_to(root)): f.read_text() for f in sources(root)}
    faults = {name: docstring_faults(text) for name, text in files.items()}
    assert not {name: found for name, found in faults.items() if found}
    n_code = sum(map(code_length, sources(root)))
    assert sum(map(docstring_lines, files.values())) <= DOCSTRING_RATIO * n_code


ARGUMENT = '"""Do.\n\n    Args:\n        x: A number\n            of a row.\n    """\n'
REPEATED = "".join(f"def f{i}(x):\n    {ARGUMENT}" for i in range(3))


@pytest.mark.parametrize(
    ("source", "fault"),
    [
        ('def _f(x):\n    """Do.\n\n    Args:\n        x: A number.\n    """', "is private"),
        (
            'class A:\n    """Do.\n\n    Example:\n        >>> Trainer()\n    """',
            "builds a Trainer",
        ),
        (
            REPEATED,
            "3 times",
        ),
        ('def f(x):\n    """Do.\n\n    Args:\n        x: A number.\n    """', ""),
    ],
)
def test_docstrings_like_forms_are_detected(source: str, fault: str) -> None:
    found = docstring_faults(source)
    assert fault in " ".join(found)
    assert bool(found) is bool(fault)


def test_files_are_short(root: Path) -> None:
    lengths = {str(f.relative_to(root)): code_length(f) for f in sources(root)}
    assert not {name: n for name, n in lengths.items() if n > FILE_LINES}


def test_package_is_small(root: Path) -> None:
    assert sum(map(code_length, sources(root))) <= PACKAGE_LINES


def test_folders_are_small(root: Path) -> None:
    folders = Counter(f.parent for f in sources(root) if f.name != "__init__.py")
    assert not {str(f): n for f, n in folders.items() if n > MODULES_PER_FOLDER}


def test_folders_of_tests_are_those_of_the_package(root: Path) -> None:
    others = {"configs", "docs", "fixtures", "fuzz", "golden", "parity", "repository", "scripts"}
    folders = {f.parent.relative_to(root / "tests") for f in (root / "tests").rglob("test_*.py")}
    folders = {f for f in folders if f.parts[:1] not in [(name,) for name in others]}
    assert not {str(f) for f in folders if not (root / "src" / "fourfold" / f).is_dir()}


def test_core_is_small(root: Path) -> None:
    files = (root / "src" / "fourfold" / "core").rglob("*.py")
    sizes = {f.name: code_length(f) for f in files if f.name not in CORE_HELPERS}
    assert sizes
    assert sum(sizes.values()) <= CORE_LINES, sizes


def test_docstrings_start_with_a_noun_or_a_verb(root: Path) -> None:
    lines = {str(f.relative_to(root)): clause_docstrings(f.read_text()) for f in sources(root)}
    assert not {file: found for file, found in lines.items() if found}


def test_input_errors_name_option_or_file(root: Path) -> None:
    lines = {str(f.relative_to(root)): errors_without_origin(f.read_text()) for f in sources(root)}
    assert not {file: found for file, found in lines.items() if found}


def test_code_is_formatted_without_exceptions(root: Path) -> None:
    assert not [str(f.relative_to(root)) for f in sources(root) if "fmt: skip" in f.read_text()]


@pytest.mark.parametrize(
    ("source", "is_clause"),
    [
        ('"""What enters a block."""', True),
        ('def f():\n    """Whether a file is complete."""', True),
        ('"""Multi-head attention."""', False),
        ('class A:\n    """Compute a mean."""', False),
    ],
)
def test_clause_docstrings_are_detected(source: str, is_clause: bool) -> None:
    assert bool(clause_docstrings(source)) is is_clause


@pytest.mark.parametrize(
    ("source", "is_incomplete"),
    [
        ('raise InputError("too large")', True),
        ('raise InputError("must be positive", option="--rounds")', False),
        ('raise InputError("the file is empty", file=path, line=1)', False),
    ],
)
def test_errors_without_origin_are_detected(source: str, is_incomplete: bool) -> None:
    assert bool(errors_without_origin(source)) is is_incomplete


def test_model_families_are_short(root: Path) -> None:
    files = (root / "src" / "fourfold" / "models").glob("*/model.py")
    families = {f.parent.name: code_length(f) for f in files}
    assert {"causal_lm", "encoder_decoder", "masked_lm", "vit"} <= families.keys()
    assert max(families.values()) < FAMILY_LINES, families


def test_functions_are_short(root: Path) -> None:
    long = {
        f"{file.relative_to(root)}:{node.lineno} {node.name}": lines
        for file in sources(root)
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.FunctionDef)
        and (lines := (node.end_lineno or 0) - node.lineno + 1) > FUNCTION_LINES
    }
    assert not long


def test_no_module_is_called_utils(root: Path) -> None:
    generic = {"utils", "util", "common", "helpers", "misc"}
    assert not [f for f in sources(root) if generic & {f.stem, f.parent.name}]


def test_init_files_only_export_names(root: Path) -> None:
    for file in sources(root):
        if file.name == "__init__.py" and "def __getattr__" not in file.read_text():  # PEP 562
            assert not logic(ast.parse(file.read_text())), file


def test_no_code_compares_with_family_names(root: Path) -> None:
    found = {
        str(file.relative_to(root)): lines
        for file in sources(root)
        if (lines := comparisons_with_families(ast.parse(file.read_text())))
    }
    assert not found, "test a config field, or look the name up in a table"


@pytest.mark.parametrize(
    ("source", "is_comparison"),
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
def test_comparisons_with_families_are_detected(source: str, is_comparison: bool) -> None:
    assert bool(comparisons_with_families(ast.parse(source))) is is_comparison


@pytest.mark.parametrize(
    ("source", "is_logic"),
    [
        ('"""Doc."""\nfrom a import b\n\n__all__ = ["b"]', False),
        ("X = 3", True),
        ("def f(): pass", True),
        ("register()", True),
    ],
)
def test_logic_in_init_is_detected(source: str, is_logic: bool) -> None:
    assert bool(logic(ast.parse(source))) is is_logic
