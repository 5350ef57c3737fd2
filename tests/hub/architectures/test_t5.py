"""T5 as it was released: an own output matrix, old leftovers, and padding that begins a text."""

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
from fourfold.core.errors import InputError
from tests.hub.foreign_models import exact, ids, make, padding, t5


def saved(model: Any, folder: Path, **said: Any) -> Path:
    """A directory of theirs whose config.json says other things; None takes a word away."""
    model.save_pretrained(folder)
    config = json.loads((folder / "config.json").read_text()) | said
    config = {key: value for key, value in config.items() if value is not None}
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def logits(model: Any) -> torch.Tensor:
    return model(input_ids=ids(2, 9), decoder_input_ids=ids(2, 7, 5)).logits


@torch.no_grad()
def test_v1_1_as_it_was_released(tmp_path: Path) -> None:
    """Before version 5, config.json said by the tie that nothing is scaled."""
    theirs = make("t5-gated-own-head")
    said = {"tie_word_embeddings": False, "scale_decoder_outputs": None}
    ours = fourfold.load(saved(theirs, tmp_path / "theirs", **said))
    assert (ours.config.tie, ours.config.scale_output) == ("embeddings", False)
    torch.testing.assert_close(ours(ids(2, 9), ids(2, 7, 5)), logits(theirs), rtol=1e-5, atol=1e-5)
    fourfold.save(ours, tmp_path / "back")
    back = hf.AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "back").eval()
    assert torch.equal(logits(back), logits(theirs))


def test_v1_0_as_it_was_released(tmp_path: Path) -> None:
    """Copies of the embedding, and distances to the source, which nobody ever used."""
    folder = saved(make("t5"), tmp_path / "theirs", scale_decoder_outputs=None, n_positions=512)
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
    assert (after.config.tie, after.config.scale_output) == ("all", True)
    assert all(torch.equal(x, after.state_dict()[key]) for key, x in before.state_dict().items())
    tensors["lm_head.weight"] += 1.0
    save_file(tensors, file)
    with pytest.raises(InputError, match=r"lm_head\.weight is not shared\.weight"):
        fourfold.load(folder)


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("longest", [6, 40])
@torch.no_grad()
def test_padding_on_either_side_of_both_texts(side: str, longest: int, tmp_path: Path) -> None:
    theirs = make("t5")
    theirs.save_pretrained(tmp_path)
    ours, theirs = fourfold.load(tmp_path).double(), exact(theirs)
    mask = padding([longest, 1, 5], left=side == "left")
    tgt_mask = padding([3, longest, 5], left=side == "left")
    src, tgt = ids(3, longest), ids(3, longest, 7)
    out = theirs(
        input_ids=src, attention_mask=mask.long(),
        decoder_input_ids=tgt, decoder_attention_mask=tgt_mask.long(),
    ).logits  # fmt: skip
    found = ours(src, tgt, mask, tgt_mask)
    torch.testing.assert_close(found[tgt_mask], out[tgt_mask], rtol=1e-10, atol=1e-10)


def test_a_changed_setting_leaves_the_numbers_of_tokens(tmp_path: Path) -> None:
    """They are those of its tokenizer: another end, and `generate` would write on."""
    numbers = {"pad_token_id": 0, "eos_token_id": 1, "decoder_start_token_id": 0}
    model = fourfold.load(saved(make("t5"), tmp_path / "theirs", **numbers))
    model.config = replace(model.config, dropout=0.2, attn_dropout=0.2, ff_dropout=0.2)
    fourfold.save(model, tmp_path / "again")
    before, after = (
        json.loads((tmp_path / name / "config.json").read_text()) for name in ("theirs", "again")
    )
    assert after == before | {"dropout_rate": 0.2}


@pytest.mark.parametrize(
    ("said", "why"),
    [
        ({"feed_forward_proj": "gated-mish"}, "activation is 'gated-mish'"),
        ({"is_decoder": True}, "is_decoder is True"),
        ({"num_heads": 5}, "attn.q.weight would be"),
        ({"relative_attention_num_buckets": 9}, "bias.table.weight would be"),
    ],
)
def test_what_cannot_be_read(said: dict[str, Any], why: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=why):
        fourfold.load(saved(make("t5"), tmp_path / "theirs", **said))


def test_an_encoder_alone_is_refused(tmp_path: Path) -> None:
    hf.T5EncoderModel(t5().config).save_pretrained(tmp_path)
    with pytest.raises(InputError, match="is_encoder_decoder is False"):
        fourfold.load(tmp_path)


def sentence_pieces() -> Tokenizer:
    """A tokenizer like T5's: pieces with probabilities, padding first, nothing that begins."""
    pieces = ["<pad>", "</s>", "<unk>", "▁", *"abcdefghijklmnopqrstuvwxyz"]
    pieces += [f"▁{a}{b}" for a in "aeiou" for b in "mnrst"] + ["▁translate", "▁to"]
    core = Tokenizer(models.Unigram([(p, -float(i)) for i, p in enumerate(pieces)], unk_id=2))
    core.pre_tokenizer, core.decoder = pre_tokenizers.Metaspace(), decoders.Metaspace()
    core.add_special_tokens(["<pad>", "</s>", "<unk>"])
    core.post_processor = processors.TemplateProcessing("$A </s>", special_tokens=[("</s>", 1)])
    return core


def test_translating_from_the_shell_is_their_generate(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    tokenizer = hf.PreTrainedTokenizerFast(
        tokenizer_object=sentence_pieces(), pad_token="<pad>", eos_token="</s>", unk_token="<unk>"
    )
    torch.manual_seed(1)
    words = {"pad_token_id": 0, "eos_token_id": 1, "decoder_start_token_id": 0}
    shape = {"d_model": 36, "d_kv": 10, "d_ff": 50, "num_heads": 3, "num_layers": 2}
    config = hf.T5Config(**shape, vocab_size=len(tokenizer), **words)
    theirs = hf.T5ForConditionalGeneration(config).eval()
    with torch.no_grad():
        for parameter in theirs.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    theirs.save_pretrained(tmp_path / "theirs")
    tokenizer.save_pretrained(tmp_path / "theirs")
    lines = ["translate amen to irt", "at", "us rest in eros"]
    given = tokenizer(lines, return_tensors="pt", padding=True)
    assert (given["input_ids"] == 1).sum(1).tolist() == [1, 1, 1]
    given.pop("token_type_ids", None)
    written = theirs.generate(**given, max_new_tokens=9, num_beams=1, do_sample=False)
    expected = tokenizer.batch_decode(written, skip_special_tokens=True)
    assert len({*expected, ""}) == 4

    checkpoint = str(tmp_path / "x.ckpt")
    assert main(["import", str(tmp_path / "theirs"), checkpoint]) == 0
    assert "as TextToText" in capsys.readouterr().out
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO("\n".join(lines).encode())))
    options = ["--checkpoint", checkpoint, "--beam", "1", "--max-new", "9", "--device", "cpu"]
    assert main(["translate", *options]) == 0
    assert capsys.readouterr().out.splitlines() == expected
    assert main(["export", checkpoint, str(tmp_path / "back")]) == 0
    said = json.loads((tmp_path / "back" / "config.json").read_text())
    assert {key: said[key] for key in words} == words
