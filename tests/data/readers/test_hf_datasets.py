import builtins
import json

import pytest

from fourfold.core.errors import InputError
from fourfold.data import CausalTextData, TranslationData
from fourfold.data.hub import HubConfig, read_hub
from fourfold.data.tokenizer_training import TokenizerConfig

PAIRS = [{"translation": {"en": f"number {i}", "de": f"Nummer {i}"}} for i in range(30)]


@pytest.fixture
def local(tmp_path):
    pytest.importorskip("datasets")
    file = tmp_path / "pairs.jsonl"
    file.write_text("\n".join(json.dumps(pair) for pair in PAIRS))
    options = {"data_files": {"train": str(file)}, "cache_dir": str(tmp_path / "cache")}
    return lambda **more: HubConfig("json", options=options, **more)


@pytest.mark.parametrize("streaming", [False, True])
def test_columns_of_a_split(local, streaming):
    rows = read_hub(local(streaming=streaming, rows=3), "train", ["translation.de"])
    assert rows.columns == [["Nummer 0", "Nummer 1", "Nummer 2"]]
    assert rows.where(2) == "json, split train, row 2"


def test_translation_finds_its_languages_by_itself(local):
    data = TranslationData(
        "hub", train="train", val=0.3, hub=local(), tokenizer=TokenizerConfig(vocab_size=60)
    )
    assert len(data.sources("train")) + len(data.sources("val")) == 30
    assert data.references("val")[0].startswith("Nummer")


def test_text_of_a_column(local):
    data = CausalTextData(
        "hub",
        train="train[:50%]",
        val="train[50%:]",
        column="translation.en",
        hub=local(),
        tokenizer=TokenizerConfig("char", 60),
    )
    assert sum(batch.n_bytes for batch in data.val_dataloader()) == 15 * len("number 15")


def test_what_cannot_be_loaded_is_one_sentence(local):
    with pytest.raises(InputError, match="json, split nowhere cannot be loaded"):
        read_hub(local(), "nowhere", ["translation.de"])
    with pytest.raises(InputError, match="row 0: no column 'text', only translation"):
        read_hub(local(), "train", ["text"])
    with pytest.raises(InputError, match="is empty"):
        read_hub(local(rows=0), "train", ["translation.de"])


def test_missing_package_names_the_extra(monkeypatch):
    really = builtins.__import__

    def without(name, *args, **kwargs):
        if name == "datasets":
            raise ImportError(name)
        return really(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(InputError, match=r"pip install -e '\.\[data\]'"):
        read_hub(HubConfig("x"), "train", ["y"])
