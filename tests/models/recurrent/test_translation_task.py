"""Translation with recurrent models: scheduled sampling, free-running loss, resume, shell."""

import io
import math
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from lightning import Trainer
from torch import Tensor

from fourfold.cli import main
from fourfold.errors import InputError
from fourfold.models import RecurrentEncoderDecoder, RecurrentEncoderDecoderConfig
from fourfold.tasks import RecurrentTranslation, load_task
from tests.fixtures.tiny_tasks import recurrent

PLAIN: dict[str, Any] = {"context": "initial", "input_feeding": False}


def made(texts: Path, data_options: dict[str, Any] | None = None, **options: Any) -> Any:
    """Return a task with other options and fields of its config, and its data."""
    task, data = recurrent(texts, **(data_options or {}))
    fields = vars(task.config).keys() & options.keys()
    config = replace(task.config, **{name: options.pop(name) for name in fields})
    arguments = {"num_beams": 2, "scheduled_sampling": 0.5} | options
    return RecurrentTranslation(config, task.optimizer, task.schedule, **arguments), data


def trainer(folder: Path, **options: Any) -> Trainer:
    return Trainer(
        accelerator="cpu",
        precision="64-true",
        logger=False,
        enable_checkpointing=False,
        default_root_dir=folder,
        enable_progress_bar=False,
        enable_model_summary=False,
        use_distributed_sampler=False,
        num_sanity_val_steps=0,
        limit_val_batches=0,
        **options,
    )


def ready(task: Any, data: Any) -> Any:
    """Build the model of a task without a Trainer, and return a batch."""
    data.setup()
    task.config = replace(task.config, vocab_size=data.vocab_size)
    torch.manual_seed(0)
    task.configure_model()
    task.double()
    return next(iter(data.train_dataloader()))


def losses(task: Any, batch: Any, inputs: Tensor) -> Tensor:
    """Return the loss of each target, computed from all logits."""
    logits = task.model(batch.src, inputs, src_mask=batch.src_mask)
    targets = batch.tgt[:, 1:].masked_fill(~batch.tgt_mask[:, 1:], -100)
    return F.cross_entropy(logits.mT, targets, reduction="none")


def test_loss_is_that_of_the_true_inputs_without_sampling(texts: Path) -> None:
    task, data = made(texts, scheduled_sampling=0.0)
    batch = ready(task, data)
    total, count = task.step(batch)
    torch.testing.assert_close(total, losses(task, batch, batch.tgt[:, :-1]).sum())
    assert count == batch.tgt_mask[:, 1:].sum()


