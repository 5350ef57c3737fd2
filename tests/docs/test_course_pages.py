"""Tests that the pages of docs/course execute, and that they fail if the library is wrong."""

import doctest
import re
import shutil
import tempfile
import tomllib
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import pytest
import torch
from torch import Tensor, nn

from fourfold.analysis import attention_flow
from fourfold.core import attention, block, rotary
from fourfold.generation.beam_search import LENGTH_PENALTIES
from fourfold.layers import positions
from fourfold.models.recurrent.attention import RecurrentAttention

COURSE = Path(__file__).resolve().parents[2] / "docs" / "course"
CELL = re.compile(r"^```\{code-cell\}[^\n]*\n(.*?)^```\s*$", re.MULTILINE | re.DOTALL)
# A row of the tables of deviations: number, lecture, class and what is printed.
DEVIATION = re.compile(r"^\| (\d{1,2}) \| (\d{3})\b[^|]* \| (\w+) \| ([^|]+) \|", re.MULTILINE)
PLACES = re.compile(r"^Places? (\d+(?:(?:, | and )\d+)*)\b", re.MULTILINE)
OPTIONS = re.compile(r"\A---\n(.*?)^---\n", re.MULTILINE | re.DOTALL)
DOCTEST = re.compile(r"^```pycon\n(.*?)^```\s*$", re.MULTILINE | re.DOTALL)


def read(page: str) -> str:
    return (COURSE / f"{page}.md").read_text(encoding="utf-8")


PAGES = sorted(path.stem for path in COURSE.glob("*.md"))
EXECUTED = [page for page in PAGES if CELL.search(read(page))]
# Pages whose trainings take more than ten seconds each.
SLOW = {"02", "03", "04", "08", "13", "14", "16"}
LESSONS = [page for page in EXECUTED if page != "00-index"]
WITH_DOCTESTS = [page for page in PAGES if DOCTEST.search(read(page))]


PACKAGED = tempfile.TemporaryDirectory()  # until the end of the tests


@cache
def packaged_course() -> Path:
    """Return a folder of pages beside the files of the wheel, so that a page reads no other."""
    root, course = COURSE.parents[1], "fourfold/course"
    project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))
    included = project["tool"]["hatch"]["build"]["targets"]["wheel"]["force-include"]
    for source, name in included.items():
        target = Path(PACKAGED.name, name)
        if name.startswith(course):
            target.parent.mkdir(parents=True, exist_ok=True)
            copy = shutil.copytree if (root / source).is_dir() else shutil.copy
            copy(root / source, target)
    return Path(PACKAGED.name, course, "docs", "course")


