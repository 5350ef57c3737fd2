"""Alignment error rate of a model whose attention is known, and of a model on the real format."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import fourfold
from fourfold.errors import InputError
from fourfold.models import (
    EncoderDecoder,
    EncoderDecoderConfig,
    RecurrentEncoderDecoder,
    RecurrentEncoderDecoderConfig,
)
from fourfold.models.encoder_decoder.model import Seq2Seq
from fourfold.text_files import read_lines
from fourfold.tokenization.training import TokenizerConfig, train_tokenizer
from scripts import alignment_error_rate as script


def write(folder: Path, source: list[str], target: list[str], links: list[str]) -> list[str]:
    paths = [str(folder / name) for name in ("source", "target", "links")]
    for path, lines in zip(paths, (source, target, links), strict=True):
        Path(path).write_text("\n".join(lines) + "\n", encoding="utf-8")
    return paths


@pytest.mark.parametrize("kind", ["char", "bpe", "byte_bpe", "wordpiece"])
def test_tokens_belong_to_words(kind: Any) -> None:
    text = "ein  Haus am See ."
    tokenizer = train_tokenizer(TokenizerConfig(kind=kind, vocab_size=300), [text], mask=False)
    ids, words = script.encode(tokenizer, text)
    assert words == sorted(words)
    parts = [[i for i, w in zip(ids, words, strict=True) if w == word] for word in range(5)]
    assert [tokenizer.decode(part).strip() for part in parts] == text.split()


def test_rates_of_known_attention(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    source, target = ["ab cde f", "g"], ["xyz u vw", "h"]
    pairs = script.read(*write(tmp_path, source, target, ["0-0 1-1 2-2", ""]), False, 0)
    assert len(pairs) == 1  # the second pair has no link
    tokenizer = train_tokenizer(TokenizerConfig(kind="char"), source + target, mask=False)
    model: Any = SimpleNamespace(
        tokenizer=tokenizer, config=None, decode=None, accepts_images=False, calls=[]
    )
    # Rows x y z _ u _ v w EOS, columns a b _ c d e _ f EOS; a space belongs to the next word.
    columns = [0, 0, 0, 3, 3, 7, 7, 7]
    aligned = torch.zeros(9, 9)
    aligned[range(8), columns] = 1.0
    aligned[:, 8] = 2.0  # EOS has the largest weight
    maps = [aligned, aligned.roll(1, dims=0)]  # the second layer is late by one step
    monkeypatch.setattr(script, "attention_maps", lambda *_: maps)
    rates = script.error_rates(model, pairs)
    assert rates["layer 1, output"] == {"aer": 0.0, "precision": 1.0, "recall": 1.0}
    assert rates["layer 2, input"]["aer"] == 0.0
    assert rates["layer 2, output"]["aer"] > 0.0
    assert rates["diagonal"]["aer"] == 0.0
    assert rates["uniform"]["aer"] == pytest.approx(2 / 3)
    assert "| uniform | 66.7 | 33.3 | 33.3 |" in script.table(rates).split("\n")


def test_models_without_cross_attention_are_rejected() -> None:
    model: Any = SimpleNamespace(tokenizer=None)
    with pytest.raises(InputError, match="CHECKPOINT must be a translation model"):
        script.error_rates(model, [])


@pytest.mark.parametrize(
    ("links", "message"),
    [
        (["0-2", "0-0"], "links:1: the link of source word 0 and target word 2, from 0, exceeds"),
        (["0-0"], "links: the file has 1 lines, but"),
        (["0-0", "0~0"], "links:2: the line must hold links such as 3-4"),
    ],
)
def test_bad_links_give_one_sentence(
    tmp_path: Path, links: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    paths = write(tmp_path, ["a b c", "d"], ["e f", "g"], links)
    assert script.main(["no_checkpoint", *paths]) == 2
    assert message in capsys.readouterr().err


CONFIGS: dict[type[Seq2Seq], Any] = {
    EncoderDecoder: EncoderDecoderConfig(
        vocab_size=300, d_model=8, n_layers=2, n_heads=2, d_ff=8, max_len=512
    ),
    RecurrentEncoderDecoder: RecurrentEncoderDecoderConfig(
        vocab_size=300, d_model=8, n_layers=1, hidden_size=8, attn_weights="local_p"
    ),
}


@pytest.mark.parametrize("model_class", CONFIGS)
def test_untrained_models_on_silver_links(
    model_class: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str], data_dir: Path
) -> None:
    sample = str(data_dir / "translation/wmt_aligned_sample/test.100")
    source, target, links = (read_lines(f"{sample}.{x}.gz")[:12] for x in ("en", "de", "align"))
    tokenizer = train_tokenizer(TokenizerConfig(vocab_size=300), source + target, mask=False)
    model = model_class(CONFIGS[model_class])
    model.tokenizer = tokenizer
    fourfold.save(model, tmp_path / "model")
    paths = write(tmp_path, source, target, links)
    assert script.main([str(tmp_path / "model"), *paths, "--reverse"]) == 0
    rows = [row.split("|")[1:-1] for row in capsys.readouterr().out.split("\n") if "|" in row]
    rates = {name.strip(): aer.strip() for name, aer, *_ in rows}
    n_layers = model.config.n_layers
    layers = [f"layer {n + 1}, {step}" for n in range(n_layers) for step in ("output", "input")]
    assert list(rates) == ["links", "---", "uniform", "diagonal", *layers]
    assert float(rates["diagonal"]) < float(rates["uniform"])