def test_scheduled_sampling_replaces_inputs_by_predictions(
    texts: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    task, data = made(texts)
    batch = ready(task, data)
    monkeypatch.setattr(RecurrentTranslation, "datamodule", data)
    seen: list[Tensor] = []
    decode = task.model.decode

    def record(tgt: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        seen.append(tgt)
        return decode(tgt, *args, **kwargs)

    monkeypatch.setattr(task.model, "decode", record)
    total, _ = task.step(batch)
    inputs = seen[-1]
    true = batch.tgt[:, :-1]
    monkeypatch.undo()
    torch.testing.assert_close(total, losses(task, batch, inputs).sum())
    assert torch.equal(inputs[:, 0], true[:, 0])
    # A replaced token is the most likely one after all inputs before it, replaced or true.
    likely = task.model(batch.src, inputs, src_mask=batch.src_mask).argmax(-1)[:, :-1]
    differs = inputs[:, 1:] != true[:, 1:]
    assert torch.equal(inputs[:, 1:][differs], likely[differs])
    assert 0.3 < differs.float().mean() < 0.7
    monkeypatch.setattr(RecurrentTranslation, "datamodule", data)
    # Each row keeps its choices in another batch and changes them in the next epoch.
    part = batch._replace(**{x: getattr(batch, x)[3:5] for x in batch._fields[:5]})
    for epoch, is_same in ((0, True), (1, False)):
        monkeypatch.setattr(task.model, "decode", record)
        task.step(part._replace(epoch=epoch))
        assert torch.equal(seen[-1], inputs[3:5]) is is_same
    task.eval()
    task._teacher_forced(part)
    assert torch.equal(seen[-1], true[3:5])


def test_free_running_loss_is_that_of_predicted_inputs(texts: Path, tmp_path: Path) -> None:
    summaries = []
    for rows in (1000, 3):
        torch.manual_seed(0)
        task, data = made(texts, {"max_rows": rows})
        trainer(tmp_path).test(task, data, verbose=False)
        summaries.append(task.summary)
    whole, cut = summaries
    assert whole.keys() == cut.keys()
    for name in ("loss", "loss_free_running", "ppl_free_running", "bleu"):
        assert math.isclose(whole[f"test/{name}"], cut[f"test/{name}"], rel_tol=1e-9), name
    nll, n_tokens = 0.0, 0
    for batch in data.test_dataloader():
        inputs = batch.tgt[:, :1]
        for _ in range(batch.tgt.shape[1] - 2):
            logits = task.model(batch.src, inputs, src_mask=batch.src_mask)
            inputs = torch.cat([inputs, logits[:, -1:].argmax(-1)], dim=1)
        nll += losses(task, batch, inputs).sum().item()
        n_tokens += int(batch.tgt_mask[:, 1:].sum())
    assert whole["test/loss_free_running"] == pytest.approx(nll / n_tokens, rel=1e-9)
    assert whole["test/loss_free_running"] != pytest.approx(whole["test/loss"], rel=1e-9)


class Killed(BaseException):
    """Exception that no handler catches, like SIGKILL."""


@pytest.mark.parametrize("recipe", ["luong2015/tiny", "bahdanau2015/tiny"])
def test_killed_training_ends_the_same(
    recipe: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    step = RecurrentTranslation.training_step

    def fit(name: str, killed_at: int = -1) -> dict[str, Any]:
        def train(self: Any, batch: Any, batch_idx: int) -> Tensor:
            if self.trainer.fit_loop.total_batch_idx == killed_at:
                raise Killed
            return step(self, batch, batch_idx)

        monkeypatch.setattr(RecurrentTranslation, "training_step", train)
        options = [
            *("--data.rows=100", "--data.max_tokens=512", "--trainer.max_steps=7"),
            *("--model.config.dropout=0.2", "--model.scheduled_sampling=0.3"),
            *("--model.val_num_beams=0", "--checkpoint.every_n_steps=2", "--tensorboard=false"),
            *("--log_samples=false", "--trainer.accelerator=cpu"),
        ]
        assert main(["fit", "--config", recipe, "--run_dir", str(tmp_path / name), *options]) == 0
        file = tmp_path / name / "checkpoints" / "last.ckpt"
        content: dict[str, Any] = torch.load(file, weights_only=True)
        return content

    whole = fit("whole")
    with pytest.raises(Killed):
        fit("killed", killed_at=5)
    killed = fit("killed")
    for key in ("state_dict", "optimizer_states"):
        torch.testing.assert_close(killed[key], whole[key], rtol=0, atol=0)
    assert killed["global_step"] == 7


def test_attention_is_drawn_if_there_is_any(texts: Path) -> None:
    for options, n_maps in (({}, 1), (PLAIN, 0)):
        task, data = made(texts, **options)
        ready(task, data)
        task.float()
        task.artifacts = data.artifacts()
        task.trainer = type("Trainer", (), {"datamodule": data})()
        media = task.eval().sample_outputs(next(iter(data.val_dataloader())), "val")
        assert len(media["samples"].rows) > 0
        assert len(media["attention"].maps) == n_maps


def test_translate_works_line_by_line_and_in_batches(
    texts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    task, data = made(texts)
    run = trainer(tmp_path, max_steps=2)
    run.fit(task, data)
    run.save_checkpoint(tmp_path / "a.ckpt")
    again = load_task(tmp_path / "a.ckpt", expect="Translation")
    assert again.model.config == task.model.config
    lines = ["one two", "three", "one two three four five", "two"]

    def translate(lines: list[str], *options: str) -> list[str]:
        content = "".join(line + "\n" for line in lines).encode()
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(content)))
        capsys.readouterr()
        command = ["translate", "--checkpoint", str(tmp_path / "a.ckpt"), "--max-new-tokens", "9"]
        assert main([*command, "--device", "cpu", *options]) == 0
        return capsys.readouterr().out.splitlines()

    found = translate(lines)
    assert found == [translate([line])[0] for line in lines]
    assert all(
        len(line.split("\t")) == 2 for line in translate(lines, "--num-return-sequences", "2")
    )
    assert len(translate(lines, "--quantize", "int8")) == 4


def test_probability_of_sampling_is_checked() -> None:
    with pytest.raises(InputError, match="scheduled_sampling must be at least 0 and at most 1"):
        RecurrentTranslation(scheduled_sampling=1.5)


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"cell": "gru", "decoder": "bahdanau", "attn_score": "additive", "input_feeding": False},
    ],
)
def test_sequential_decoders_learn_to_copy_faster_than_no_attention(
    options: dict[str, Any],
) -> None:
    def loss_after_training(**options: Any) -> float:
        torch.manual_seed(0)
        shape = {"d_model": 32, "hidden_size": 64, "n_layers": 1, "vocab_size": 20}
        fixed: dict[str, Any] = {**shape, "dropout": 0.0, "bias": True, "bridge": "linear"}
        config = RecurrentEncoderDecoderConfig(**fixed, bidirectional=True, **options)
        model = RecurrentEncoderDecoder(config)
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
        found = []
        for _ in range(200):
            src = torch.randint(3, 20, (32, 10))
            tgt = torch.cat([torch.ones(32, 1, dtype=torch.long), src], dim=1)
            loss = model.head.loss(model.hidden(src, tgt[:, :-1]), tgt[:, 1:])
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            found.append(loss.item())
        return sum(found[-10:]) / 10

    assert loss_after_training(**options) < 0.8 * loss_after_training(**PLAIN)
