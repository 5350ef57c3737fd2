"""Tests of the page, the CSV, the JSON and the figure that are written from the same cells."""

import csv
import io
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from matplotlib.figure import Figure

from fourfold.reproduce.cells import Cell, run_cell
from fourfold.reproduce.exact_values import exact_cell
from fourfold.reproduce.load_tables import find_tables, papers
from fourfold.reproduce.plot import draw
from fourfold.reproduce.rank_correlation import compare_orders
from fourfold.reproduce.report import as_csv, content, markdown

(TABLE,) = find_tables(["vaswani2017/table3"])
PAPER = papers()["vaswani2017"]


def measured() -> list:
    """The laptop tier with two seeds of its first row, one of the second, none of the others."""
    found = {
        "base": {
            0: {"test/ppl_token": 4.0, "test/bleu": 20},
            1: {"test/ppl_token": 5.0, "test/bleu": 22},
        },
        "A_h1": {0: {"test/ppl_token": 6.0, "test/bleu": 18.125}},
    }
    columns = TABLE.tiers["laptop"].columns
    return [
        run_cell(TABLE, r, c, columns[c], found.get(r.name, {})) for r, c in TABLE.cells("laptop")
    ]


def test_the_page_has_mean_spread_and_what_was_not_run() -> None:
    lines = markdown(PAPER, TABLE, "laptop", measured(), []).splitlines()
    row = "| base | perplexity (dev) | 4.92 | 4.5 ± 0.71 | laptop, trained, 2 seeds | -8.5 % |  |"
    assert row in lines
    assert "| A_h1 | BLEU (dev) | 24.9 | 18.125 | laptop, trained, 1 seed | -27.2 % |  |" in lines
    assert "| A_h4 | BLEU (dev) | 25.5 | not run | laptop, not run |  |  |" in lines
    assert "40 cells: 4 measured, 36 not run." in lines


def test_a_seed_that_came_to_infinity_spoils_no_table(tmp_path: Path) -> None:
    found = {0: {"test/ppl_token": 4.0}, 1: {"test/ppl_token": "inf"}}  # as JSON holds it
    cells = [cell for cell in measured() if cell.row != "base"]
    cells.append(run_cell(TABLE, TABLE.rows["base"], "ppl", "test/ppl_token", found))
    page = markdown(PAPER, TABLE, "laptop", cells, compare_orders(TABLE, cells))
    assert "| base | perplexity (dev) | 4.92 | inf ± nan | laptop, trained, 2 seeds |" in page
    assert "base,ppl,,4.92,inf,nan,0 1,inf,measured," in as_csv(TABLE, cells)
    draw(TABLE, cells, tmp_path / "table.png")


def test_an_explanation_stands_once_and_shows_what_its_change_gives() -> None:
    cells = [
        exact_cell(TABLE, r, c)
        for r, c in TABLE.cells("exact")
        if r.name in ("base", "C_N2", "A_h1")
    ]
    page = markdown(PAPER, TABLE, "exact", cells, [])
    assert "| base | parameters, millions | 65 | 63,082,496 | exact, computed | -3.0 %," in page
    assert page.count("[1] gives 65,110,016") == 1
    assert page.count("[1] gives 35,684,352") == 1
    assert page.count("40,960 rows") == 1
    assert "| A_h1 | parameters, millions | - | 63,082,496 | exact, computed |  |  |" in page
    assert "not filled by this tier: perplexity (dev) of 20 rows" in page


def test_the_csv_and_the_json_hold_the_same() -> None:
    cells = measured()
    rows = list(csv.DictReader(io.StringIO(as_csv(TABLE, cells))))
    whole = content(TABLE, "laptop", cells, [])["cells"]
    assert len(rows) == len(whole) == 40
    assert (rows[0]["paper"], rows[0]["ours"], rows[0]["seeds"]) == ("4.92", "4.5", "0 1")
    assert whole[0]["values"] == [4.0, 5.0]
    assert float(rows[0]["std"]) == whole[0]["std"]
    assert (rows[5]["ours"], rows[5]["verdict"]) == ("", "not run")


def test_the_picture_is_drawn_where_there_are_numbers(tmp_path: Path) -> None:
    draw(TABLE, measured(), tmp_path / "a.png")
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")
    (sizes,) = find_tables(["vit2020/figure4"])
    columns = sizes.tiers["laptop"].metrics
    lines = [
        run_cell(sizes, r, c, columns[c][1], {0: {"test/top1": 0.5}, 1: {"test/top1": 0.6}})
        for r, c in sizes.cells("laptop")
    ]
    assert len(lines) == 10
    draw(sizes, lines, tmp_path / "lines.png")
    draw(sizes, lines[:3], tmp_path / "fewer.png")
    assert (tmp_path / "lines.png").read_bytes() != (tmp_path / "fewer.png").read_bytes()
    (formulas,) = find_tables(["vaswani2017/table1"])
    row, column = formulas.cells("exact")[0]
    cell = exact_cell(formulas, row, column)
    draw(formulas, [cell], tmp_path / "b.png")
    assert not (tmp_path / "b.png").exists()


def test_each_panel_shows_its_curves_on_the_axis_of_the_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn = []

    def record(titles: list[str], height: float, plot: Any, file: Path) -> None:
        for title in titles:
            axis = Figure().add_subplot()
            plot(axis, title)
            drawn.append((title, axis.get_yscale(), len(axis.containers)))

    monkeypatch.setattr("fourfold.commands.compare_runs.draw", record)
    (table,) = find_tables(["fourfold/gradients"])
    cells = [
        Cell(row.name, column, None, [1e-9], "not printed") for row, column in table.cells("exact")
    ]
    draw(table, cells, tmp_path / "panels.png")
    names = [f"norm of the gradient with respect to an earlier {of}" for of in ("state", "input")]
    assert drawn == [(name, "log", len(table.rows)) for name in names]


@pytest.mark.parametrize(
    ("values", "printed", "verdict"),
    [
        ([99.6, 99.7, 99.9], "99.8", "agrees"),
        ([99.60, 99.61, 99.62], "99.8", "differs"),
        ([99.99, 100.0, 100.0], "99.8", "differs"),  # better is a difference, too
        ([100.0, 100.0, 100.0], "100.0", "agrees"),  # no spread
        ([99.96, 99.96, 99.96], "100.0", "agrees"),  # it rounds to the printed number
        ([99.94, 99.94, 99.94], "100.0", "differs"),
        ([99.8, 99.9], "99.8", "measured"),  # the interval of two seeds contains nearly all
        ([], "99.8", "not run"),
        ([1.0, float("inf"), 1.0], "1.0", "differs"),
        ([99.8, 99.8, 99.8], None, "measured"),
    ],
)
def test_numbers_on_the_split_of_the_paper_have_a_verdict(
    values: list[float], printed: str | None, verdict: str
) -> None:
    row = replace(TABLE.rows["base"], printed={"bleu": printed} if printed else {})
    metrics = {seed: {"m": value} for seed, value in enumerate(values)}
    assert run_cell(TABLE, row, "bleu", "m", metrics, same_split=True).verdict == verdict
    other = run_cell(TABLE, row, "bleu", "m", metrics).verdict
    assert other == ("measured" if values else "not run")
