import csv
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from torch.multiprocessing import ProcessExitedException

from fourfold.commands.train.lightning_cli import FourfoldCLI

Run = Callable[..., Any]
Train = Callable[[str], Path]


def weights(checkpoint: Path) -> dict[str, torch.Tensor]:
    state: dict[str, torch.Tensor] = torch.load(checkpoint, weights_only=True)["state_dict"]
    return state


def test_run_directory_contains_config_metrics_and_checkpoints(
    run: Run, configs: dict[str, Path], here: Path
) -> None:
    result = run("fit", "--config", configs["mt"], "--log_every_seconds", 0)
    assert result.code == 0, result.err
    folder = here / "runs/small/mt"  # after the config's folder and name
    names = {str(file.relative_to(folder)) for file in folder.rglob("*") if file.is_file()}
    assert names == {
        *(".lock", "config.yaml", "metrics.csv", "tokenizer.json", "checkpoints/last.ckpt"),
        *("checkpoints/previous.ckpt", "checkpoints/best.ckpt", "checkpoints/step=00000006.ckpt"),
    }
    # Its config describes the run completely: the same again, elsewhere.
    again = run("fit", "--config", folder / "config.yaml", "--run_dir", "again")
    assert again.code == 0, again.err
    first, second = (
        weights(folder / "checkpoints/last.ckpt"),
        weights(here / "again/checkpoints/last.ckpt"),
    )
    assert all(torch.equal(first[name], second[name]) for name in first)
    more = run("fit", "--config", configs["mt"])
    assert more.code == 0, more.err
    assert "nothing to do: the run is complete at step 6;" in more.out


def test_without_a_command_it_makes_the_objects_of_a_training(
    configs: dict[str, Path], here: Path
) -> None:
    cli = FourfoldCLI(args=["--config", str(configs["lm"]), "--run_dir=r"], run=False)
    cli.trainer.fit(cli.model, datamodule=cli.datamodule)
    assert cli.trainer.global_step == 6


def test_lines_of_progress_without_a_terminal(
    run: Run, configs: dict[str, Path], here: Path
) -> None:
    out = run("fit", "--config", configs["vit"], "--log_every_seconds", 0).out.splitlines()
    assert out[0].startswith("ImageClassification: ")
    assert "parameters on cpu, 32-true" in out[0]
    steps = [line for line in out if line.startswith("step ") and "loss" in line and "left" in line]
    assert [line.split()[1] for line in steps] == [f"{n}/6" for n in range(1, 7)]
    for word in ("epoch ", "loss ", "lr ", "images/s ", "left "):
        assert not [line for line in steps if word not in line]
    assert any("val/top1" in line for line in out)
    assert out[1].startswith("examples of the splits: train ")
    # The learning rate of a line is that of its step.
    metrics = list(csv.DictReader((here / "runs/small/vit/metrics.csv").open()))
    rates = {row["step"]: float(row["train/lr"]) for row in metrics if row["train/lr"]}
    shown = {
        line.split()[1].split("/")[0]: float(line.split("lr ")[1].split()[0]) for line in steps
    }
    assert rates
    assert {step: shown[step] for step in rates} == pytest.approx(rates, rel=0.01)
    assert not [
        line for line in out if "optimizer step takes" in line
    ]  # it takes what the config says
    assert out[-1].startswith("trained to step 6 in ")
    quiet = run(
        "fit", "--config", configs["vit"], "--trainer.enable_progress_bar=false", "--run_dir=quiet"
    )
    assert quiet.out == ""
    assert quiet.err == ""


def test_missing_validation_is_reported(run: Run, configs: dict[str, Path], here: Path) -> None:
    said = "there is no validation: best.ckpt will not be written"
    options = ("--config", configs["mt"], "--trainer.max_steps=1")
    assert said not in run("fit", *options, "--run_dir=a").out
    for number, more in enumerate(("--data.val=null", "--trainer.limit_val_batches=0")):
        result = run("fit", *options, f"--run_dir=b{number}", more)
        assert result.code == 0
        assert said in result.out
        assert not (here / f"b{number}/checkpoints/best.ckpt").exists()


