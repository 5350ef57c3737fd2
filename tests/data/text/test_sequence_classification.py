"""Sentences and sentence pairs as rows with labels, and GLUE."""

import csv
import gzip
import json
import math
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
import torch

from fourfold.data import GlueData, SequenceData
from fourfold.data.loading.ragged import RaggedArray
from fourfold.data.readers.hf_datasets import HubConfig
from fourfold.data.readers.labels import find_classes, stratified_subset
from fourfold.data.readers.text_table import TextTable
from fourfold.data.text.glue import GLUE_TASKS
from fourfold.data.text.segments import join_segments
from fourfold.errors import InputError
from fourfold.tokenization.training import TokenizerConfig, train_tokenizer

CHARS = TokenizerConfig(kind="char")
WORDS = ["red", "green", "blue", "one", "two"]


def write(path: Path, rows: list[tuple[str, ...]], header: tuple[str, ...]) -> str:
    path.write_text("\n".join("\t".join(row) for row in [header, *rows]) + "\n")
    return str(path)


@pytest.fixture
def pairs(tmp_path: Path) -> dict[str, str]:
    rng = np.random.default_rng(0)
    rows = [
        (" ".join(rng.choice(WORDS, 3)) + f" {i}", " ".join(rng.choice(WORDS, 2)), str(i % 3))
        for i in range(60)
    ]
    header = ("a", "b", "label")
    return {
        "train": write(tmp_path / "train.tsv", rows[:40], header),
        "val": write(tmp_path / "val.tsv", rows[40:], header),
    }


def data(**options: Any) -> SequenceData:
    return SequenceData(source="files", tokenizer=CHARS, **options)


def encode_row(found: SequenceData, row: int, split: str = "train") -> Any:
    return found.split(split).batch(np.array([row]), 0, 0)


def test_pair_is_one_row_with_two_segments(pairs: dict[str, str]) -> None:
    found = data(**pairs, text=["a", "b"])
    batch = encode_row(found, 0)
    tokenizer = found.tokenizer
    a, b = (found.read()["train"].columns[i][0] for i in (0, 1))
    ids = [tokenizer.bos_id, *tokenizer.encode(a), tokenizer.eos_id]
    first = len(ids)
    ids += [*tokenizer.encode(b), tokenizer.eos_id]
    assert batch.ids[0].tolist() == ids
    assert batch.segments[0].tolist() == [0] * first + [1] * (len(ids) - first)
    assert batch.labels.tolist() == [0]
    assert found.class_names == ["0", "1", "2"]
    assert found.n_classes == 3


def test_two_separators_between_sentences(pairs: dict[str, str]) -> None:
    one, two = (data(**pairs, text=["a", "b"], n_separators=n) for n in (1, 2))
    short = encode_row(one, 0).ids[0].tolist()
    long = encode_row(two, 0).ids[0].tolist()
    position = short.index(one.tokenizer.eos_id)
    assert long == [*short[:position], one.tokenizer.eos_id, *short[position:]]


def truncate_longest_first(a: int, b: int, limit: int) -> tuple[int, int]:
    """BERT's loop: the longer sentence loses its last token until both fit."""
    while a + b > limit:
        if a > b:
            a -= 1
        else:
            b -= 1
    return a, b


@pytest.mark.parametrize("n_separators", [1, 2])
def test_longer_sentence_is_truncated_first(n_separators: int) -> None:
    tokenizer = train_tokenizer(CHARS, ["abc"], mask=False)
    rng = np.random.default_rng(1)
    lengths = rng.integers(0, 30, size=(200, 2))
    parts = [
        RaggedArray.from_lengths(rng.integers(5, 8, size=column.sum()).astype(np.int32), column)
        for column in lengths.T
    ]
    max_len = 20
    rows, first = join_segments(parts, tokenizer, max_len, n_separators)
    for i, (a, b) in enumerate(lengths):
        kept = truncate_longest_first(int(a), int(b), max_len - 2 - n_separators)
        assert first[i] == kept[0] + 1 + n_separators
        assert rows.lengths[i] == sum(kept) + 2 + n_separators <= max_len
        assert rows[i][1 : 1 + kept[0]].tolist() == parts[0][i][: kept[0]].tolist()
        begin = first[i]
        assert rows[i][begin : begin + kept[1]].tolist() == parts[1][i][: kept[1]].tolist()


