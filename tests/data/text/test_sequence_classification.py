"""Labelled sentences and pairs as rows: what a model reads, and what is refused."""

import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fourfold.core.errors import InputError
from fourfold.data import GlueData, SequenceData, TrecData
from fourfold.data.glue import TASKS
from fourfold.data.labels import draw, find_classes
from fourfold.data.ragged import Ragged
from fourfold.data.sequences import join_segments
from fourfold.data.tokenizer_training import TokenizerConfig, train_tokenizer

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


def encoded(found: SequenceData, row: int, split: str = "train") -> Any:
    return found.split(split).batch(np.array([row]), 0, 0)


def test_a_pair_is_one_row_with_two_segments(pairs: dict[str, str]) -> None:
    found = data(**pairs, text=["a", "b"])
    batch, tokenizer = encoded(found, 0), found.tokenizer
    a, b = (found.read()["train"].columns[i][0] for i in (0, 1))
    ids = [tokenizer.bos_id, *tokenizer.encode(a), tokenizer.eos_id]
    first = len(ids)
    ids += [*tokenizer.encode(b), tokenizer.eos_id]
    assert batch.ids[0].tolist() == ids
    assert batch.segments[0].tolist() == [0] * first + [1] * (len(ids) - first)
    assert batch.labels.tolist() == [0]
    assert found.class_names == ["0", "1", "2"]
    assert found.n_classes == 3


def test_robertas_two_separators(pairs: dict[str, str]) -> None:
    one, two = (data(**pairs, text=["a", "b"], separators=n) for n in (1, 2))
    short, long = encoded(one, 0).ids[0].tolist(), encoded(two, 0).ids[0].tolist()
    place = short.index(one.tokenizer.eos_id)
    assert long == [*short[:place], one.tokenizer.eos_id, *short[place:]]


def longest_first(a: int, b: int, room: int) -> tuple[int, int]:
    """BERT's own loop: the longer loses its last token until both fit."""
    while a + b > room:
        if a > b:
            a -= 1
        else:
            b -= 1
    return a, b


@pytest.mark.parametrize("separators", [1, 2])
def test_the_longer_sentence_is_cut_first(separators: int) -> None:
    tokenizer = train_tokenizer(CHARS, ["abc"], mask=False)
    rng = np.random.default_rng(1)
    lengths = rng.integers(0, 30, size=(200, 2))
    parts = [
        Ragged.from_lengths(rng.integers(5, 8, size=column.sum()).astype(np.int32), column)
        for column in lengths.T
    ]
    max_len = 20
    rows, first = join_segments(parts, tokenizer, max_len, separators)
    for i, (a, b) in enumerate(lengths):
        kept = longest_first(int(a), int(b), max_len - 2 - separators)
        assert first[i] == kept[0] + 1 + separators
        assert rows.lengths[i] == sum(kept) + 2 + separators <= max_len
        assert rows[i][1 : 1 + kept[0]].tolist() == parts[0][i][: kept[0]].tolist()
        begin = first[i]
        assert rows[i][begin : begin + kept[1]].tolist() == parts[1][i][: kept[1]].tolist()


def test_numbers(tmp_path: Path) -> None:
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
    with pytest.raises(InputError, match=r"x.jsonl, line 2: the label 'many' is not a number"):
        data(train=str(file), regression=True).setup()


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([("x", "0"), ("y", "0")], ", line 2 and on: all training rows have the label '0'"),
        ([("x", "0"), ("y", "1"), ("z", "9")], "line 4: the label '9' is none of 0, 1"),
    ],
)
def test_bad_labels(rows: list[tuple[str, ...]], message: str, tmp_path: Path) -> None:
    file = write(tmp_path / "x.tsv", rows, ("text", "label"))
    classes = ["0", "1"] if len(rows) == 3 else None
    with pytest.raises(InputError, match=message):
        data(train=file, classes=classes).setup()


def test_classes_that_are_no_choice(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"classes is \['a'\], but there must be two"):
        data(train=str(tmp_path / "x.tsv"), classes=["a"])


def test_a_label_of_validation_that_training_lacks(tmp_path: Path) -> None:
    train = write(tmp_path / "a.tsv", [("x", "no"), ("y", "yes")], ("text", "label"))
    val = write(tmp_path / "b.tsv", [("x", "maybe")], ("text", "label"))
    with pytest.raises(InputError, match=r"b.tsv, line 2: the label 'maybe' is none of no, yes"):
        data(train=train, val=val).setup()


def test_classes_are_in_the_order_of_their_numbers() -> None:
    assert find_classes(["10", "9", "1"]) == ["1", "9", "10"]
    assert find_classes(["b", "a", "10"]) == ["10", "a", "b"]


def test_parts_of_what_is_embedded_are_not_passed_over() -> None:
    with pytest.raises(InputError, match=r"train is mine.tsv, but source is embedded"):
        SequenceData(train="mine.tsv").setup()


def test_a_smaller_draw_is_part_of_a_larger_and_both_are_balanced() -> None:
    labels = np.array([0] * 700 + [1] * 300)
    few, more = (set(draw(labels, n, seed=3).tolist()) for n in (100, 200))
    assert len(few) == 100
    assert few < more
    assert sum(labels[list(few)]) == 50
    assert draw(labels, 100, seed=4).tolist() != sorted(few)
    everything = draw(labels, 1000, seed=0)
    assert everything.tolist() == list(range(1000))
    with pytest.raises(InputError, match="train_rows is 1001, but there are 1000"):
        draw(labels, 1001, seed=0)


