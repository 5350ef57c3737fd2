"""Every number that is claimed can be followed to a file that says how it was obtained."""

import csv
import json
import re
from pathlib import Path
from typing import Any

import pytest

from fourfold.reproduce.exact_values import exact_cell
from fourfold.reproduce.load_tables import find_tables
from fourfold.reproduce.runs.plan import plan_runs
from fourfold.reproduce.runs.record import Record, collect_results
from fourfold.reproduce.runs.run import Machine, title_of
from fourfold.reproduce.statements import as_csv, judge
from fourfold.reproduce.tables import RECIPES

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "results"
OBTAINED = sorted(RESULTS.rglob("table.json"))
TABLES = {table.name: table for table in find_tables(["all"])}
DECIMAL = re.compile(r"(?<![\w.])\d+\.\d+(?![\w.]*/)")
COMMAND = re.compile(r"\b(fourfold|python|sh|make) +[\w-]+")


def named(file: Path) -> tuple[str, str]:
    """Table and tier of a table.json."""
    paper, table, tier = file.parent.relative_to(RESULTS).parts
    return f"{paper}/{table}", tier


def numbers(content: Any) -> list[float]:
    """All numbers in what a JSON file holds."""
    if isinstance(content, dict):
        content = list(content.values())
    if isinstance(content, list):
        return [number for part in content for number in numbers(part)]
    is_number = isinstance(content, int | float) and not isinstance(content, bool)
    return [float(content)] if is_number else []


def measured(folder: Path) -> list[float]:
    """All results in the JSON and CSV files of a folder."""
    found: list[float] = []
    for file in folder.rglob("*.json"):
        content = json.loads(file.read_text())
        if file.name == "provenance.json":  # times and machines are no results
            content = [run.get("metrics") for run in content.get("runs", [])]
        found += numbers(content)
    for file in folder.rglob("*.csv"):
        for row in csv.reader(file.open(encoding="utf-8")):
            found += [float(cell) for cell in row if re.fullmatch(r"-?\d+(\.\d+)?", cell)]
    return found


def claims(page: Path) -> list[tuple[list[str], Path]]:
    """Decimals in a table of results, and the folder that its row links to."""
    found = []
    for line in page.read_text(encoding="utf-8").splitlines():
        if line.startswith("| ") and (link := re.search(r"\]\((\w[\w/]*)/README\.md\)", line)):
            cells = line.split(" | ")[1:-1]  # not what is measured, nor the link
            found.append((DECIMAL.findall(" ".join(cells)), page.parent / link[1]))
    return found


@pytest.mark.parametrize("file", OBTAINED, ids=lambda file: "/".join(named(file)))
def test_a_table_says_how_it_was_obtained(file: Path) -> None:
    name, tier = named(file)
    whole = json.loads(file.read_text())
    assert (whole["table"], whole["tier"]) == (name, tier)
    about = json.loads(file.with_name("provenance.json").read_text())
    assert about["command"].startswith("fourfold reproduce")
    assert {"finished", "seconds", "machine", "versions"} <= about.keys()
    assert re.fullmatch(r"[0-9a-f]{7,}\+?", about["machine"]["commit"])
    if tier != "exact":
        # A row may take another's training for its own.
        run = {(row, r["seed"]) for r in about["runs"] for row in r.get("used_by", [r["row"]])}
        claimed = {(c["row"], seed) for c in whole["cells"] for seed in c["seeds"]}
        assert claimed <= run  # a row may start from one of another table
    if tier in TABLES[name].tiers:
        assert bool(about["data"]) == bool(TABLES[name].tiers[tier].files)