def test_empty_texts_are_reported(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    rows = [("red", "a"), ("", "b"), ("blue", "b"), ("", "a")]
    file = write(tmp_path / "train.tsv", rows, ("text", "label"))
    data(train=file).setup()
    expected = f"train: 2 of 4 rows have an empty text, the first of them {file}:3"
    assert expected in caplog.messages


def test_regression_labels_are_floats(tmp_path: Path) -> None:
    file = tmp_path / "x.jsonl"
    file.write_text(
        "".join(json.dumps({"text": w, "label": i / 2}) + "\n" for i, w in enumerate(WORDS))
    )
    found = data(train=str(file), regression=True)
    batch = found.split("train").batch(np.arange(5), 0, 0)
    assert batch.labels.tolist() == [0.0, 0.5, 1.0, 1.5, 2.0]
    assert batch.labels.dtype == torch.float32
    assert found.n_classes == 1
    file.write_text('{"text": "x", "label": "1.5"}\n{"text": "y", "label": "many"}\n')
    with pytest.raises(InputError, match=r"x.jsonl.*2: .* a finite number, got 'many'"):
        data(train=str(file), regression=True).setup()


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([("x", "0"), ("y", "0")], r"x.tsv.*2: .* at least 2 different labels, got \['0'\]"),
        ([("x", "0"), ("y", "1"), ("z", "9")], "x.tsv.*4: the label must be one of 0, 1, got '9'"),
    ],
)
def test_invalid_labels_raise(rows: list[tuple[str, ...]], message: str, tmp_path: Path) -> None:
    file = write(tmp_path / "x.tsv", rows, ("text", "label"))
    classes = ["0", "1"] if len(rows) == 3 else None
    with pytest.raises(InputError, match=message):
        data(train=file, classes=classes).setup()


def test_unknown_validation_label_raises(tmp_path: Path) -> None:
    train = write(tmp_path / "a.tsv", [("x", "no"), ("y", "yes")], ("text", "label"))
    val = write(tmp_path / "b.tsv", [("x", "maybe")], ("text", "label"))
    with pytest.raises(InputError, match=r"b.tsv.*2: .* one of no, yes, got 'maybe'"):
        data(train=train, val=val).setup()


def test_numeric_classes_are_sorted_by_value() -> None:
    for labels, names in (
        (["10", "9", "1"], ["1", "9", "10"]),
        (["b", "a", "10"], ["10", "a", "b"]),
    ):
        assert find_classes(labels, TextTable.from_columns([labels], "x.tsv:")) == names


NAMES = ("pos", "neg", "New York", "nan?", "10", "-9", "1_0", "0.5", "é", "None", "01x")
TEXTS = ("hello", "nan", "NULL", " a  b", "1.0", "None", "ß", 'hello, "world"')
# Of each defect: the column, and the value that is missing or has a second spelling.
DEFECTS: dict[str, tuple[str, Any]] = {
    "NaN as a text": ("text", math.nan),
    "infinity as a text": ("text", -math.inf),
    "null as a text": ("text", None),
    "NaN as a label": ("label", math.nan),
    "null as a label": ("label", None),
    "no label": ("label", ""),
    "blank label": ("label", " \u00a0"),
    "space before a label": ("label", " pos"),
    "space after a label": ("label", "neg "),
    "number with a decimal": ("label", "10.0"),
    "number with a zero": ("label", "-09"),
}


