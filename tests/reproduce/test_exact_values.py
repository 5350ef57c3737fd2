"""The exact tier: every cell agrees with the paper, or its disagreement is explained and tested."""

from dataclasses import replace
from typing import Any

import pytest
import yaml

from fourfold.reproduce.cells import Cell, agrees
from fourfold.reproduce.exact_values import exact_cell
from fourfold.reproduce.load_tables import find_tables
from fourfold.reproduce.tables import Column, Table

TABLES = {table.name: table for table in find_tables(["all"])}
EXACT = [name for name, table in TABLES.items() if "exact" in table.obtainable]


def cells(table: Table) -> dict[tuple[str, str], Cell]:
    return {
        (row.name, column): exact_cell(table, row, column) for row, column in table.cells("exact")
    }


@pytest.mark.parametrize("name", EXACT)
def test_every_cell_agrees_or_its_disagreement_is_explained(name: str) -> None:
    for place, cell in cells(TABLES[name]).items():
        assert cell.verdict in ("agrees", "not printed", "explained", "unknown cause"), place
        assert bool(cell.why) == (cell.verdict in ("explained", "unknown cause")), place


def test_three_counts_are_left_without_a_cause() -> None:
    unknown = [
        (name, *place)
        for name in EXACT
        for place, cell in cells(TABLES[name]).items()
        if cell.verdict == "unknown cause"
    ]
    assert sorted(unknown) == [
        ("vaswani2017/table3", "big", "params"),
        ("vit2020/table6", "b32", "cost"),
        ("vit2020/table6", "h14", "cost"),
    ]


def test_the_counts_that_are_known_to_be_true() -> None:
    gpt2 = cells(TABLES["gpt2_2019/table2"])
    assert [1e6 * c.numbers[0] for c in gpt2.values()] == [
        124_439_808,
        354_823_168,
        774_030_080,
        1_557_611_200,
    ]
    small = gpt2["small", "params"]
    assert (small.printed, small.verdict, small.changed) == ("117", "explained", 116.929536)
    assert small.deviation == pytest.approx(124.439808 / 117 - 1)
    base = cells(TABLES["vaswani2017/table3"])["base", "params"]
    assert (base.numbers, base.changed) == ([63.082496], 65.110016)
    cost = cells(TABLES["vaswani2017/table2"])
    assert cost["base", "cost"].numbers == [pytest.approx(3.2832e18)]
    assert cost["base", "products"].numbers == [pytest.approx(9.5e17, rel=0.01)]


def test_gradients_vanish_in_recurrent_layers_and_not_in_a_transformer() -> None:
    norms = {place: c.numbers[0] for place, c in cells(TABLES["fourfold/gradients"]).items()}
    assert norms["lstm", "state_1"] == pytest.approx(0.98, rel=0.1)  # as computed with NumPy
    for of in ("state", "input"):
        falls = {row: norms[row, f"{of}_100"] / norms[row, f"{of}_1"] for row, _ in norms}
        assert falls["rnn"] < 1e-28 < falls["lstm"] < 1e-19 < falls["lstm_bias_1"] < 1e-7
        assert falls["gru"] < 1e-19
        assert min(falls["rnn_orthogonal_1_5"], falls["pre_norm"], falls["post_norm"]) > 0.05
    for name in ("pre_norm", "post_norm"):  # the state is the input of the first block
        assert norms[name, "state_50"] == norms[name, "input_50"]


@pytest.mark.parametrize(
    ("table", "row", "config"),
    [
        ("vaswani2017/table3", "big", "vaswani2017/big"),
        ("bert2018/table1", "large", "bert/large"),
        ("gpt2_2019/table2", "xl", "gpt2/xl"),
        ("vit2020/table1", "huge", "vit/h14"),
        ("beyer2022/table1", "ours", "vit/s16_beyer2022"),
        ("deit2020/table1", "ti", "deit/ti"),
    ],
)
def test_a_setup_is_the_recipe_of_the_same_name(
    table: str, row: str, config: str, root: Any
) -> None:
    golden = yaml.safe_load((root / "tests/golden/parameters.yaml").read_text())
    cell = exact_cell(TABLES[table], TABLES[table].rows[row], "params")
    assert cell.numbers == [golden[config] / TABLES[table].columns["params"].scale]


def test_a_reason_that_does_not_hold_is_seen() -> None:
    table = TABLES["gpt2_2019/table2"]
    wrong = replace(table.reasons[0], changes={"config": {"vocab_size": 45000}})
    assert {c.verdict for c in cells(replace(table, reasons=[wrong])).values()} == {"differs"}
    assert {c.verdict for c in cells(replace(table, reasons=[])).values()} == {"differs"}


@pytest.mark.parametrize(
    ("value", "text", "rounding", "same"),
    [
        (64.6, "65", "nearest", True),
        (65.6, "65", "nearest", False),
        (65.6, "65", "down", True),
        (64.9, "65", "down", False),
        (3.2832e18, "3.3e+18", "nearest", True),
        (3.2e18, "3.3e+18", "nearest", False),
        ("O(n)", "O(n)", "nearest", True),
        ("O(1)", "O(n)", "nearest", False),
    ],
)
def test_agreement_is_to_the_printed_digit(
    value: float | str, text: str, rounding: str, same: bool
) -> None:
    assert agrees(value, text, Column("c"), rounding) is same


def test_a_coarser_rounding_is_said_by_the_column() -> None:
    assert not agrees(336.2, "340", Column("c"))
    assert agrees(336.2, "340", Column("c", step=10))
