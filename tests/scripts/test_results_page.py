"""The page of results: made of the files, up to date with them, and its prose left alone."""

import json
from pathlib import Path

from fourfold.papers.cells import run_cell
from fourfold.papers.order import compare_orders
from fourfold.papers.reading import find_tables
from fourfold.papers.report import content
from scripts.bench_tables import BEGIN, END, put
from scripts.results_page import ROOT, pages, section


def measured(results: Path, name: str, rows: int) -> Path:
    """The laptop tier of a table with two seeds of its first rows, as it would be written."""
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


def test_the_page_is_up_to_date() -> None:
    page = (ROOT / "results/README.md").read_text(encoding="utf-8")
    between = page.partition(BEGIN)[2].partition(END)[0]
    wanted = section(ROOT / "results")
    assert between.strip() == wanted, "run python scripts/results_page.py"


def test_the_pages_of_tables_have_todays_texts() -> None:
    found = pages(ROOT / "results")
    assert len(found) > 10
    for file, page in found.items():
        assert file.read_text(encoding="utf-8") == page, "run python scripts/results_page.py"


def test_a_training_shows_its_rows_their_order_and_what_to_make_of_it(tmp_path: Path) -> None:
    folder = measured(tmp_path, "vaswani2017/table3", 4)
    orders = json.loads((folder / "table.json").read_text())["order"]
    (folder / "finding.md").write_text("Wider is better here, too.\n")
    page = section(tmp_path).splitlines()
    summary = next(line for line in page if "vaswani2017/table3/laptop/table.md" in line)
    assert "12 measured, 28 not run" in summary
    (found,) = [o for o in orders if o["column"] == "perplexity (dev)"]
    low, high = f"{found['low']:.2f}", f"{found['high']:.2f}"
    assert float(low) < 0.2 < float(high)
    assert f"perplexity (dev) 0.20 of 6 ({low} to {high})" in summary
    assert "how seeds differ is not in it" in page[0]
    assert "**vaswani2017/table3, laptop.** Wider is better here, too." in page
    assert "| base | 4.92 / 1 | 25.8 / 2 |" in page
    assert "| big | 4.33 / not run | 26.4 / not run |" in page
    assert any(line.startswith("| table3: Variations") and "| exact |" in line for line in page)


def test_a_table_of_our_own_has_no_paper_beside_it(tmp_path: Path) -> None:
    measured(tmp_path, "fourfold/switches", 1)
    page = section(tmp_path).splitlines()
    assert "<details><summary>fourfold/switches, laptop, ours</summary>" in page
    assert "| post-norm | not run | not run | not run | not run | not run |" in page


def test_what_is_not_between_the_marks_stays(tmp_path: Path) -> None:
    page = tmp_path / "README.md"
    page.write_text(f"before\n{BEGIN}\nold\n{END}\nafter\n")
    put(page, "new")
    assert page.read_text() == f"before\n{BEGIN}\n\nnew\n\n{END}\nafter\n"