def write_table(path: Path, rows: list[dict[str, Any]]) -> SequenceData:
    """Write a table in the format of the suffix, and return a DataModule that reads the file."""
    if path.suffix == ".parquet":
        table = pytest.importorskip("pyarrow").Table.from_pylist(rows)
        pytest.importorskip("pyarrow.parquet").write_table(table, path)
        pytest.importorskip("datasets")
        options = {"data_files": {"train": str(path)}, "cache_dir": str(path.parent / "cache")}
        hub = HubConfig("parquet", options=options)
        return SequenceData("hub", train="train", hub=hub, tokenizer=CHARS)
    if path.suffix == ".jsonl":
        path.write_text("\n".join(map(json.dumps, rows)))
    else:
        with path.open("w", newline="") as file:
            writer = csv.writer(file) if path.suffix == ".csv" else None
            for values in [("text", "label"), *(row.values() for row in rows)]:
                if writer:
                    writer.writerow(values)
                else:
                    file.write("\t".join(values) + "\n")
    return data(train=str(path))


def random_rows(seed: int) -> list[dict[str, Any]]:
    """Return 20 rows, of which the first 11 have each class once."""
    random = Random(seed)
    labels = random.sample(NAMES, len(NAMES)) + random.choices(NAMES, k=9)
    return [{"text": random.choice(TEXTS), "label": label} for label in labels]


@pytest.mark.parametrize("suffix", ["csv", "tsv", "jsonl", "parquet"])
def test_texts_and_labels_of_a_table_are_read_unchanged(suffix: str, tmp_path: Path) -> None:
    for seed in range(3):
        rows = random_rows(seed)
        found = write_table(tmp_path / f"{seed}.{suffix}", rows)
        expected = [[row["text"] for row in rows], [row["label"] for row in rows]]
        assert found.read()["train"].columns == expected
        assert found.class_names == sorted(NAMES)


@pytest.mark.parametrize("defect", DEFECTS)
@pytest.mark.parametrize("suffix", ["csv", "tsv", "jsonl", "parquet"])
def test_a_missing_or_ambiguous_value_is_no_text_and_no_class(
    suffix: str, defect: str, tmp_path: Path
) -> None:
    column, value = DEFECTS[defect]
    if not isinstance(value, str) and suffix in ("csv", "tsv"):
        column, value = "label", ""  # an empty text is a text
    rows = random_rows(len(defect))
    if isinstance(value, float):  # a column of Parquet has one type
        rows = [row | {column: i + 0.5} for i, row in enumerate(rows)]
    at = Random(len(defect)).randrange(len(NAMES), len(rows))
    rows[at][column] = value
    number = at + {"csv": 2, "tsv": 2, "jsonl": 1, "parquet": 0}[suffix]
    with pytest.raises(InputError, match=rf"(:|row ){number}: "):
        write_table(tmp_path / f"x.{suffix}", rows).setup()


def test_named_split_of_builtin_source_raises() -> None:
    with pytest.raises(InputError, match=r"train must be null for source: builtin, got mine.tsv"):
        SequenceData(train="mine.tsv").setup()


def test_train_rows_are_nested_and_balanced() -> None:
    labels = np.array([0] * 700 + [1] * 300)
    few, more = (set(stratified_subset(labels, n, seed=3).tolist()) for n in (100, 200))
    assert len(few) == 100
    assert few < more
    assert sum(labels[list(few)]) == 50
    assert stratified_subset(labels, 100, seed=4).tolist() != sorted(few)
    everything = stratified_subset(labels, 1000, seed=0)
    assert everything.tolist() == list(range(1000))
    with pytest.raises(
        InputError, match=r"train_rows must be at least 1 and at most 1000, got 1001"
    ):
        stratified_subset(labels, 1001, seed=0)


def test_held_out_rows_share_no_text(pairs: dict[str, str]) -> None:
    found = data(train=pairs["train"], val=0.3, text="a")
    train, val = (set(found.read()[name].columns[0]) for name in ("train", "val"))
    assert len(train) + len(val) == 40
    assert not train & val
    assert len(val) > 4


