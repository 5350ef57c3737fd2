"""Captioning with a recurrent decoder: losses, metrics, pictures, frozen features, shell use."""

import io
import sys
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from lightning import Trainer
from PIL import Image

from fourfold.cli import main
from fourfold.data import CaptionData
from fourfold.data.vision.features import FeatureConfig
from fourfold.models import ImageToTextConfig, RecurrentCaptionerConfig, ViTConfig
from fourfold.tasks import Captioning, RecurrentCaptioning, load_task
from fourfold.tokenization.training import TokenizerConfig
from tests.fixtures.fake_network import use_fake_network
from tests.fixtures.tiny_tasks import SMALL, captions, recurrent_captions


def trainer(folder: Path, **options: Any) -> Trainer:
    return Trainer(
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        default_root_dir=folder,
        enable_progress_bar=False,
        enable_model_summary=False,
        use_distributed_sampler=False,
        num_sanity_val_steps=0,
        **options,
    )


def built(texts: Path, **options: Any) -> tuple[Any, Any]:
    """Return a task with a model in fp64, and a training batch."""
    task, data = recurrent_captions(texts)
    change = options.pop("config", {})
    config = replace(task.config, vocab_size=data.vocab_size, **change)
    task = RecurrentCaptioning(config, task.optimizer, task.schedule, **options)
    torch.manual_seed(0)
    task.configure_model()
    task.double()
    batch = next(iter(data.train_dataloader()))
    return task, batch._replace(images=batch.images.double())


def cross_entropy(task: Any, batch: Any) -> torch.Tensor:
    logits = task.model(batch.images, batch.ids[:, :-1])
    targets = batch.ids[:, 1:].masked_fill(~batch.mask[:, 1:], -100)
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="sum")


@pytest.mark.parametrize("weight", [0.0, 1.0, 2.5])
def test_loss_of_soft_attention(texts: Path, weight: float) -> None:
    task, batch = built(texts, doubly_stochastic=weight)
    loss, count = task.step(batch)
    with task.model.decoder.cross_attn.recording() as records:
        expected = cross_entropy(task, batch)
    alpha = torch.cat([record[0] for record in records], 1)
    for row, length in enumerate(batch.mask.sum(1).tolist()):
        expected = expected + weight * ((1 - alpha[row, : length - 1].sum(0)) ** 2).sum()
    assert count == batch.mask[:, 1:].sum()
    torch.testing.assert_close(loss, expected)


@pytest.mark.parametrize("image", ["once", "none"])
def test_loss_without_attention(texts: Path, image: str) -> None:
    task, batch = built(texts, config={"image": image})
    torch.testing.assert_close(task.step(batch)[0], cross_entropy(task, batch))


@pytest.mark.parametrize("attention", ["hard_sample", "hard_gumbel"])
def test_hard_attention_trains_its_scores(texts: Path, tmp_path: Path, attention: str) -> None:
    """The drawn places do not depend on the batch, and the baseline is the mean loss of a token."""
    task, batch = built(texts, config={"attention": attention}, doubly_stochastic=0.0)
    loss, count = task.step(batch)
    (gradient,) = torch.autograd.grad(loss, task.model.decoder.cross_attn.w_a.weight)
    assert gradient.abs().max() > 0
    parts = [type(batch)(*(x[i::2] for x in batch[:4]), batch.epoch) for i in range(2)]
    losses, counts = zip(*map(task.step, parts), strict=True)
    torch.testing.assert_close(sum(losses), loss)
    assert sum(counts) == count
    assert abs(task.step(batch._replace(epoch=1))[0] - loss) > 1e-4
    task, data = recurrent_captions(texts, max_rows=2000)
    config = replace(task.config, attention=attention)
    task = RecurrentCaptioning(config, task.optimizer, task.schedule, doubly_stochastic=0.0)
    torch.manual_seed(0)
    run = trainer(tmp_path, precision="64-true", max_steps=1, limit_val_batches=0)
    run.fit(task, data)
    if attention == "hard_sample":
        assert float(task.reward_baseline) == pytest.approx(
            float(run.callback_metrics["train/loss"])
        )
        assert "reward_baseline" in task.state_dict()  # for exact resume


def test_metrics_of_the_attention(texts: Path, tmp_path: Path) -> None:
    task, data = recurrent_captions(texts)
    torch.manual_seed(0)
    trainer(tmp_path, precision="64-true").test(task, data, verbose=False)
    found = {name.removeprefix("test/"): value for name, value in task.summary.items()}
    assert {"bleu", "chrf", "bleu1", "bleu4", "bleu4_low", "length_ratio"} <= set(found)
    assert 1 <= found["n_distinct"] <= len(data.split("test"))
    entropies, changes = [], []
    for batch in data.test_dataloader():
        images = batch.images.double()
        with torch.no_grad(), task.model.decoder.cross_attn.recording() as records:
            task.model(images, batch.ids[:, :-1])
        alpha = torch.cat([record[0] for record in records], 1)
        for row, length in enumerate((batch.mask.sum(1) - 1).tolist()):
            a = alpha[row, :length]
            entropies += (-(a * a.log()).sum(-1)).tolist()
            changes += ((a[1:] - a[:-1]).abs().sum(-1) / 2).tolist()
    assert found["attention_entropy"] == pytest.approx(np.mean(entropies))
    assert found["attention_change"] == pytest.approx(np.mean(changes))
    assert 0 < found["attention_entropy"] < np.log(4)