def execute(page: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Execute all code cells of a page in one namespace, with the files of the wheel alone."""
    monkeypatch.chdir(packaged_course())
    text = read(page)
    names: dict[str, Any] = {"__name__": "__main__"}
    with plt.rc_context():
        for cell in CELL.finditer(text):
            # Options are replaced by blank lines, so that errors have the lines of the page.
            code = OPTIONS.sub(lambda options: "\n" * options[0].count("\n"), cell[1])
            line = text.count("\n", 0, cell.start(1))
            exec(compile("\n" * line + code, f"{page}.md", "exec"), names)
        plt.close("all")


def run_doctests(page: str, flags: int = 0) -> int:
    """Run the doctests of a page in one namespace, and return the number of failures."""
    text = read(page)
    # The other lines are kept blank, so that errors have the lines of the page.
    lines = [""] * text.count("\n")
    for found in DOCTEST.finditer(text):
        start = text.count("\n", 0, found.start(1))
        block_lines = found[1].splitlines()
        lines[start : start + len(block_lines)] = block_lines
    examples = doctest.DocTestParser().get_doctest("\n".join(lines) + "\n", {}, page, page, 0)
    assert examples.examples
    return doctest.DocTestRunner(optionflags=flags).run(examples).failed


@pytest.mark.parametrize(
    "page",
    [pytest.param(page, marks=[pytest.mark.slow] if page[:2] in SLOW else []) for page in EXECUTED],
)
def test_a_page_executes(page: str, monkeypatch: pytest.MonkeyPatch) -> None:
    execute(page, monkeypatch)


@pytest.mark.parametrize("page", WITH_DOCTESTS)
def test_the_examples_of_a_page_are_right(page: str) -> None:
    assert run_doctests(page) == 0


def test_deviations_have_a_number_a_class_and_a_text() -> None:
    page = read("what-the-slides-print")
    rows = DEVIATION.findall(page)
    assert len(rows) == len(re.findall(r"^\| \d{1,2} \|", page, re.MULTILINE)), "malformed row"
    rows.sort(key=lambda row: int(row[0]))
    assert [int(number) for number, *_ in rows] == list(range(1, len(rows) + 1))
    lectures = [lecture for _, lecture, *_ in rows]
    assert lectures == sorted(lectures), "the numbers follow the order of the lectures"
    assert {kind for _, _, kind, _ in rows} == {"error", "imprecision", "convention", "omission"}
    for _, _, _, printed in rows:
        assert len(re.sub(r"\$[^$]*\$", "", printed).split()) <= 12, printed
    texts = [number for found in PLACES.findall(page) for number in re.findall(r"\d+", found)]
    assert sorted(texts, key=int) == [number for number, *_ in rows]


def test_no_page_states_the_number_of_deviations() -> None:
    for page in ("00-index", "what-the-slides-print"):
        assert not re.search(r"\b\d+ (places|deviations)\b", read(page))


@pytest.mark.parametrize("page", LESSONS)
def test_a_page_has_a_formula_a_figure_a_table_and_exercises(page: str) -> None:
    text = read(page)
    assert text.startswith("---\njupytext:\n")
    assert "$$" in text
    assert re.search(r"^\|( *:?-+:? *\|)+$", text, re.MULTILINE), "a table"
    figures = [cell for cell in CELL.findall(text) if "plt.subplots" in cell]
    assert figures
    assert all(re.search(r"^    alt: \S", cell, re.MULTILINE) for cell in figures), (
        "text of figures"
    )
    exercises = re.findall(r"^:::\{admonition\} (Exercise|Answer)\b", text, re.MULTILINE)
    assert len(exercises) >= 4
    assert exercises == ["Exercise", "Answer"] * (len(exercises) // 2)


@pytest.mark.parametrize("page", LESSONS)
def test_what_a_cell_prints_or_draws_is_asserted(page: str) -> None:
    """A measurement without an assertion, in its cell or the next one, supports no statement."""
    cells = CELL.findall(read(page))
    asserted = [bool(re.search(r"\bassert\b|\bassert_\w+\(", cell)) for cell in cells] + [False]
    unsupported = [
        cell.strip().splitlines()[0]
        for i, cell in enumerate(cells)
        if re.search(r"\bprint\(|plt\.subplots", cell) and not any(asserted[i : i + 2])
    ]
    assert unsupported == []


# Formulas of the library that a page has to notice if they are wrong.


def unscaled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Use the scale 1 in place of 1 / sqrt(Dh)."""
    for name in ("attend", "attention_weights"):
        right = getattr(attention, name)

        def wrong(*args: Tensor, right: Any = right, **options: Any) -> Tensor:
            options["scale"] = 1.0 if options.get("scale") is None else options["scale"]
            return right(*args, **options)

        monkeypatch.setattr(attention, name, wrong)


def base_1000(monkeypatch: pytest.MonkeyPatch) -> None:
    """Use the base 1000 in place of 10000 for sinusoidal positions."""

    def wrong(n_rows: int, width: int) -> tuple[Tensor, Tensor]:
        rates = 1000.0 ** -(torch.arange(0, width, 2, dtype=torch.float64) / width)
        angles = torch.arange(n_rows, dtype=torch.float64)[:, None] * rates
        return angles.sin().float(), angles.cos().float()

    monkeypatch.setattr(positions, "_sines_and_cosines", wrong)


def rotation_with_wrong_sign(monkeypatch: pytest.MonkeyPatch) -> None:
    """Add both products in the first half of the channels, so that nothing is rotated."""

    def wrong(x: Tensor, rotation: tuple[Tensor, Tensor]) -> Tensor:
        cos, sin = rotation
        first, second = x.chunk(2, dim=-1)
        return torch.cat([first * cos + second * sin, second * cos + first * sin], dim=-1)

    for module in (attention, rotary):
        monkeypatch.setattr(module, "rotate", wrong)


def mask_without_diagonal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hide from a query its own position, too."""

    def wrong(q_len: int, k_len: int, device: torch.device) -> Tensor:
        ones = torch.ones(q_len, k_len, dtype=torch.bool, device=device)
        return ones.tril(k_len - q_len - 1)

    monkeypatch.setattr(attention, "causal_mask", wrong)


def deviation_without_mean(monkeypatch: pytest.MonkeyPatch) -> None:
    """Divide by the root of the sum of squares in place of their mean, and add no epsilon."""

    class Wrong(nn.LayerNorm):
        def forward(self, x: Tensor) -> Tensor:
            centred = x - x.mean(-1, keepdim=True)
            return centred / centred.square().sum(-1, keepdim=True).sqrt() * self.weight + self.bias

    monkeypatch.setattr(
        block, "norm_from_config", lambda config: Wrong(config.d_model, eps=config.norm_eps)
    )


def additive_without_tanh(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave out the tanh of the additive score."""
    right = RecurrentAttention._scores

    def wrong(self: Any, q: Tensor, projected: Tensor, positions: Tensor) -> Tensor:
        if self.score not in ("additive", "concat"):
            return right(self, q, projected, positions)
        return self.v_a(self.w_a(q)[:, :, None] + projected[:, None]).squeeze(-1)

    monkeypatch.setattr(RecurrentAttention, "_scores", wrong)


def length_penalty_without_division(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave out the division by 6 of the length penalty of Wu et al. (2016)."""
    monkeypatch.setitem(LENGTH_PENALTIES, "gnmt", lambda n, alpha: (5 + n) ** alpha)


def rollout_without_residual(monkeypatch: pytest.MonkeyPatch) -> None:
    """Multiply the attention matrices without the identity."""
    monkeypatch.setattr(attention_flow, "with_residual", lambda weights: weights)


@pytest.mark.parametrize(
    ("page", "spoil"),
    [
        ("06-scaling-heads-masks", unscaled),
        ("06-scaling-heads-masks", mask_without_diagonal),
        ("07-positions", base_1000),
        ("07-positions", rotation_with_wrong_sign),
        # These two train a model before the cell that fails.
        pytest.param("03-attention-decoders", additive_without_tanh, marks=pytest.mark.slow),
        pytest.param("08-norm-and-residuals", deviation_without_mean, marks=pytest.mark.slow),
        ("09-encoder-decoder-transformer", unscaled),
        ("11-beam-search", length_penalty_without_division),
        ("16-reading-attention", rollout_without_residual),
    ],
)
def test_a_page_fails_if_a_formula_is_wrong(
    page: str, spoil: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    spoil(monkeypatch)
    with pytest.raises(AssertionError):
        execute(page, monkeypatch)


@pytest.mark.parametrize("spoil", [deviation_without_mean, base_1000, unscaled])
def test_the_table_of_deviations_fails_if_a_formula_is_wrong(
    spoil: Callable[[pytest.MonkeyPatch], None],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    spoil(monkeypatch)
    assert run_doctests("what-the-slides-print", doctest.FAIL_FAST) > 0
    assert "Expected:" in capsys.readouterr().out
