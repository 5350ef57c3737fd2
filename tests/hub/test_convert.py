"""`fourfold import` and `fourfold export` on the command line, and rejected input."""

import dataclasses
import json
import pickle
import shutil
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers as hf
from lightning import Trainer
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

import fourfold
from fourfold import json_files
from fourfold.checkpoints.init_from import initialize_from
from fourfold.checkpoints.save import write_transformers
from fourfold.cli import main
from fourfold.commands.infer.main import FUNCTIONS
from fourfold.errors import InputError
from fourfold.families import families
from fourfold.hub import directory
from fourfold.models import EncoderDecoder, EncoderDecoderConfig, TokenClassifier
from fourfold.tasks import load_task
from fourfold.tokenization import pretrained
from tests.fixtures.hf_models import MODELS, make_model, random_ids, to_fp64
from tests.fixtures.tiny_models import CONFIGS, PAIRS, build
from tests.fixtures.tiny_tasks import sequences

AUTO: dict[str, Any] = {
    "encoder": hf.AutoModel,
    "bert": hf.AutoModelForMaskedLM,
    "bert-pretraining": hf.AutoModelForPreTraining,
    "bert-classes": hf.AutoModelForSequenceClassification,
    "bert-number": hf.AutoModelForSequenceClassification,
    "bert-tags": hf.AutoModelForTokenClassification,
    "bert-spans": hf.AutoModelForQuestionAnswering,
    "roberta-classes": hf.AutoModelForSequenceClassification,
    "roberta-tags": hf.AutoModelForTokenClassification,
    "roberta-tags-padding-2": hf.AutoModelForTokenClassification,
    "roberta-spans": hf.AutoModelForQuestionAnswering,
    "roberta": hf.AutoModelForMaskedLM,
    "distilbert": hf.AutoModelForMaskedLM,
    "modernbert": hf.AutoModelForMaskedLM,
    "modernbert-classes": hf.AutoModelForSequenceClassification,
    "modernbert-classes-biases": hf.AutoModelForSequenceClassification,
    "gpt1": hf.AutoModelForCausalLM,
    **dict.fromkeys(
        ("gpt2", "llama", "mistral", "qwen2", "qwen3", "olmo2", "gemma2", "gemma3"),
        hf.AutoModelForCausalLM,
    ),
    "dinov2": hf.AutoModelForImageClassification,
    "clip": hf.AutoModel,
    "siglip": hf.AutoModel,
    "vit": hf.AutoModelForImageClassification,
    "deit": hf.DeiTForImageClassificationWithTeacher,  # Auto takes the one without a second head
    "deit-alone": hf.AutoModelForImageClassification,
    "marian": hf.AutoModelForSeq2SeqLM,
    "pegasus": hf.AutoModelForSeq2SeqLM,
    "bart": hf.AutoModelForSeq2SeqLM,
    "t5": hf.AutoModelForSeq2SeqLM,
}


def auto(name: str) -> Any:
    if name.endswith("-encoder"):
        return AUTO["encoder"]
    return AUTO.get(name) or AUTO[name.split("-")[0]]


@torch.no_grad()
def output(theirs: Any) -> Tensor:
    """Return the first output of a transformers model for fixed input."""
    if theirs.config.model_type.startswith(("vit", "deit", "dinov2")):
        images = torch.randn(2, 3, 12, 12, generator=torch.Generator().manual_seed(0))
        return theirs.eval()(pixel_values=images)[0]
    if theirs.config.model_type in ("clip", "siglip"):
        images = torch.randn(3, 3, 12, 12, generator=torch.Generator().manual_seed(0))
        return theirs.eval()(input_ids=random_ids(2, 9), pixel_values=images).logits_per_image
    more = {"decoder_input_ids": random_ids(2, 7, 5)} if theirs.config.is_encoder_decoder else {}
    return theirs.eval()(input_ids=random_ids(2, 9), **more)[0]


