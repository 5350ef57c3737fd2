"""Killed at any batch and started again, a run ends as one that was never interrupted."""

import contextlib
import csv
import os
import re
import shutil
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from fourfold.callbacks.checkpointing.run_checkpoints import RunCheckpoints
from scripts.tools.kill_cases import damage
from scripts.tools.kill_test import TIMED, difference

Run = Callable[..., Any]

VARIANTS = {
    "average": [
        "--average_last_checkpoints=2",
        "--average_every_n_steps=2",
        "--checkpoint.every_n_steps=2",
    ],
    "ema": [
        *("--ema_decay=0.9", "--trainer.accumulate_grad_batches=2", "--data.num_workers=0"),
        *("--checkpoint.every_n_steps=1", "--checkpoint.save_top_k=2"),
    ],
    # last.ckpt is written where an epoch ends, and nowhere else.
    "epochs": ["--checkpoint.every_n_steps=null"],
    # A validation at each step that last.ckpt is of.
    "validated": [
        *("--checkpoint.every_n_steps=2", "--trainer.val_check_interval=2"),
        *("--trainer.check_val_every_n_epoch=null", "--average_last_checkpoints=2"),
        "--average_every_n_steps=2",
    ],
    # Workers read ahead, and two of the epoch's batches are all there is.
    "limited": [
        *("--trainer.limit_train_batches=2", "--data.num_workers=1"),
        "--checkpoint.every_n_steps=1",
    ],
    # Sentences of many lengths: what is compiled must not depend on which came first.
    "compiled": ["--compile=true", "--data.tokenizer.kind=char", "--checkpoint.every_n_steps=1"],
}
KILLS = [
    ("average", 3),
    ("average", 7),
    ("ema", 6),
    ("epochs", 8),
    ("validated", 5),
    ("limited", 2),
    ("limited", 5),
    *(pytest.param("compiled", batch, marks=pytest.mark.slow) for batch in (1, 3, 4, 5, 7, 8)),
]


class Killed(BaseException):
    """Exception that no handler catches, like SIGKILL."""


