"""Tasks on two models joined: begun from two checkpoints, scored, and what they refuse."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from lightning import Trainer
from sacrebleu.metrics import BLEU, CHRF

import fourfold
from fourfold.core.errors import InputError
from fourfold.data import CaptionData
from fourfold.data.tokenizer_training import TokenizerConfig
from fourfold.metrics import CorpusScores
from fourfold.models import CaptionerConfig, JoinedConfig
from fourfold.tasks import load_task, writing
from fourfold.tasks.convert import export_checkpoint
from fourfold.tasks.start import read_source, same_words
from scripts.tiny_tasks import FAMILIES, JOINED, captions, causal, images, joined, masked

STILL = 1e-12  # a rate at which weights stay where they began


def trainer(folder: Path, **kwargs: Any) -> Trainer:
    return Trainer(
        accelerator="cpu", logger=False, enable_checkpointing=False, default_root_dir=folder,
        enable_progress_bar=False, enable_model_summary=False, use_distributed_sampler=False,
        num_sanity_val_steps=0, **kwargs,
    )  # fmt: skip


def fitted(task: Any, data: Any, folder: Path) -> Trainer:
    run = trainer(folder, max_steps=1, limit_val_batches=0)
    run.fit(task, data)
    return run


def changed(task: Any, **options: Any) -> Any:
    """The task, with other arguments."""
    return type(task)(
        options.pop("config", task.config),
        replace(task.optimizer_config, lr=STILL),
        task.schedule_config,
        **options,
    )


@pytest.fixture(scope="module")
def halves(texts: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Checkpoints of a masked LM, a causal LM and a ViT, each with the tokenizer it has."""
    found = {}
    for name, make in (("masked", masked), ("causal", causal), ("images", images)):
        folder = tmp_path_factory.mktemp(name)
        torch.manual_seed(len(found))
        fitted(*make(texts), folder).save_checkpoint(folder / "a.ckpt")
        found[name] = folder / "a.ckpt"
    return found


def test_a_translation_begins_with_both_halves(
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
    # Each word keeps the vector that it had, under the number it has now.
    pairs = same_words(read_source(both["decoder"]).tokenizer, data.tokenizer.to_str())
    assert pairs is not None
    for role, place in (("encoder", "src_embed"), ("decoder", "tgt_embed")):
        pairs = same_words(read_source(both[role]).tokenizer, data.tokenizer.to_str())
        assert pairs is not None
        table, old = ours[f"{place}.tokens.weight"], sources[role]["embed.tokens.weight"]
        torch.testing.assert_close(table[pairs[1]], old[pairs[0]], rtol=0, atol=1e-9)
    # The report ends with what neither of them brought, and says it nowhere else.
    start = said.index("init_from: what comes from none of them")
    new = [line.split()[1] for line in said[start + 1 :] if line.startswith("  new ")]
    assert len(new) == 10
    assert all("cross_attn" in name for name in new)
    assert not any(line.startswith("  new ") for line in said[:start])
    assert f"init_from {both['encoder']}: MaskedLM" in said[0]
    # From here on neither is needed.
    run.save_checkpoint(tmp_path / "b.ckpt")
    again = load_task(tmp_path / "b.ckpt", expect="Translation")
    assert again.config == task.config
    assert isinstance(again.config, JoinedConfig)
    assert again.write_texts(torch.tensor([[5, 6, 2]]), None, 2)
    assert all(torch.equal(x, ours[name]) for name, x in again.model.state_dict().items())


def test_a_caption_begins_with_a_vit_of_another_resolution(
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
        ("encoder", "masked", "d_model 16, but the model's have 12"),
        ("decoder", "masked", "activation gelu, but the model's have gelu_tanh"),
        ("middle", "causal", "'middle' is no part of a model"),
    ],
)
def test_halves_that_do_not_fit_are_refused(
    role: str, source: str, message: str, halves: dict[str, Path], texts: Path, tmp_path: Path
) -> None:
    task, data = joined(texts)
    with pytest.raises(InputError, match=message) as caught:
        fitted(changed(task, init_from={role: str(halves[source])}), data, tmp_path)
    assert "\n" not in str(caught.value)


def test_what_the_encoder_cannot_read_is_said_before_the_first_step(
    texts: Path, tmp_path: Path
) -> None:
    task, data = joined(texts)
    for change, message in (
        ({"vocab_size": 7}, "the encoder's vocab_size is 7, but the data need"),
        ({"max_len": 20}, "the longest row of the train split has .* max_len is 20"),
    ):
        config = replace(task.config, encoder=replace(task.config.encoder, **change))
        with pytest.raises(InputError, match=message):
            fitted(changed(task, config=config), data, tmp_path)