@pytest.mark.parametrize(
    "file",
    [f for f in OBTAINED if named(f)[1] in RECIPES],
    ids=lambda file: "/".join(named(file)),
)
def test_a_trained_table_follows_todays_recipes(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    name, tier = named(file)
    table, runs = TABLES[name], json.loads(file.with_name("provenance.json").read_text())["runs"]
    rows = [row for row in table.rows.values() if tier in row.runs]
    n_seeds = max(run["seed"] for run in runs) + 1
    plan = {
        run.title: run.stamp
        for run in plan_runs(table, tier, rows, n_seeds, Path("runs"), Machine())
    }
    for run in runs:
        called = title_of(run)
        assert run["stamp"] == plan[called], called


@pytest.mark.parametrize("file", OBTAINED, ids=lambda file: "/".join(named(file)))
def test_what_is_printed_is_what_the_paper_has(file: Path) -> None:
    table = TABLES[named(file)[0]]
    for cell in json.loads(file.read_text())["cells"]:
        printed = table.rows[cell["row"]].printed.get(cell["column"])
        assert cell["printed"] == printed, cell["row"]


@pytest.mark.parametrize("file", OBTAINED, ids=lambda file: "/".join(named(file)))
def test_page_and_table_are_of_the_same_run(file: Path) -> None:
    cells = json.loads(file.read_text())["cells"]
    rows = list(csv.DictReader(file.with_name("table.csv").open(encoding="utf-8")))
    assert [(r["row"], r["column"], r["verdict"]) for r in rows] == [
        (c["row"], c["column"], c["verdict"]) for c in cells
    ]
    page = file.with_name("table.md").read_text()
    assert sum(line.startswith("| ") for line in page.splitlines()) == len(cells) + 2


def test_verdicts_are_those_of_the_recorded_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    stated = {}
    for table in TABLES.values():
        if "laptop" in table.tiers and table.statements:
            file = RESULTS / table.name / "laptop" / "statements.csv"
            record = Record([file.with_name("provenance.json")], {})  # empty if it was not run
            cells, _ = collect_results(table, "laptop", 1, Path("none"), record, Machine())
            stated[file] = as_csv(table, judge(table, "laptop", cells))
    assert sorted(RESULTS.rglob("statements.csv")) == sorted(stated)
    for file, text in stated.items():
        assert file.read_text(encoding="utf-8") == text, f"{file}: run scripts/results_page.py"


def test_there_is_a_page_for_every_table_with_exact_cells() -> None:
    wanted = {name for name, table in TABLES.items() if "exact" in table.obtainable}
    assert {name for name, tier in map(named, OBTAINED) if tier == "exact"} == wanted


@pytest.mark.parametrize(
    "file", [f for f in OBTAINED if named(f)[1] == "exact"], ids=lambda file: named(file)[0]
)
def test_what_is_computed_is_still_what_is_written(file: Path) -> None:
    table = TABLES[named(file)[0]]
    kept = {(c["row"], c["column"]): c for c in json.loads(file.read_text())["cells"]}
    for row, column in table.cells("exact"):
        cell = exact_cell(table, row, column)
        before = kept.pop((row.name, column))
        for name in ("printed", "verdict", "why", "source"):
            assert getattr(cell, name) == before[name], f"{row.name}, {column}: {name}"
        wanted = before["values"]
        assert cell.values == (wanted if isinstance(wanted[0], str) else pytest.approx(wanted))
    assert not kept


def test_every_number_of_the_results_page_is_in_the_folder_it_links_to() -> None:
    found = claims(RESULTS / "README.md")
    assert len(found) > 10
    for decimals, folder in found:
        page = (folder / "README.md").read_text(encoding="utf-8")
        assert "ommit" in page, f"{folder} names no commit"
        assert COMMAND.search(page), f"{folder} names no command"
        there = measured(folder)
        for number in decimals:
            places = len(number.partition(".")[2])
            known = number in page or any(f"{n:.{places}f}" == number for n in there)
            assert known, f"{number} is not in {folder}"


@pytest.mark.parametrize(
    "file", sorted(RESULTS.rglob("finding.md")), ids=lambda file: "/".join(named(file))
)
def test_every_number_of_a_finding_is_in_a_file_beside_it(file: Path) -> None:
    cells = json.loads(file.with_name("table.json").read_text())["cells"]
    there = measured(file.parent)
    there += [float(c["printed"]) for c in cells if DECIMAL.fullmatch(c["printed"] or "")]
    settings = {n for cell in cells for n in re.findall(r"\d+\.\d+", cell["row"])}
    for number in DECIMAL.findall(file.read_text(encoding="utf-8")):
        places = len(number.partition(".")[2])
        known = number in settings or any(f"{abs(n):.{places}f}" == number for n in there)
        assert known, f"{number} is in no file of {file.parent}"


def test_every_number_of_the_readme_is_among_the_results() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    section = text.partition("## Results so far")[2].partition("\n## ")[0]
    pages = "\n".join(p.read_text(encoding="utf-8") for p in sorted(RESULTS.rglob("*.md")))
    rows = [line for line in section.splitlines() if line.startswith("| ")]
    decimals = {n for line in rows for n in DECIMAL.findall(line)}
    assert len(decimals) > 5
    assert not {n for n in decimals if n not in pages}
