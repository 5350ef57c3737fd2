"""Scores of directories of transformers, against the logits of transformers."""

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as hf
from torch import Tensor

import fourfold
from tests.commands.infer.test_score import TEXTS, make_tokenizer, values

TOKENIZER = make_tokenizer()
SIZES: dict[str, Any] = {"vocab_size": TOKENIZER.vocab_size, "hidden_size": 24}


def load(reference: Any, folder: Path) -> Any:
    """Write a random model of transformers with the tokenizer, and load it with fourfold."""
    with torch.no_grad():
        for parameter in reference.parameters():
            parameter.normal_(std=0.2)
    reference.eval().save_pretrained(folder)
    TOKENIZER.save(folder / "tokenizer.json")
    return fourfold.load(folder)


def log_probs(logits: Tensor, ids: list[int]) -> list[float]:
    return logits.log_softmax(-1)[torch.arange(len(ids)), ids].tolist()


def test_gpt2(tmp_path: Path) -> None:
    config = hf.GPT2Config(vocab_size=TOKENIZER.vocab_size, n_embd=24, n_head=3, n_layer=2)
    reference = hf.GPT2LMHeadModel(config)
    model = load(reference, tmp_path)
    for text, found in zip(TEXTS, fourfold.score(model, TEXTS), strict=True):
        ids = TOKENIZER.encode(text)
        logits = reference(torch.tensor([[TOKENIZER.eos_id, *ids]])).logits[0, :-1]
        assert values(found) == pytest.approx(log_probs(logits, ids), abs=1e-4)


def test_bert(tmp_path: Path) -> None:
    heads = {"num_attention_heads": 3, "num_hidden_layers": 2, "intermediate_size": 30}
    reference = hf.BertForMaskedLM(hf.BertConfig(**SIZES, **heads))
    model = load(reference, tmp_path)
    for text, found in zip(TEXTS, fourfold.score(model, TEXTS, method="masked"), strict=True):
        ids = TOKENIZER.encode(text)
        row = torch.tensor([TOKENIZER.bos_id, *ids, TOKENIZER.eos_id])
        copies = row.repeat(len(ids), 1)
        places = torch.arange(len(ids))
        copies[places, places + 1] = TOKENIZER.mask_id
        logits = reference(copies).logits[places, places + 1]
        assert values(found) == pytest.approx(log_probs(logits, ids), abs=1e-4)


def test_t5(tmp_path: Path) -> None:
    reference = hf.T5ForConditionalGeneration(
        hf.T5Config(
            vocab_size=TOKENIZER.vocab_size,
            d_model=24,
            d_kv=8,
            d_ff=30,
            num_heads=3,
            num_layers=2,
            pad_token_id=TOKENIZER.pad_id,
            eos_token_id=TOKENIZER.eos_id,
            decoder_start_token_id=TOKENIZER.pad_id,
        )
    )
    model = load(reference, tmp_path)
    sentinel = TOKENIZER.backend.token_to_id("<extra_id_0>")
    for text, found in zip(TEXTS, fourfold.score(model, TEXTS, method="prefix"), strict=True):
        ids = TOKENIZER.encode(text)
        src = torch.tensor([[sentinel, TOKENIZER.eos_id]])
        tgt = torch.tensor([[TOKENIZER.pad_id, sentinel, *ids]])
        logits = reference(src, decoder_input_ids=tgt).logits[0, 1:-1]
        assert values(found) == pytest.approx(log_probs(logits, ids), abs=1e-4)
    (found,) = fourfold.score(model, [("the mat", "a dog")])
    ids = [*TOKENIZER.encode("a dog"), TOKENIZER.eos_id]
    src = torch.tensor([[*TOKENIZER.encode("the mat"), TOKENIZER.eos_id]])
    tgt = torch.tensor([[TOKENIZER.pad_id, *ids[:-1]]])
    logits = reference(src, decoder_input_ids=tgt).logits[0]
    assert values(found) == pytest.approx(log_probs(logits, ids), abs=1e-4)