@pytest.mark.parametrize("family", JOINED)
def test_a_step_is_the_plain_formula(family: str, texts: Path) -> None:
    task, data = JOINED[family](texts)
    task.config = replace(task.config, vocab_size=data.vocab_size)
    task.configure_model()
    task.eval()
    batch = next(iter(data.train_dataloader()))
    if family == "joined":
        src, tgt, mask, real = batch[:4]
    else:
        src, tgt, mask, real = batch.images, batch.ids, None, batch.mask
    logits = task.model(src, tgt[:, :-1], mask, real[:, :-1])
    targets = tgt[:, 1:].masked_fill(~real[:, 1:], -100)
    plain = F.cross_entropy(
        logits.flatten(0, -2), targets.flatten(), label_smoothing=0.1, reduction="sum"
    )
    total, count = task.step(batch)
    assert count == real[:, 1:].sum()
    torch.testing.assert_close(total, plain, rtol=1e-5, atol=1e-4)


def test_a_caption_is_compared_with_all_texts_of_its_image(texts: Path, tmp_path: Path) -> None:
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


def test_references_may_be_of_any_number() -> None:
    metric = CorpusScores()
    hypotheses = ["the cat sat on a mat", "two dogs ran away", "nothing of it"]
    references = [["a cat sat on a mat", "the cat sat on a mat"], ["two dogs ran off"], ["it is"]]
    metric.update([0, 1, 2], hypotheses, references)
    found = metric.compute()
    columns = [["a cat sat on a mat", "two dogs ran off", "it is"],
               ["the cat sat on a mat", None, None]]  # fmt: skip
    assert found["bleu"] == pytest.approx(BLEU().corpus_score(hypotheses, columns).score)
    assert found["exact_match"] == pytest.approx(1 / 3)
    assert "nrefs:var" in found["bleu_signature"]


def test_a_caption_is_no_translation(texts: Path, tmp_path: Path) -> None:
    """So that `fourfold translate` refuses the checkpoint in a sentence."""
    task, data = captions(texts)
    fitted(task, data, tmp_path).save_checkpoint(tmp_path / "c.ckpt")
    with pytest.raises(InputError, match="a checkpoint of Captioning, but Translation is needed"):
        load_task(tmp_path / "c.ckpt", expect="Translation")
    again = load_task(tmp_path / "c.ckpt")
    assert isinstance(again.config, CaptionerConfig)
    assert again.config == task.config
    other = changed(
        task, config=replace(task.config, encoder=replace(task.config.encoder, n_heads=1))
    )
    with pytest.raises(InputError, match=r"trained with config.encoder.n_heads 2, not 1"):
        trainer(tmp_path).test(other, data, ckpt_path=tmp_path / "c.ckpt", weights_only=True)


@pytest.mark.parametrize("family", JOINED)
def test_transformers_has_no_place_for_it_yet(family: str, texts: Path, tmp_path: Path) -> None:
    fitted(*JOINED[family](texts), tmp_path).save_checkpoint(tmp_path / "d.ckpt")
    with pytest.raises(InputError, match=r"no architecture .* is this Joined"):
        export_checkpoint(tmp_path / "d.ckpt", tmp_path / "there")
    assert [file.name for file in tmp_path.iterdir()] == ["d.ckpt"]


def test_a_caption_may_be_as_long_as_those_it_learnt_from(
    texts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An image is no text, of which fifty tokens more than it has would be enough."""
    task, _ = captions(texts)
    data = CaptionData(tokenizer=TokenizerConfig(vocab_size=150), batch_size=64)
    task = changed(task, config=replace(task.config, max_len=80))
    fitted(task, data, tmp_path)
    asked = []

    def search(*args: Any, **options: Any) -> Any:
        asked.append(options["max_len"])
        return torch.zeros(2, 1, dtype=torch.long), None

    monkeypatch.setattr(writing, "beam_search", search)
    images = next(iter(data.test_dataloader())).images[:2]
    task.write_texts(images, None, 1)
    task.config = replace(task.config, max_len=60)
    task.write_texts(images, None, 1)
    task.write_texts(torch.ones(2, 3, dtype=torch.long), None, 1)
    assert asked == [data.max_len - 1, 60, None] == [76, 60, None]


def test_references_are_uncut(tmp_path: Path) -> None:
    data = CaptionData(tokenizer=TokenizerConfig(vocab_size=150), max_len=6, too_long="truncate")
    data.setup()
    assert data.split("test").longest == 6
    assert all(len(text) > 20 for several in data.references("test") for text in several)


def test_every_joined_task_has_its_data(texts: Path, tmp_path: Path) -> None:
    task, data = JOINED["captions"](texts)[0], FAMILIES["images"](texts)[1]
    with pytest.raises(InputError, match="Captioning learns from a CaptionBatch"):
        fitted(task, data, tmp_path)
