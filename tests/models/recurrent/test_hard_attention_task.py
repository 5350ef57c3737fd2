"""Training of recurrent translation with hard attention: losses, baseline, exact resume."""

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning import Callback, Trainer

from fourfold.callbacks.checkpointing.exact_resume import ExactResume
from fourfold.data.loading.batches import PairBatch
from fourfold.errors import InputError
from fourfold.losses import IGNORE_INDEX, token_scores
from fourfold.models import RecurrentEncoderDecoderConfig
from fourfold.tasks import RecurrentTranslation
from tests.fixtures.tiny_tasks import FLAT, SGD, translation

KINDS: dict[str, dict[str, Any]] = {
    "reinforce": {"attn_weights": "hard_sample"},
    "reinforce with input feeding": {"attn_weights": "hard_sample", "input_feeding": True},
    "gumbel": {"attn_weights": "hard_gumbel", "attn_temperature": 0.5},
    "marginal": {"mix_outputs": True},
    "marginal and argmax": {"mix_outputs": True, "attn_weights": "hard_argmax"},
}


def build(kind: str, **options: Any) -> RecurrentTranslation:
    config = RecurrentEncoderDecoderConfig(
        vocab_size=options.pop("vocab_size", None),
        dropout=options.pop("dropout", 0.0),
        max_len=64,
        d_model=12,
        hidden_size=16,
        n_layers=1,
        **{"input_feeding": False, **KINDS[kind]},
    )
    return RecurrentTranslation(config, SGD, FLAT, num_beams=2, **options)


class Saving(Callback):
    """Callback that saves a checkpoint after each step, as the file STEP.ckpt."""

    def on_train_batch_end(self, trainer: Trainer, *_: Any) -> None:
        folder = Path(trainer.default_root_dir)
        trainer.save_checkpoint(folder / f"{trainer.global_step}.ckpt")


def fit(
    task: RecurrentTranslation, texts: Path, folder: Path, resume: Path | None = None
) -> dict[int, dict[str, Any]]:
    """Train for 3 steps of 4 rows, and return the state dict after each step."""
    torch.manual_seed(0)
    _, data = translation(texts, max_rows=4)
    trainer = Trainer(
        max_steps=3,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        use_distributed_sampler=False,
        limit_val_batches=0,
        gradient_clip_val=1.0,
        default_root_dir=folder,
        callbacks=[ExactResume(), Saving()],
    )
    trainer.fit(task, data, ckpt_path=resume)
    return {int(x.stem): torch.load(x)["state_dict"] for x in folder.glob("*.ckpt")}


@pytest.mark.parametrize("kind", KINDS)
def test_resumed_training_is_equal_bit_for_bit(kind: str, texts: Path, tmp_path: Path) -> None:
    options = {"scheduled_sampling": 0.5, "dropout": 0.2}
    (tmp_path / "resumed").mkdir()
    states = fit(build(kind, **options), texts, tmp_path)
    resumed = fit(build(kind, **options), texts, tmp_path / "resumed", resume=tmp_path / "2.ckpt")
    begun, expected = states[2], states[3]
    assert expected.keys() == resumed[3].keys()
    for name, value in expected.items():
        assert value.isfinite().all(), name
        assert torch.equal(value, resumed[3][name]), name
    changed = {name for name in expected if not torch.equal(expected[name], begun[name])}
    assert "model.decoder.cross_attn.w_a.weight" in changed
    assert ("reward_baseline" in changed) == kind.startswith("reinforce")


def test_baseline_is_a_moving_average_of_the_loss(texts: Path, tmp_path: Path) -> None:
    losses: list[float] = []

    class Recording(RecurrentTranslation):
        def on_before_optimizer_step(self, optimizer: Any) -> None:
            super().on_before_optimizer_step(optimizer)
            losses.append(float(self.loss_normalizer.mean))

    task = build("reinforce")
    state = fit(Recording(task.config, SGD, FLAT), texts, tmp_path)[3]
    average = losses[0]
    for loss in losses[1:]:
        average = 0.9 * average + 0.1 * loss
    assert float(state["reward_baseline"]) == pytest.approx(average)


def pairs() -> PairBatch:
    torch.manual_seed(3)
    ids, mask = torch.randint(4, 20, (3, 6)), torch.ones(3, 6, dtype=torch.bool)
    mask[1, 4:] = False
    return PairBatch(ids, ids.flip(0), mask, mask.flip(0), torch.arange(3), 0, 0)


@pytest.mark.parametrize("kind", ["marginal", "marginal and argmax"])
def test_marginal_loss_is_that_of_the_mixed_distributions(kind: str) -> None:
    task, mixed = build(kind, vocab_size=20), build("marginal", vocab_size=20)
    task.configure_model(), mixed.configure_model()
    mixed.model.load_state_dict(task.model.state_dict())
    batch = pairs()
    loss, count = task.eval().step(batch)
    log_p = mixed.model.eval()(batch.src, batch.tgt[:, :-1], src_mask=batch.src_mask)
    torch.testing.assert_close(log_p.exp().sum(-1), torch.ones(3, 5))
    targets = batch.tgt.masked_fill(~batch.tgt_mask, IGNORE_INDEX)[:, 1:]
    expected = torch.nn.functional.nll_loss(log_p.flatten(0, 1), targets.flatten(), reduction="sum")
    torch.testing.assert_close(loss, expected)
    assert count == (targets != IGNORE_INDEX).sum()
    nll, _ = task._token_scores(task._teacher_forced(batch))
    torch.testing.assert_close(nll.sum(), expected)


