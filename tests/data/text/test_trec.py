"""TrecData: labels, encoding, splits and errors."""

from pathlib import Path

import pytest

from fourfold.data import TrecData
from fourfold.errors import InputError
from fourfold.tokenization.training import TokenizerConfig

TRAIN = """\
LOC:city What is the capital of Brazil ?
HUM:ind Who was \xc9douard ?
LOC:state Where is Ohio ?
"""
TEST = "HUM:ind Who wrote it ?\n"
CHARS = TokenizerConfig(kind="char")


def folder(path: Path, train: str = TRAIN) -> str:
    (path / "train.txt").write_bytes(train.encode("latin-1"))
    (path / "test.txt").write_bytes(TEST.encode("latin-1"))
    return str(path)


def test_coarse_and_fine_classes(tmp_path: Path) -> None:
    data = TrecData(folder(tmp_path), tokenizer=CHARS)
    assert data.class_names == ["HUM", "LOC"]
    (batch,) = data.train_dataloader()
    assert sorted(batch.labels.tolist()) == [0, 1, 1]
    texts = data.tokenizer.decode_batch(batch.ids.tolist())
    assert "Who was \xc9douard ?" in texts
    assert TrecData(folder(tmp_path), tokenizer=CHARS, fine=True).class_names == [
        "HUM:ind",
        "LOC:city",
        "LOC:state",
    ]


@pytest.mark.parametrize("line", ["What is it ?", "LOC Where is it ?", "LOC:city  "])
def test_line_without_label_or_question_is_named(tmp_path: Path, line: str) -> None:
    data = TrecData(folder(tmp_path, f"{TRAIN}{line}\n"), tokenizer=CHARS)
    with pytest.raises(InputError, match="must have the form COARSE:fine question") as error:
        data.setup()
    assert "train.txt:4" in str(error.value)


def test_counts_of_the_published_files(data_dir: Path) -> None:
    archive = str(data_dir / "text_classification/trec_qc.zip/qc")
    data = TrecData(archive, tokenizer=TokenizerConfig(kind="char"))
    tables = data.read()
    assert {name: len(table) for name, table in tables.items()} == {"train": 5452, "test": 500}
    assert data.class_names == ["ABBR", "DESC", "ENTY", "HUM", "LOC", "NUM"]
    fine = TrecData(archive, fine=True, tokenizer=TokenizerConfig(kind="char"))
    assert len(set(fine.read()["train"].columns[1])) == 50
