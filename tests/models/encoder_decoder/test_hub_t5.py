"""Tests of T5: released versions, unused tensors, and a decoder that starts with padding."""

import io
import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as hf
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors

import fourfold
from fourfold.cli import main
from fourfold.errors import InputError
from tests.fixtures.hf_models import make_model, padding_mask, random_ids, t5, to_fp64


def save(model: Any, folder: Path, **entries: Any) -> Path:
    """Save a model with changed entries of config.json; None removes an entry."""
    model.save_pretrained(folder)
    config = json.loads((folder / "config.json").read_text()) | entries
    config = {key: value for key, value in config.items() if value is not None}
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def logits(model: Any) -> torch.Tensor:
    return model(input_ids=random_ids(2, 9), decoder_input_ids=random_ids(2, 7, 5)).logits


@torch.no_grad()
def test_released_v1_1_is_read(tmp_path: Path) -> None:
    """Before transformers 5, untied embeddings implied unscaled outputs."""
    hf_model = make_model("t5-gated-own-head")
    entries = {"tie_word_embeddings": False, "scale_decoder_outputs": None}
    model = fourfold.load(save(hf_model, tmp_path / "theirs", **entries))
    assert (model.config.tie_embeddings, model.config.scale_output) == ("embeddings", False)
    torch.testing.assert_close(
        model(random_ids(2, 9), random_ids(2, 7, 5)), logits(hf_model), rtol=1e-5, atol=1e-5
    )
    fourfold.save(model, tmp_path / "back")
    back = hf.AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "back").eval()
    assert torch.equal(logits(back), logits(hf_model))


def test_released_v1_0_is_read(tmp_path: Path) -> None:
    """Its checkpoints contain copies of the embedding and an unused table of relative positions."""
    folder = save(
        make_model("t5"), tmp_path / "theirs", scale_decoder_outputs=None, n_positions=512
    )
    file = folder / "model.safetensors"
    before = fourfold.load(folder)
    tensors = load_file(file)
    for copy in ("lm_head", "encoder.embed_tokens", "decoder.embed_tokens"):
        tensors[copy + ".weight"] = tensors["shared.weight"].clone()
    name = "decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight"
    tensors[name] = torch.randn(8, 3)
    save_file(tensors, file)
    after = fourfold.load(folder)
    assert after.config == before.config
    assert (after.config.tie_embeddings, after.config.scale_output) == ("all", True)
    assert all(torch.equal(x, after.state_dict()[key]) for key, x in before.state_dict().items())
    tensors["lm_head.weight"] += 1.0
    save_file(tensors, file)
    with pytest.raises(InputError, match=r"lm_head\.weight differs from shared\.weight"):
        fourfold.load(folder)


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("max_len", [6, 40])
@torch.no_grad()
def test_padding_on_either_side_of_both_texts(side: str, max_len: int, tmp_path: Path) -> None:
    hf_model = make_model("t5")
    hf_model.save_pretrained(tmp_path)
    model, hf_model = fourfold.load(tmp_path).double(), to_fp64(hf_model)
    mask = padding_mask([max_len, 1, 5], left=side == "left")
    tgt_mask = padding_mask([3, max_len, 5], left=side == "left")
    src, tgt = random_ids(3, max_len), random_ids(3, max_len, 7)
    out = hf_model(
        input_ids=src,
        attention_mask=mask.long(),
        decoder_input_ids=tgt,
        decoder_attention_mask=tgt_mask.long(),
    ).logits
    found = model(src, tgt, src_mask=mask, tgt_mask=tgt_mask)
    torch.testing.assert_close(found[tgt_mask], out[tgt_mask], rtol=1e-10, atol=1e-10)


