"""`init_from`: checkpoints, Hugging Face directories, roles, other tokenizers."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import tokenizers
import torch
from lightning import Trainer

import fourfold
from fourfold.checkpoints.init_from import initialize_from, read_source, shared_vocabulary
from fourfold.errors import InputError
from fourfold.models import (
    EncoderDecoderConfig,
    SequenceClassifierConfig,
    SigLIP,
    SigLIPConfig,
    ViT,
    ViTConfig,
)
from fourfold.tasks import SequenceClassification, Translation
from fourfold.tokenization.pretrained import make_tokenizer
from fourfold.tokenization.tokenizer import Tokenizer
from fourfold.tokenization.training import TokenizerConfig, train_tokenizer
from tests.fixtures.tiny_tasks import (
    ENCODER,
    FLAT,
    SGD,
    masked,
    sentence_pairs,
    sequences,
    translation,
)

SMALL = {"d_model": 8, "n_layers": 2, "n_heads": 2, "d_ff": 16}
IMAGES = {"image_size": 8, "patch_size": 4, "n_channels": 3}


def fitted(task: Any, data: Any, folder: Path, **options: Any) -> Trainer:
    trainer = Trainer(
        max_steps=1,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        default_root_dir=folder,
        enable_progress_bar=False,
        enable_model_summary=False,
        limit_val_batches=0,
        use_distributed_sampler=False,
    )
    trainer.fit(task, data, **options)
    return trainer


@pytest.fixture(scope="module")
def pretrained(texts: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Checkpoint of a masked LM with the shape of the downstream tasks, and its tokenizer."""
    folder = tmp_path_factory.mktemp("pretrained")
    task, data = masked(texts)
    torch.manual_seed(5)
    fitted(task, data, folder).save_checkpoint(folder / "a.ckpt")
    return folder / "a.ckpt"


def test_weights_are_copied_and_reported(
    pretrained: Path, texts: Path, tmp_path: Path, capsys: Any
) -> None:
    _, data = sequences(texts)
    task = SequenceClassification(
        SequenceClassifierConfig(**ENCODER), replace(SGD, lr=1e-12), FLAT, init_from=str(pretrained)
    )
    fitted(task, data, tmp_path)
    source = fourfold.load(pretrained).state_dict()
    for name, value in task.model.state_dict().items():
        if name.startswith("stack."):
            torch.testing.assert_close(value, source[name], rtol=0, atol=1e-9)
    said = capsys.readouterr().out
    assert f"init_from {pretrained}: MaskedLM" in said
    assert "resized   embed.positions.weight (32, 16): to (96, 16), its first 32 rows" in said
    assert "loaded    stack.blocks.0.attn.q.weight (16, 16)" in said
    assert "new       classifier.classify.weight (3, 16)" in said
    assert "left out  head.bias" in said
    # The data have fewer characters than the source: each keeps its embedding.
    old, new = (read_source(pretrained).tokenizer.to_str(), data.tokenizer.to_str())
    pairs = shared_vocabulary(old, new)
    assert pairs is not None
    table = task.model.embed.tokens.weight
    torch.testing.assert_close(
        table[pairs[1]], source["embed.tokens.weight"][pairs[0]], rtol=0, atol=1e-9
    )


def test_checkpoint_does_not_need_its_source(
    pretrained: Path, texts: Path, tmp_path: Path, capsys: Any
) -> None:
    task, data = sequences(texts)
    gone = tmp_path / "gone.ckpt"
    gone.write_bytes(pretrained.read_bytes())
    task = type(task)(task.config, SGD, FLAT, init_from=str(gone))
    fitted(task, data, tmp_path).save_checkpoint(tmp_path / "b.ckpt")
    gone.unlink()
    capsys.readouterr()
    again = fourfold.load(tmp_path / "b.ckpt")
    assert again.state_dict().keys() == task.model.state_dict().keys()
    assert "init_from" not in capsys.readouterr().out


def saved_bert(kind: str, folder: Path) -> Any:
    """Save a small random BERT of transformers."""
    hf = pytest.importorskip("transformers")
    config = hf.BertConfig(
        vocab_size=60,
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=24,
        max_position_embeddings=96,
    )
    theirs = getattr(hf, kind)(config)
    theirs.save_pretrained(folder)
    return theirs


