"""Sharded and asynchronous checkpoints: every command, resume on other numbers of ranks, kills."""

import io
import itertools
import os
import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import fourfold
from fourfold.checkpoints.files import read_file
from fourfold.training.loading import load_task
from scripts.tools.kill_test import difference, unequal
from tests.fixtures.processes import Ended, together

Run = Callable[..., Any]
SHARDED = ("--checkpoint.format=sharded", "--checkpoint.async_save=true")


def options(configs: dict[str, Path], folder: Path, *more: str) -> list[Any]:
    return ["--config", configs["lm"], "--run_dir", folder, *SHARDED, *more]


@pytest.fixture(scope="module")
def sharded(configs: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run directory of the causal LM with sharded checkpoints."""
    from fourfold.cli import main

    run = tmp_path_factory.mktemp("sharded") / "run"
    assert main(["fit", *map(str, options(configs, run))]) == 0
    assert (run / "checkpoints/last.ckpt").is_dir()
    return run


def test_as_one_file_it_is_the_checkpoint_of_a_run_without_shards(
    sharded: Path, trained: Any, run: Run, here: Path
) -> None:
    for name in ("last", "best", "previous", "step=00000006"):
        one = here / f"{name}.ckpt"
        source = sharded / f"checkpoints/{name}.ckpt"
        made = run("export", source, one, "--format", "checkpoint")
        assert made.code == 0, made.err
        assert made.out == f"{source}: step {3 if name == 'previous' else 6}\nwrote {one}\n"
        assert unequal(read_file(one), read_file(trained("lm") / f"checkpoints/{name}.ckpt")) == ""
    again = run("export", sharded, one, "--format", "checkpoint")
    assert again.code == 2
    assert "exists already" in again.err


def same_files(one: Path, other: Path) -> bool:
    return all((other / file.name).samefile(file) for file in one.iterdir())


def test_the_rotation_is_that_of_files(
    run: Run, configs: dict[str, Path], here: Path, sharded: Path
) -> None:
    more = ("--checkpoint.every_n_steps=1", "--trainer.val_check_interval=1")
    more = (*more, "--checkpoint.save_top_k=2", "--checkpoint.mode=max")
    for name, form in (("shards", SHARDED), ("files", ())):
        made = run("fit", "--config", configs["lm"], "--run_dir", here / name, *more, *form)
        assert made.code == 0, made.err
    assert difference(here / "files", here / "shards") == ""
    folder = here / "shards/checkpoints"
    assert not [file.name for file in folder.iterdir() if file.suffix != ".ckpt"]
    best = [x for x in folder.glob("step=*.ckpt") if same_files(x, folder / "best.ckpt")]
    assert len(best) == 1


@pytest.mark.parametrize("path", ["", "checkpoints/best.ckpt"])
def test_every_command_reads_it(
    path: str,
    sharded: Path,
    run: Run,
    configs: dict[str, Path],
    here: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    checkpoint, one = sharded / path, here / "one.ckpt"
    assert run("export", checkpoint, one, "--format", "checkpoint").code == 0
    generated = []
    for source in (checkpoint, one):
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"one two\n")))
        generated.append(run("generate", "--checkpoint", source, "--temperature=0"))
    assert generated[0].code == 0, generated[0].err
    assert generated[0].out == generated[1].out
    config = ["--config", configs["lm"]]
    for command in ("test", "validate"):
        found = [
            run(command, *config, "--ckpt_path", source, "--run_dir", here / "evaluated")
            for source in (checkpoint, one)
        ]
        assert [result.code for result in found] == [0, 0], found[0].err
        tables = [result.out.splitlines()[-8:-1] for result in found]
        assert tables[0] == tables[1]
    predicted = []
    for source in (checkpoint, one):
        folder = here / f"predicted{len(predicted)}"
        call = run("predict", *config, "--ckpt_path", source, "--run_dir", folder)
        assert call.code == 0, call.err
        (file,) = folder.glob("predictions.*")
        predicted.append(torch.load(file, weights_only=True))
    assert unequal(*predicted) == ""
    scored = []
    for source in (checkpoint, one):
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"one two\n")))
        scored.append(run("score", "--checkpoint", source))
    assert scored[0].out == scored[1].out != ""
    exported = run("export", checkpoint, here / "exported")
    assert exported.code == 0, exported.err
    tuned = ["--model.init_from", checkpoint, "--run_dir", here / "tuned"]
    assert run("fit", *config, *tuned, "--trainer.max_steps=1").code == 0
    page = ["--text", "one two", "--out", here / "page.html"]
    assert run("look", checkpoint, *page).code == 0
    model, other = fourfold.load(checkpoint), fourfold.load(one)
    assert unequal(dict(model.state_dict()), dict(other.state_dict())) == ""
    assert unequal(load_task(checkpoint).artifacts, load_task(one).artifacts) == ""


def test_a_tokenizer_and_a_resumed_run_come_from_it(
    sharded: Path, run: Run, configs: dict[str, Path], here: Path
) -> None:
    last = sharded / "checkpoints/last.ckpt"
    more = ["--data.tokenizer.file", last, "--trainer.max_steps=8", "--ckpt_path"]
    for name, source in (("a", last), ("b", sharded)):
        resumed = run("fit", *options(configs, here / name), *more, source)
        assert resumed.code == 0, resumed.err
        assert read_file(here / name / "checkpoints/last.ckpt")["global_step"] == 8
    # The format may change, and a directory may replace a file and vice versa.
    files = ("--checkpoint.format=file", "--checkpoint.async_save=false")
    for number, (form, is_directory) in enumerate(((files, False), (SHARDED, True))):
        longer = (f"--trainer.max_steps={9 + number}", *form)  # one save
        resumed = run("fit", *options(configs, here / "a"), "--data.tokenizer.file", last, *longer)
        assert resumed.code == 0, resumed.err
        assert (here / "a/checkpoints/last.ckpt").is_dir() == is_directory
        assert (here / "a/checkpoints/previous.ckpt").is_dir() != is_directory
    names = {file.name for file in (here / "a/checkpoints").iterdir()}
    assert names >= {"last.ckpt", "previous.ckpt", "best.ckpt"}
    assert all(name.endswith(".ckpt") for name in names)


@pytest.mark.parametrize("damage", ["shard", "index"])
def test_a_damaged_last_checkpoint_is_renamed_and_the_previous_one_resumed(
    damage: str, run: Run, configs: dict[str, Path], here: Path
) -> None:
    more = ("--checkpoint.every_n_steps=2",)
    for name in ("whole", "damaged"):
        assert run("fit", *options(configs, here / name, *more)).code == 0
    last = here / "damaged/checkpoints/last.ckpt"
    if damage == "shard":
        shard = last / "__0_0.distcp"
        data = shard.read_bytes()
        shard.unlink()  # previous.ckpt may have a link to it
        shard.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    else:
        (last / "index.pt").unlink()
    resumed = run("fit", *options(configs, here / "damaged", *more))
    assert resumed.code == 0, resumed.err
    assert "renamed to last.ckpt.corrupted; resuming from previous.ckpt" in resumed.err
    assert ("__0_0.distcp" if damage == "shard" else "index.pt") in resumed.err
    assert difference(here / "whole", here / "damaged", first=4) == ""
    evaluated = run("test", "--run_dir", here / "damaged", "--ckpt_path", f"{last}.corrupted")
    assert evaluated.code == 2


# Several processes.


def fit(configs: dict[str, Path], here: Path, ranks: int, run: str, *more: str) -> list[Ended]:
    import fourfold.commands.train.lightning_cli  # noqa: F401  (before the processes are forked)
    from fourfold.cli import main

    given = [*map(str, options(configs, here / run)), f"--trainer.devices={ranks}"]
    ended = together(ranks, lambda rank: main(["fit", *given, *more]), here)
    assert [end.code for end in ended] == [0] * ranks, ended[0].out[-3000:] + ended[-1].out[-3000:]
    return ended


FSDP2 = ("--trainer.strategy=fsdp2", "--checkpoint.every_n_steps=2", "--trainer.max_steps=4")
VARIANTS = {
    "adam": (),
    # Muon has groups in another order, and one row per head or fewer rows than four ranks.
    "muon": ("--model.optimizer.name=muon",),
    "lora": ("--model.tuning.lora_rank=2",),
    "ema": ("--ema_decay=0.9",),
}


def with_lists(value: Any) -> Any:
    """Replace tuples by lists, as FSDP2 does when it loads complete optimizer states."""
    if isinstance(value, dict):
        return {key: with_lists(x) for key, x in value.items()}
    return [with_lists(x) for x in value] if isinstance(value, list | tuple) else value


@pytest.mark.slow
@pytest.mark.parametrize("variant", VARIANTS)
def test_shards_resume_on_another_number_of_ranks(
    variant: str, configs: dict[str, Path], here: Path, run: Run, text: Path
) -> None:
    more = (*FSDP2, *VARIANTS[variant], f"--data.val={text / 'train.en'}")
    fit(configs, here, 2, "whole", *more)
    source = here / "whole/checkpoints/previous.ckpt"  # of step 2
    assert sorted(x.name for x in source.glob("*.distcp")) == ["__0_0.distcp", "__1_0.distcp"]
    stored = read_file(source)
    one = here / "one.ckpt"
    assert run("export", source, one, "--format", "checkpoint").code == 0
    data = ["--data.tokenizer.file", str(here / "whole/tokenizer.json")]
    for ranks in (2, 1, 4):
        for name, path in (("shards", source), ("file", one)):
            fit(configs, here, ranks, f"{name}{ranks}", *more, *data, "--ckpt_path", str(path))
        # On any number of ranks, a resume from shards equals one from the file of everything.
        a, b = (read_file(here / f"{x}{ranks}/checkpoints/last.ckpt") for x in ("shards", "file"))
        for key in ("state_dict", "optimizer_states", "lr_schedulers", "current_model_state"):
            assert unequal(with_lists(a.get(key)), with_lists(b.get(key))) == "", (ranks, key)
        assert a["global_step"] == 4
    whole = read_file(here / "whole/checkpoints/last.ckpt")
    again = read_file(here / "shards2/checkpoints/last.ckpt")
    for key in ("state_dict", "optimizer_states"):
        assert unequal(with_lists(whole[key]), with_lists(again[key])) == ""
    assert unequal(whole["state_dict"], stored["state_dict"]) != ""


KILLS = int(os.environ.get("KILLS", "4"))
# An asynchronous save at each step. Without dropout, half the ranks with twice the micro-batches
# train with the same global batches.
EXACT = (
    *("--trainer.strategy=fsdp2", "--trainer.max_steps=12", "--checkpoint.every_n_steps=1"),
    *("--trainer.precision=64-true", "--model.config.dropout=0", "--model.config.attn_dropout=0"),
    *("--model.config.ff_dropout=0", "--model.schedule.name=constant"),
)


def kill(run: Path, delay: float, ranks: list[int]) -> Callable[[list[Any]], None]:
    """Return a function that sends SIGKILL to ranks, some seconds after the training started."""

    def wait_and_kill(processes: list[Any]) -> None:
        started, until = None, time.time() + 100
        while time.time() < (started or until) and all(x.is_alive() for x in processes):
            if started is None and (run / "config.yaml").exists():
                started = time.time() + delay
            time.sleep(0.001)
        for rank in ranks:
            processes[rank].kill()

    return wait_and_kill


@pytest.mark.slow
@pytest.mark.timeout(120 + 60 * KILLS)
def test_kills_during_asynchronous_saves(configs: dict[str, Path], here: Path) -> None:
    import fourfold.commands.train.lightning_cli  # noqa: F401  (before the processes are forked)
    from fourfold.cli import main

    def train(ranks: int, name: str, *more: str, **processes: Any) -> list[Ended]:
        words = [*map(str, options(configs, here / name)), *EXACT, f"--trainer.devices={ranks}"]
        return together(ranks, lambda rank: main(["fit", *words, *more]), here, **processes)

    def seconds(path: Path) -> float:
        return path.stat().st_mtime

    assert [end.code for end in train(2, "whole")] == [0, 0]
    whole = read_file(here / "whole/checkpoints/last.ckpt")
    config, last = here / "whole/config.yaml", here / "whole/checkpoints/last.ckpt/index.pt"
    duration = seconds(last) - seconds(config)
    found: list[Any] = []
    for number in itertools.count():
        if len(found) == KILLS:
            break
        rng, run = random.Random(number), here / f"killed{number}"
        receivers = rng.choice(([0, 1], [0], [1]))
        delay = rng.uniform(0, duration)
        ended = train(2, run.name, meanwhile=kill(run, delay, receivers))
        if all(end.code == 0 for end in ended):  # the training was faster than the first one
            duration *= 0.9
            continue
        unfinished = [x.name for x in run.glob("checkpoints/*") if not x.name.endswith(".ckpt")]
        # What has the name of a checkpoint is complete, and one of the last two has its name.
        steps = {x.stem: read_file(x)["global_step"] for x in run.glob("checkpoints/*.ckpt")}
        ranks = 2 - len(found) % 2
        resumed = train(ranks, run.name, f"--trainer.accumulate_grad_batches={3 - ranks}")
        assert [end.code for end in resumed] == [0] * ranks, (number, resumed[0].out[-3000:])
        again = read_file(run / "checkpoints/last.ckpt")
        assert again["global_step"] == 12
        if ranks == 2:
            assert difference(here / "whole", run) == "", number
        else:
            for name, weight in whole["state_dict"].items():
                torch.testing.assert_close(again["state_dict"][name], weight, rtol=1e-9, atol=1e-9)
        found.append((receivers, round(delay, 2), [end.code for end in ended], ranks, steps))
        print(number, *found[-1], unfinished, flush=True)
        assert not [x.name for x in run.glob("checkpoints/*") if not x.name.endswith(".ckpt")]