@pytest.mark.parametrize("name", MODELS)
def test_import_and_export_restore_the_files(name: str, tmp_path: Path, capsys: Any) -> None:
    theirs = make_model(name)
    theirs.save_pretrained(tmp_path / "theirs")
    assert main(["import", str(tmp_path / "theirs"), str(tmp_path / "x.ckpt")]) == 0
    assert main(["export", str(tmp_path / "x.ckpt"), str(tmp_path / "back")]) == 0
    assert theirs.config.model_type in capsys.readouterr().out
    back = auto(name).from_pretrained(tmp_path / "back")
    # The bytes are compared below; another memory alignment may round differently.
    torch.testing.assert_close(output(back), output(theirs), rtol=1e-6, atol=1e-6)
    before, after = (directory.read_tensors(tmp_path / d) for d in ("theirs", "back"))
    assert before.keys() == after.keys()
    assert all(torch.equal(before[key], after[key]) for key in before)
    left = sorted(path.name for path in tmp_path.iterdir())
    assert left == ["back", "theirs", "x.ckpt"]


@pytest.mark.parametrize(
    ("family", "changes", "kind"),
    [
        ("causal", {}, "GPT2LMHeadModel"),
        ("causal", {"norm_placement": "post", "d_ff": 48}, "OpenAIGPTLMHeadModel"),
        ("masked", {"next_sentence": False}, "BertForMaskedLM"),
        ("masked", {}, "BertForPreTraining"),
        ("masked", {"next_sentence": False, "n_segments": 1}, "BertForMaskedLM"),
        ("masked", {"next_sentence": False, "n_segments": 0}, "DistilBertForMaskedLM"),
        ("vit", {}, "ViTForImageClassification"),
        ("vit", {"distillation": True}, "DeiTForImageClassificationWithTeacher"),
        ("vit", {"n_registers": 1}, "DeiTForImageClassification"),
        ("encoder_decoder", {"norm_eps": 1e-5}, "MarianMTModel"),
        ("encoder_decoder", {"norm_eps": 1e-5, "n_decoder_layers": 1}, "MarianMTModel"),
        ("encoder_decoder", {"norm_eps": 1e-5, "n_decoder_heads": 1}, "MarianMTModel"),
        ("encoder_decoder", {"norm_eps": 1e-5, "decoder_d_ff": 24}, "MarianMTModel"),
        (
            "encoder_decoder",
            {"norm_eps": 1e-5, "norm_placement": "pre"},
            "PegasusForConditionalGeneration",
        ),
        (
            "encoder_decoder",
            {"norm_eps": 1e-5, "positions": "learned", "embed_norm": True, "output_bias": True},
            "BartForConditionalGeneration",
        ),
        ("t5", {}, "T5ForConditionalGeneration"),
        (
            "t5",
            {
                "feed_forward": "glu",
                "activation": "gelu_tanh",
                "tie_embeddings": "embeddings",
                "scale_output": False,
            },
            "T5ForConditionalGeneration",
        ),
        ("t5", {"tie_embeddings": "embeddings"}, "T5ForConditionalGeneration"),
        ("t5", {"feed_forward": "glu", "activation": "gelu"}, "T5ForConditionalGeneration"),
    ],
)
def test_exported_model_has_the_same_output(
    family: str, changes: dict[str, Any], kind: str, tmp_path: Path
) -> None:
    ours = build(family, **changes)
    fourfold.save(ours, tmp_path / "there")
    assert json_files.read_json(tmp_path / "there" / "config.json")["architectures"] == [kind]
    theirs = getattr(hf, kind).from_pretrained(tmp_path / "there", dtype=torch.float64).eval()
    theirs = to_fp64(theirs)
    x, tgt = torch.randint(4, 29, (2, 9)), torch.randint(4, 29, (2, 6))
    with torch.no_grad():
        if family == "vit":
            images = torch.randn(3, 2, 8, 8, dtype=torch.float64)
            mine, their = ours(images), theirs(pixel_values=images).logits
        elif family in PAIRS:
            mine, their = ours(x, tgt), theirs(input_ids=x, decoder_input_ids=tgt).logits
        else:
            mine, their = ours(x), theirs(input_ids=x)[0]
    # transformers computes sinusoids in fp64 here; fourfold, as transformers by default, in fp32.
    tolerance = 1e-6 if "sinusoidal" in getattr(ours.config, "positions", "") else 1e-9
    torch.testing.assert_close(mine, their, rtol=10 * tolerance, atol=tolerance)
    again = fourfold.load(tmp_path / "there")
    assert sum(p.numel() for p in again.parameters()) >= sum(p.numel() for p in ours.parameters())