def test_held_out_pairs_may_share_second_sentence(tmp_path: Path) -> None:
    rows = [(f"premise {i // 2}", "yes" if i % 2 else "no", str(i % 2)) for i in range(80)]
    file = write(tmp_path / "x.tsv", rows, ("a", "b", "label"))
    parts = data(train=file, val=0.2, text=["a", "b"]).read()
    assert len(parts["train"]) + len(parts["val"]) == 80
    assert not set(parts["train"].columns[0]) & set(parts["val"].columns[0])


def test_long_rows_are_truncated_or_raise(pairs: dict[str, str]) -> None:
    assert data(**pairs, text=["a", "b"], max_len=12).split("train").max_length == 12
    with pytest.raises(InputError, match=r"train.tsv.*\d+: the row has \d+ tokens"):
        data(**pairs, text=["a", "b"], max_len=12, too_long="error").setup()


def test_builtin_source_classifies_languages() -> None:
    found = SequenceData()
    assert found.class_names == ["de", "en"]
    assert len(found.split("train")) == 4000
    names = {"tokenizer", "class_names", "max_len", "n_separators", "n_texts"}
    assert set(found.artifacts()) == names


def test_each_glue_task_reads_its_columns(tmp_path: Path) -> None:
    for name, task in GLUE_TASKS.items():
        folder = tmp_path / name
        folder.mkdir()
        labels = task.classes or ("0.5", "4.5")
        columns = [*task.text, task.label]
        if isinstance(task.label, int):
            header = None
            width = 4
        else:
            header = ["index", *columns]
            width = len(columns) + 1
        for split in ("train", "dev", "dev_matched", "dev_mismatched"):
            rows = []
            for i in range(6):
                row = [f"words {i}"] * width
                row[task.label if isinstance(task.label, int) else -1] = labels[i % len(labels)]
                rows.append("\t".join(row))
            text = "\n".join([*(["\t".join(map(str, header))] if header else []), *rows]) + "\n"
            with gzip.open(folder / f"{split}.tsv.gz", "wt") as file:
                file.write(text)
        found = GlueData(task=name, folder=str(tmp_path), tokenizer=CHARS)  # type: ignore[arg-type]
        assert found.n_classes == (len(task.classes) or 1)
        assert len(found.split("train")) == len(found.split("test")) == 6
        assert found.tests_on_val  # test.tsv has no labels
        assert found.split("train").batch(np.arange(6), 0, 0).labels.unique().numel() > 1
    other = GlueData(task="MNLI", folder=str(tmp_path), dev="dev_mismatched", tokenizer=CHARS)
    other.setup()
    assert "dev_mismatched" in str(other.split_sources["test"])


def test_uneven_lines_raise_except_in_glue(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "QQP").mkdir()
    lines = ["id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate", "0\t1\t2\ta\tb\t0"]
    for name in ("train", "dev"):
        file = tmp_path / "QQP" / f"{name}.tsv"
        file.write_text("\n".join([*lines, "1\t3\tc", "2\t5\t6\td\te\t1", ""]))
    found = GlueData(task="QQP", folder=str(tmp_path), tokenizer=CHARS)
    assert len(found.split("train")) == 2
    assert sum("dropped 1 rows" in message for message in caplog.messages) == 3
    options = {"text": ["question1", "question2"], "label": "is_duplicate"}
    with pytest.raises(InputError, match=r"dev.tsv.*3: .*3 columns instead of 6"):
        data(train=str(file), **options).setup()


def test_missing_glue_files_raise(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"CoLA/train.tsv: there is no such file"):
        GlueData(task="CoLA", folder=str(tmp_path)).setup()


@pytest.mark.parametrize(
    ("task", "train", "dev"),
    [
        ("CoLA", 8551, 1043),
        ("SST-2", 67349, 872),
        ("MRPC", 3668, 408),
        ("RTE", 2490, 277),
        ("STS-B", 5749, 1500),
        ("WNLI", 635, 71),
    ],
)
def test_sizes_of_glue(
    task: Any, train: int, dev: int, data_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FOURFOLD_DATA", str(data_dir))
    found = GlueData(task=task, tokenizer=CHARS)
    raw = found.read()
    assert (len(raw["train"]), len(raw["test"])) == (train, dev)