def test_maps_of_a_word_are_the_mean_over_its_tokens(texts: Path, tmp_path: Path) -> None:
    for make in (captions, recurrent_captions):
        task, data = make(texts)
        trainer(tmp_path).test(task, data, verbose=False)
        pairs = task.as_pairs(next(iter(data.test_dataloader())))
        text = "a thinner handwritten sixteen, right"
        with torch.inference_mode():
            shown = task._cross_attention(pairs, [text] + [""] * (len(pairs.src) - 1))
            empty = task._cross_attention(pairs, [""] * len(pairs.src))
        assert shown.names == text.split()
        assert [tuple(x.shape) for x in shown.maps] == [(2, 2)] * 5
        assert empty.names == ["(end)"]
        (pieces,) = task.tokenizer.encode_words([text.split()])
        ids = torch.tensor([[task.start_id, *chain(*pieces)]])[:, :-1]
        assert any(len(word) > 1 for word in pieces)
        if task.model.is_recurrent:
            with torch.inference_mode(), task.model.decoder.cross_attn.recording() as records:
                task.model(pairs.src[:1], ids)
            by_token = torch.cat([record[0] for record in records], 1)[0].split(
                list(map(len, pieces))
            )
            expected = torch.stack([part.mean(0) for part in by_token])
            torch.testing.assert_close(torch.stack(list(shown.maps)).flatten(1), expected)


@pytest.fixture
def photographs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> CaptionData:
    """Four images with captions, read as features of a small network."""
    use_fake_network(monkeypatch)
    (tmp_path / "images").mkdir()
    lines = ["image,caption"]
    for k in range(8):
        pixels = np.random.default_rng(k).integers(0, 256, (9, 12, 3), np.uint8)
        Image.fromarray(pixels).save(tmp_path / "images" / f"{k}.png")
        lines += [f"{k}.png,a picture of {number} dots" for number in ("few", "many")]
    (tmp_path / "captions.csv").write_text("\n".join(lines) + "\n")
    return CaptionData(
        str(tmp_path),
        "captions.csv",
        batch_size=3,
        tokenizer=TokenizerConfig("char"),
        max_len=30,
        val_fraction=0.25,
        test_fraction=0.25,
        features=FeatureConfig(cache=str(tmp_path / "features.safetensors")),
    )


@pytest.mark.parametrize("decoder", ["recurrent", "transformer"])
def test_captions_from_frozen_features(
    photographs: CaptionData,
    decoder: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Both decoders train on features, and `fourfold caption` computes those of an image file."""
    torch.manual_seed(0)
    task: Any
    if decoder == "recurrent":
        task = RecurrentCaptioning(
            RecurrentCaptionerConfig(
                vocab_size=None, max_len=30, d_model=8, hidden_size=8, n_channels=112
            )
        )
    else:
        places = ViTConfig(**SMALL, image_size=14, patch_size=1, n_channels=112)
        task = Captioning(ImageToTextConfig(**SMALL, vocab_size=None, max_len=30, encoder=places))
    run = trainer(tmp_path, max_steps=2)
    run.fit(task, photographs)
    run.test(task, photographs, verbose=False)
    media = task.sample_outputs(next(iter(photographs.test_dataloader())), "test")
    assert media["attention"].image.shape == (3, 224, 224)
    assert media["attention"].maps[0].shape == (14, 14)
    assert media["attention"].save(tmp_path, "attention")[0].stat().st_size > 1000
    checkpoint = tmp_path / "model.ckpt"
    run.save_checkpoint(checkpoint)
    assert load_task(checkpoint).config == task.config
    test = photographs.split("test")
    paths = [test.location(row) for row in range(len(test))]
    monkeypatch.setattr(
        sys, "stdin", io.TextIOWrapper(io.BytesIO("".join(f"{p}\n" for p in paths).encode()))
    )
    capsys.readouterr()
    assert main(["caption", "--checkpoint", str(checkpoint)]) == 0
    said = [line.split("\t") for line in capsys.readouterr().out.splitlines()]
    predicted = dict(
        pair for b in photographs.test_dataloader() for pair in task.predict_step(b, 0)
    )
    assert said == [[path, predicted[row]] for row, path in enumerate(paths)]
