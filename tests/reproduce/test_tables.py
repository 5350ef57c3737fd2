"""The tables as data: what they must hold, and what a wrong one says."""

from pathlib import Path

import pytest
import yaml

from fourfold.errors import InputError
from fourfold.reproduce.load_tables import find_tables, merged, papers, read_paper
from fourfold.reproduce.runs.plan import SECTIONS
from fourfold.reproduce.tables import RANDOM, RECIPES, printed_number, printed_step

TABLES = {table.name: table for table in find_tables(["all"])}

# What the package promises to follow.
PROMISED = {
    "vaswani2017": {"table1", "layers", "crossover", "table2", "table3"},
    "bert2018": {"table1", "table5", "table6", "table7", "table8"},
    "roberta2019": {"table1", "table2", "table3"},
    "gpt1_2018": {"table5"},
    "gpt2_2019": {"table2", "table3"},
    "nanogpt": {"curves"},
    "vit2020": {"table1", "table8", "figure9", "figure4"},
    "beyer2022": {"table1"},
    "deit2020": {"table3", "table8"},
    "bishop": {"ladder", "properties", "scores"},
    "fourfold": {"switches", "modern", "windows", "datasets", "gradients", "recurrence"},
    "xu2015": {"flickr8k", "flickr30k", "coco"},
    "mingpt": {"addition"},
    "lake2018": {"scan"},
    "olsson2022": {"induction"},
    "power2022": {"grokking"},
    "g2p_seq2seq": {"cmudict"},
}

SMALL = """
title: T
authors: A, B
venue: V
year: 2000
sources: {read: somewhere}
tables:
  table1:
    title: Sizes
    source: [read]
    setup: {config: {a: 1, b: 2}}
    columns: {x: {title: X, exact: parameters}}
    rows: {one: {setup: {config: {b: 3}}, x: 5.00}, two: {x: 7}}
"""


def small(old: str = "", new: str = "") -> str:
    assert old in SMALL
    return SMALL.replace(old, new)


@pytest.mark.parametrize("paper", PROMISED)
def test_the_promised_tables_are_there(paper: str) -> None:
    assert PROMISED[paper] <= {name.partition("/")[2] for name in TABLES if paper in name}


@pytest.mark.parametrize("name", TABLES)
def test_every_table_says_where_it_was_read(name: str) -> None:
    table = TABLES[name]
    paper = papers()[name.partition("/")[0]]
    assert set(table.source) <= set(paper.sources)
    assert table.source or not any(row.printed for row in table.rows.values())
    for reason in table.reasons:
        assert reason.source, reason.why
        assert set(reason.source) <= set(paper.sources)
        assert set(reason.rows) <= set(table.rows)
        assert set(reason.columns) <= set(table.columns)
        # A reason claims something that can be tested, or says that the cause is not known.
        tested = reason.changes or reason.rounding != "nearest"
        assert bool(tested) != reason.unknown, reason.why


@pytest.mark.parametrize("name", TABLES)
def test_a_training_tier_names_a_recipe_and_metrics_that_are_there(name: str, root: Path) -> None:
    for tier, whole in TABLES[name].tiers.items():
        assert tier in RECIPES
        assert not whole.like or whole.like in TABLES[name].tiers
        assert set(whole.metrics) <= set(TABLES[name].columns)
        assert whole.config or (whole.parts and not whole.columns)
        for name_of_row in whole.same_split:  # they have a printed number that is compared
            row = TABLES[name].rows[name_of_row]
            assert row.printed.keys() & set(whole.columns_of(row.runs[tier]))
        for row in TABLES[name].rows_of(tier):  # weights have their tokenizer
            changes = row.runs[tier]
            assert "words" not in changes or changes.get("start") == RANDOM, row.name
        for recipe in (whole, *whole.parts.values()):
            if recipe.config:  # none where the parts begin with another table's weights
                config = yaml.safe_load((root / recipe.config).read_text())
                assert config["model"]["class_path"].startswith("fourfold.tasks.")
            assert all(metric.startswith("test/") for metric in recipe.columns.values())
        assert TABLES[name].cells(tier)


@pytest.mark.parametrize("name", TABLES)
def test_the_changes_of_a_row_have_known_keys(name: str) -> None:
    """An unknown key would be ignored, so that the row would be trained like another one."""
    of_run = {*SECTIONS, "recipe", "minutes"}
    for row in TABLES[name].rows.values():
        for tier, changes in row.runs.items():
            parts = TABLES[name].tiers[tier].parts
            known = {*of_run, "test", "each", "start", "words", "teacher", "columns", *parts}
            assert set(changes) <= known, row.name
            for key in ("each", *parts):
                assert set(changes.get(key) or {}) <= of_run, f"{row.name}, {key}"


