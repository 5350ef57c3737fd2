"""Composite translation and captioning: init_from of two models, metrics, rejected input."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from lightning import Trainer
from sacrebleu.metrics import BLEU, CHRF

import fourfold
from fourfold.checkpoints.init_from import read_source, shared_vocabulary
from fourfold.data import CaptionData
from fourfold.errors import InputError
from fourfold.metrics import TranslationScores
from fourfold.models import ImageToTextConfig, TextToTextConfig
from fourfold.models.encoder_decoder import seq2seq_task as seq2seq
from fourfold.tasks import load_task
from fourfold.tasks.convert import export_checkpoint
from fourfold.tokenization.training import TokenizerConfig
from tests.fixtures.tiny_tasks import FAMILIES, JOINED, captions, causal, images, joined, masked

STILL = 1e-12  # a rate at which weights stay where they began


def trainer(folder: Path, **kwargs: Any) -> Trainer:
    return Trainer(
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        default_root_dir=folder,
        enable_progress_bar=False,
        enable_model_summary=False,
        use_distributed_sampler=False,
        num_sanity_val_steps=0,
        **kwargs,
    )


def fitted(task: Any, data: Any, folder: Path) -> Trainer:
    run = trainer(folder, max_steps=1, limit_val_batches=0)
    run.fit(task, data)
    return run


def changed(task: Any, **options: Any) -> Any:
    """Return the task with other arguments."""
    return type(task)(
        options.pop("config", task.config),
        replace(task.optimizer, lr=STILL),
        task.schedule,
        **options,
    )


@pytest.fixture(scope="module")
def halves(texts: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Checkpoints of a masked LM, a causal LM and a ViT, with their tokenizers."""
    found = {}
    for name, make in (("masked", masked), ("causal", causal), ("images", images)):
        folder = tmp_path_factory.mktemp(name)
        torch.manual_seed(len(found))
        fitted(*make(texts), folder).save_checkpoint(folder / "a.ckpt")
        found[name] = folder / "a.ckpt"
    return found


def test_translation_is_initialized_from_encoder_and_decoder(
    halves: dict[str, Path], texts: Path, tmp_path: Path, capsys: Any
) -> None:
    task, data = joined(texts)
    both = {"encoder": str(halves["masked"]), "decoder": str(halves["causal"])}
    wide = replace(task.config, encoder=replace(task.config.encoder, d_model=16, d_ff=24))
    task = changed(task, config=wide, init_from=both)
    capsys.readouterr()
    run = fitted(task, data, tmp_path)
    said = capsys.readouterr().out.splitlines()
    ours = task.model.state_dict()
    sources = {role: fourfold.load(path).state_dict() for role, path in both.items()}
    for role in both:
        for name, tensor in sources[role].items():
            if name.startswith("stack."):
                found = ours[name.replace("stack", role, 1)]
                torch.testing.assert_close(found, tensor, rtol=0, atol=1e-9)
    # Each token keeps its embedding under its new id.
    new = data.tokenizer.to_str()
    pairs = shared_vocabulary(read_source(both["decoder"]).tokenizer.to_str(), new)
    assert pairs is not None
    for role, place in (("encoder", "src_embed"), ("decoder", "tgt_embed")):
        pairs = shared_vocabulary(read_source(both[role]).tokenizer.to_str(), new)
        assert pairs is not None
        table, old = ours[f"{place}.tokens.weight"], sources[role]["embed.tokens.weight"]
        torch.testing.assert_close(table[pairs[1]], old[pairs[0]], rtol=0, atol=1e-9)
    # The report lists the tensors that neither source has once, at its end.
    start = said.index("init_from: tensors that no source has")
    new = [line.split()[1] for line in said[start + 1 :] if line.startswith("  new ")]
    assert len(new) == 10
    assert all("cross_attn" in name for name in new)
    assert not any(line.startswith("  new ") for line in said[:start])
    assert f"init_from {both['encoder']}: MaskedLM" in said[0]
    # The sources are not needed any more.
    run.save_checkpoint(tmp_path / "b.ckpt")
    again = load_task(tmp_path / "b.ckpt", expect="Translation")
    assert again.config == task.config
    assert isinstance(again.config, TextToTextConfig)
    assert again.generate_texts(torch.tensor([[5, 6, 2]]), None, 2)
    assert all(torch.equal(x, ours[name]) for name, x in again.model.state_dict().items())


