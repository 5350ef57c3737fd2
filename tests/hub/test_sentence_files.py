"""Directories of sentence-transformers: pooling, normalization and length survive an import."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as hf

import fourfold
from fourfold.checkpoints.files import read_file, write_file
from fourfold.cli import main
from fourfold.errors import InputError
from fourfold.layers.heads import pool_tokens

TEXTS = ["a cab", "bad ace, dead", "a" * 40, "", "b c d e f a b c d e f a b c d e f"]
VOCABULARY = [
    "[PAD]",
    "[UNK]",
    "[CLS]",
    "[SEP]",
    "[MASK]",
    *"abcdef,",
    *(f"##{c}" for c in "abcde"),
]


def write_encoder(path: Path) -> None:
    torch.manual_seed(0)
    sizes = {"hidden_size": 24, "num_attention_heads": 3, "intermediate_size": 30}
    config = hf.BertConfig(**sizes, num_hidden_layers=2, vocab_size=len(VOCABULARY))
    hf.BertModel(config).save_pretrained(path)
    (path / "vocab.txt").write_text("\n".join(VOCABULARY) + "\n")
    hf.BertTokenizerFast.from_pretrained(path).save_pretrained(path)


def files_of(path: Path) -> dict[str, Any]:
    names = ("modules.json", "1_Pooling/config.json")
    return {name: json.loads((path / name).read_text()) for name in names}


@pytest.mark.parametrize("pool", ["mean", "cls"])
def test_embeddings_are_equal_after_import_and_export(pool: str, tmp_path: Path) -> None:
    st = pytest.importorskip("sentence_transformers")
    from sentence_transformers.sentence_transformer import modules

    write_encoder(tmp_path / "bert")
    parts = [modules.Transformer(str(tmp_path / "bert"), max_seq_length=12)]
    parts += [modules.Pooling(24, pooling_mode=pool), modules.Normalize()]
    st.SentenceTransformer(modules=parts, device="cpu").save(str(tmp_path / "theirs"))
    expected = st.SentenceTransformer(str(tmp_path / "theirs"), device="cpu").encode(TEXTS)
    assert main(["import", str(tmp_path / "theirs"), str(tmp_path / "x.ckpt")]) == 0
    assert main(["export", str(tmp_path / "x.ckpt"), str(tmp_path / "ours")]) == 0
    assert files_of(tmp_path / "ours") == files_of(tmp_path / "theirs")
    found = st.SentenceTransformer(str(tmp_path / "ours"), device="cpu")
    assert found.max_seq_length == 12
    assert abs(found.encode(TEXTS) - expected).max() < 1e-6
    model: Any = fourfold.load(tmp_path / "x.ckpt")
    fourfold.save(model, tmp_path / "ours")  # replaces the folders
    for i, text in enumerate(TEXTS):
        ids = [2, *model.tokenizer.encode(text)[:10], 3]
        with torch.no_grad():
            h = model.encode(torch.tensor([ids]))
        vector = pool_tokens(h, None, {"mean": "mean", "cls": "first"}[pool])[0, 0]
        vector = torch.nn.functional.normalize(vector, dim=0)
        torch.testing.assert_close(vector, torch.tensor(expected[i]), atol=1e-6, rtol=0)


def older_files(path: Path, kind: str = "Pooling") -> None:
    """Write the files of version 2 of sentence-transformers."""
    modules = [
        {"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"},
        {
            "idx": 1,
            "name": "1",
            "path": "1_Pooling",
            "type": f"sentence_transformers.models.{kind}",
        },
    ]
    (path / "1_Pooling").mkdir()
    (path / "modules.json").write_text(json.dumps(modules))
    (path / "1_Pooling/config.json").write_text('{"pooling_mode_mean_tokens": true}')
    settings = {"max_seq_length": 17, "do_lower_case": False}
    (path / "sentence_bert_config.json").write_text(json.dumps(settings))


def test_older_files_are_kept(tmp_path: Path) -> None:
    write_encoder(tmp_path / "theirs")
    older_files(tmp_path / "theirs")
    fourfold.save(fourfold.load(tmp_path / "theirs"), tmp_path / "ours")
    assert files_of(tmp_path / "ours") == files_of(tmp_path / "theirs")
    settings = json.loads((tmp_path / "ours/sentence_bert_config.json").read_text())
    assert settings == {"max_seq_length": 17, "do_lower_case": False}


def test_module_with_weights_is_reported(tmp_path: Path) -> None:
    write_encoder(tmp_path)
    older_files(tmp_path, kind="Dense")
    with pytest.warns(UserWarning, match=r"not kept.*models\.Dense"):
        model = fourfold.load(tmp_path)
    assert "sentence_transformers" not in model.artifacts
    (tmp_path / "modules.json").write_text('{"a": 1}')
    with pytest.raises(InputError, match=r"modules\.json: the content is invalid"):
        fourfold.load(tmp_path)


@pytest.mark.parametrize(
    "files",
    [
        {"../evil.json": {}},
        {"adapter_config.json": {}},
        {"tokenizer.json": {}},
        {"data/valuable.json": {}},
        {"modules.json": [{"path": "", "type": "evil.Transformer"}]},
    ],
)
def test_other_file_or_module_is_not_written(files: dict[str, Any], tmp_path: Path) -> None:
    write_encoder(tmp_path / "theirs")
    assert main(["import", str(tmp_path / "theirs"), str(tmp_path / "x.ckpt")]) == 0
    content = read_file(tmp_path / "x.ckpt")
    content["fourfold"]["data"]["sentence_transformers"] = files
    write_file(content, tmp_path / "y.ckpt")
    assert main(["export", str(tmp_path / "y.ckpt"), str(tmp_path / "ours")]) == 2
    assert not list(tmp_path.rglob("evil.json"))
    assert not (tmp_path / "ours").exists()