def test_some_numbers_as_they_are_printed() -> None:
    rows = TABLES["vaswani2017/table3"].rows
    assert rows["A_h4"].printed["ppl"] == "5.00"
    assert printed_number(rows["big"].printed["params"]) == 213
    assert "params" not in rows["A_h1"].printed
    assert TABLES["gpt2_2019/table3"].rows["small"].printed["wikitext103"] == "37.50"
    assert TABLES["deit2020/table8"].rows["no_erasing"].printed["at224"] == "4.3"


@pytest.mark.parametrize(
    ("text", "number", "step"),
    [
        ("65", 65, 1),
        ("5.00", 5, 0.01),
        ("3.3e+18", 3.3e18, 1e17),
        ("6.987712e-04", 6.987712e-4, 1e-10),
        ("0.61382", 0.61382, 1e-5),
        ("O(n)", None, None),
    ],
)
def test_what_a_last_digit_is_worth(text: str, number: float | None, step: float | None) -> None:
    assert printed_number(text) == number
    if step is not None:
        assert printed_step(text) == pytest.approx(step)


def test_a_row_has_the_tables_setup_with_its_own_changes() -> None:
    table = read_paper("p.yaml", SMALL).tables["table1"]
    assert table.name == "p/table1"
    assert table.rows["one"].setup == {"config": {"a": 1, "b": 3}}
    assert table.rows["two"].setup is None
    assert [(row.name, column) for row, column in table.cells("exact")] == [("one", "x")]
    assert table.rows["one"].printed["x"] == "5.00"
    assert merged({"a": {"b": 1}}, {"a": {"c": 2}, "d": 3}) == {"a": {"b": 1, "c": 2}, "d": 3}


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        (
            "year: 2000",
            "years: 2000",
            "p.yaml is invalid: Paper.__init__() got an unexpected keyword argument 'years'",
        ),
        (
            "year: 2000",
            "",
            "p.yaml is invalid: Paper.__init__() missing 1 required positional argument: 'year'",
        ),
        ("year: 2000", "year: soon", "p.yaml is invalid: year must be of type int, got 'soon'"),
        (
            "x: {title: X,",
            "x: {titel: X,",
            "p/table1, column x is invalid: Column.__init__() got an",
        ),
        ("x: 7", "y: 7", "p/table1, row two: key must be one of x, title, setup, got 'y'"),
        (
            "x: 7",
            "laptop: {}",
            "p/table1, row two: key must be one of x, title, setup, got 'laptop'",
        ),
        (
            "    title: Sizes",
            "    titles: Sizes",
            "p/table1 is invalid: Table.__init__() got an unexpected keyword argument 'titles'",
        ),
        (
            "    source: [read]",
            "    source: [read]\n    tiers: {laptop: {about: a, also: {more: {columns: {}}}}}",
            "p/table1, tier laptop, more is invalid: Recipe.__init__() missing 1",
        ),
    ],
)
def test_a_wrong_file_is_named(old: str, new: str, says: str) -> None:
    with pytest.raises(InputError) as error:
        read_paper("p.yaml", small(old, new))
    assert says in str(error.value)


def test_a_tier_may_change_what_another_changes() -> None:
    rows = TABLES["vaswani2017/table3"].rows
    assert rows["A_h1"].runs["single-gpu"] == rows["A_h1"].runs["paper"]
    assert rows["big"].runs["single-gpu"]["trainer"] == {"max_steps": 60000}
    assert rows["big"].runs["paper"]["trainer"] == {"max_steps": 300000}


def test_tables_are_found_by_paper_and_all() -> None:
    assert [t.name for t in find_tables(["gpt2_2019"])] == ["gpt2_2019/table2", "gpt2_2019/table3"]
    assert len(find_tables(["all"])) == len(TABLES)
    assert len(find_tables(["gpt2_2019/table2", "gpt2_2019"])) == 2


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("vaswani2017/table9", "did you mean vaswani2017/table"),
        ("vaswani/table3", "did you mean vaswani2017/table3?"),
        ("nothing", "must be one of bahdanau2015, bert2018"),
    ],
)
def test_an_unknown_table_lists_the_known_ones(name: str, says: str) -> None:
    with pytest.raises(InputError, match="TABLE must be one of") as error:
        find_tables([name])
    assert says in str(error.value)