def test_test_prints_a_table_and_writes_metrics(
    run: Run, trained: Train, configs: dict[str, Path], here: Path
) -> None:
    folder = trained("mt")
    result = run("test", "--config", configs["mt"], "--run_dir", folder)
    assert result.code == 0, result.err
    assert f"test of {folder}/checkpoints/best.ckpt" in result.out
    metrics = json.loads((folder / "metrics.json").read_text())
    for name in ("test/loss", "test/bleu", "test/chrf", "test/exact_match"):
        assert name in result.out
        assert isinstance(metrics[name], float)
    assert metrics["test/bleu_signature"].startswith("nrefs:1|")
    assert metrics["test/bleu_signature"] in result.out
    assert metrics["run"]["checkpoint"].endswith("best.ckpt")
    assert metrics["run"]["command"].startswith("fourfold test --config ")
    assert metrics["run"]["versions"]["torch"]
    assert len(metrics["run"]["configs"]) == 1


def test_validate_uses_the_named_checkpoint(
    run: Run, trained: Train, configs: dict[str, Path], here: Path
) -> None:
    folder = trained("lm")
    # The config of the run directory knows the directory.
    for which, name in (("last", "last.ckpt"), (folder / "checkpoints/best.ckpt", "best.ckpt")):
        result = run("validate", "--config", folder / "config.yaml", "--ckpt_path", which)
        assert result.code == 0, result.err
        assert f"validation of {folder}/checkpoints/{name}" in result.out
        assert "val/ppl_byte" in result.out
    result = run("validate", "--config", folder / "config.yaml", "--ckpt_path", "average")
    assert "checkpoints/average.ckpt does not exist" in result.err
    result = run("test", "--config", configs["lm"])
    assert result.code == 2
    assert "there is no checkpoint; train first" in result.err


def test_checkpoint_does_not_overwrite_the_config(run: Run, trained: Train, here: Path) -> None:
    folder = trained("mt")
    checkpoint = folder / "checkpoints/last.ckpt"
    call = ["test", "--config", folder / "config.yaml", "--run_dir=new", "--ckpt_path", checkpoint]
    result = run(*call, "--model.config.d_ff=48")
    assert result.code == 2
    assert "model.config.d_ff must be 32, as in the checkpoint, got 48" in result.err


def test_checkpoint_of_another_task_is_rejected(run: Run, trained: Train, here: Path) -> None:
    checkpoint = trained("mt") / "checkpoints/last.ckpt"
    result = run("test", "--config", trained("lm") / "config.yaml", "--ckpt_path", checkpoint)
    assert result.code == 2
    assert "--model must be fourfold.tasks.Translation, which wrote the checkpoint" in result.err


@pytest.mark.parametrize(
    ("family", "file"),
    [
        ("mt", "predictions.txt"),
        ("vit", "predictions.csv"),
        ("classes", "predictions.csv"),
        ("lm", "predictions.pt"),
    ],
)
def test_predictions(family: str, file: str, run: Run, trained: Train, text: Path) -> None:
    folder = trained(family)
    result = run("predict", "--config", folder / "config.yaml")
    assert result.code == 0, result.err
    assert f"wrote {folder / file}" in result.out
    if family == "mt":
        sources = (text / "test.en").read_text().splitlines()
        assert len((folder / file).read_text().splitlines()) == len(sources)
    elif family == "classes":
        lines = (text / "test.tsv").read_text().splitlines()
        for n, row in enumerate(csv.DictReader((folder / file).open()), start=2):
            assert row["file"] == f"{text / 'test.tsv'}:{n}"
            assert f"{row['text']}\t{row['true']}" == lines[n - 1]
        assert n == len(lines)
    elif family == "vit":
        rows = list(csv.DictReader((folder / file).open()))
        assert [int(row["row"]) for row in rows] == list(range(len(rows)))
        assert all(0.1 <= float(row["probability"]) <= 1 for row in rows)
    else:
        assert all(part.ndim == 2 for part in torch.load(folder / file, weights_only=True))


