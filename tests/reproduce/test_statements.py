"""Tests of the published effects of the tables, and of their verdicts on synthetic seeds."""

import csv
import io
import re
from itertools import pairwise

import pytest

from fourfold.metrics.significance import mean_interval
from fourfold.reproduce.cells import Cell, count_verdicts, measured_cell
from fourfold.reproduce.load_tables import DATA, find_tables
from fourfold.reproduce.statements import (
    FIELDS,
    VERDICTS,
    Step,
    as_csv,
    as_list,
    compare,
    judge,
    printed_advantage,
)
from fourfold.reproduce.tables import Statement, Table

(TABLE,) = find_tables(["vaswani2017/table3"])
STATED = [table for table in find_tables(["all"]) if table.statements]
STATEMENTS = [
    pytest.param(table, statement, id=f"{table.name}-{name}")
    for table in STATED
    for name, statement in table.statements.items()
]
# The gradient norms of trained models have no published order, and cmudict has a single row.
WITHOUT_STATEMENTS = {"fourfold/gradients", "g2p_seq2seq/cmudict", "cotterell2017/inflection"}


def seeds(column: str, **rows: list[float]) -> list[Cell]:
    """Cells of one column with the given values for the seeds 0, 1, ..."""
    return [
        measured_cell(TABLE.rows[row], column, [*values], [*range(len(values))])
        for row, values in rows.items()
    ]


def test_every_laptop_table_has_statements() -> None:
    laptop = {table.name for table in find_tables(["all"]) if "laptop" in table.obtainable}
    assert {table.name for table in STATED} == laptop - WITHOUT_STATEMENTS
    assert len(STATED) >= 10
    assert len(STATEMENTS) >= 60
    # YAML would silently replace a statement by a second one of the same name.
    texts = [file.read_text(encoding="utf-8") for file in DATA.glob("*.yaml")]
    assert sum(len(re.findall(r"\border: \S+ > ", text)) for text in texts) == len(STATEMENTS)


@pytest.mark.parametrize(("table", "statement"), STATEMENTS)
def test_a_statement_names_rows_that_run_and_agrees_with_the_paper(
    table: Table, statement: Statement
) -> None:
    filled = {(row.name, column) for row, column in table.cells("laptop")}
    assert len(statement.rows) == len(set(statement.rows)) >= 2
    assert filled >= {(row, statement.column) for row in statement.rows}
    assert not statement.printed or statement.printed in table.columns
    printed = [
        printed_advantage(table, statement, better, worse)
        for better, worse in pairwise(statement.rows)
    ]
    assert all(x is None or x > 0 for x in printed)
    assert not statement.printed or None not in printed
    if None in printed:  # the text, a figure or another table states the effect
        assert re.search(r"figure|section|abstract|table|README|losses", statement.source)


def test_intervals_are_those_of_the_paired_t_test() -> None:
    stats = pytest.importorskip("scipy.stats")
    for n in (2, 3, 10, 12):
        first, second = [1.5, 2.0, 1.0, 4.0] * 3, [0.0, 1.0, 0.5, 2.0] * 3
        expected = stats.ttest_rel(first[:n], second[:n]).confidence_interval(0.95)
        found = mean_interval([a - b for a, b in zip(first[:n], second[:n], strict=True)])
        assert found == pytest.approx((expected.low, expected.high), rel=1e-5)


@pytest.mark.parametrize(
    ("differences", "printed", "verdict"),
    [
        ([1.0, 1.1, 0.9], 0.5, "seen"),
        ([1.0, 1.1, 0.9], None, "seen"),
        ([-1.0, -1.1, -0.9], 0.5, "opposite"),
        ([0.1, -0.1, 0.0], 0.5, "not seen"),  # an effect of 0.5 would have been found
        ([0.1, -0.1, 0.0], 0.2, "not resolved"),  # the interval is -0.25 to 0.25
        ([0.1, -0.1, 0.0], None, "not resolved"),
        ([5.0], 0.5, "not resolved"),
        ([], 0.5, "not resolved"),
        ([1.0, float("inf"), 1.0], 0.5, "not resolved"),
    ],
)
def test_each_verdict_is_reached(
    differences: list[float], printed: float | None, verdict: str
) -> None:
    step = compare(differences, printed)
    assert step.verdict == verdict
    assert (step.low is None) == (len(differences) < 2 or float("inf") in differences)
    assert step.seeds == len(differences)


