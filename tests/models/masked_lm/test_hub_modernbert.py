"""Tests of ModernBERT beyond the tests of all models."""

import io
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import tokenizers
import torch
import transformers as hf
from tokenizers import decoders, models, pre_tokenizers, processors

import fourfold
from fourfold.checkpoints.init_from import initialize_from
from fourfold.cli import main
from fourfold.core.attention import attention_backend
from fourfold.errors import InputError
from fourfold.hub import directory
from fourfold.hub.transformers_format import write_model
from fourfold.json_files import read_json
from fourfold.models import MaskedLM, MaskedLMConfig, SequenceClassifier, SequenceClassifierConfig
from tests.fixtures.hf_models import MODERNBERT, make_model, padding_mask, random_ids

NATIVE: dict[str, Any] = {
    "d_model": 36,
    "n_layers": 4,
    "n_heads": 3,
    "d_ff": 50,
    "feed_forward": "glu",
    "norm_placement": "pre",
    "norm_eps": 1e-5,
    "bias": False,
    "rope_theta": 900.0,
    "rope_local_theta": 60.0,
    "window": 3,
    "window_pattern": "LS",
    "vocab_size": 61,
    "max_len": 23,
    "positions": "none",
    "embed_norm": True,
    "n_segments": 0,
}


@pytest.mark.parametrize(
    "changes", [{}, {"window": None, "window_pattern": None, "rope_local_theta": None}]
)
def test_native_model_is_exported(changes: dict[str, Any], tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = MaskedLM(MaskedLMConfig(**(NATIVE | changes))).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    fourfold.save(model, tmp_path / "ours")
    theirs, report = hf.AutoModelForMaskedLM.from_pretrained(
        tmp_path / "ours", output_loading_info=True
    )
    assert type(theirs).__name__ == "ModernBertForMaskedLM"
    assert not any(report.values())
    ids, mask = random_ids(3, 23), padding_mask([23, 9, 14])
    expected = theirs(input_ids=ids, attention_mask=mask.long()).logits[mask]
    for backend in ("auto", "naive", "sdpa"):
        with attention_backend(backend), torch.no_grad():
            actual = model(ids, mask=mask)[mask]
        torch.testing.assert_close(actual, expected, rtol=1e-5, atol=1e-5)
    theirs.save_pretrained(tmp_path / "again")
    ours, again = (directory.read_tensors(tmp_path / name) for name in ("ours", "again"))
    assert ours.keys() == again.keys()
    assert all(torch.equal(ours[key], again[key]) for key in ours)


def test_key_names_of_version_4_of_transformers_are_read_and_written(tmp_path: Path) -> None:
    theirs = make_model("modernbert")
    theirs.save_pretrained(tmp_path / "new")
    model = fourfold.load(tmp_path / "new")
    config = read_json(tmp_path / "new" / "config.json")
    ropes = config.pop("rope_parameters")
    del config["layer_types"]
    old = {
        "global_attn_every_n_layers": 3,
        "global_rope_theta": ropes["full_attention"]["rope_theta"],
        "local_rope_theta": ropes["sliding_attention"]["rope_theta"],
    }
    directory.write_json(tmp_path / "new" / "config.json", config | old)
    assert fourfold.load(tmp_path / "new").config == model.config
    model.source = None
    fourfold.save(model, tmp_path / "both")
    both = read_json(tmp_path / "both" / "config.json")
    assert both["rope_parameters"] == ropes
    assert old.items() <= both.items()
    assert both["local_attention"] == 6  # 7 // 2 positions on each side, as 6 // 2


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        ({"norm_bias": True}, "norm_bias=True, classifier_bias=False must be equal"),
        ({"decoder_bias": False}, "decoder_bias must be True"),
        ({"embedding_dropout": 0.1}, "embedding_dropout must be 0.0"),
        ({"tie_word_embeddings": False}, "tie_word_embeddings must be True"),
        ({"classifier_activation": "relu"}, "hidden_activation=gelu, classifier_activation=relu"),
        ({"layer_types": None, "global_attn_every_n_layers": 0}, "layers must be at least 1"),
        ({"local_attention": "wide"}, "local_attention must be of type int"),
    ],
)
def test_option_that_is_not_supported_is_named(
    entries: dict[str, Any], message: str, tmp_path: Path
) -> None:
    make_model("modernbert").save_pretrained(tmp_path)
    config = read_json(tmp_path / "config.json") | entries
    directory.write_json(tmp_path / "config.json", config)
    with pytest.raises(InputError, match=rf"config\.json: .*{message}"):
        fourfold.load(tmp_path)


def test_embedding_norm_of_a_post_norm_model_changes_no_block() -> None:
    sizes = {"d_model": 8, "n_layers": 1, "n_heads": 2, "vocab_size": 5, "dropout": 0.0}
    models = []
    for embed_norm in (False, True):
        torch.manual_seed(0)
        models.append(MaskedLM(MaskedLMConfig(**sizes, embed_norm=embed_norm)).eval())
    ids = torch.arange(5)[None]
    torch.testing.assert_close(models[0].encode(ids), models[1].encode(ids), rtol=0, atol=0)