@pytest.mark.parametrize("precision", ["bf16-mixed", "bf16-true"])
def test_precisions(precision: str, run: Run, configs: dict[str, Path], here: Path) -> None:
    run_dir = here / "r"
    call = ["--config", configs["lm"], "--run_dir", run_dir, "--trainer.precision", precision]
    result = run("fit", *call, "--trainer.gradient_clip_val", "1.0")
    assert result.code == 0, result.err
    assert f"on cpu, {precision}" in result.out
    result = run("test", *call)
    assert result.code == 0, result.err
    assert json.loads((run_dir / "metrics.json").read_text())["test/ppl_token"] < 400


def test_seed(run: Run, configs: dict[str, Path], here: Path) -> None:
    call = ["fit", "--config", configs["lm"], "--trainer.max_steps=1"]
    assert run(*call, "--run_dir=a", "--seed_everything=7").code == 0
    config = yaml.safe_load((here / "a/config.yaml").read_text())
    assert config["seed_everything"] == 7
    # Not as if the user had wanted it apart: by this file another seed is another for the data.
    assert "seed" not in config["data"]["init_args"]
    again = [*call[:2], here / "a/config.yaml", "--trainer.max_steps=1"]
    assert run(*again, "--run_dir=d", "--seed_everything=8").code == 0
    assert run(*call, "--run_dir=e", "--seed_everything=8").code == 0
    assert run(*call, "--run_dir=b", "--seed_everything=7", "--data.seed=0").code == 0
    config = yaml.safe_load((here / "b/config.yaml").read_text())
    assert config["data"]["init_args"]["seed"] == 0
    assert run(*call, "--run_dir=c").code == 0
    a, b, c, d, e = (weights(here / x / "checkpoints/last.ckpt") for x in "abcde")
    name = "model.embed.tokens.weight"
    assert torch.equal(d[name], e[name])
    assert not torch.equal(a[name], b[name])  # other data
    assert not torch.equal(b[name], c[name])  # other weights at the start


def test_fast_dev_run_writes_nothing(run: Run, configs: dict[str, Path], here: Path) -> None:
    result = run("fit", "--config", configs["vit"], "--trainer.fast_dev_run=true")
    assert result.code == 0, result.err
    assert not list(here.iterdir())


def test_fast_dev_run_leaves_an_existing_run_unchanged(
    run: Run, configs: dict[str, Path], here: Path
) -> None:
    call = ("--config", configs["vit"], "--run_dir=r")
    for verb in ("fit", "test"):
        assert run(verb, *call, "--trainer.max_steps=1").code == 0
    before = {file: file.stat().st_mtime_ns for file in here.rglob("*")}
    for verb in ("fit", "test", "predict"):
        result = run(verb, *call, "--trainer.fast_dev_run=true")
        assert result.code == 0, result.err
        assert "nothing to do" not in result.out
    assert {file: file.stat().st_mtime_ns for file in here.rglob("*")} == before


