"""Text columns from `datasets`: columns, languages, errors, and a missing package."""

import builtins
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fourfold.data import CausalTextData, TranslationData
from fourfold.data.readers.hf_datasets import HubConfig, read_hub_split
from fourfold.errors import InputError
from fourfold.tokenization.training import TokenizerConfig

PAIRS = [{"translation": {"en": f"number {i}", "de": f"Nummer {i}"}} for i in range(30)]
Local = Callable[..., HubConfig]


@pytest.fixture
def local(tmp_path: Path) -> Local:
    pytest.importorskip("datasets")
    file = tmp_path / "pairs.jsonl"
    file.write_text("\n".join(json.dumps(pair) for pair in PAIRS))
    options = {"data_files": {"train": str(file)}, "cache_dir": str(tmp_path / "cache")}
    return lambda **fields: HubConfig("json", options=options, **fields)


@pytest.mark.parametrize("streaming", [False, True])
def test_columns_of_a_split(local: Local, streaming: bool) -> None:
    table = read_hub_split(local(streaming=streaming, rows=3), "train", ["translation.de"])
    assert table.columns == [["Nummer 0", "Nummer 1", "Nummer 2"]]
    assert table.location(2) == "json, split train, row 2"


def test_translation_columns_default_to_the_languages(local: Local) -> None:
    data = TranslationData(
        "hub", train="train", val=0.3, hub=local(), tokenizer=TokenizerConfig(vocab_size=60)
    )
    assert len(data.sources("train")) + len(data.sources("val")) == 30
    assert data.references("val")[0].startswith("Nummer")


def test_language_model_reads_one_column(local: Local) -> None:
    data = CausalTextData(
        "hub",
        train="train[:50%]",
        val="train[50%:]",
        column="translation.en",
        hub=local(),
        tokenizer=TokenizerConfig("char", 60),
    )
    assert sum(batch.n_bytes for batch in data.val_dataloader()) == 15 * len("number 15")


def test_missing_splits_and_columns_are_rejected(local: Local) -> None:
    with pytest.raises(InputError, match="json, split nowhere: the dataset cannot be loaded"):
        read_hub_split(local(), "nowhere", ["translation.de"])
    with pytest.raises(InputError, match=r"row 0: .*no column 'text', only translation"):
        read_hub_split(local(), "train", ["text"])
    with pytest.raises(InputError, match="the split is empty"):
        read_hub_split(local(rows=0), "train", ["translation.de"])


def test_missing_package_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    original_import = builtins.__import__

    def import_without_datasets(name: str, *args: Any, **kwargs: Any) -> Any:
        if name == "datasets":
            raise ModuleNotFoundError(name=name)
        return original_import(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", import_without_datasets)
    with pytest.raises(InputError, match=r"pip install 'fourfold\[data\]'"):
        read_hub_split(HubConfig("x"), "train", ["y"])