def test_a_part_held_out_shares_no_text_but_may_share_labels(pairs: dict[str, str]) -> None:
    found = data(train=pairs["train"], val=0.3, text="a")
    train, val = (set(found.read()[name].columns[0]) for name in ("train", "val"))
    assert len(train) + len(val) == 40
    assert not train & val
    assert len(val) > 4


def test_pairs_held_out_may_share_their_second_text(tmp_path: Path) -> None:
    rows = [(f"premise {i // 2}", "yes" if i % 2 else "no", str(i % 2)) for i in range(80)]
    file = write(tmp_path / "x.tsv", rows, ("a", "b", "label"))
    parts = data(train=file, val=0.2, text=["a", "b"]).read()
    assert len(parts["train"]) + len(parts["val"]) == 80
    assert not set(parts["train"].columns[0]) & set(parts["val"].columns[0])


def test_too_long_rows(pairs: dict[str, str]) -> None:
    assert data(**pairs, text=["a", "b"], max_len=12).split("train").longest == 12
    with pytest.raises(InputError, match=r"train.tsv, line \d+ has \d+ tokens, but max_len allows"):
        data(**pairs, text=["a", "b"], max_len=12, too_long="error").setup()


def test_embedded() -> None:
    found = SequenceData()
    assert found.class_names == ["de", "en"]
    assert len(found.split("train")) == 4000
    wanted = {"tokenizer", "class_names", "max_len", "separators", "n_texts"}
    assert set(found.artifacts()) == wanted


def test_every_task_of_glue_has_its_columns(tmp_path: Path) -> None:
    for name, task in TASKS.items():
        folder = tmp_path / name
        folder.mkdir()
        labels = task.classes or ("0.5", "4.5")
        columns = [*task.text, task.label]
        if isinstance(task.label, int):
            header, width = None, 4
        else:
            header, width = ["index", *columns], len(columns) + 1
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
        assert found.tests_on_val  # dev, since GLUE's own test has no labels
        assert found.split("train").batch(np.arange(6), 0, 0).labels.unique().numel() > 1
    other = GlueData(task="MNLI", folder=str(tmp_path), dev="dev_mismatched", tokenizer=CHARS)
    other.setup()
    assert "dev_mismatched" in str(other.parts["test"])


def test_broken_lines_end_other_tables_but_are_left_out_of_glue(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "QQP").mkdir()
    lines = ["id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate", "0\t1\t2\ta\tb\t0"]
    for name in ("train", "dev"):
        file = tmp_path / "QQP" / f"{name}.tsv"
        file.write_text("\n".join([*lines, "1\t3\tc", "2\t5\t6\td\te\t1", ""]))
    found = GlueData(task="QQP", folder=str(tmp_path), tokenizer=CHARS)
    assert len(found.split("train")) == 2
    assert sum("1 rows with other columns" in message for message in caplog.messages) == 3
    options = {"text": ["question1", "question2"], "label": "is_duplicate"}
    with pytest.raises(InputError, match=r"dev.tsv, line 3: 3 columns, but the header has 6"):
        data(train=str(file), **options).setup()


def test_glue_without_its_files(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"There is no file .*CoLA/train.tsv"):
        GlueData(task="CoLA", folder=str(tmp_path)).setup()


@pytest.mark.parametrize(
    ("task", "train", "dev"),
    [("CoLA", 8551, 1043), ("SST-2", 67349, 872), ("MRPC", 3668, 408), ("RTE", 2490, 277),
     ("STS-B", 5749, 1500), ("WNLI", 635, 71)],
)  # fmt: skip
def test_glue_itself(
    task: Any, train: int, dev: int, data_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FOURFOLD_DATA", str(data_dir))
    found = GlueData(task=task, tokenizer=CHARS)
    raw = found.read()
    assert (len(raw["train"]), len(raw["test"])) == (train, dev)


def test_questions_of_trec(tmp_path: Path) -> None:
    lines = [f"{c}:x Wo ist Caf\u00e9 {i} ?" for i, c in enumerate(["LOC", "NUM", "HUM"] * 20)]
    for name, part in (("train", lines), ("test", lines[:9])):
        (tmp_path / name).write_bytes("\n".join(part).encode("latin-1"))
    files = {name: str(tmp_path / name) for name in ("train", "test")}
    found = TrecData(**files, tokenizer=CHARS)  # type: ignore[arg-type]
    assert found.class_names == ["HUM", "LOC", "NUM"]
    assert found.read()["test"].columns[0][0] == "Wo ist Caf\u00e9 0 ?"
    assert len(found.split("train")) + len(found.split("val")) == 60
    fine = TrecData(**files, fine=True, tokenizer=CHARS)  # type: ignore[arg-type]
    assert fine.class_names == ["HUM:x", "LOC:x", "NUM:x"]
    (tmp_path / "test").write_text("What is this ?\n")
    with pytest.raises(InputError, match=r"test, line 1: 'What is this \?' has no class"):
        TrecData(**files, tokenizer=CHARS).setup()  # type: ignore[arg-type]


def test_trec_itself(data_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FOURFOLD_DATA", str(data_dir))
    found = TrecData(tokenizer=CHARS)
    raw = found.read_parts()
    assert len(raw["test"]) == 500
    assert 5000 < len(raw["train"]) + len(raw["val"]) <= 5452
    assert found.n_classes == 6
    assert TrecData(fine=True, tokenizer=CHARS).n_classes == 50