def test_signal_stops_a_training_without_checkpoints(
    run: Run, configs: dict[str, Path], here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from fourfold.tasks import ImageClassification

    step = ImageClassification.training_step

    def signalled(self: Any, batch: Any, batch_idx: int) -> Any:
        os.kill(os.getpid(), signal.SIGTERM)
        return step(self, batch, batch_idx)

    monkeypatch.setattr(ImageClassification, "training_step", signalled)
    more = ("--trainer.max_steps=5", "--trainer.enable_checkpointing=false")
    result = run("fit", "--config", configs["vit"], "--run_dir=r", *more)
    assert result.code == 75
    assert "stopped by SIGTERM after step 1; no checkpoint is saved" in result.out
    assert not list(here.rglob("*.ckpt"))


def test_invalid_data_leave_no_files(run: Run, configs: dict[str, Path], here: Path) -> None:
    result = run("fit", "--config", configs["mt"], "--data.train=nofile.{lang}")
    assert result.code == 2
    assert "nofile.en" in result.err
    assert not list(here.iterdir())


def test_unknown_monitor_is_rejected(run: Run, configs: dict[str, Path], here: Path) -> None:
    result = run("fit", "--config", configs["vit"], "--checkpoint.monitor=val/blue")
    assert result.code == 2
    assert "checkpoint.monitor must be a metric of the validation" in result.err
    assert not list(here.rglob("*.ckpt"))


def test_unknown_metric_of_early_stopping_keeps_lightnings_traceback(
    run: Run, configs: dict[str, Path], here: Path
) -> None:
    stop = "{class_path: EarlyStopping, init_args: {monitor: val_loss}}"
    options = (f"--trainer.callbacks+={stop}", "--trainer.max_steps=-1", "--trainer.max_epochs=1")
    with pytest.raises(RuntimeError, match="val_loss"):
        run("fit", "--config", configs["vit"], *options)


def test_run_that_stopped_early_is_complete(run: Run, configs: dict[str, Path], here: Path) -> None:
    monitor = "{monitor: val/loss, patience: 1, min_delta: 99.0}"
    stop = f"--trainer.callbacks+={{class_path: EarlyStopping, init_args: {monitor}}}"
    call = ["fit", "--config", configs["vit"], "--run_dir=r", "--trainer.max_steps=-1"]
    more = ["--trainer.max_epochs=9", "--trainer.limit_train_batches=2"]
    assert "trained to step 4 in" in run(*call, *more, stop).out
    last = here / "r/checkpoints/last.ckpt"
    before = last.read_bytes()
    for _ in range(2):
        said = run(*call, *more, stop).out
        assert (
            "nothing to do: the run is complete at step 4; to continue it, remove the callback"
            in said
        )
        assert last.read_bytes() == before
    assert "trained to step 18 in" in run(*call, *more).out


def test_min_steps_does_not_change_checkpoints(
    run: Run, configs: dict[str, Path], here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved = saves(monkeypatch)
    monitor = "{monitor: val/loss, patience: 1, min_delta: 99.0}"
    stop = f"--trainer.callbacks+={{class_path: EarlyStopping, init_args: {monitor}}}"
    call = ["fit", "--config", configs["vit"], "--run_dir=r", "--trainer.max_steps=-1", stop]
    more = ["--trainer.max_epochs=9", "--trainer.limit_train_batches=2", "--trainer.min_steps=7"]
    assert run(*call, *more, "--checkpoint.every_n_epochs=0").code == 0
    assert saved == [7]


@pytest.mark.parametrize("val", [[], ["--data.val=null"]])
def test_last_checkpoint_is_saved_at_validation_steps(
    val: list[str], run: Run, configs: dict[str, Path], monkeypatch: pytest.MonkeyPatch, here: Path
) -> None:
    saved = saves(monkeypatch)
    call = ["fit", "--config", configs["mt"], "--run_dir=r", "--checkpoint.every_n_steps=2"]
    call += ["--trainer.val_check_interval=2", "--trainer.check_val_every_n_epoch=null"]
    assert run(*call, *val, "--trainer.max_steps=5", "--model.val_num_beams=0").code == 0
    assert [step for step in saved if step % 2 == 0] == [2, 4]


def saves(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The steps of all last.ckpt that are saved from now on."""
    from fourfold.callbacks.checkpointing.run_checkpoints import RunCheckpoints

    found, before = list[int](), RunCheckpoints.save_last

    def save_last(self: Any, trainer: Any) -> None:
        found.append(trainer.global_step)
        before(self, trainer)

    monkeypatch.setattr(RunCheckpoints, "save_last", save_last)
    return found


def test_run_directory_is_locked_during_training(
    run: Run, configs: dict[str, Path], here: Path
) -> None:
    call = ["fit", "--config", configs["vit"], "--run_dir=r", "--trainer.max_steps=1"]
    holds = "import sys; from fourfold.commands.run_directory import RunDirectory as R\n"
    holds += "with R('r').lock(): print('held', flush=True), sys.stdin.read()"
    other = subprocess.Popen(
        [sys.executable, "-c", holds], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert other.stdout is not None
    assert other.stdout.readline() == b"held\n"
    result = run(*call)
    assert result.code == 2
    assert "another process trains in r" in result.err
    other.kill()  # a lock does not outlive who holds it
    other.wait()
    assert run(*call).code == 0
    assert run(*call, "--trainer.max_steps=2").code == 0


def test_missing_average_is_written_on_resume(
    run: Run, configs: dict[str, Path], here: Path
) -> None:
    call = ["fit", "--config", configs["vit"], "--run_dir=r", "--average_last_checkpoints=2"]
    call += ["--average_every_n_steps=1", "--trainer.max_steps=3"]
    assert run(*call).code == 0
    average = here / "r/checkpoints/average.ckpt"
    before = weights(average)
    average.unlink()  # as where a machine ran out of memory over it
    assert "nothing to do" in run(*call).out
    assert all(torch.equal(x, before[name]) for name, x in weights(average).items())
    written = average.stat().st_mtime_ns
    assert "nothing to do" in run(*call).out
    assert average.stat().st_mtime_ns == written


def test_resume_without_ema_rejects_an_ema_checkpoint(
    run: Run, configs: dict[str, Path], here: Path
) -> None:
    call = ["fit", "--config", configs["vit"], "--run_dir=r", "--trainer.max_steps=2"]
    assert run(*call, "--ema_decay=0.5").code == 0
    result = run(*call, "--trainer.max_steps=3")
    assert result.code == 2
    assert "last.ckpt: --ema_decay must be given again" in result.err
    assert run(*call, "--trainer.max_steps=3", "--ema_decay=0.5").code == 0
    assert run("validate", "--config", configs["vit"], "--run_dir=r").code == 0


def test_throughput_covers_all_micro_batches(
    run: Run, configs: dict[str, Path], here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from fourfold.callbacks.monitoring import throughput

    logged: list[int] = []
    rate_since = throughput.Reading.rate_since

    def counting(self: throughput.Reading, earlier: throughput.Reading) -> float:
        logged.append(self.units)
        return rate_since(self, earlier)

    monkeypatch.setattr(throughput.Reading, "rate_since", counting)
    call = ["fit", "--config", configs["vit"], "--trainer.accumulate_grad_batches=2"]
    options = ("--trainer.limit_train_batches=4", "--trainer.enable_progress_bar=false")
    assert run(*call, *options, "--trainer.max_steps=4").code == 0
    size, rest = divmod(logged[0], 4)  # images of a micro-batch
    # Every second step of two micro-batches is logged.
    assert logged == [4 * size, 8 * size]
    assert size
    assert not rest


def test_user_loggers_receive_test_metrics(run: Run, configs: dict[str, Path], here: Path) -> None:
    logger = "{class_path: CSVLogger, init_args: {save_dir: csv}}"
    call = ["--config", configs["vit"], "--run_dir=r", f"--trainer.logger={logger}"]
    for verb, number in (("fit", 0), ("test", 1), ("validate", 2)):
        assert run(verb, *call).code == 0
        written = (here / f"csv/lightning_logs/version_{number}/metrics.csv").read_text()
        assert ("test/top1" if verb == "test" else "val/top1") in written


def test_averaged_checkpoint_is_found_by_name(
    run: Run, configs: dict[str, Path], here: Path
) -> None:
    call = ["--config", configs["vit"], "--run_dir=r"]
    result = run(
        "fit",
        *call,
        "--average_last_checkpoints=2",
        "--average_every_n_steps=1",
        "--checkpoint.save_top_k=0",
    )
    assert result.code == 0, result.err
    folder = here / "r/checkpoints"
    assert sorted(file.name for file in (folder / "snapshots").iterdir()) == [
        "step=00000005.pt",
        "step=00000006.pt",
    ]
    parts = [
        torch.load(file, weights_only=True)["state_dict"]
        for file in sorted((folder / "snapshots").iterdir())
    ]
    name = "model.head.weight" if "model.head.weight" in parts[0] else next(iter(parts[0]))
    mean = (parts[0][name].double() + parts[1][name].double()) / 2
    torch.testing.assert_close(weights(folder / "average.ckpt")[name], mean.float())
    assert not torch.equal(parts[0][name], parts[1][name])
    for which in ("average", None):  # without a best, the average is what an evaluation takes
        result = run("validate", *call, *(["--ckpt_path", which] if which else []))
        assert result.code == 0, result.err
        assert "validation of r/checkpoints/average.ckpt" in result.out


def test_checkpoint_contains_the_moving_average(
    run: Run, configs: dict[str, Path], here: Path
) -> None:
    from fourfold.training.loading import load_task

    result = run("fit", "--config", configs["vit"], "--run_dir=r", "--ema_decay=0.5")
    assert result.code == 0, result.err
    last = here / "r/checkpoints/last.ckpt"
    content = torch.load(last, weights_only=True)
    raw, average = content["current_model_state"], content["state_dict"]
    changed = [
        name
        for name in average
        if name.startswith("model.") and not torch.equal(raw[name], average[name])
    ]
    assert changed
    loaded = load_task(last).state_dict()
    assert all(torch.equal(loaded[name], average[name]) for name in changed)
    both = run("fit", "--config", configs["vit"], "--ema_decay=0.5", "--average_last_checkpoints=2")
    assert "--ema_decay excludes --average_last_checkpoints" in both.err


def test_help_all_lists_trainer_options(run: Run, here: Path) -> None:
    result = run("fit", "--help-all")
    assert result.code == 0
    assert "--trainer.max_epochs" in result.out
    assert "--checkpoint.save_top_k" in result.out
    assert "--model.help" in result.out


def test_settings_that_do_not_change_shapes_are_compared(
    run: Run, trained: Train, here: Path
) -> None:
    folder = trained("mt")
    call = ["--config", folder / "config.yaml", "--ckpt_path", folder / "checkpoints/last.ckpt"]
    for option in ("n_heads=4", "activation=gelu", "norm_placement=pre"):
        result = run("test", *call, "--run_dir=new", f"--model.config.{option}")
        assert result.code == 2
        assert f"config.{option.partition('=')[0]}" in result.err
    assert run("test", *call, "--run_dir=new", "--model.config.dropout=0.3").code == 0
    # A restored optimizer would go on as it began, whatever is written down.
    result = run("fit", *call, "--run_dir=other", "--model.optimizer.lr=0.5")
    assert result.code == 2
    assert "optimizer.lr" in result.err
    assert not (here / "other").exists()


def test_validation_prints_the_bleu_signature(run: Run, trained: Train) -> None:
    folder = trained("mt")
    result = run("validate", "--config", folder / "config.yaml", "--run_dir", folder)
    assert "nrefs:1" in result.out


@pytest.mark.parametrize(
    ("family", "options", "said"),
    [
        ("mlm", ["--model.config.max_len=4"], "model.config.max_len is 4, but the longest row"),
        (
            "lm",
            ["--model.config.max_len=8"],
            "model.config.max_len is 8, but the longest row of the train split has 16 tokens",
        ),
        ("mt", ["--data.max_len=1"], "max_len must be at least 2"),
        ("mt", ["--model.optimizer.lr=-1"], "optimizer.lr must be above 0"),
        ("mt", ["--model.optimizer.betas=[0.9,1.5]"], "optimizer.betas[1] must"),
        ("mt", ["--model.schedule.warmup_steps=-1"], "schedule.warmup_steps must be at least 0"),
        ("mt", ["--checkpoint.monitor=val/blue"], "val/blue"),
        ("mt", ["--model.config.vocab_size=9"], "model.config.vocab_size must be at least"),
        (
            "mt",
            ["--trainer.val_check_interval=500"],
            "trainer: `val_check_interval` (500) must be less than or equal to the number of the",
        ),
        (
            "mt",
            ["--trainer.val_check_interval=0"],
            "trainer.val_check_interval must be a number of batches from 1, or a fraction above 0",
        ),
        (
            "lm",
            [
                "--trainer.max_steps=-1",
                "--trainer.max_epochs=-1",
                "--trainer.max_time=00:00:01:00",
                "--model.schedule.name=linear",
            ],
            "schedule.total_steps must be given for a linear schedule",
        ),
    ],
)
def test_invalid_values_leave_no_files(
    family: str,
    options: list[str],
    said: str,
    run: Run,
    configs: dict[str, Path],
    here: Path,
) -> None:
    result = run("fit", "--config", configs[family], "--run_dir=r", "--tensorboard=true", *options)
    assert result.code == 2, result.out
    assert said in result.err
    assert result.err.count("\n") == 1
    assert not list(here.iterdir())


def test_data_of_another_task_are_rejected(run: Run, configs: dict[str, Path], here: Path) -> None:
    none = [f"--data.{part}=null" for part in ("train", "val", "test")]
    result = run(
        "fit", "--config", configs["mt"], "--data=CausalTextData", "--data.source=builtin", *none
    )
    assert result.code == 2
    assert (
        "--data must make a PairBatch for Translation, but CausalTextData makes a CausalBatch"
        in result.err
    )
    assert not list(here.iterdir())


def test_duplicate_key_is_rejected(run: Run, here: Path) -> None:
    (here / "c.yaml").write_text("model: Translation\ndata:\n  seed: 1\n  seed: 2\n")
    result = run("fit", "--config", "c.yaml")
    assert result.code == 2
    assert "c.yaml:4: data.seed must appear once, but line 3" in result.err


@pytest.mark.parametrize(("steps", "epochs", "ends"), [(100, 2, 6), (4, 2, 4), (5, -1, 5)])
def test_schedule_ends_with_the_run(
    steps: int, epochs: int, ends: int, run: Run, configs: dict[str, Path], here: Path
) -> None:
    # Three steps an epoch; the last of a linear schedule is done at a share of 1 / steps.
    result = run(
        "fit",
        "--config",
        configs["lm"],
        "--run_dir=r",
        "--model.schedule.name=linear",
        "--model.schedule.warmup_steps=0",
        "--model.schedule.min_lr=0",
        f"--trainer.max_steps={steps}",
        f"--trainer.max_epochs={epochs}",
        "--trainer.log_every_n_steps=1",
        "--trainer.limit_train_batches=3",
    )
    assert result.code == 0, result.err
    rows = list(csv.DictReader((here / "r/metrics.csv").open()))
    rates = [float(row["train/lr"]) for row in rows if row["train/lr"]]
    assert len(rates) == ends
    assert rates[-1] == pytest.approx(rates[0] / ends)
    assert rates[-2] == pytest.approx(rates[0] * 2 / ends)


def test_overfit_batches_repeats_the_same_batches(
    run: Run, configs: dict[str, Path], here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from fourfold.tasks import Translation

    seen, step = [], Translation.step
    monkeypatch.setattr(
        Translation,
        "step",
        lambda self, batch: (seen.append(batch.rows.tolist()), step(self, batch))[1],
    )
    result = run("fit", "--config", configs["mt"], "--run_dir=r", "--trainer.overfit_batches=1")
    assert result.code == 0, result.err
    assert len(seen) == 6
    assert len({tuple(rows) for rows in seen}) == 1


def test_forked_processes_return_their_weights(
    run: Run, configs: dict[str, Path], here: Path
) -> None:
    result = run(
        "fit",
        "--config",
        configs["mt"],
        "--run_dir=r",
        "--trainer.devices=2",
        "--trainer.strategy=ddp_fork",
        "--data.max_rows=4",
    )
    assert result.code == 0, result.err
    assert torch.load(here / "r/checkpoints/last.ckpt", weights_only=True)["global_step"] == 6


def test_float32_matmul_precision(
    run: Run, configs: dict[str, Path], here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    monkeypatch.setattr(torch, "set_float32_matmul_precision", asked.append)
    call = ["fit", "--config", configs["mt"], "--run_dir=r", "--trainer.max_steps=1"]
    assert "TF32" not in run(*call).out
    assert run("validate", "--run_dir=r", "--float32_matmul_precision=medium").code == 0
    monkeypatch.setattr("fourfold.commands.train.auto_precision.device_kind", lambda _: "cuda")
    result = run(*call, "--trainer.max_steps=2")
    assert "float32_matmul_precision auto: high (TF32)" in result.out
    call[-2] = "--run_dir=full"
    assert "TF32" not in run(*call, "--float32_matmul_precision=highest").out
    assert "TF32" not in run(*call, "--trainer.max_steps=2").out  # as config.yaml records
    assert asked == ["highest", "medium", "high", "highest", "highest"]


def test_rows_of_metrics_csv_count_steps_as_the_console(
    run: Run, configs: dict[str, Path], here: Path
) -> None:
    options = ["--trainer.val_check_interval=3", "--trainer.check_val_every_n_epoch=null"]
    printed = run("fit", "--config", configs["lm"], "--run_dir=r", *options).out
    assert "\nstep 3  val/loss" in printed
    with (here / "r/metrics.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["step"] for row in rows if row["val/loss"]] == ["3", "6"]
    assert [row["step"] for row in rows if row["train/loss"]] == ["2", "4", "6"]


def test_warnings_are_one_line_without_a_file() -> None:
    code = (
        "import warnings\nfrom fourfold.cli import main\n"
        "main(['--version'])\nwarnings.warn('first\\n second')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stderr == "fourfold: warning: first second\n"


def test_size_of_images_that_differs_from_the_config_is_named(
    run: Run, configs: dict[str, Path], here: Path
) -> None:
    result = run("fit", "--config", configs["vit"], "--data.transform.size=16")
    assert result.code == 2
    assert "model.config.image_size must be 16, as in the data, got 8" in result.err


@pytest.mark.parametrize("code", [75, 130, 1])
def test_exit_code_of_a_stopped_rank_is_that_of_the_command(code: int) -> None:
    class Stopped(FourfoldCLI):
        def __init__(self, **options: object) -> None:
            raise ProcessExitedException("", 0, 1, exit_code=code)

    if code == 1:
        with pytest.raises(ProcessExitedException):
            Stopped.run(["fit"])
    else:
        assert Stopped.run(["fit"]) == code


@pytest.mark.parametrize("profiler", ["simple", "advanced"])
def test_profiler_prints_its_report(profiler: str, configs: dict[str, Path], here: Path) -> None:
    options = (
        "--config",
        configs["vit"],
        "--trainer.max_steps=1",
        f"--trainer.profiler={profiler}",
    )
    # In a process of its own, since pytest captures records of logging.
    command = [sys.executable, "-m", "fourfold", "fit", *map(str, options)]
    result = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "Profiler Report" in result.stdout + result.stderr