def test_classifier_starts_from_a_directory(tmp_path: Path) -> None:
    make_model("modernbert").save_pretrained(tmp_path)
    config = NATIVE | {
        "n_layers": 5,
        "rope_theta": 5e3,
        "rope_local_theta": 70.0,
        "window": 4,
        "window_pattern": "LSS",
    }
    model = SequenceClassifier(SequenceClassifierConfig(**config, n_classes=3)).eval()
    report = initialize_from(model, str(tmp_path), None, "bicubic")
    new = [line for line in report.splitlines() if line.split()[0] == "new"]
    assert new
    assert all("classifier." in line for line in new)
    ids = random_ids(2, 9)
    expected = hf.AutoModel.from_pretrained(tmp_path)(ids).last_hidden_state
    torch.testing.assert_close(model.encode(ids), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("pool", ["first", "mean"])
def test_native_classifier_is_exported(pool: Any, tmp_path: Path) -> None:
    torch.manual_seed(0)
    config = SequenceClassifierConfig(**NATIVE, n_classes=3, pool=pool, head_norm=True)
    model = SequenceClassifier(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    fourfold.save(model, tmp_path)
    theirs, report = hf.AutoModelForSequenceClassification.from_pretrained(
        tmp_path, output_loading_info=True
    )
    assert type(theirs).__name__ == "ModernBertForSequenceClassification"
    assert not any(report.values())
    ids, mask = random_ids(3, 23), padding_mask([23, 9, 14])
    expected = theirs(input_ids=ids, attention_mask=mask.long()).logits
    torch.testing.assert_close(model(ids, mask=mask), expected, rtol=1e-5, atol=1e-5)
    without_dropout = replace(config, dropout=0.0, attn_dropout=0.0)
    assert fourfold.load(tmp_path).config == without_dropout


def test_classifier_that_is_not_supported_is_named(tmp_path: Path) -> None:
    last = SequenceClassifierConfig(**NATIVE, n_classes=3, pool="last", head_norm=True)
    with pytest.raises(InputError, match="classifier_pooling must be cls or mean, got last"):
        write_model(SequenceClassifier(last), tmp_path)
    tanh = SequenceClassifierConfig(**NATIVE, n_classes=3)
    with pytest.raises(InputError, match="modernbert does not support head_norm=False"):
        write_model(SequenceClassifier(tanh), tmp_path)
    hf.ModernBertForTokenClassification(hf.ModernBertConfig(**MODERNBERT)).save_pretrained(tmp_path)
    with pytest.raises(InputError, match=r"architectures must be .* got .*ForTokenClassification"):
        fourfold.load(tmp_path)


def test_classify_predicts_the_classes_of_transformers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    theirs, tokenizer = make_model("modernbert-classes"), make_tokenizer()
    theirs.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    texts = ["one", "a b", "three, fou.", "long text, end."]
    text = "\n".join(texts).encode()
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text)))
    assert main(["classify", "--checkpoint", str(tmp_path), "--top-k", "5"]) == 0
    for line, given in zip(capsys.readouterr().out.splitlines(), texts, strict=True):
        inputs = tokenizer(given, return_tensors="pt", return_token_type_ids=False)
        p, best = theirs(**inputs).logits[0].softmax(-1).sort(descending=True)
        found = line.split("\t")
        assert found[::2] == [theirs.config.id2label[i] for i in best.tolist()]
        assert [float(x) for x in found[1::2]] == pytest.approx(p.tolist(), abs=1e-3)


def make_tokenizer() -> Any:
    """Build a byte-level tokenizer with the special tokens of ModernBERT."""
    alphabet = sorted("abcdefghijklmnopqrstuvwxyz.,Ġ")
    vocabulary = {letter: i for i, letter in enumerate(alphabet)}
    backend = tokenizers.Tokenizer(models.BPE(vocabulary, []))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    names = ["[UNK]", "[CLS]", "[SEP]", "[PAD]", "[MASK]"]
    backend.add_special_tokens(
        [tokenizers.AddedToken(x, special=True, lstrip=x == "[MASK]") for x in names]
    )
    pair = [(name, backend.token_to_id(name)) for name in names[1:3]]
    backend.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=pair
    )
    roles = ("unk_token", "cls_token", "sep_token", "pad_token", "mask_token")
    return hf.PreTrainedTokenizerFast(
        tokenizer_object=backend, **dict(zip(roles, names, strict=True))
    )


def test_fill_predicts_the_tokens_that_transformers_predicts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    theirs, tokenizer = make_model("modernbert"), make_tokenizer()
    with torch.no_grad():
        theirs.decoder.bias.zero_()
        for layer in theirs.model.layers:  # so that the prediction depends on the text
            layer.attn.Wqkv.weight.mul_(5.0)
            layer.attn.Wo.weight.mul_(5.0)
        theirs.decoder.bias[tokenizer.all_special_ids] = -100.0  # `fill` excludes special tokens
        theirs.decoder.bias[len(tokenizer) :] = -100.0
    theirs.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    texts = ["one [MASK]", "a [MASK] b", "three, [MASK]ou.", "long text, [MASK]nd.", "[MASK]x y"]
    expected = []
    for text in texts:
        inputs = tokenizer(text, return_tensors="pt", return_token_type_ids=False)
        assert inputs["input_ids"].shape[1] <= 23
        place = inputs["input_ids"][0] == tokenizer.mask_token_id
        token = tokenizer.decode(theirs(**inputs).logits[0, place].argmax(-1))
        expected.append(token.strip())
    text = "\n".join(texts).encode()
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text)))
    assert main(["fill", "--checkpoint", str(tmp_path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    for line, given, token in zip(lines, texts, expected, strict=True):
        before, after = given.split("[MASK]")
        assert line.startswith(before.strip())
        assert line.endswith(after)
        assert line[len(before.strip()) : len(line) - len(after)].strip() == token
    assert len(set(expected)) > 1