def test_captioning_is_initialized_from_a_vit_of_another_resolution(
    halves: dict[str, Path], texts: Path, tmp_path: Path, capsys: Any
) -> None:
    task, data = captions(texts)
    seen = fourfold.load(halves["images"]).config
    config = replace(task.config, encoder=replace(seen, patch_size=2, image_size=8))
    task = changed(task, config=config, init_from={"encoder": str(halves["images"])})
    fitted(task, data, tmp_path)
    said = capsys.readouterr().out
    assert "loaded    encoder.blocks.0.attn.q.weight (16, 16)" in said
    assert "left out  heads.0.weight (10, 16)" in said
    assert "new       tgt_embed.tokens.weight" in said
    assert "memory_map" not in said


@pytest.mark.parametrize(
    ("role", "source", "message"),
    [
        ("encoder", "masked", "d_model of the source must be that of the model, 12, got 16"),
        (
            "decoder",
            "masked",
            "activation of the source must be that of the model, gelu_tanh, got gelu",
        ),
        ("middle", "causal", "init_from must be one of model, encoder, decoder, got 'middle'"),
    ],
)
def test_incompatible_sources_are_rejected(
    role: str, source: str, message: str, halves: dict[str, Path], texts: Path, tmp_path: Path
) -> None:
    task, data = joined(texts)
    with pytest.raises(InputError, match=message) as caught:
        fitted(changed(task, init_from={role: str(halves[source])}), data, tmp_path)
    assert "\n" not in str(caught.value)


def test_encoder_that_is_too_small_for_the_data_is_rejected(texts: Path, tmp_path: Path) -> None:
    task, data = joined(texts)
    for change, message in (
        ({"vocab_size": 7}, r"model\.config\.encoder\.vocab_size must be at least \d+, .*, got 7"),
        ({"max_len": 20}, r"max_len is 20, but the longest row of the train split has"),
    ):
        config = replace(task.config, encoder=replace(task.config.encoder, **change))
        with pytest.raises(InputError, match=message):
            fitted(changed(task, config=config), data, tmp_path)


@pytest.mark.parametrize("family", JOINED)
def test_step_equals_the_plain_formula(family: str, texts: Path) -> None:
    task, data = JOINED[family](texts)
    task.config = replace(task.config, vocab_size=data.vocab_size)
    task.configure_model()
    task.eval()
    batch = next(iter(data.train_dataloader()))
    if family == "joined":
        src, tgt, mask, real = batch[:4]
    else:
        src, tgt, mask, real = batch.images, batch.ids, None, batch.mask
    logits = task.model(src, tgt[:, :-1], src_mask=mask, tgt_mask=real[:, :-1])
    targets = tgt[:, 1:].masked_fill(~real[:, 1:], -100)
    plain = F.cross_entropy(
        logits.flatten(0, -2), targets.flatten(), label_smoothing=0.1, reduction="sum"
    )
    total, count = task.step(batch)
    assert count == real[:, 1:].sum()
    torch.testing.assert_close(total, plain, rtol=1e-5, atol=1e-4)


def test_caption_is_compared_with_all_captions_of_its_image(texts: Path, tmp_path: Path) -> None:
    summaries = []
    for rows in (1000, 7):
        torch.manual_seed(0)
        task, data = captions(texts, eval_batch_size=rows)
        trainer(tmp_path, precision="64-true").test(task, data, verbose=False)
        summaries.append(task.summary)
    signatures = [summary.pop("test/bleu_signature") for summary in summaries]
    assert signatures[0] == signatures[1]
    assert "nrefs:3" in signatures[0]
    assert summaries[0] == pytest.approx(summaries[1], rel=1e-9)
    references = data.references("test")
    assert references[0][2].endswith(references[0][1].split()[2])  # "...: a six", "the digit six"
    assert {len(several) for several in references} == {3}
    batches = (b._replace(images=b.images.double()) for b in data.test_dataloader())
    pairs = sorted(pair for batch in batches for pair in task.predict_step(batch, 0))
    hypotheses, columns = [text for _, text in pairs], list(zip(*references, strict=True))
    summary = summaries[0]
    assert summary["test/bleu"] == pytest.approx(BLEU().corpus_score(hypotheses, columns).score)
    assert summary["test/chrf"] == pytest.approx(CHRF().corpus_score(hypotheses, columns).score)