def test_rows_are_paired_by_seed_in_the_direction_of_the_column() -> None:
    # The seeds differ by 10, the rows by 1: only the paired differences show the effect.
    cells = seeds("bleu", base=[11.0, 21.1, 31.0], A_h1=[10.0, 20.0, 30.0, 99.0])
    step = judge(TABLE, "laptop", cells)["heads_1_bleu"]
    assert (step.verdict, step.seeds) == ("seen", 3)
    assert step.effect == pytest.approx(1.0333, abs=1e-3)
    cells = seeds("ppl", base=[11.0, 21.1, 31.0], A_h1=[10.0, 20.0, 30.0])
    step = judge(TABLE, "laptop", cells)["heads_1_ppl"]
    assert step.verdict == "opposite"  # a higher perplexity is worse
    assert step.effect == pytest.approx(-1.0333, abs=1e-3)
    found = judge(TABLE, "laptop", cells)
    assert found["heads_1_bleu"] == Step("not resolved", 0)
    assert judge(TABLE, "exact", cells) == {}


@pytest.mark.parametrize(
    ("middle", "verdict"),
    [([2.0, 2.1, 2.0], "seen"), ([0.5, 0.6, 0.5], "opposite"), ([], "not resolved")],
)
def test_an_order_has_the_verdict_of_its_worst_step(middle: list[float], verdict: str) -> None:
    rows = {"base": [3.0, 3.0, 3.0], "B_dk32": middle, "B_dk16": [1.0, 1.0, 1.0]}
    step = judge(TABLE, "laptop", seeds("bleu", **rows))["key_width_bleu"]
    assert step.verdict == verdict
    assert verdict != "seen" or step.effect == pytest.approx(0.9667, abs=1e-3)


def test_a_training_that_diverged_leaves_the_effect_open() -> None:
    cells = seeds("ppl", base=[4.0, 4.0, 4.0])
    worse = Cell("A_h1", "ppl", "5.29", [5.0, "inf", 5.0], "measured", [0, 1, 2])  # as in JSON
    judged = judge(TABLE, "laptop", [*cells, worse])
    assert judged["heads_1_ppl"] == Step("not resolved", 3)
    wanted = (
        "- `heads_1_ppl`: base > A_h1, perplexity (dev): not resolved. Source: table 3, rows A."
    )
    assert wanted in as_list(TABLE, judged).splitlines()


def test_page_and_csv_show_the_verdicts() -> None:
    cells = seeds("bleu", base=[11.0, 21.1, 31.0], A_h1=[10.0, 20.0, 30.0])
    judged = judge(TABLE, "laptop", cells)
    counts = count_verdicts(step.verdict for step in judged.values())
    assert counts == f"1 seen, {len(TABLE.statements) - 1} not resolved"
    line, *others = as_list(TABLE, judged).splitlines()
    wanted = (
        "- `heads_1_bleu`: base > A_h1, BLEU (dev): seen, by 1.0333 (0.88991 to 1.1768), 3 seeds"
    )
    assert line == f"{wanted}. Source: table 3, rows A."
    assert all(": not resolved. Source: table 3" in other for other in others)
    rows = list(csv.DictReader(io.StringIO(as_csv(TABLE, judged))))
    assert set(rows[0]) == set(FIELDS)
    assert [row["statement"] for row in rows] == list(TABLE.statements)
    assert all(row["verdict"] in VERDICTS for row in rows)
    assert (rows[0]["effect"], rows[0]["low"], rows[0]["seeds"]) == ("1.033", "0.8899", "3")
    assert (rows[1]["rows"], rows[1]["better"], rows[1]["effect"]) == ("base > A_h1", "lower", "")
