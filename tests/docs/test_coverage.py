"""Each heading of the lectures has a row with a page and a test in docs/course/coverage.md.

The page has a section for each lecture, whose heading begins with the number of the lecture, and in
it a table with the columns heading, page and test:

    | Multi-head | [heads](06-scaling-heads-masks.md#heads) | `tests/docs/test_x.py::test_y` |
"""

import re
from pathlib import Path
from typing import NamedTuple

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
COURSE = ROOT / "docs" / "course"
HEADINGS: dict[str, list[str]] = yaml.safe_load(
    Path(__file__).with_name("headings.yaml").read_text(encoding="utf-8")
)
# Headings that may have a reason in place of a page and a test.
HISTORY = {"Attention history", "4 References"}
LINK = re.compile(r"\]\(([^)#]*)(?:#([^)]*))?\)")
TEST = re.compile(r"`(tests/[\w./-]+\.py)::(\w+)[^`]*`")

needs_course = pytest.mark.skipif(
    not any(COURSE.glob("[0-9][0-9]-*.md")), reason="the course has no pages yet"
)


class Row(NamedTuple):
    lecture: str
    heading: str
    page: str
    test: str


def read_rows(text: str) -> list[Row]:
    """Read the rows of the tables of a page, with the number of the lecture of the section."""
    lecture, rows = "", []
    for line in text.splitlines():
        if found := re.match(r"#+ (\d{3})\b", line):
            lecture = found[1]
        cells = [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
        if len(cells) == 3 and cells[0] != "heading" and not set(cells[0]) <= set(":- "):
            rows.append(Row(lecture, *cells))
    return rows


def anchors(text: str) -> set[str]:
    """Return the anchors of the headings of a page, as GitHub makes them."""
    outside = re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)
    titles = re.findall(r"^#{1,4} (.+)$", outside, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.strip().lower()).replace(" ", "-") for title in titles}


def problems(row: Row) -> list[str]:
    """Return the pages, anchors and tests of a row that do not exist."""
    links, tests = LINK.findall(row.page), TEST.findall(row.test)
    if not (links and tests):
        reason = row.heading in HISTORY and row.page
        return [] if reason else [f"{row.heading}: no page with a test and no reason"]
    found = []
    for target, anchor in links:
        page = (COURSE / target).resolve()
        if not page.is_file():
            found.append(f"{row.heading}: {target} does not exist")
        elif anchor and anchor not in anchors(page.read_text(encoding="utf-8")):
            found.append(f"{row.heading}: {target} has no heading #{anchor}")
    for file, name in tests:
        if not (ROOT / file).is_file():
            found.append(f"{row.heading}: {file} does not exist")
        elif f"def {name}(" not in (ROOT / file).read_text(encoding="utf-8"):
            found.append(f"{row.heading}: {file} has no test {name}")
    return found


@needs_course
def test_each_heading_has_one_row() -> None:
    rows = read_rows((COURSE / "coverage.md").read_text(encoding="utf-8"))
    written = {
        lecture: [row.heading for row in rows if row.lecture == lecture] for lecture in HEADINGS
    }
    assert written == HEADINGS


@needs_course
def test_the_pages_and_tests_of_each_row_exist() -> None:
    rows = read_rows((COURSE / "coverage.md").read_text(encoding="utf-8"))
    assert not [problem for row in rows for problem in problems(row)]


def test_a_row_is_read_as_meant() -> None:
    (row,) = read_rows(
        "## 002 Notes\n\n| heading | page | test |\n| --- | --- | --- |\n| a | b | c |"
    )
    assert row == Row("002", "a", "b", "c")
    assert anchors("# A: b c\n```\n# no\n```\n## Q, K") == {"a-b-c", "q-k"}


@pytest.mark.parametrize(
    ("page", "test", "message"),
    [
        ("", "", "no page with a test"),
        ("[a](no.md)", "`tests/docs/test_coverage.py::problems`", "no.md does not exist"),
        ("[a](../data.md#no)", "`tests/docs/test_coverage.py::problems`", "no heading #no"),
        ("[a](../data.md#documents)", "`tests/no.py::test_x`", "tests/no.py does not exist"),
        ("[a](../data.md#documents)", "`tests/conftest.py::test_x`", "has no test test_x"),
    ],
)
def test_a_wrong_row_is_found(page: str, test: str, message: str) -> None:
    (found,) = problems(Row("000", "Transformers", page, test))
    assert message in found


def test_a_right_row_has_no_problem() -> None:
    test = "`tests/docs/test_coverage.py::test_a_right_row_has_no_problem`"
    assert problems(Row("000", "Transformers", "[a](../data.md#documents)", test)) == []
    assert problems(Row("003", "Attention history", "dates only", "")) == []
