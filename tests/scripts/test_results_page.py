"""Tests that the page of results is generated from the recorded tables and up to date."""

import json
from pathlib import Path

from fourfold.reproduce.cells import run_cell
from fourfold.reproduce.load_tables import find_tables
from fourfold.reproduce.rank_correlation import compare_orders
from fourfold.reproduce.report import content
from scripts.tools.results_page import BEGIN, END, ROOT, insert, pages, section


def write_table(results: Path, name: str, rows: int) -> Path:
    """Write the laptop tier of a table with values in its first rows."""
    (table,) = find_tables([name])
    cells = []
    for number, (row, column) in enumerate(table.cells("laptop")):
        done = number < rows * len(table.columns)
        cells.append(run_cell(table, row, column, "m", {0: {"m": 1 + number}} if done else {}))
    folder = results / name / "laptop"
    folder.mkdir(parents=True)
    whole = content(table, "laptop", cells, compare_orders(table, cells))
    (folder / "table.json").write_text(json.dumps(whole))
    return folder


def test_results_page_is_up_to_date() -> None:
    page = (ROOT / "results/README.md").read_text(encoding="utf-8")
    between = page.partition(BEGIN)[2].partition(END)[0]
    wanted = section(ROOT / "results")
    assert between.strip() == wanted, "run python scripts/tools/results_page.py"


def test_table_pages_are_up_to_date() -> None:
    found = pages(ROOT / "results")
    assert len(found) > 10
    for file, page in found.items():
        assert file.read_text(encoding="utf-8") == page, "run python scripts/tools/results_page.py"


def test_trained_table_shows_rows_rank_correlation_and_finding(tmp_path: Path) -> None:
    folder = write_table(tmp_path, "vaswani2017/table3", 4)
    orders = json.loads((folder / "table.json").read_text())["order"]
    (folder / "finding.md").write_text("Wider is better here, too.\n")
    page = section(tmp_path).splitlines()
    summary = next(line for line in page if "vaswani2017/table3/laptop/table.md" in line)
    assert "12 measured, 28 not run" in summary
    (found,) = [o for o in orders if o["column"] == "perplexity (dev)"]
    low, high = f"{found['low']:.2f}", f"{found['high']:.2f}"
    assert float(low) < 0.2 < float(high)
    assert f"perplexity (dev) 0.20 of 6 ({low} to {high})" in summary
    assert "does not include the variation over seeds" in page[0]
    assert "**vaswani2017/table3, laptop.** Wider is better here, too." in page
    assert "| base | 4.92 / 1 | 25.8 / 2 |" in page
    assert "| big | 4.33 / not run | 26.4 / not run |" in page
    assert any(line.startswith("| table3: Variations") and "| exact |" in line for line in page)


def test_table_without_a_paper_has_one_number_per_cell(tmp_path: Path) -> None:
    write_table(tmp_path, "fourfold/switches", 1)
    page = section(tmp_path).splitlines()
    assert "<details><summary>fourfold/switches, laptop, ours</summary>" in page
    assert "| post-norm | not run | not run | not run | not run | not run |" in page


def test_text_outside_the_marks_is_kept(tmp_path: Path) -> None:
    page = tmp_path / "README.md"
    page.write_text(f"before\n{BEGIN}\nold\n{END}\nafter\n")
    insert(page, "new")
    assert page.read_text() == f"before\n{BEGIN}\n\nnew\n\n{END}\nafter\n"