def test_rows_may_have_different_numbers_of_references() -> None:
    metric = TranslationScores()
    hypotheses = ["the cat sat on a mat", "two dogs ran away", "nothing of it"]
    references = [["a cat sat on a mat", "the cat sat on a mat"], ["two dogs ran off"], ["it is"]]
    metric.update([0, 1, 2], hypotheses, references)
    found = metric.compute()
    columns = [
        ["a cat sat on a mat", "two dogs ran off", "it is"],
        ["the cat sat on a mat", None, None],
    ]
    assert found["bleu"] == pytest.approx(BLEU().corpus_score(hypotheses, columns).score)
    assert found["exact_match"] == pytest.approx(1 / 3)
    assert "nrefs:var" in found["bleu_signature"]


def test_captioning_checkpoint_is_not_a_translation(texts: Path, tmp_path: Path) -> None:
    """`fourfold translate` rejects the checkpoint."""
    task, data = captions(texts)
    fitted(task, data, tmp_path).save_checkpoint(tmp_path / "c.ckpt")
    with pytest.raises(InputError, match="holds the task Captioning, but Translation is needed"):
        load_task(tmp_path / "c.ckpt", expect="Translation")
    again = load_task(tmp_path / "c.ckpt")
    assert isinstance(again.config, ImageToTextConfig)
    assert again.config == task.config
    other = changed(
        task, config=replace(task.config, encoder=replace(task.config.encoder, n_heads=1))
    )
    with pytest.raises(
        InputError, match=r"model\.config\.encoder\.n_heads must be 2, as in the checkpoint, got 1"
    ):
        trainer(tmp_path).test(other, data, ckpt_path=tmp_path / "c.ckpt", weights_only=True)


@pytest.mark.parametrize("family", JOINED)
def test_export_of_a_composite_model_is_rejected(family: str, texts: Path, tmp_path: Path) -> None:
    fitted(*JOINED[family](texts), tmp_path).save_checkpoint(tmp_path / "d.ckpt")
    with pytest.raises(
        InputError, match="CompositeEncoderDecoder cannot be exported to transformers"
    ):
        export_checkpoint(tmp_path / "d.ckpt", tmp_path / "there")
    assert [file.name for file in tmp_path.iterdir()] == ["d.ckpt"]


def test_length_of_captions_is_limited_by_the_data(
    texts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The limit of translations, 50 tokens more than the source, does not apply to images."""
    task, _ = captions(texts)
    data = CaptionData(tokenizer=TokenizerConfig(vocab_size=150), batch_size=64)
    task = changed(task, config=replace(task.config, max_len=80))
    fitted(task, data, tmp_path)
    asked = []

    def search(*args: Any, **options: Any) -> Any:
        asked.append(options["max_new_tokens"])
        return torch.zeros(2, 1, dtype=torch.long), None

    monkeypatch.setattr(seq2seq, "beam_search", search)
    images = next(iter(data.test_dataloader())).images[:2]
    task.generate_texts(images, None, 1)
    task.config = replace(task.config, max_len=60)
    task.generate_texts(images, None, 1)
    assert asked == [data.max_len - 1, 60] == [76, 60]


def test_test_reports_bleu_by_source_length(texts: Path, tmp_path: Path) -> None:
    task, data = FAMILIES["translation"](texts)
    options = {"num_beams": 1, "source_lengths": [[1, 4], [5, 99]]}
    task = changed(task, **options)
    scores = fitted(task, data, tmp_path).test(task, data, verbose=False)[0]
    lengths = [len(text.split()) for text in data.sources("test")]
    assert task.length_groups("test")["1_4"] == {i for i, n in enumerate(lengths) if n < 5}
    assert {"test/bleu_1_4", "test/bleu_5_99"} & set(scores)


def test_references_are_not_truncated(tmp_path: Path) -> None:
    data = CaptionData(tokenizer=TokenizerConfig(vocab_size=150), max_len=6, too_long="truncate")
    data.setup()
    assert data.split("test").max_length == 6
    assert all(len(text) > 20 for several in data.references("test") for text in several)


def test_datamodule_of_another_task_is_rejected(texts: Path, tmp_path: Path) -> None:
    task, data = JOINED["captions"](texts)[0], FAMILIES["images"](texts)[1]
    with pytest.raises(InputError, match="must make a CaptionBatch for Captioning"):
        fitted(task, data, tmp_path)
