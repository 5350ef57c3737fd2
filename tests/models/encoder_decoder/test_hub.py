"""Tests of Marian and BART, whose tokenizer adds <s> and whose decoder starts with </s>."""

import io
import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as hf
from tokenizers import Tokenizer, models, pre_tokenizers, processors

import fourfold
from fourfold.cli import main
from fourfold.data import TranslationData
from fourfold.errors import InputError
from fourfold.finetuning.weight_transfer import transfer
from fourfold.models import EncoderDecoder
from fourfold.tasks import load_task
from fourfold.tokenization.training import TokenizerConfig
from tests.fixtures.hf_models import SEQ2SEQ, make_model, random_ids

LINES = ["w1 w2 w3", "w9 w30 w31 w5", "w40"]


@pytest.fixture(scope="module")
def bart(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any, Any]:
    """Create a directory, its model and its tokenizer, with the special tokens of released BART."""
    tokens = ["<s>", "<pad>", "</s>", "<unk>", "<mask>", *(f"w{i}" for i in range(56))]
    core = Tokenizer(
        models.WordLevel({token: i for i, token in enumerate(tokens)}, unk_token="<unk>")
    )
    core.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    core.add_special_tokens(tokens[:5])
    core.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>",
        pair="<s> $A </s> </s> $B </s>",
        special_tokens=[("<s>", 0), ("</s>", 2)],
    )
    tokenizer = hf.PreTrainedTokenizerFast(
        tokenizer_object=core,
        bos_token="<s>",
        pad_token="<pad>",
        eos_token="</s>",
        unk_token="<unk>",
        mask_token="<mask>",
    )
    torch.manual_seed(0)
    config = hf.BartConfig(**{**SEQ2SEQ, "decoder_start_token_id": 2})
    model = hf.BartForConditionalGeneration(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    folder = tmp_path_factory.mktemp("bart")
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    assert main(["import", str(folder), str(folder / "x.ckpt")]) == 0
    return folder, model, tokenizer


def test_translate_command_matches_generate_of_transformers(
    bart: tuple[Path, Any, Any], monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    folder, hf_model, tokenizer = bart
    inputs = tokenizer(LINES, return_tensors="pt", padding=True, return_token_type_ids=False)
    output = hf_model.generate(**inputs, max_new_tokens=9, num_beams=1, do_sample=False)
    expected = tokenizer.batch_decode(output, skip_special_tokens=True)
    assert len({*expected, ""}) == 4
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO("\n".join(LINES).encode())))
    options = ["--num-beams", "1", "--max-new-tokens", "9", "--device", "cpu"]
    assert main(["translate", "--checkpoint", str(folder / "x.ckpt"), *options]) == 0
    assert capsys.readouterr().out.splitlines() == expected


def test_training_loss_matches_transformers(bart: tuple[Path, Any, Any], tmp_path: Path) -> None:
    folder, hf_model, tokenizer = bart
    targets = ["w7 w8", "w50", "w11 w12 w13 w14"]
    for name, lines in (("en", LINES), ("de", targets)):
        (tmp_path / f"text.{name}").write_text("\n".join(lines) + "\n")
    files = str(tmp_path / "text.{lang}")
    data = TranslationData(
        "files",
        train=files,
        val=files,
        tokenizer=TokenizerConfig(file=str(folder / "tokenizer.json")),
    )
    data.setup("fit")
    task = load_task(folder / "x.ckpt")
    task.label_smoothing = 0.0
    total, count = task.step(next(iter(data.val_dataloader())))
    inputs = tokenizer(LINES, return_tensors="pt", padding=True, return_token_type_ids=False)
    labels = tokenizer(targets, return_tensors="pt", padding=True)["input_ids"]
    labels = labels.masked_fill(labels == 1, -100)
    with torch.no_grad():
        expected = hf_model(**inputs, labels=labels).loss
    assert count == (labels != -100).sum()
    torch.testing.assert_close(total / count, expected, rtol=1e-5, atol=1e-5)


def test_decoder_start_token_survives_export_without_source(
    bart: tuple[Path, Any, Any], tmp_path: Path
) -> None:
    folder, _, _ = bart
    model = fourfold.load(folder)
    assert model.config.decoder_start_token_id == 2
    del model.source  # as after a training of ours
    fourfold.save(model, tmp_path / "back")
    config = json.loads((tmp_path / "back" / "config.json").read_text())
    assert config["decoder_start_token_id"] == 2
    assert fourfold.load(tmp_path / "back").config == model.config


@pytest.mark.parametrize("name", ["marian-heads", "bart-heads"])
def test_numbers_of_heads_may_differ(name: str, tmp_path: Path) -> None:
    theirs = make_model(name)
    theirs.final_logits_bias.zero_()
    with torch.no_grad():
        for parameter in theirs.parameters():
            parameter.mul_(3.0 if parameter.requires_grad else 1.0)
    theirs.save_pretrained(tmp_path)
    model: Any = fourfold.load(tmp_path)
    heads = theirs.config.encoder_attention_heads, theirs.config.decoder_attention_heads
    assert (model.config.n_heads, model.config.n_decoder_heads) == heads
    ids = random_ids(2, 9)
    options = {"max_new_tokens": 8, "num_beams": 1, "do_sample": False, "eos_token_id": 60}
    expected = theirs.generate(ids, **options)
    found = fourfold.generate(model, ids, max_new_tokens=8, bos_id=1, eos_id=60)
    assert found.tolist() == expected.tolist()
    assert len(set(found.flatten().tolist())) > 2
    with pytest.raises(InputError, match="n_heads of the source must be that of the model"):
        transfer(EncoderDecoder(replace(model.config, n_decoder_heads=1)), model)
