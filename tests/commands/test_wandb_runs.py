"""Runs in Weights & Biases without an account, opened and read from their files."""

import csv
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from tests.fixtures.wandb_files import WandbFile, runs_in

pytest.importorskip("wandb")

Track = Callable[[str], Path]
OPTIONS = [
    *("--wandb=offline", "--wandb_project=papers", "--wandb_group=small"),
    *("--wandb_tags=[first, second]", "--wandb_checkpoints=true", "--log_samples=true"),
    *("--checkpoint.every_n_steps=1", "--trainer.log_every_n_steps=1"),
    *("--average_last_checkpoints=2", "--average_every_n_steps=1"),
]
KILLED_AT = {"mt": 4}  # in the middle of this batch
CLASSES = ("vit", "classes", "tags")
tasks = pytest.mark.parametrize(
    "name",
    [
        "mt",
        "vit",
        *(pytest.param(n, marks=pytest.mark.slow) for n in ("lm", "mlm", "classes", "tags")),
    ],
)


class Killed(BaseException):
    """Exception that no handler catches."""


def environment(folder: Path) -> dict[str, str]:
    """Directories of wandb outside the user's home."""
    return {f"WANDB_{kind}_DIR": str(folder / kind) for kind in ("CACHE", "CONFIG", "DATA")}


@pytest.fixture(scope="module")
def elsewhere(tmp_path_factory: pytest.TempPathFactory) -> Iterator[pytest.MonkeyPatch]:
    with pytest.MonkeyPatch.context() as patch:
        for name, value in environment(tmp_path_factory.mktemp("wandb")).items():
            patch.setenv(name, value)
        patch.setenv("WANDB_SILENT", "true")
        patch.delenv("WANDB_MODE", raising=False)
        patch.delenv("WANDB_API_KEY", raising=False)
        yield patch


@pytest.fixture(scope="module")
def track(
    elsewhere: pytest.MonkeyPatch,
    configs: dict[str, Path],
    tmp_path_factory: pytest.TempPathFactory,
) -> Track:
    """The directory of a family's run: trained, one of them killed and resumed, then tested."""
    from fourfold.cli import main
    from fourfold.tasks import Task

    folder = tmp_path_factory.mktemp("tracked")
    step = Task.training_step

    def killed(self: Any, batch: Any, batch_idx: int) -> Any:
        if self.trainer.fit_loop.total_batch_idx == KILLED_AT["mt"]:
            raise Killed
        return step(self, batch, batch_idx)

    def make(name: str) -> Path:
        run = folder / name
        call = ["--config", str(configs[name]), "--run_dir", str(run), *OPTIONS]
        if not run.exists():
            if name in KILLED_AT:
                with pytest.MonkeyPatch.context() as patch:
                    patch.setattr(Task, "training_step", killed)
                    with pytest.raises(Killed):
                        main(["fit", *call])
            assert main(["fit", *call]) == 0
            assert main(["test", *call]) == 0
        return run

    return make


def rows_of(file: Path) -> list[dict[str, str]]:
    return list(csv.DictReader(file.open(newline="", encoding="utf-8")))


@tasks
def test_one_run(name: str, track: Track) -> None:
    folder = track(name)
    identity = json.loads((folder / "wandb.json").read_text())
    written = runs_in(folder)
    assert len(written) == (3 if name in KILLED_AT else 2)  # with the test
    for part in written:
        assert part.run.run_id == identity["id"]
        assert (part.run.project, part.run.run_group) == ("papers", "small")
        assert part.run.display_name == name
        assert sorted(part.run.tags) == ["first", "second"]
    assert [part.exit_code for part in written] == [int(name in KILLED_AT), 0, 0][-len(written) :]


@tasks
def test_the_config_is_all_of_it(name: str, track: Track) -> None:
    folder = track(name)
    config = yaml.safe_load((folder / "config.yaml").read_text())
    assert config["model"]["init_args"]["config"]["d_model"] == 16
    first = runs_in(folder)[0].config
    first.pop("_wandb")
    assert first == config


@tasks
def test_the_history_is_metrics_csv(name: str, track: Track) -> None:
    folder = track(name)
    *trained, tested = runs_in(folder)
    found: dict[int, dict[str, Any]] = {}
    for part in trained:
        steps = [row["_step"] for row in part.history]
        assert steps == sorted(set(steps))
        assert all(row["trainer/global_step"] == row["_step"] for row in part.history)
        for row in part.history:
            found.setdefault(row["_step"], {}).update(row)
    if name in KILLED_AT:  # it does not begin at 0 again
        assert trained[1].history[0]["_step"] == KILLED_AT[name] + 1
    cells = [
        (int(row["step"]), key, float(value))
        for row in rows_of(folder / "metrics.csv")
        for key, value in row.items()
        if value and key != "step"
    ]
    assert {"train/loss", "val/loss", "train/lr"} <= {key for _, key, _ in cells}
    for step, key, value in cells:
        assert found[step][key] == pytest.approx(value, rel=1e-6), (step, key)
    assert tested.history == []


@tasks
def test_a_test_is_in_the_summary(name: str, track: Track) -> None:
    folder = track(name)
    *trained, tested = runs_in(folder)
    measured = json.loads((folder / "metrics.json").read_text())
    numbers = {k: v for k, v in measured.items() if isinstance(v, float)}
    assert "test/loss" in numbers
    for key, value in numbers.items():
        assert tested.summary[key] == pytest.approx(value)
    assert "epoch" not in tested.summary
    last = rows_of(folder / "metrics.csv")
    losses = [float(row["val/loss"]) for row in last if row["val/loss"]]
    assert trained[-1].summary["val/loss"] == pytest.approx(losses[-1])