def test_reinforce_loss_has_the_value_of_the_drawn_positions() -> None:
    task = build("reinforce with input feeding", vocab_size=20)
    task.configure_model()
    batch = pairs()
    loss, _ = task.train().step(batch)
    with task.model.decoder.cross_attn.recording(partial(task._attention_noise, batch)):
        nll, _ = token_scores(*task._teacher_forced(batch))
    torch.testing.assert_close(loss.detach(), nll.sum())
    loss.backward()
    gradient = task.model.decoder.cross_attn.w_a.weight.grad
    assert gradient is not None
    assert gradient.any()


@pytest.mark.parametrize("kind", KINDS)
def test_gradient_does_not_depend_on_the_other_rows_of_a_batch(kind: str) -> None:
    task = build(kind, vocab_size=20, scheduled_sampling=0.5)
    task.configure_model()
    task.double().train()
    batch = pairs()
    parameters = list(task.model.parameters())
    whole = torch.autograd.grad(task.step(batch)[0], parameters)
    total = [torch.zeros_like(parameter) for parameter in parameters]
    for i in range(3):
        n_src, n_tgt = int(batch.src_mask[i].sum()), int(batch.tgt_mask[i].sum())
        src, tgt = batch.src[i, None, :n_src], batch.tgt[i, None, :n_tgt]
        masks = torch.ones_like(src).bool(), torch.ones_like(tgt).bool()
        row = PairBatch(src, tgt, *masks, batch.rows[i, None], batch.epoch, i)
        parts = torch.autograd.grad(task.step(row)[0], parameters)
        total = [sum_ + part for sum_, part in zip(total, parts, strict=True)]
    for expected, actual in zip(whole, total, strict=True):
        torch.testing.assert_close(actual, expected, rtol=0, atol=1e-10)


def test_drawn_positions_change_with_the_epoch() -> None:
    task = build("gumbel", vocab_size=20)
    noises = [task._attention_noise(pairs()._replace(epoch=epoch), 5) for epoch in (0, 1, 0)]
    assert torch.equal(noises[0], noises[2])
    assert not torch.equal(noises[0], noises[1])
    assert noises[0].mean() == pytest.approx(1.0, abs=0.3)


def copies(seed: int, n: int = 32, longest: int = 12) -> PairBatch:
    """Return pairs whose target is the source: 6 to `longest` random tokens from 4 to 23."""
    torch.manual_seed(seed)
    lengths, columns = torch.randint(6, longest + 1, (n, 1)), torch.arange(longest + 2)
    src = torch.randint(4, 24, (n, longest)) * (columns[:longest] < lengths)
    tgt = torch.nn.functional.pad(src, (1, 1)).scatter(1, lengths + 1, 2)
    tgt[:, 0] = 1
    masks = columns[:longest] < lengths, columns < lengths + 2
    return PairBatch(src, tgt, *masks, n * seed + torch.arange(n), 0, seed)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["none", "additive", "local_p", "gumbel", "reinforce", "marginal"])
def test_attention_learns_to_copy(kind: str) -> None:
    """Without attention, the loss stays at about 2.7 (measured: 2.71), and log(20) is 3.0."""
    options: dict[str, Any] = {
        **{"none": {"context": "initial"}, "additive": {"attn_score": "additive"}}.get(kind, {}),
        **{"local_p": {"attn_weights": "local_p"}, **KINDS}.get(kind, {}),
    }
    torch.manual_seed(0)
    config = RecurrentEncoderDecoderConfig(
        vocab_size=24,
        d_model=32,
        hidden_size=64,
        n_layers=1,
        dropout=0.0,
        bias=True,
        bidirectional=True,
        bridge="linear",
        **{"input_feeding": False, **options},
    )
    task = RecurrentTranslation(config, SGD, FLAT, reward_weight=0.1)
    task.configure_model()
    task.train()
    optimizer = torch.optim.Adam(task.parameters(), lr=5e-3)
    for step in range(200):
        loss, count = task.step(copies(step))
        optimizer.zero_grad()
        (loss / count).backward()
        torch.nn.utils.clip_grad_norm_(task.parameters(), 1.0)
        optimizer.step()
        if kind == "reinforce":
            task.get_buffer("reward_baseline").lerp_((loss / count).detach(), 0.1 if step else 1.0)
    with torch.no_grad():
        loss, count = task.eval().step(copies(1_000_000, n=200))
    assert (float(loss / count) > 2.5) == (kind == "none")


@pytest.mark.parametrize(
    ("config", "options", "message"),
    [
        ({"mix_outputs": True, "input_feeding": True}, {}, "mix_outputs must be false unless the"),
        ({"mix_outputs": True, "attn_weights": "local_p"}, {}, "attn_weights must be softmax or"),
        ({"mix_outputs": True}, {"label_smoothing": 0.1}, "label_smoothing must be 0 for mix_"),
    ],
)
def test_options_without_a_meaning_are_rejected(
    config: dict[str, Any], options: dict[str, Any], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        RecurrentTranslation(
            RecurrentEncoderDecoderConfig(**{"input_feeding": False, **config}),
            SGD,
            FLAT,
            **options,
        )