def test_hugging_face_directory_is_a_source(texts: Path, tmp_path: Path, capsys: Any) -> None:
    theirs = saved_bert("BertModel", tmp_path / "bert")
    task, data = sequences(texts)
    changed = replace(task.config, norm_eps=1e-12, vocab_size=60)
    still = replace(SGD, lr=1e-12)
    task = type(task)(changed, still, FLAT, init_from=str(tmp_path / "bert"))
    fitted(task, data, tmp_path)
    said = capsys.readouterr().out
    # A masked LM has no pooler, but the classifier takes it from the source.
    assert "loaded    classifier.pool.weight (16, 16)" in said
    assert "new       classifier.classify.weight" in said
    found = task.model.classifier.pool.weight
    torch.testing.assert_close(found, theirs.pooler.dense.weight, rtol=0, atol=1e-9)


@pytest.mark.parametrize("pool", ["first", "mean"])
def test_pooler_of_next_sentence_prediction_in_transformers(
    pool: str, texts: Path, tmp_path: Path, capsys: Any
) -> None:
    theirs = saved_bert("BertForPreTraining", tmp_path / "bert")
    task, data = sequences(texts)
    changed = replace(task.config, norm_eps=1e-12, vocab_size=60, pool=pool)
    still = replace(SGD, lr=1e-12)
    task = type(task)(changed, still, FLAT, init_from=str(tmp_path / "bert"))
    fitted(task, data, tmp_path)
    said = capsys.readouterr().out
    found, pooler = task.model.classifier.pool, theirs.bert.pooler.dense
    if pool == "first":
        assert "loaded    classifier.pool.weight (16, 16)" in said
        torch.testing.assert_close(found.weight, pooler.weight, rtol=0, atol=1e-9)
        torch.testing.assert_close(found.bias, pooler.bias, rtol=0, atol=1e-9)
    else:  # it was learned for the first token
        assert "new       classifier.pool.weight" in said
        assert "left out  next_sentence.pool.weight" in said
        assert not torch.isclose(found.weight, pooler.weight).any(-1).any()


def test_pooler_of_next_sentence_prediction_in_fourfold(
    texts: Path, tmp_path: Path, capsys: Any
) -> None:
    task, data = sentence_pairs(texts)
    torch.manual_seed(5)
    fitted(task, data, tmp_path).save_checkpoint(tmp_path / "a.ckpt")
    _, data = sequences(texts)
    config = SequenceClassifierConfig(**ENCODER)
    init_from = str(tmp_path / "a.ckpt")
    classifier = SequenceClassification(config, replace(SGD, lr=1e-12), FLAT, init_from=init_from)
    fitted(classifier, data, tmp_path)
    said = capsys.readouterr().out
    assert "loaded    classifier.pool.weight (16, 16)" in said
    assert "left out  next_sentence.classify.weight" in said
    assert "next_sentence.pool" not in said
    found, learned = classifier.model.classifier.pool, task.model.next_sentence.pool
    torch.testing.assert_close(found.weight, learned.weight, rtol=0, atol=1e-9)


@pytest.mark.parametrize(("name", "tables"), [("roberta", 1), ("bart", 2)])
def test_position_tables_with_offset_two(name: str, tables: int, tmp_path: Path) -> None:
    """The first two rows of the table, which are kept for export, are skipped."""
    pytest.importorskip("transformers")
    from tests.fixtures.hf_models import make_model

    theirs = make_model(name)
    with torch.no_grad():
        for parameter in theirs.parameters():
            parameter.add_(torch.randn_like(parameter))
    theirs.save_pretrained(tmp_path)
    source = read_source(str(tmp_path))
    model = type(source)(source.config)
    report = initialize_from(model, str(tmp_path), None, "bicubic")
    assert "resized" not in report
    found = {k: x for k, x in model.state_dict().items() if k.endswith("positions.weight")}
    given = [
        x[2:]
        for k, x in theirs.state_dict().items()
        if ".position_embeddings." in k or ".embed_positions." in k
    ]
    assert len(found) == len(given) == tables
    assert all(torch.equal(x, y) for x, y in zip(found.values(), given, strict=True))