@pytest.mark.parametrize("kind", ["SequenceClassification", "TokenClassification"])
def test_classifier_without_segments_is_exported_with_a_segment_of_zeros(
    kind: str, tmp_path: Path
) -> None:
    native = getattr(fourfold.models, kind.replace("fication", "fier"))
    config = getattr(fourfold.models, native.__name__ + "Config")
    sizes = {"d_model": 8, "n_layers": 1, "n_heads": 2, "d_ff": 12, "vocab_size": 30, "max_len": 9}
    ours = native(config(**sizes, n_segments=0, n_classes=3)).double().eval()
    fourfold.save(ours, tmp_path)
    assert ours.config.n_segments == 0
    theirs = getattr(hf, f"BertFor{kind}").from_pretrained(tmp_path, dtype=torch.float64).eval()
    x = torch.randint(4, 29, (2, 9))
    torch.testing.assert_close(ours(x), theirs(input_ids=x).logits, rtol=1e-10, atol=1e-10)
    again: Any = fourfold.load(tmp_path, dtype="float64")
    torch.testing.assert_close(again(x), ours(x), rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize(
    ("family", "changes", "why"),
    [
        ("masked", {"norm_placement": "pre"}, "norm_placement=pre"),
        ("causal", {"positions": "sinusoidal"}, "positions=sinusoidal"),
        ("vit", {"pool": "mean"}, "pool=mean"),
        ("encoder_decoder", {"tie_embeddings": "none"}, "tie_embeddings=none"),
        ("encoder_decoder", {"norm_eps": 1e-3}, "norm_eps=0.001"),
        ("t5", {"norm": "layer"}, "t5 does not support norm=layer"),
        ("t5", {"tie_embeddings": "none"}, "t5 does not support tie_embeddings=none"),
        ("t5", {"decoder_d_ff": 24}, "t5 does not support .*decoder_d_ff=24"),
        ("t5", {"n_decoder_heads": 1}, "t5 does not support .*n_decoder_heads=1"),
        ("t5", {"attn_scale": None}, "t5 does not support attn_scale=None"),
    ],
)
def test_model_without_class_in_transformers_is_saved_in_native_format(
    family: str, changes: dict[str, Any], why: str, tmp_path: Path
) -> None:
    model = build(family, **changes)
    with pytest.raises(InputError, match=why):
        write_transformers(model, tmp_path)
    fourfold.save(model, tmp_path / "saved")
    names = {file.name for file in (tmp_path / "saved").iterdir()}
    assert names == {"fourfold.json", "model.safetensors"}
    again = fourfold.load(tmp_path / "saved")
    assert again.config == model.config
    weights = again.state_dict()
    assert all(torch.equal(x.float(), weights[key]) for key, x in model.state_dict().items())


def test_bf16_weights_are_saved_as_bf16(tmp_path: Path) -> None:
    make_model("gpt2").to(torch.bfloat16).save_pretrained(tmp_path / "theirs")
    model = fourfold.load(tmp_path / "theirs")
    assert all(p.dtype == torch.float32 for p in model.parameters())
    fourfold.save(model, tmp_path / "again")
    before, after = (load_file(tmp_path / d / "model.safetensors") for d in ("theirs", "again"))
    assert all(torch.equal(before[key], after[key]) for key in before)
    assert all(x.dtype == torch.bfloat16 for x in after.values())


def test_unread_sentencepiece_model_is_reported(
    tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pretrained, "find_spec", lambda name: None)
    make_model("marian").save_pretrained(tmp_path / "theirs")
    for name in ("source.spm", "target.spm", "vocab.json"):
        (tmp_path / "theirs" / name).write_bytes(b"{}")
    assert main(["import", str(tmp_path / "theirs"), str(tmp_path / "x.ckpt")]) == 0
    said = capsys.readouterr().out
    assert "source.spm and target.spm not read, see fourfold[sentencepiece]" in said
    assert "(without a tokenizer)" in said
    assert "tokenizer" not in load_task(tmp_path / "x.ckpt").artifacts


def test_sharded_weights_are_read(tmp_path: Path) -> None:
    model = make_model("bert")
    model.save_pretrained(tmp_path / "whole")
    model.save_pretrained(tmp_path / "parts", max_shard_size="20KB")
    assert len(list((tmp_path / "parts").glob("*.safetensors"))) > 2
    whole, parts = (fourfold.load(tmp_path / d).state_dict() for d in ("whole", "parts"))
    assert all(torch.equal(whole[key], parts[key]) for key in whole)
    next((tmp_path / "parts").glob("*2-of*.safetensors")).unlink()
    with pytest.raises(InputError, match=r"2-of.*missing"):
        fourfold.load(tmp_path / "parts")


def test_old_tensor_names_and_pickles_are_read(tmp_path: Path) -> None:
    make_model("bert").save_pretrained(tmp_path / "new")
    tensors = load_file(tmp_path / "new" / "model.safetensors")
    old = {
        key.replace("LayerNorm.weight", "LayerNorm.gamma").replace("Norm.bias", "Norm.beta"): x
        for key, x in tensors.items()
    }
    old["bert.embeddings.position_ids"] = torch.arange(23)[None]
    old["cls.predictions.decoder.weight"] = old["bert.embeddings.word_embeddings.weight"]
    (tmp_path / "old").mkdir()
    shutil.copy(tmp_path / "new" / "config.json", tmp_path / "old")
    torch.save(old, tmp_path / "old" / "pytorch_model.bin")
    new, read = (fourfold.load(tmp_path / d).state_dict() for d in ("new", "old"))
    assert all(torch.equal(new[key], read[key]) for key in new)


def test_changed_sinusoids_are_rejected(tmp_path: Path) -> None:
    model = make_model("pegasus")
    with torch.no_grad():
        model.model.encoder.embed_positions.weight.mul_(1.5)
    model.save_pretrained(tmp_path / "theirs")
    with pytest.raises(InputError, match=r"encoder\.embed_positions\.weight must be the table"):
        fourfold.load(tmp_path / "theirs")


def test_names_on_the_hub_are_downloaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    make_model("gpt2").save_pretrained(tmp_path / "fetched")
    asked = []

    def fetch(name: str, allow_patterns: list[str]) -> str:
        asked.append(name)
        if name == "nobody/nothing":
            raise OSError("no network\nand many words")
        return str(tmp_path / "fetched")

    monkeypatch.setattr("huggingface_hub.snapshot_download", fetch)
    monkeypatch.chdir(tmp_path)
    assert main(["import", "hf://somebody/gpt2", "x.ckpt"]) == 0
    assert asked == ["somebody/gpt2"]
    assert main(["import", "hf://nobody/nothing", "y.ckpt"]) == 2
    assert "cannot be downloaded from the Hugging Face hub: no network\n" in capsys.readouterr().err
    assert fourfold.load("fetched").config.n_layers == 2  # a path is a path
    assert len(asked) == 2
    for name in ("hf://somebody/gpt2", Path("hf://somebody/gpt2")):
        assert fourfold.load(name).config.n_layers == 2
    assert len(asked) == 4


SOURCES = {
    "load": lambda source: fourfold.load(source),
    "load a path": lambda source: fourfold.load(Path(source)),
    "init_from": lambda source: initialize_from(
        build("causal"), {"decoder": source}, None, "bicubic"
    ),
    "import": lambda source: main(["import", source, "x.ckpt"]),
    "export": lambda source: main(["export", source, "exported"]),
    "look": lambda source: main(["look", source]),
    "fit": lambda source: main(["fit", "--config=gpt2/tiny", f"--model.init_from={source}"]),
    **{verb: lambda source, verb=verb: main([verb, "--checkpoint", source]) for verb in FUNCTIONS},
}


@pytest.mark.parametrize("kind", SOURCES)
def test_only_names_with_a_prefix_are_asked_of_the_hub(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    """A typing error in a path is no request, and the message names the forms of a source."""
    asked = []

    def fetch(name: str, allow_patterns: list[str]) -> str:
        asked.append(name)
        raise OSError("no network")

    monkeypatch.setattr("huggingface_hub.snapshot_download", fetch)
    monkeypatch.chdir(tmp_path)
    for source, said in (
        ("runs/frist", "did you mean hf://runs/frist?"),
        ("runs/a/b", "is written hf://owner/name)"),
        ("frist.ckpt", "is written hf://owner/name)"),
        ("hf://gpt2", "is written hf://owner/name)"),
        ("hf://somebody/gpt2", "hf://somebody/gpt2: it cannot be downloaded"),
    ):
        try:
            assert SOURCES[kind](source) == 2
            message = capsys.readouterr().err
            assert message.count("\n") == 1
        except InputError as error:
            message = str(error)
        assert said in message, message
        assert asked == (["somebody/gpt2"] if source == "hf://somebody/gpt2" else [])
    assert [path.name for path in tmp_path.iterdir()] in ([], ["runs"])


def test_runtimes_that_do_not_read_an_export_are_named(tmp_path: Path, capsys: Any) -> None:
    """In the message of the export, and in the table of the page."""
    page = Path("docs/interoperability.md").read_text()
    modules = {path for family in families() for path in family.architectures.values()}
    for architecture in [x for path in modules for x in import_module(path).ARCHITECTURES]:
        name = str(architecture.hf_class)
        for runtime in architecture.unread_by:
            assert f"`{name}`, which {runtime} does not read" in page
    for placement, notes in (("post", [", which CTranslate2 4.8 cannot read"]), ("pre", [""])):
        model = build("encoder_decoder", norm_eps=1e-5, norm_placement=placement).float()
        folder = tmp_path / placement
        written = write_transformers(model, tmp_path)
        assert [written.removeprefix(written.split(",")[0])] == notes
        fourfold.save(model, folder)
        assert "which" not in write_transformers(fourfold.load(folder), tmp_path)  # as it came


class Hostile:
    def __reduce__(self) -> Any:
        return (Path.touch, (Path("touched"),))


CONFIGS_GONE_WRONG: dict[str, dict[str, Any]] = {
    "unknown": {"model_type": "mamba"},
    "shape": {"vocab_size": 60},
    "heads": {"num_attention_heads": 5},
    "activation": {"hidden_act": "mish"},
    "decoder": {"is_decoder": True},
}
TENSORS_GONE_WRONG: dict[str, dict[str, Tensor]] = {
    "surplus": {"adapter.weight": torch.zeros(2, 36)},
    "untied": {"cls.predictions.decoder.weight": torch.zeros(61, 36)},
}


def spoil(folder: Path, how: str) -> None:
    """Corrupt a valid BERT directory."""
    config, weights = folder / "config.json", folder / "model.safetensors"
    if how in CONFIGS_GONE_WRONG:
        config.write_text(json.dumps(json.loads(config.read_text()) | CONFIGS_GONE_WRONG[how]))
    elif how in TENSORS_GONE_WRONG:
        save_file(load_file(weights) | TENSORS_GONE_WRONG[how], weights)
    elif how == "missing":
        tensors = load_file(weights)
        del tensors["bert.encoder.layer.1.output.dense.bias"]
        save_file(tensors, weights)
    elif how == "cut off":
        weights.write_bytes(weights.read_bytes()[:-1000])
    elif how == "no config":
        config.unlink()
    elif how == "not JSON":
        config.write_text("{")
    else:
        weights.unlink()
        if how == "pickle":
            (folder / "pytorch_model.bin").write_bytes(pickle.dumps({"x": Hostile()}))


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ("no weights", "contains neither model.safetensors"),
        ("cut off", "model.safetensors: corrupted or incomplete"),
        ("unknown", "model_type must be one of "),
        ("no config", "there is no checkpoint"),
        ("not JSON", "config.json:1: invalid JSON"),
        ("shape", "embed.tokens.weight has shape (61, 36)"),
        ("heads", "n_heads"),
        ("activation", "got 'mish'"),
        ("decoder", "is_decoder must be False, got True"),
        ("pickle", "which could run code"),
        ("missing", "no tensor for stack.blocks.1.ff.down.bias"),
        ("surplus", "do not belong to this architecture: adapter.weight"),
        ("untied", "differs from bert.embeddings.word_embeddings.weight, although"),
    ],
)
def test_invalid_directories_are_rejected_in_one_line(
    how: str, said: str, tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    make_model("bert").save_pretrained("theirs")
    spoil(tmp_path / "theirs", how)
    capsys.readouterr()
    assert main(["import", "theirs", "x.ckpt"]) == 2
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == ["theirs"]


def test_existing_targets_are_not_overwritten(tmp_path: Path, capsys: Any) -> None:
    make_model("vit").save_pretrained(tmp_path / "theirs")
    target = tmp_path / "x.ckpt"
    assert main(["import", str(tmp_path / "theirs"), str(target)]) == 0
    before = target.read_bytes()
    assert main(["import", str(tmp_path / "theirs"), str(target)]) == 2
    assert target.read_bytes() == before
    assert main(["export", str(target), str(tmp_path / "theirs")]) == 2
    assert "is not an empty directory" in capsys.readouterr().err
    assert main(["import", str(target), str(tmp_path / "y.ckpt")]) == 2
    assert "which needs no import" in capsys.readouterr().err


@pytest.mark.parametrize("arguments", [[], ["one"], ["a", "b", "c"], ["a", "--force"]])
@pytest.mark.parametrize("command", ["import", "export"])
def test_wrong_arguments_are_rejected(command: str, arguments: list[str], capsys: Any) -> None:
    assert main([command, *arguments]) == 2
    error = capsys.readouterr().err
    assert "must be given" in error or "is not an option" in error


def test_reordered_sinusoids_are_the_same_function() -> None:
    from fourfold.models.encoder_decoder.hub import prepare_export

    config = EncoderDecoderConfig(**{**vars(CONFIGS["encoder_decoder"]), "tie_embeddings": "none"})
    model = EncoderDecoder(config).double().eval()
    other: nn.Module = prepare_export(model).double().eval()
    x, tgt = torch.randint(29, (3, 8)), torch.randint(29, (3, 5))
    torch.testing.assert_close(other(x, tgt), model(x, tgt), rtol=1e-9, atol=1e-9)
    assert not torch.equal(other.src_embed.tokens.weight, model.src_embed.tokens.weight)


@pytest.mark.parametrize("label", ["kind", "score"])
def test_exported_classifier_keeps_its_class_names(label: str, texts: Path, tmp_path: Path) -> None:
    """transformers computes the same probabilities for the same text, with the same names."""
    task, data = sequences(texts, label)
    config = dataclasses.replace(task.config, init="bert", max_len=96)
    task = type(task)(config, task.optimizer, task.schedule)
    trainer = Trainer(
        max_steps=2,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        default_root_dir=tmp_path,
        enable_progress_bar=False,
        enable_model_summary=False,
        limit_val_batches=0,
        use_distributed_sampler=False,
    )
    trainer.fit(task, data)
    trainer.save_checkpoint(tmp_path / "a.ckpt")
    assert main(["export", str(tmp_path / "a.ckpt"), str(tmp_path / "out")]) == 0
    theirs = hf.AutoModelForSequenceClassification.from_pretrained(tmp_path / "out").eval()
    if label == "kind":
        assert theirs.config.id2label == dict(enumerate(data.class_names))
    loaded = fourfold.load(tmp_path / "out").artifacts
    kept = {name: task.artifacts[name] for name in ("class_names", "n_separators")}
    assert loaded == {**kept, "max_len": 96}
    batch: Any = data.split("test").batch(np.arange(4), 0, 0)
    with torch.no_grad():
        out = theirs(
            input_ids=batch.ids, attention_mask=batch.mask.long(), token_type_ids=batch.segments
        ).logits
        torch.testing.assert_close(task.eval().logits(batch), out, rtol=1e-4, atol=1e-5)
    pair = data.read()["test"]
    encoded = hf.AutoTokenizer.from_pretrained(tmp_path / "out")(
        pair.columns[0][:4], pair.columns[1][:4], padding=True, return_tensors="pt"
    )
    assert torch.equal(encoded["input_ids"], batch.ids)
    assert torch.equal(encoded["token_type_ids"], batch.segments)
    assert main(["import", str(tmp_path / "out"), str(tmp_path / "b.ckpt")]) == 0
    again = load_task(tmp_path / "b.ckpt")
    assert type(again) is type(task)
    names = ("class_names", "max_len", "n_separators", "tokenizer")
    assert [again.artifacts[name] for name in names[:3]] == [
        task.artifacts[name] for name in names[:3]
    ]
    assert again.tokenizer.encode("one two") == task.tokenizer.encode("one two")


def test_token_classifier_with_a_pooler_is_imported(tmp_path: Path) -> None:
    """Older versions of transformers saved an unused pooler; config.json names the class."""
    make_model("bert-tags").save_pretrained(tmp_path / "tags")
    tensors = load_file(tmp_path / "tags/model.safetensors")
    more = {"weight": torch.zeros(36, 36), "bias": torch.zeros(36)}
    tensors |= {f"bert.pooler.dense.{name}": x for name, x in more.items()}
    save_file(tensors, tmp_path / "tags/model.safetensors", metadata={"format": "pt"})
    model = fourfold.load(tmp_path / "tags")
    assert isinstance(model, TokenClassifier)
    fourfold.save(model, tmp_path / "again")
    assert load_file(tmp_path / "again/model.safetensors").keys() == tensors.keys()


def test_classes_without_names_get_numbered_names(tmp_path: Path) -> None:
    """transformers writes no names for its default of two classes."""
    make_model("bert-classes").save_pretrained(tmp_path / "x")
    config = json.loads((tmp_path / "x/config.json").read_text())
    weights = load_file(tmp_path / "x/model.safetensors")
    for name in ("classifier.weight", "classifier.bias"):
        weights[name] = weights[name][:2].clone()
    save_file(weights, tmp_path / "x/model.safetensors", metadata={"format": "pt"})
    del config["id2label"], config["label2id"]
    (tmp_path / "x/config.json").write_text(json.dumps(config))
    assert main(["import", str(tmp_path / "x"), str(tmp_path / "x.ckpt")]) == 0
    assert load_task(tmp_path / "x.ckpt").artifacts["class_names"] == ["LABEL_0", "LABEL_1"]
    (tmp_path / "x/config.json").write_text(
        json.dumps({**config, "problem_type": "multi_label_classification"})
    )
    model = fourfold.load(tmp_path / "x")
    assert model.artifacts["multi_label"] is True
    assert "multi_label" not in load_task(tmp_path / "x.ckpt").artifacts