def test_export_keeps_special_token_ids(tmp_path: Path) -> None:
    """They belong to the tokenizer; with another EOS, `generate` would not stop."""
    token_ids = {"pad_token_id": 0, "eos_token_id": 1, "decoder_start_token_id": 0}
    model = fourfold.load(save(make_model("t5"), tmp_path / "theirs", **token_ids))
    model.config = replace(model.config, dropout=0.2, attn_dropout=0.2, ff_dropout=0.2)
    fourfold.save(model, tmp_path / "again")
    before, after = (
        json.loads((tmp_path / name / "config.json").read_text()) for name in ("theirs", "again")
    )
    assert after == before | {"dropout_rate": 0.2}


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        ({"feed_forward_proj": "gated-mish"}, "activation .*gated-mish"),
        ({"is_decoder": True}, "is_decoder must be False, got True"),
        ({"num_heads": 5}, "attn.q.weight has shape"),
        ({"relative_attention_num_buckets": 9}, "bias.table.weight has shape"),
    ],
)
def test_unsupported_config_is_rejected(
    entries: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(InputError, match=message):
        fourfold.load(save(make_model("t5"), tmp_path / "theirs", **entries))


def test_encoder_only_model_is_rejected(tmp_path: Path) -> None:
    hf.T5EncoderModel(t5().config).save_pretrained(tmp_path)
    with pytest.raises(InputError, match="is_encoder_decoder must be True, got False"):
        fourfold.load(tmp_path)


def unigram_tokenizer() -> Tokenizer:
    """Create a unigram tokenizer like T5's: padding is token 0, and there is no BOS."""
    pieces = ["<pad>", "</s>", "<unk>", "▁", *"abcdefghijklmnopqrstuvwxyz"]
    pieces += [f"▁{a}{b}" for a in "aeiou" for b in "mnrst"] + ["▁translate", "▁to"]
    core = Tokenizer(models.Unigram([(p, -float(i)) for i, p in enumerate(pieces)], unk_id=2))
    core.pre_tokenizer, core.decoder = pre_tokenizers.Metaspace(), decoders.Metaspace()
    core.add_special_tokens(["<pad>", "</s>", "<unk>"])
    core.post_processor = processors.TemplateProcessing("$A </s>", special_tokens=[("</s>", 1)])
    return core


def test_translate_command_matches_generate_of_transformers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    tokenizer = hf.PreTrainedTokenizerFast(
        tokenizer_object=unigram_tokenizer(), pad_token="<pad>", eos_token="</s>", unk_token="<unk>"
    )
    torch.manual_seed(1)
    token_ids = {"pad_token_id": 0, "eos_token_id": 1, "decoder_start_token_id": 0}
    shape = {"d_model": 36, "d_kv": 10, "d_ff": 50, "num_heads": 3, "num_layers": 2}
    config = hf.T5Config(**shape, vocab_size=len(tokenizer), **token_ids)
    hf_model = hf.T5ForConditionalGeneration(config).eval()
    with torch.no_grad():
        for parameter in hf_model.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    hf_model.save_pretrained(tmp_path / "theirs")
    tokenizer.save_pretrained(tmp_path / "theirs")
    lines = ["translate amen to irt", "at", "us rest in eros"]
    inputs = tokenizer(lines, return_tensors="pt", padding=True)
    assert (inputs["input_ids"] == 1).sum(1).tolist() == [1, 1, 1]
    inputs.pop("token_type_ids", None)
    output = hf_model.generate(**inputs, max_new_tokens=9, num_beams=1, do_sample=False)
    expected = tokenizer.batch_decode(output, skip_special_tokens=True)
    assert len({*expected, ""}) == 4

    checkpoint = str(tmp_path / "x.ckpt")
    assert main(["import", str(tmp_path / "theirs"), checkpoint]) == 0
    assert "as TextToText" in capsys.readouterr().out
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO("\n".join(lines).encode())))
    options = [
        "--checkpoint",
        checkpoint,
        "--num-beams",
        "1",
        "--max-new-tokens",
        "9",
        "--device",
        "cpu",
    ]
    assert main(["translate", *options]) == 0
    assert capsys.readouterr().out.splitlines() == expected
    assert main(["export", checkpoint, str(tmp_path / "back")]) == 0
    config = json.loads((tmp_path / "back" / "config.json").read_text())
    assert {key: config[key] for key in token_ids} == token_ids