@pytest.mark.parametrize("kind", ["ViTModel", "DeiTModel", "DeiTForImageClassification"])
def test_image_models_without_all_heads(kind: str, tmp_path: Path) -> None:
    hf = pytest.importorskip("transformers")
    deit = kind.startswith("DeiT")
    sizes = {
        "hidden_size": 36,
        "num_attention_heads": 3,
        "intermediate_size": 50,
        "image_size": 12,
        "num_hidden_layers": 2,
        "patch_size": 4,
        "num_labels": 5,
    }
    torch.manual_seed(0)
    theirs = getattr(hf, kind)((hf.DeiTConfig if deit else hf.ViTConfig)(**sizes)).eval()
    with torch.no_grad():
        for parameter in theirs.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    theirs.save_pretrained(tmp_path / "theirs")
    has_head = "classifier.weight" in theirs.state_dict()
    assert len(fourfold.load(tmp_path / "theirs").heads) == has_head
    config = read_source(str(tmp_path / "theirs")).config
    model = ViT(replace(config, n_classes=5)).eval()
    before = [head.weight.clone() for head in model.heads]
    report = initialize_from(model, str(tmp_path / "theirs"), None, "bicubic")
    new = {"ViTModel": "0", "DeiTModel": "0-1"}.get(kind)
    assert ("new  " in report) == (new is not None)
    assert new is None or f"new       heads.{new}.weight (5, 36)" in report
    for i, head in enumerate(model.heads):
        kept = torch.equal(head.weight, before[i])
        assert kept if i >= has_head else torch.equal(head.weight, theirs.classifier.weight)
    images = torch.randn(2, 3, 12, 12)
    with torch.no_grad():
        h, out = model.encode(images), theirs(images)
        if has_head:
            torch.testing.assert_close(model.heads[0](h[:, 0]), out.logits, rtol=1e-5, atol=1e-5)
        else:
            torch.testing.assert_close(h, out.last_hidden_state, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("pool", ["mean", "cls"])
def test_image_classifier_starts_from_the_image_encoder_of_siglip(
    pool: Any, tmp_path: Path
) -> None:
    image = {f"image_{name}": size for name, size in SMALL.items()}
    siglip = SigLIP(
        SigLIPConfig(**SMALL, **image, **IMAGES, vocab_size=20, max_len=6, d_embed=8)
    ).eval()
    fourfold.save(siglip, tmp_path / "siglip")
    config = siglip.image_classifier().config
    model = ViT(replace(config, pool=pool, n_classes=3)).eval()
    report = initialize_from(model, str(tmp_path / "siglip"), None, "bicubic")
    assert "left out  heads.0.weight (1, 8)" in report
    assert ("resized   embed.positions.weight" in report) == (pool == "cls")
    x = torch.rand(2, 3, 8, 8)
    if pool == "mean":
        expected = siglip.image_stack(siglip.image_embed(x))
        torch.testing.assert_close(model.encode(x), expected)


def test_incompatible_and_missing_sources_are_rejected(
    pretrained: Path, texts: Path, tmp_path: Path
) -> None:
    task, data = sequences(texts)
    for path, change, message in (
        (str(pretrained), {"n_heads": 4}, r"a\.ckpt: n_heads of the source .* got 2"),
        (str(tmp_path / "no.ckpt"), {}, r"no\.ckpt: there is no such checkpoint"),
    ):
        wrong = type(task)(replace(task.config, **change), SGD, FLAT, init_from=path)
        with pytest.raises(InputError, match=message):
            fitted(wrong, data, tmp_path)


def test_source_with_other_inputs_is_rejected(
    pretrained: Path, texts: Path, tmp_path: Path
) -> None:
    sizes: dict[str, Any] = {"d_model": 16, "n_layers": 1, "n_heads": 2, "d_ff": 24}
    shape = {**sizes, "positions": "learned", "norm_placement": "post", "norm_eps": 1e-12}
    vit = ViT(ViTConfig(**shape, image_size=8, patch_size=4, n_classes=3))
    fourfold.save(vit, tmp_path / "vit")
    with pytest.raises(
        InputError, match=r"a\.ckpt: init_from .* patch embeddings of a ViT, got a M"
    ):
        initialize_from(vit, str(pretrained), None, "bicubic")
    task, data = sequences(texts)
    task = type(task)(
        replace(task.config, norm_eps=1e-12), SGD, FLAT, init_from=str(tmp_path / "vit")
    )
    with pytest.raises(InputError, match=r"vit: init_from must be a model with the token embedd"):
        fitted(task, data, tmp_path)


def test_encoder_decoder_is_initialized_from_two_models(
    pretrained: Path, texts: Path, tmp_path: Path
) -> None:
    shape = {**ENCODER, "activation": "gelu", "norm_placement": "post", "norm_eps": 1e-12}
    shape.pop("attn_dropout")
    config = EncoderDecoderConfig(
        **shape, positions="learned", tie_embeddings="decoder", embed_scale=False, embed_norm=True
    )
    _, pairs = translation(texts)
    both = {"encoder": str(pretrained), "decoder": str(pretrained)}
    task = Translation(config, replace(SGD, lr=1e-12), FLAT, init_from=both)
    fitted(task, pairs, tmp_path)
    source = fourfold.load(pretrained).state_dict()
    for side in ("encoder", "decoder"):
        found = task.model.get_parameter(f"{side}.blocks.0.ff.up.weight")
        expected = source["stack.blocks.0.ff.up.weight"]
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-9)
    with pytest.raises(
        InputError, match=r"init_from must be one of model, encoder, decoder, got 'middle'"
    ):
        initialize_from(task.model, {"middle": str(pretrained)}, None, "bicubic")