@tasks
def test_media_are_the_files_of_the_run_directory(name: str, track: Track) -> None:
    folder = track(name)
    *_, trained, tested = runs_in(folder)
    for part, split in ((trained, "val"), (tested, "test")):
        table = part.table(f"{split}/samples")
        rows = rows_of(folder / split / "samples.csv")
        assert table["columns"] == list(rows[0])
        assert [[str(cell) for cell in row] for row in table["data"]] == [
            list(row.values()) for row in rows
        ]
        pictures = list((folder / split).glob("*.png"))
        assert (folder / split / "attention.png") in pictures
        for file in pictures:
            media = part.last(f"{split}/{file.stem}")
            assert media["_type"] == "image-file"
            assert (part.folder / "files" / media["path"]).read_bytes() == file.read_bytes()
    assert ((folder / "test/confusion.png") in pictures) == (name in CLASSES)


@tasks
def test_checkpoints_are_versions_with_aliases(name: str, track: Track) -> None:
    folder = track(name)
    parts = runs_in(folder)
    sent = [a for part in parts for a in part.artifacts if a.type == "model"]
    assert {a.name for a in sent} == {f"model-{parts[0].run.run_id}"}
    for artifact, word in zip(sent, ("average", "best", "last"), strict=True):
        file = folder / f"checkpoints/{word}.ckpt"
        step = torch.load(file, weights_only=True)["global_step"]
        assert set(artifact.aliases) == {word, f"step-{step}", "latest"}
        (entry,) = artifact.manifest.contents
        assert entry.path == file.name
        assert Path(entry.local_path).read_bytes() == file.read_bytes()


def test_a_sharded_checkpoint_is_sent_as_a_folder(
    elsewhere: pytest.MonkeyPatch, configs: dict[str, Path], tmp_path: Path
) -> None:
    from fourfold.cli import main

    run = tmp_path / "r"
    call = ["fit", "--config", str(configs["vit"]), "--run_dir", str(run), *OPTIONS[:5]]
    assert main([*call, "--trainer.max_steps=1", "--checkpoint.format=sharded"]) == 0
    (part,) = runs_in(run)
    sent = [a for a in part.artifacts if a.type == "model"]
    assert sent
    for artifact in sent:
        (folder,) = [run / f"checkpoints/{x}.ckpt" for x in artifact.aliases if x in "best last"]
        assert folder.is_dir()
        names = {str(file.relative_to(folder)) for file in folder.rglob("*") if file.is_file()}
        assert {entry.path for entry in artifact.manifest.contents} == names
        for entry in artifact.manifest.contents:
            assert Path(entry.local_path).read_bytes() == (folder / entry.path).read_bytes()


def test_how_to_send_it_is_said_once(
    elsewhere: pytest.MonkeyPatch,
    configs: dict[str, Path],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    from fourfold.cli import main

    run = tmp_path / "with a blank"
    call = ["fit", "--config", str(configs["vit"]), "--run_dir", str(run), "--wandb=offline"]
    assert main([*call, "--trainer.max_steps=1"]) == 0
    (line,) = [x for x in capsys.readouterr().out.splitlines() if "wandb sync" in x]
    assert line.endswith(f": wandb sync '{run}/wandb'/offline-run-*")
    (part,) = runs_in(run)
    assert not [a for a in part.artifacts if a.type == "model"]  # nobody asked for them
    assert part.run.run_group == ""


@pytest.mark.slow
def test_two_processes_killed_and_resumed_are_one_run(
    configs: dict[str, Path], tmp_path: Path
) -> None:
    run = tmp_path / "r"
    call = [
        *(sys.executable, "-m", "fourfold", "fit", "--config", str(configs["mt"])),
        *("--run_dir", str(run), "--trainer.devices=2", "--trainer.strategy=ddp"),
        *("--data.max_rows=2", "--model.val_num_beams=0", *OPTIONS),
    ]
    env = {**os.environ, **environment(tmp_path / "wandb")}
    for name in ("WANDB_MODE", "WANDB_SERVICE"):  # not the service of the tests before
        env.pop(name, None)
    child = subprocess.Popen(
        [*call, "--trainer.max_steps=100000"],
        env=env,
        start_new_session=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    wait_for(lambda: rows_of_steps(run) > 4, 120)
    os.killpg(child.pid, signal.SIGKILL)
    child.wait()
    reached = torch.load(run / "checkpoints/last.ckpt", weights_only=True)["global_step"]
    more = [*call, f"--trainer.max_steps={reached + 3}"]
    done = subprocess.run(more, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    identity = json.loads((run / "wandb.json").read_text())["id"]
    folders = sorted((run / "wandb").glob("offline-run-*"))
    assert [folder.name.rsplit("-", 1)[1] for folder in folders] == [identity] * 2
    # Of the one that was killed, wandb had written down nothing yet: it does so by 32 KiB.
    last = WandbFile(folders[-1])
    assert (last.run.run_id, last.exit_code) == (identity, 0)
    assert last.history[0]["_step"] == reached + 1
    assert last.summary["trainer/global_step"] == reached + 3
    assert rows_of(run / "val/samples.csv")
    assert done.stdout.count("wandb sync") == 1


def rows_of_steps(run: Path) -> int:
    file = run / "metrics.csv"
    return len(file.read_text().splitlines()) if file.is_file() else 0


def wait_for(ready: Callable[[], bool], seconds: float) -> None:
    end = time.monotonic() + seconds
    while not ready():
        assert time.monotonic() < end
        time.sleep(0.1)
