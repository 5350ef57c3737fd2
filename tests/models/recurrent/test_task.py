"""Document classification: learning, sample pages, checkpoints and the command line."""

import io
import re
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning import Trainer

import fourfold
from fourfold.cli import main
from fourfold.data import DocumentData
from fourfold.models import HierarchicalClassifierConfig
from fourfold.optim import OptimizerConfig
from fourfold.tasks import DocumentClassification
from fourfold.tokenization.training import TokenizerConfig
from tests.fixtures.tiny_tasks import documents


def fit(task: Any, data: Any, folder: Path, **options: Any) -> Trainer:
    trainer = Trainer(
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        default_root_dir=folder,
        enable_progress_bar=False,
        enable_model_summary=False,
        use_distributed_sampler=False,
        limit_val_batches=0,
        num_sanity_val_steps=0,
        **options,
    )
    trainer.fit(task, data)
    return trainer


@pytest.fixture
def checkpoint(texts: Path, tmp_path: Path) -> Path:
    task, data = documents(texts)
    fit(task, data, tmp_path, max_steps=1).save_checkpoint(tmp_path / "a.ckpt")
    return tmp_path / "a.ckpt"


@pytest.fixture
def classify(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> Any:
    def call(path: Path, text: str, *options: str) -> tuple[int, list[str], str]:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text.encode())))
        capsys.readouterr()
        code = main(["classify", "--checkpoint", str(path), *options])
        out, err = capsys.readouterr()
        return code, out.splitlines(), err

    return call


LINES = ["one two. three", "four", "one. two! three? four. five", "nine ten " * 20]


def test_classification_of_lines(checkpoint: Path, classify: Any) -> None:
    code, found, _ = classify(checkpoint, "".join(f"{line}\n" for line in LINES))
    assert code == 0
    assert len(found) == len(LINES)
    assert all(re.fullmatch(r"[012]\t0\.\d{4}", line) for line in found)
    # Neither the other lines nor the batches matter.
    assert [classify(checkpoint, f"{line}\n")[1][0] for line in LINES] == found
    model = fourfold.load(checkpoint)
    ids = [model.tokenizer.encode(part) for part in ("one two.", "three")]
    batch = torch.tensor([ids[0], ids[1] + [0] * (len(ids[0]) - 1)])
    best = model(batch, [len(ids[0]), 1], [2])[0].softmax(0).max()
    assert found[0].endswith(f"\t{best:.4f}")


def test_document_without_sentence_or_with_too_many(checkpoint: Path, classify: Any) -> None:
    code, _, err = classify(checkpoint, "one\n\u0000\n")
    assert (code, err.count("\n")) == (2, 1)
    assert "<stdin>:2: the text must have at least one sentence, got none" in err
    long = "one. " * 6 + "\n"
    code, _, err = classify(checkpoint, long)
    assert (code, err.count("\n")) == (2, 1)
    assert "the text has 6 sentences, but the model reads 5; --truncate" in err
    cut = classify(checkpoint, long, "--truncate")[1]
    assert cut == classify(checkpoint, "one. " * 5 + "\n")[1]


def test_training_on_a_document_without_sentence_exits_with_2(tmp_path: Path, capsys: Any) -> None:
    (tmp_path / "t.tsv").write_text("text\tlabel\none two\tx\n<br />\ty\n")
    options = [f"--data.train={tmp_path / 't.tsv'}", "--data.source=files", "--run_dir=r"]
    assert main(["fit", "--config", "yang2016/tiny", *options]) == 2
    err = capsys.readouterr().err
    assert err.count("\n") == 1
    assert "t.tsv:3: the document has no sentence" in err


def test_saved_model_classifies_as_before(checkpoint: Path, tmp_path: Path) -> None:
    model = fourfold.load(checkpoint)
    fourfold.save(model, tmp_path / "saved")
    again = fourfold.load(tmp_path / "saved")
    batch = torch.tensor([[4, 5, 6], [7, 0, 0]]), [3, 1], [1, 1]
    assert torch.equal(again(*batch), model(*batch))
    assert again.artifacts == model.artifacts


def test_attention_finds_the_sentence_that_decides(tmp_path: Path) -> None:
    """In the built-in documents, a single German sentence makes the class."""
    torch.manual_seed(0)
    data = DocumentData(
        tokenizer=TokenizerConfig("word", 1000, lowercase=True), train_rows=600, batch_size=16
    )
    config = HierarchicalClassifierConfig(d_embed=16, d_model=16)
    task = DocumentClassification(config, OptimizerConfig("adam", lr=1e-2, weight_decay=0.0))
    trainer = fit(task, data, tmp_path, max_epochs=2)
    trainer.test(task, data, verbose=False)
    assert task.summary["test/accuracy"] > 0.9
    batch = next(iter(data.test_dataloader()))
    with torch.no_grad():
        table: Any = task.sample_outputs(batch, "test")["samples"]
        _, sentences = task.model.eval().weights(batch.ids, batch.n_words, batch.n_sentences)
    # The weight is concentrated in the documents with a German sentence.
    mixed = batch.labels == data.class_names.index("mixed")
    assert sentences[mixed].amax(1).mean() > 2 / min(batch.n_sentences)
    assert len(table.rows) == len(batch.labels)
    assert any(row[1:3] == ["mixed", "mixed"] for row in table.rows)