def test_shared_tokens_of_two_tokenizers() -> None:
    a = train_tokenizer(TokenizerConfig(kind="char"), ["abc"], mask=True)
    b = train_tokenizer(TokenizerConfig(kind="char"), ["cbx"], mask=False)
    assert shared_vocabulary(a.to_str(), a.to_str()) is None
    assert shared_vocabulary(None, a.to_str()) is None
    pairs = shared_vocabulary(a.to_str(), b.to_str())
    assert pairs is not None
    names = [t.backend.id_to_token for t in (a, b)]
    shared = {(names[0](i), names[1](j)) for i, j in zip(*(p.tolist() for p in pairs), strict=True)}
    assert {("b", "b"), ("c", "c"), ("<s>", "<s>")} <= shared
    assert all(left == right for left, right in shared)


def test_special_tokens_match_by_role(tmp_path: Path) -> None:
    (tmp_path / "vocab.txt").write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\na\n")
    bert = make_tokenizer(TokenizerConfig(file=str(tmp_path / "vocab.txt")), [], mask=True)
    ours = train_tokenizer(TokenizerConfig(kind="char"), ["a"], mask=True)
    pairs = shared_vocabulary(bert.to_str(), ours.to_str())
    assert pairs is not None
    found = dict(zip(pairs[1].tolist(), pairs[0].tolist(), strict=True))
    assert found[ours.bos_id] == bert.bos_id
    assert found[ours.mask_id or 0] == bert.mask_id


def test_shared_vocabulary_is_on_the_cpu() -> None:
    a = train_tokenizer(TokenizerConfig(kind="char"), ["abc"], mask=True)
    b = train_tokenizer(TokenizerConfig(kind="char"), ["cbx"], mask=False)
    with torch.device("meta"):  # as in Lightning's configure_model, of another device
        pairs = shared_vocabulary(a.to_str(), b.to_str())
    assert pairs is not None
    assert {numbers.device.type for numbers in pairs} == {"cpu"}


def test_token_with_several_roles_is_initialized_from_the_end_token() -> None:
    """GPT-2 has one special token; the unknown token of a byte-level vocabulary is untrained."""
    theirs = train_tokenizer(TokenizerConfig("byte_bpe", 300), ["one two three"], mask=False)
    core = tokenizers.Tokenizer(tokenizers.models.BPE({"a": 0, "<|endoftext|>": 1}, []))
    core.add_special_tokens(["<|endoftext|>"])
    ours = Tokenizer(core)
    assert ours.pad_id == ours.bos_id == ours.eos_id == ours.unk_id == 1
    pairs = shared_vocabulary(theirs.to_str(), ours.to_str())
    assert pairs is not None
    before, after = (x.tolist() for x in pairs)
    assert before[after.index(1)] == theirs.eos_id