@pytest.fixture
def kill_at(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Ends a training in the middle of a batch."""
    from fourfold.tasks import Translation

    step = Translation.training_step

    def prepare(number: int) -> None:
        def killed(self: Any, batch: Any, batch_idx: int) -> Any:
            if self.trainer.fit_loop.total_batch_idx == number:
                raise Killed
            return step(self, batch, batch_idx)

        monkeypatch.setattr(Translation, "training_step", killed)

    return prepare


@pytest.fixture
def signalled(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """Within it, a signal reaches a training in the middle of a batch."""
    from fourfold.tasks import Translation

    step = Translation.training_step

    @contextlib.contextmanager
    def during(batch: int, number: int = signal.SIGTERM) -> Iterator[None]:
        def heard(self: Any, given: Any, batch_idx: int) -> Any:
            if self.trainer.fit_loop.total_batch_idx == batch:
                os.kill(os.getpid(), number)
            return step(self, given, batch_idx)

        with monkeypatch.context() as patch:
            patch.setattr(Translation, "training_step", heard)
            yield

    return during


@pytest.fixture
def fit(run: Run, configs: dict[str, Path], here: Path) -> Run:
    def call(name: str, *more: str) -> Any:
        options = [
            "--model.val_num_beams=0",
            "--trainer.max_steps=10",
            "--run_dir",
            here / name,
            *more,
        ]
        return run("fit", "--config", configs["mt"], *options)

    return call


def content(file: Path) -> dict[str, Any]:
    loaded: dict[str, Any] = torch.load(file, weights_only=True)
    return loaded


def rows(run: Path) -> list[dict[str, str]]:
    found = list(csv.DictReader((run / "metrics.csv").open()))
    return [{k: v for k, v in row.items() if not k.endswith(TIMED)} for row in found]


@pytest.mark.parametrize(("variant", "batch"), KILLS)
def test_a_killed_run_ends_the_same(
    variant: str,
    batch: int,
    fit: Run,
    kill_at: Callable[[int], None],
    here: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    torch.compiler.reset()  # as in a process of its own
    assert fit("whole", *VARIANTS[variant]).code == 0
    torch.compiler.reset()
    with monkeypatch.context():
        kill_at(batch)
        with pytest.raises(Killed):
            fit("killed", *VARIANTS[variant])
    kill_at(-1)
    torch.compiler.reset()
    result = fit("killed", *VARIANTS[variant], "--resume=must")
    assert result.code == 0, result.err
    assert "resumed after step" in result.out

    whole, killed = here / "whole", here / "killed"
    names = sorted(file.name for file in (whole / "checkpoints").glob("*.ckpt"))
    assert names == sorted(file.name for file in (killed / "checkpoints").glob("*.ckpt"))
    for name in names:
        a, b = content(whole / "checkpoints" / name), content(killed / "checkpoints" / name)
        for key in ("state_dict", "optimizer_states", "current_model_state"):
            torch.testing.assert_close(a.get(key), b.get(key), rtol=0, atol=0)
        for key in ("lr_schedulers", "global_step", "epoch", "TranslationData"):
            assert a.get(key) == b.get(key)
    assert rows(whole) == rows(killed)


def same_runs(one: Path, other: Path) -> None:
    """Two run directories hold the same rows and the same checkpoints under the same names."""
    names = sorted(file.name for file in (one / "checkpoints").glob("*.ckpt"))
    assert names == sorted(file.name for file in (other / "checkpoints").glob("*.ckpt"))
    for name in names:
        a, b = content(one / "checkpoints" / name), content(other / "checkpoints" / name)
        assert a["global_step"] == b["global_step"], name
        for key in ("state_dict", "optimizer_states"):
            torch.testing.assert_close(a.get(key), b.get(key), rtol=0, atol=0)
    assert rows(one) == rows(other)


@pytest.mark.parametrize("number", [1, 3, -1])
@pytest.mark.parametrize("variant", ["average", "validated", "ema"])
def test_killed_behind_a_checkpoint(
    variant: str, number: int, fit: Run, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Work of Lightning between a checkpoint and the next batch is repeated: rows, counts."""
    save, saves = RunCheckpoints.save_last, 0

    def counted(self: RunCheckpoints, trainer: Any) -> None:
        nonlocal saves
        saves += 1
        save(self, trainer)
        if saves == deadly:
            raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(RunCheckpoints, "save_last", counted)
        deadly = 0
        assert fit("whole", *VARIANTS[variant]).code == 0
        deadly, saves = number % (saves + 1) if number > 0 else saves + 1 + number, 0
        with pytest.raises(Killed):
            fit("killed", *VARIANTS[variant])
    assert fit("killed", *VARIANTS[variant]).code == 0
    assert not difference(here / "whole", here / "killed")


@pytest.mark.parametrize("step", [4, 6, 10])
@pytest.mark.parametrize("variant", ["validated", "average", "epochs"])
def test_killed_in_a_validation(
    variant: str, step: int, fit: Run, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from fourfold.tasks import Translation

    assert fit("whole", *VARIANTS[variant]).code == 0
    validate, reached = Translation.validation_step, []

    def killed(self: Any, batch: Any, batch_idx: int) -> Any:
        if self.trainer.global_step == step and not self.trainer.sanity_checking:
            reached.append(step)
            raise Killed
        return validate(self, batch, batch_idx)

    with monkeypatch.context() as patch:
        patch.setattr(Translation, "validation_step", killed)
        with contextlib.suppress(Killed):
            fit("killed", *VARIANTS[variant])
    assert fit("killed", *VARIANTS[variant]).code == 0
    assert reached or variant != "validated"
    same_runs(here / "whole", here / "killed")


@pytest.mark.parametrize("batch", [3, 8, 9])
def test_asked_to_stop_where_a_validation_is_due(
    batch: int, fit: Run, here: Path, signalled: Callable[..., Any]
) -> None:
    assert fit("whole", *VARIANTS["validated"]).code == 0
    with signalled(batch):
        # In the last batch there is nothing to stop: the run is finished instead.
        assert fit("stopped", *VARIANTS["validated"]).code == (0 if batch == 9 else 75)
    assert fit("stopped", *VARIANTS["validated"]).code == 0
    same_runs(here / "whole", here / "stopped")


@pytest.mark.parametrize("every", [0, 2])
def test_a_longer_run_goes_on_from_the_weights_and_not_from_their_average(
    every: int, fit: Run, here: Path
) -> None:
    options = [
        *("--ema_decay=0.5", "--checkpoint.every_n_steps=null", "--trainer.max_steps=-1"),
        *(f"--checkpoint.every_n_epochs={every}", "--model.schedule.name=constant"),
    ]
    assert fit("whole", *options, "--trainer.max_epochs=5").code == 0
    for epochs in (3, 5):
        assert fit("longer", *options, f"--trainer.max_epochs={epochs}").code == 0
    a, b = (content(here / name / "checkpoints/last.ckpt") for name in ("whole", "longer"))
    for key in ("state_dict", "current_model_state"):
        torch.testing.assert_close(a[key], b[key], rtol=0, atol=0)


def test_lightning_still_needs_the_mend_at_the_end_of_an_epoch(
    fit: Run, kill_at: Callable[[int], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fails when Lightning no longer skips an epoch: then callbacks/epoch_end.py can go."""
    from fourfold.callbacks.checkpointing.exact_resume import ExactResume

    epochs: list[int] = []
    monkeypatch.setattr(
        ExactResume, "on_train_batch_start", lambda self, t, m, batch, i: epochs.append(batch.epoch)
    )

    def epochs_after_a_resume(name: str) -> list[int]:
        kill_at(8)
        with pytest.raises(Killed):
            fit(name, "--checkpoint.every_n_steps=null")
        kill_at(-1)
        epochs.clear()
        assert fit(name, "--checkpoint.every_n_steps=null").code == 0
        return epochs[:1]

    assert epochs_after_a_resume("mended") == [2]
    monkeypatch.setattr(ExactResume, "on_train_start", lambda *arguments: None)
    assert epochs_after_a_resume("not mended") == [3]


STOPS = {  # who asks Lightning for an end, at which batch, and where that is
    "window": ("on_train_batch_end", 4, VARIANTS["ema"]),
    "step": ("on_train_batch_end", 5, VARIANTS["ema"]),
    "validation": (
        "on_validation_end",
        3,
        [
            "--checkpoint.every_n_steps=null",
            "--ema_decay=0.9",
            "--trainer.val_check_interval=2",
            "--trainer.check_val_every_n_epoch=null",
        ],
    ),
    "validation in a window": (
        "on_validation_end",
        2,
        [
            *VARIANTS["ema"],
            "--trainer.val_check_interval=3",
            "--trainer.check_val_every_n_epoch=null",
        ],
    ),
}


@pytest.mark.parametrize(("hook", "batch", "options"), STOPS.values(), ids=STOPS.keys())
def test_what_stops_early_can_be_gone_on_with(
    hook: str, batch: int, options: list[str], fit: Run, here: Path, monkeypatch: Any
) -> None:
    from fourfold.callbacks.checkpointing.run_checkpoints import RunCheckpoints

    assert fit("whole", *options).code == 0
    before = getattr(RunCheckpoints, hook)

    def asked(self: Any, trainer: Any, *more: Any) -> None:  # as EarlyStopping or a Timer does
        at = trainer.fit_loop.epoch_loop.batch_progress.total.completed - 1
        if at == batch and not trainer.sanity_checking:
            trainer.should_stop = True
        before(self, trainer, *more)

    with monkeypatch.context() as patch:
        patch.setattr(RunCheckpoints, hook, asked)
        assert fit("stopped", *options).code == 0
    last = Path("checkpoints/last.ckpt")
    assert 0 < content(here / "stopped" / last)["global_step"] < 10
    assert "resumed after step" in fit("stopped", *options, "--resume=must").out
    a, b = (content(here / name / last) for name in ("whole", "stopped"))
    for key in ("state_dict", "optimizer_states", "current_model_state"):
        torch.testing.assert_close(a.get(key), b.get(key), rtol=0, atol=0)
    for key in ("lr_schedulers", "global_step", "epoch", "TranslationData"):
        assert a.get(key) == b.get(key)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 75), (signal.SIGINT, 130)])
def test_a_signal_saves_and_says_so(
    number: int, code: int, fit: Run, here: Path, signalled: Callable[..., Any]
) -> None:
    options = ("--trainer.accumulate_grad_batches=2", "--checkpoint.every_n_steps=null")
    assert fit("whole", *options).code == 0
    before = signal.getsignal(number)
    with signalled(7, number):  # the first half of a window
        result = fit("stopped", *options)
    assert result.code == code
    assert "run the same command again to resume" in result.out
    assert signal.getsignal(number) == before
    assert fit("stopped", *options, "--resume=must").code == 0
    a, b = (content(here / name / "checkpoints/last.ckpt") for name in ("whole", "stopped"))
    torch.testing.assert_close(a["state_dict"], b["state_dict"], rtol=0, atol=0)
    assert rows(here / "whole") == rows(here / "stopped")


@pytest.mark.parametrize("batch", [3, 5, 6, 7])
def test_a_signal_where_nothing_is_measured_loses_no_row_and_no_snapshot(
    batch: int, fit: Run, here: Path, signalled: Callable[..., Any]
) -> None:
    """In an epoch's last batch, too, of whose end such a run never hears."""
    options = ("--trainer.log_every_n_steps=2", "--average_last_checkpoints=2", "--data.val=null")
    assert fit("whole", *options).code == 0
    with signalled(batch):
        assert fit("stopped", *options).code == 75
    assert fit("stopped", *options, "--resume=must").code == 0
    same_runs(here / "whole", here / "stopped")
    averages = [content(here / name / "checkpoints/average.ckpt") for name in ("whole", "stopped")]
    assert averages[0]["averaged"] == averages[1]["averaged"]


def test_the_checkpoint_before_a_signal_is_kept(
    fit: Run, here: Path, signalled: Callable[..., Any]
) -> None:
    """Checkpoint of a signal may be corrupted as well; the run then resumes from the one before."""
    options = ("--checkpoint.every_n_steps=2",)
    assert fit("whole", *options).code == 0
    with signalled(6):
        assert fit("stopped", *options).code == 75
    last = here / "stopped/checkpoints/last.ckpt"
    last.write_bytes(last.read_bytes()[:1000])
    resumed = fit("stopped", *options)
    assert resumed.code == 0
    assert "resuming from previous.ckpt" in resumed.out + resumed.err
    same_runs(here / "whole", here / "stopped")


def test_auto_continues_and_a_complete_run_stays(fit: Run, here: Path) -> None:
    assert fit("r", "--trainer.max_steps=4").code == 0
    longer = fit("r")
    assert "resumed after step 4" in longer.out
    assert "trained to step 10" in longer.out
    before = (here / "r/metrics.csv").read_text(), (here / "r/checkpoints/last.ckpt").read_bytes()
    assert fit("r").code == 0  # nothing is left to do
    after = (here / "r/metrics.csv").read_text(), (here / "r/checkpoints/last.ckpt").read_bytes()
    assert before == after


def test_must_and_never(fit: Run, here: Path) -> None:
    result = fit("r", "--resume=must")
    assert result.code == 2
    assert "--resume is must, but" in result.err
    assert not (here / "r").exists()
    assert fit("r", "--resume=never").code == 0
    result = fit("r", "--resume=never")
    assert result.code == 2
    assert "must be a new directory with --resume never" in result.err


def test_another_recipe_is_not_mixed_in(fit: Run, here: Path) -> None:
    assert fit("r", "--trainer.max_steps=2").code == 0
    for changed in ("--model.optimizer.lr=0.5", "--model.config.d_ff=48"):
        result = fit("r", changed)
        assert result.code == 2
        assert "as in the checkpoint" in result.err
    result = fit("r", "--data.max_tokens=32")
    assert result.code == 2
    assert "data" in result.err
    result = fit("r", "--seed_everything=1")
    assert result.code == 2
    assert "seed" in result.err


def test_changed_options_are_listed_and_those_of_before_are_kept(fit: Run, here: Path) -> None:
    assert fit("r", "--trainer.max_steps=2").code == 0
    assert "other options" not in fit("r", "--trainer.max_steps=2").out
    result = fit("r", "--trainer.max_steps=3", "--trainer.gradient_clip_val=0.5")
    assert result.code == 0, result.err
    assert "resuming with other options:\n" in result.out
    for line in ("-  max_steps: 2", "+  max_steps: 3", "+  gradient_clip_val: 0.5"):
        assert f"\n{line}\n" in result.out
    # The record is that of the last start.
    listed = fit("r", "--trainer.max_steps=4").out
    assert "\n-  max_steps: 3\n" in listed
    assert "\n-  gradient_clip_val: 0.5\n" in listed
    assert "max_steps: 2" in (here / "r" / "config_until_step=2.yaml").read_text()
    assert "max_steps: 4" in (here / "r" / "config.yaml").read_text()


def test_changed_init_from_is_rejected(fit: Run, here: Path) -> None:
    assert fit("a", "--trainer.max_steps=1").code == 0
    assert fit("b", "--trainer.max_steps=1").code == 0
    options = [f"--model.init_from={here / 'a'}", "--trainer.max_steps=1"]
    assert fit("r", *options).code == 0
    assert fit("r", *options).code == 0
    result = fit("r", f"--model.init_from={here / 'b'}")
    assert result.code == 2
    assert "model.init_from must be" in result.err
    assert result.err.count("\n") == 1


def test_a_start_from_nothing_forgets_the_rows_of_before(
    fit: Run, kill_at: Callable[[int], None], here: Path
) -> None:
    kill_at(4)
    with pytest.raises(Killed):
        fit("r", "--checkpoint.every_n_epochs=0", "--checkpoint.every_n_steps=null")
    assert rows(here / "r")
    kill_at(-1)
    assert fit("r").code == 0
    steps = [int(row["step"]) for row in rows(here / "r") if row["train/loss"]]
    assert steps == [2, 4, 6, 8, 10]


def test_a_checkpoint_can_begin_another_run(fit: Run, here: Path) -> None:
    assert fit("a", "--trainer.max_steps=4").code == 0
    start = here / "a/checkpoints/last.ckpt"
    result = fit("b", f"--ckpt_path={start}")
    assert "resumed after step 4" in result.out
    assert content(here / "b/checkpoints/last.ckpt")["global_step"] == 10
    assert "without --ckpt_path" in fit("b", f"--ckpt_path={start}").err


def test_a_broken_checkpoint_is_said(fit: Run, here: Path) -> None:
    assert fit("r", "--trainer.max_steps=2").code == 0
    last = here / "r/checkpoints/last.ckpt"
    last.write_bytes(last.read_bytes()[:1000])
    result = fit("r")
    assert result.code == 2
    assert "last.ckpt" in result.err
    assert result.err.count("\n") == 1


@pytest.mark.parametrize("variant", ["validated", "epochs", "ema"])
@pytest.mark.parametrize("broken", [1, 2])
def test_what_a_disk_spoilt_costs_time_and_nothing_else(
    variant: str, broken: int, fit: Run, kill_at: Callable[[int], None], here: Path
) -> None:
    assert fit("whole", *VARIANTS[variant]).code == 0
    kill_at(9)
    with pytest.raises(Killed):
        fit("killed", *VARIANTS[variant])
    kill_at(-1)
    folder = here / "killed/checkpoints"
    for name in ("last", "previous")[:broken]:
        file = folder / f"{name}.ckpt"
        file.write_bytes(file.read_bytes()[: 1000 * broken])
    result = fit("killed", *VARIANTS[variant])
    assert result.code == 0, result.err
    assert re.search(r"last\.ckpt: the checkpoint is corrupted.*; resuming from ", result.err)
    if (variant, broken) == ("epochs", 2):
        # Only one last.ckpt is saved after step=00000006.ckpt, which holds the end of its epoch.
        assert not (folder / "previous.ckpt").exists()
        (here / "whole/checkpoints/previous.ckpt").unlink()
    same_runs(here / "whole", here / "killed")


def test_damaged_files_beside_a_checkpoint_are_renamed(
    fit: Run, kill_at: Callable[[int], None], here: Path
) -> None:
    options = ["--checkpoint.every_n_steps=2"]
    assert fit("whole", *options).code == 0
    kill_at(9)
    with pytest.raises(Killed):
        fit("killed", *options)
    kill_at(-1)
    names = ("checkpoints/last.ckpt", "config.yaml", "metrics.csv")
    for number, ways in enumerate((("one bit", "junk", "junk"), ("junk", "empty", "empty"))):
        run = here / f"damaged_{number}"
        shutil.copytree(here / "killed", run)
        for name, way in zip(names, ways, strict=True):
            damage(run, name, way)
        result = fit(run.name, *options)
        assert result.code == 0, result.err
        assert result.err.count(".corrupted") == 3
        for name in names:
            assert (run / f"{name}.corrupted").exists()
        assert "resuming from previous.ckpt" in result.err
        resumed_at = int(re.findall(r"resumed after step (\d+)", result.out)[0])
        assert resumed_at > 0
        assert not difference(here / "whole", run, first=resumed_at)


def test_no_run_goes_on_from_a_validation_between_two_micro_batches(
    fit: Run, kill_at: Callable[[int], None], here: Path
) -> None:
    options = [
        *("--trainer.accumulate_grad_batches=2", "--trainer.val_check_interval=4"),
        *("--trainer.check_val_every_n_epoch=null", "--checkpoint.every_n_steps=null"),
        *("--checkpoint.every_n_epochs=0", "--checkpoint.save_top_k=3"),
    ]
    assert fit("whole", *options).code == 0
    kill_at(4)
    with pytest.raises(Killed):
        fit("killed", *options)
    assert [file.name for file in (here / "killed/checkpoints").glob("step=*")] == [
        "step=00000002.ckpt"
    ]
    kill_at(-1)
    result = fit("killed", *options)
    assert result.code == 0, result.err
    assert "resumed" not in result.out
    same_runs(here / "whole", here / "killed")


@pytest.mark.parametrize("steps", [3, 5])
@pytest.mark.parametrize(("task", "dropout"), [("tags", "head_dropout"), ("mlm", "ff_dropout")])
def test_two_processes_go_on_as_one_with_the_same_global_batches(
    task: str, dropout: str, steps: int, run: Run, configs: dict[str, Path], here: Path
) -> None:
    def fit(name: str, n: int, *options: str) -> dict[str, Any]:
        result = run(
            *("fit", "--config", configs[task], f"--trainer.max_steps={n}", "--run_dir", name),
            *(
                "--trainer.precision=64-true",
                "--model.config.dropout=0",
                "--checkpoint.save_top_k=0",
            ),
            *("--model.config.attn_dropout=0", f"--model.config.{dropout}=0", *options),
            "--model.schedule.name=constant",
        )
        assert result.code == 0, result.err
        return content(here / name / "checkpoints/last.ckpt")

    two = ("--trainer.devices=2", "--trainer.strategy=ddp_fork")
    one = ("--trainer.accumulate_grad_batches=2",)
    whole = fit("whole", 8, *one)
    fit("moved", steps, *two)
    moved = fit("moved", 8, *one)
    assert moved["global_step"] == whole["global_step"] == 8
    names = [key for key in whole if key.endswith("Data")]
    assert [whole[key] for key in names] == [moved[key] for key in names]
    for name, weight in whole["state_dict"].items():
        torch.testing.assert_close(moved["state_dict"][name], weight, rtol=1e-9, atol=1e-9)
