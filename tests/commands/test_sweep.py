"""`fourfold sweep` and `seeds`: grids, tables, parallel runs, failures, killed commands."""

import json
import math
import os
import random
import signal
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from PIL import Image
from scipy import stats

from fourfold.commands import compare_runs, metrics_report, subprocess_runs, sweep
from fourfold.commands.metrics_report import write_metrics
from fourfold.errors import InputError

Run = Callable[..., Any]
CSV = "step,train/loss,val/loss,val/top1\n1,3.0,,\n2,,2.5,0.1\n4,,2.0,0.3\n6,,2.25,0.2\n7,1"


def value_of(name: str, words: list[str]) -> str:
    joined = [word.partition("=")[2] for word in words if word.startswith(f"{name}=")]
    return joined[-1] if joined else words[words.index(name) + 1]


class Trainings:
    """Runs whose test loss is the learning rate, times 1000, plus a number of the seed."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, str]] = []
        self.fails: dict[str, int] = {}  # exit codes by a part of the directory
        self.running, self.most = 0, 0
        self.lock = threading.Lock()

    def noise(self, folder: Path) -> float:
        return random.Random(str(folder)).random()

    def __call__(self, command: str, options: list[str], environment: Any, log: Any) -> int:
        folder = Path(value_of("--run_dir", options))
        with self.lock:
            self.calls.append((command, str(folder)))
            self.running += 1
            self.most = max(self.most, self.running)
        time.sleep(0.02)
        code = next((x for part, x in self.fails.items() if part in str(folder)), 0)
        if command == "test" and not code:
            lr, seed = (value_of(f"--{x}", options) for x in ("model.optimizer.lr", sweep.SEED[2:]))
            metrics = {"test/loss": 1000 * float(lr) + int(seed) + self.noise(folder)}
            metrics |= {"test/confusion": [[1]], "test/bad": math.nan, "test/text": "x"}
            call = " ".join(["fourfold", "test", *options])
            write_metrics(folder / "metrics.json", metrics, {"command": call})
            (folder / "metrics.csv").write_text(CSV)
        with self.lock:
            self.running -= 1
        return code


@pytest.fixture
def trainings(monkeypatch: pytest.MonkeyPatch) -> Trainings:
    found = Trainings()
    monkeypatch.setattr(subprocess_runs, "run", found)
    return found


CALL = ("sweep", "--run_dir", "s", "--config", "vit/tiny")


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("1e-3,3e-3", ["1e-3", "3e-3"]),
        ("1e-3, 3e-3", ["1e-3", "3e-3"]),
        ("1e-3", ["1e-3"]),
        ("[0.9,0.95]", ["[0.9,0.95]"]),
        ("[0.9,0.95],[0.9, 0.99]", ["[0.9,0.95]", "[0.9, 0.99]"]),
        ("[[1,2],[3,4]],[]", ["[[1,2],[3,4]]", "[]"]),
        ("{a: 1, b: [2,3]}", ["{a: 1, b: [2,3]}"]),
        ("{a: 1},{a: 2}", ["{a: 1}", "{a: 2}"]),
        ("'a,b',c", ["a,b", "c"]),
        ('"a,b"', ['"a,b"']),
        ("null,0.1", ["null", "0.1"]),
        ("off,on", ["off", "on"]),
        ("train.{lang}", ["train.{lang}"]),
        ("a],[b", ["a],[b"]),
        ("", [""]),
        ("hello world", ["hello world"]),
    ],
)
def test_values_are_separated_outside_of_brackets(text: str, parts: list[str]) -> None:
    assert sweep.split_values(text) == parts


def test_random_values_survive() -> None:
    generator = random.Random(0)

    def value(depth: int) -> Any:
        if depth == 0 or generator.random() < 0.4:
            return generator.choice(
                [1, -2.5, 1e-7, True, None, "a", "b c", "x,y", "[", "}", "it's"]
            )
        if generator.random() < 0.5:
            return [value(depth - 1) for _ in range(generator.randrange(3))]
        return {f"k{i}": value(depth - 1) for i in range(generator.randrange(3))}

    for _ in range(300):
        values = [value(3) for _ in range(generator.randrange(2, 5))]
        texts = [json.dumps(x) for x in values]
        parts = sweep.split_values(",".join(texts))
        assert [
            json.loads(p) if t[0] != '"' else p for p, t in zip(parts, texts, strict=True)
        ] == values


def test_a_grid_has_all_combinations() -> None:
    words = ["--a.lr", "1,2", "--a.betas=[1,2],[3,4]", "-c", "x.yaml", "--flag", "--n", "-3,-4"]
    grid = sweep.make_grid(words, {"b.lr": [0.5, "x"], "k": [[1]]})
    assert len(grid) == 16
    assert grid["lr=2,betas=[3,4],n=-3,lr=x"] == [
        *("--a.lr", "2", "--a.betas=[3,4]", "-c", "x.yaml", "--flag", "--n", "-3"),
        *("--b.lr=x", "--k=[1]"),
    ]
    assert sweep.make_grid(["--a", "[1,2]"], {}) == {"": ["--a", "[1,2]"]}
    with pytest.raises(InputError, match="must have different values, got lr=1 twice"):
        sweep.make_grid(["--lr", "1,1"], {})


def test_settings_have_different_directories() -> None:
    settings = ["lr=1e-3", "x=a/b", "x=a_b", "x=a b", "x=[1, 2]", "x=../..", "x=" + 300 * "y"]
    names = list(map(sweep.directory_name, settings))
    assert names[0] == "lr=1e-3"
    assert len(set(names)) == len(names)
    assert all("/" not in name and len(name) < 120 for name in names)


def test_table_and_files_of_a_sweep(here: Path, run: Run, trainings: Trainings) -> None:
    call = [*CALL, "--model.optimizer.lr", "1e-3,3e-3,2e-3", "--seeds", "0,1,4"]
    result = run(*call)
    assert result.code == 0, result.err
    assert len(trainings.calls) == 18
    assert trainings.most == 1
    content = json.loads((here / "s/sweep.json").read_text())
    losses = {
        lr: np.array(
            [1000 * lr + s + trainings.noise(Path(f"s/lr={text}/seed_{s}")) for s in (0, 1, 4)]
        )
        for lr, text in ((0.001, "1e-3"), (0.003, "3e-3"), (0.002, "2e-3"))
    }
    for (lr, values), (name, found) in zip(
        losses.items(), content["settings"].items(), strict=True
    ):
        assert name == f"lr={'%g' % (lr * 1000)}e-3"
        assert list(found) == ["val/loss", "val/top1", "test/loss", "test/bad"]
        assert (found["val/loss"]["mean"], found["val/top1"]["best"]) == (2.0, 0.3)
        entry = found["test/loss"]
        assert entry["seeds"] == dict(zip("014", values, strict=True))
        assert entry["mean"] == pytest.approx(values.mean())
        assert entry["std"] == pytest.approx(values.std(ddof=1))
        assert entry["best"] == values.min()
        if lr == 0.001:
            assert "difference" not in entry
            continue
        change = values - losses[0.001]
        assert entry["difference"] == pytest.approx(change.mean())
        test = stats.ttest_rel(values, losses[0.001]).confidence_interval()
        assert entry["interval"] == pytest.approx([test.low, test.high], rel=1e-7)
        assert "interval" not in found["test/bad"]
        table = result.out[result.out.index("test/loss") :].splitlines()
        line = next(x for x in table if name in x)
        assert f"{change.mean():+.4g}" in line
        assert f"{test.low:+.4g}"[:6] in line
    with Image.open(here / "s/sweep.png") as picture:
        assert picture.size[0] >= 900
    # Another start repeats nothing and gives the same file.
    assert run(*call).code == 0
    assert len(trainings.calls) == 18
    again = json.loads((here / "s/sweep.json").read_text())
    assert again["settings"] == content["settings"]
    # Further values and seeds use the complete runs.
    assert run(*call[:-3], "1e-3,3e-3,2e-3,4e-3", "--seeds", "0,1,4,7").code == 0
    assert len(trainings.calls) == 18 + 2 * (3 + 4)


def test_runs_in_parallel_give_the_same(here: Path, run: Run, trainings: Trainings) -> None:
    call = [*CALL, "--model.optimizer.lr", "1e-3,3e-3", "--seeds", "0,1,2"]
    assert run(*call).code == 0
    one = json.loads((here / "s/sweep.json").read_text())["settings"]
    subprocess.run(["rm", "-r", "s"], check=True)
    result = run(*call, "--jobs", "4")
    assert result.code == 0
    assert result.err.count(": complete\n") == 6
    assert json.loads((here / "s/sweep.json").read_text())["settings"] == one
    assert 2 <= trainings.most <= 4


def test_a_failed_run_does_not_stop_the_others(here: Path, run: Run, trainings: Trainings) -> None:
    call = [*CALL, "--model.optimizer.lr", "1e-3,3e-3", "--seeds", "0,1,2"]
    trainings.fails = {"lr=3e-3/seed_1": 3, "lr=1e-3/seed_2": 1}
    result = run(*call)
    assert result.code == 1
    assert "lr=3e-3/seed_1: failed with exit code 3" in result.err
    assert len(trainings.calls) == 2 * 4 + 2
    settings = json.loads((here / "s/sweep.json").read_text())["settings"]
    first, second = (settings[f"lr={x}e-3"]["test/loss"] for x in (1, 3))
    assert (list(first["seeds"]), list(second["seeds"])) == (["0", "1"], ["0", "2"])
    paired = second["seeds"]["0"] - first["seeds"]["0"]  # the only seed of both
    assert second["difference"] == pytest.approx(paired)
    assert "interval" not in second
    trainings.fails = {}
    del trainings.calls[:]
    assert run(*call).code == 0
    assert trainings.calls == [
        (command, f"s/{name}")
        for name in ("lr=1e-3/seed_2", "lr=3e-3/seed_1")
        for command in ("fit", "test")
    ]
    # `seeds` stops after a failure, and writes nothing.
    trainings.fails = {"seed_1": 3}
    result = run("seeds", *CALL[1:2], "t", *CALL[3:], "--model.optimizer.lr", "1e-3")
    assert (result.code, len(trainings.calls)) == (3, 4 + 3)
    assert not (here / "t/seeds.json").exists()


def test_a_stopped_run_stops_the_sweep(here: Path, run: Run, trainings: Trainings) -> None:
    trainings.fails = {"lr=1e-3/seed_0": 3, "lr=1e-3/seed_1": 75}
    assert run(*CALL, "--model.optimizer.lr", "1e-3,3e-3").code == 75
    assert len(trainings.calls) == 2
    assert not (here / "s/sweep.json").exists()


def test_the_file_of_a_wandb_sweep(here: Path, run: Run, trainings: Trainings) -> None:
    utils = pytest.importorskip("wandb.sdk.launch.sweeps.utils")
    space = {
        "method": "grid",
        "metric": {"name": "val/loss", "goal": "minimize"},
        "parameters": {
            "model.optimizer.lr": {"values": [1e-3, "3e-3"]},
            "model.optimizer.betas": {"values": [[0.9, 0.95], [0.9, 0.99]]},
            "seed_everything": {"values": [2, 3]},
            "trainer.max_steps": {"value": 5},
        },
        "command": ["fourfold", "fit", "${args}"],
    }
    (here / "space.yaml").write_text(yaml.safe_dump(space, sort_keys=False))
    assert run(*CALL, "--space", "space.yaml").code == 0
    assert len(trainings.calls) == 2 * 2 * 2 * 2
    settings = json.loads((here / "s/sweep.json").read_text())["settings"]
    assert list(settings) == [
        f"lr={lr},betas=[0.9, {b}]" for lr in ("0.001", "3e-3") for b in (0.95, 0.99)
    ]
    assert list(settings["lr=0.001,betas=[0.9, 0.95]"]["test/loss"]["seeds"]) == ["2", "3"]
    # The agent of W&B gives the same words as the sweep.
    args = {
        "model.optimizer.lr": 1e-3,
        "model.optimizer.betas": [0.9, 0.95],
        "trainer.max_steps": 5,
    }
    words = utils.create_sweep_command_args({"args": {k: {"value": x} for k, x in args.items()}})
    assert (
        next(iter(sweep.make_grid([], {k: [x] for k, x in args.items()}).values())) == words["args"]
    )
    for text, message in (
        (
            "method: bayes\nparameters: {a: {values: [1]}}",
            "method must be one of grid, got 'bayes'",
        ),
        ("method: grid\nparameters: {a: {min: 1}}", "space.yaml: the content is invalid: 'value'"),
        ("a: 1\nb: [", "space.yaml:2: "),
        ("method: grid", "space.yaml: the content is invalid: 'parameters'"),
    ):
        (here / "space.yaml").write_text(text)
        result = run(*CALL, "--space", "space.yaml")
        assert result.code == 2
        assert message in result.err


def test_bad_input_is_reported_before_a_run(here: Path, run: Run, trainings: Trainings) -> None:
    for words, message in (
        (["--model.optimizer.lrx", "1,2"], "did you mean model.optimizer.lr?"),
        (["--model.optimizer.lr", "1,1"], "lr=1 twice"),
        (["--seed_everything", "1,2"], "use --seeds"),
        (["--config", "vit/tiny,vit/tinny"], "tinny"),
    ):
        result = run(*CALL, *words)
        assert (result.code, result.err.count("\n")) == (2, 1), result.err
        assert message in result.err
    for command in ("sweep", "seeds"):  # without a config
        for words, message in (
            ([], "--model must be given"),
            (["--model.class_path", "CausalLanguageModeling"], "--data must be given"),
        ):
            result = run(command, *CALL[1:3], "--seeds=", *words)
            assert (result.code, result.err.count("\n")) == (2, 1), result.err
            assert message in result.err
    assert (trainings.calls, list(here.iterdir())) == ([], [])


def test_bounds_equal_those_of_scipy() -> None:
    from fourfold.metrics.significance import mean_interval

    for n in (2, 3, 5, 9, 10, 11, 40):
        values = np.random.default_rng(n).normal(size=n)
        expected = stats.t.interval(0.95, n - 1, values.mean(), stats.sem(values))
        assert mean_interval(values.tolist()) == pytest.approx(expected, rel=1e-7)


@pytest.mark.slow
def test_seeds_summarises_all_runs(run: Run, configs: dict[str, Path], here: Path) -> None:
    call = ["seeds", "--seeds", "3,5", "--run_dir", "s", "--config", configs["classes"]]
    result = run(*call)
    assert result.code == 0, result.err
    summary = json.loads((here / "s/seeds.json").read_text())
    each = {s: json.loads((here / f"s/seed_{s}/metrics.json").read_text()) for s in (3, 5)}
    assert yaml.safe_load((here / "s/seed_5/config.yaml").read_text())["seed_everything"] == 5
    for name in ("test/accuracy", "test/loss"):
        values = [each[s][name] for s in (3, 5)]
        entry = summary[name]
        assert entry["seeds"] == {"3": values[0], "5": values[1]}
        assert entry["mean"] == pytest.approx(sum(values) / 2)
        assert entry["std"] == pytest.approx(abs(values[0] - values[1]) / 2**0.5)
        assert entry["best"] == (min if name == "test/loss" else max)(values)
    assert len(set(summary["test/loss"]["seeds"].values())) == 2  # they do differ
    before = (here / "s/seed_3/metrics.json").stat().st_mtime_ns
    assert run(*call).code == 0
    assert (here / "s/seed_3/metrics.json").stat().st_mtime_ns == before  # not done again
    result = run(*call, "--trainer.max_steps", 9)
    assert (result.code, "the metrics are those of" in result.err) == (2, True)


def test_seeds_stops_if_a_config_is_edited(
    run: Run, configs: dict[str, Path], here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = here / "c.yaml"
    config.write_text(configs["classes"].read_text())
    commands = []

    def train(command: str, options: Any, *more: Any, **log: Any) -> int:
        commands.append(command)
        config.write_text(config.read_text() + "ema_decay: 0.5\n")
        return 0

    monkeypatch.setattr(subprocess_runs, "run", train)
    result = run("seeds", "--seeds", "0,1", "--run_dir", "s", "--config", config)
    assert (result.code, commands) == (2, ["fit"])
    assert "c.yaml: the config has changed since this command started" in result.err


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--seeds", "1,x", "--run_dir", "s"], "--seeds must be different integers such as 0,1,2"),
        (["--seeds", "1,1", "--run_dir", "s"], "--seeds must be different integers"),
        (["--seeds", "1"], "--run_dir must be given"),
        (["--run_dir", "s", "--seed_everything", "3"], "use --seeds"),
    ],
)
def test_invalid_seeds_are_rejected(
    options: list[str], message: str, run: Run, configs: dict[str, Path], here: Path
) -> None:
    result = run("seeds", *options, "--config", configs["classes"])
    assert result.code == 2
    assert message in result.err


# Stands for `python -m fourfold fit|test`: a training of ten steps, which saves each of them.
CHILD = """
import fcntl, json, pathlib, shlex, signal, sys, time
command, *words = sys.argv[3:]
options = dict(zip(words[::2], words[1::2]))
folder = pathlib.Path(options["--run_dir"])
folder.mkdir(parents=True, exist_ok=True)
file = folder / "steps"
if command == "fit":
    lock = open(folder / ".lock", "w")
    fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    for number, code in ((signal.SIGTERM, 75), (signal.SIGINT, 130)):
        signal.signal(number, lambda *_, code=code: sys.exit(code))
    for step in range(len(file.read_text()) if file.exists() else 0, 10):
        time.sleep(0.1)
        with file.open("a") as opened:
            opened.write(str(step))
else:
    loss = 1000 * float(options["--model.optimizer.lr"]) + int(options["--seed_everything"])
    content = {"test/loss": loss, "run": {"command": shlex.join(["fourfold", command, *words])}}
    content["steps"] = int(file.read_text() == "0123456789")
    (folder / "metrics.json").write_text(json.dumps(content))
"""


def start(folder: Path, name: str) -> "subprocess.Popen[bytes]":
    """`fourfold sweep` in a process of its own, whose trainings are those of CHILD."""
    (folder / "child.py").write_text(f"#!{sys.executable}\n{CHILD}")
    (folder / "child.py").chmod(0o700)
    call = [*CALL[:2], name, *CALL[3:], "--model.optimizer.lr", "1e-3,3e-3", "--jobs", "2"]
    text = f"import sys; sys.executable = './child.py'; from fourfold.cli import main; main({call})"
    text = text.replace("main([", "sys.exit(main([") + ")"
    return subprocess.Popen([sys.executable, "-c", text], cwd=folder, start_new_session=True)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_killed_sweep_gives_the_same_table(here: Path) -> None:
    assert start(here, "a").wait() == 0

    def n_steps() -> int:
        return sum(len(file.read_text()) for file in here.glob("b/*/*/steps"))

    for kill in ("alone", "group", signal.SIGINT, signal.SIGTERM):
        if kill == signal.SIGINT:  # a training whose sweep was killed alone goes on
            for run in here.glob("b/*/seed_?"):
                subprocess_runs.wait_until_unlocked(run, 60)
        before, process = n_steps(), start(here, "b")
        while n_steps() < before + 4:
            assert process.poll() is None
            time.sleep(0.02)
        if kill == "group":
            os.killpg(process.pid, signal.SIGKILL)
        elif kill == signal.SIGINT:
            os.killpg(process.pid, kill)  # as the terminal does
        else:
            process.send_signal(signal.SIGKILL if kill == "alone" else kill)  # type: ignore[arg-type]
        code = process.wait()
        assert code == -signal.SIGKILL or subprocess_runs.is_stop(code)
        if kill in (signal.SIGINT, signal.SIGTERM):  # no child is left
            assert not any(sweep.RunDirectory(run).is_locked() for run in here.glob("b/*/seed_?"))
    assert start(here, "b").wait() == 0
    a, b = (json.loads((here / name / "sweep.json").read_text())["settings"] for name in "ab")
    assert a == b
    assert a["lr=3e-3"]["steps"]["seeds"] == {"0": 1.0, "1": 1.0, "2": 1.0}  # each step once
    assert a["lr=3e-3"]["test/loss"]["difference"] == pytest.approx(2.0)


def test_signals_stop_all_subprocesses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subprocess_runs, "GRACE_SECONDS", 0.1)
    popen = subprocess.Popen
    for number in (signal.SIGTERM, signal.SIGINT):
        running = []

        def begin(call: object, **options: Any) -> Any:
            running.append(popen(["sleep", "60"]))  # noqa: B023
            return running[-1]  # noqa: B023

        monkeypatch.setattr(subprocess_runs.subprocess, "Popen", begin)
        runs = [sweep.Run(str(i), i, tmp_path / f"r{i}", []) for i in range(4)]
        timer = threading.Timer(0.5, os.kill, (os.getpid(), number))
        timer.start()
        codes = sweep.run_all(runs, 2, stops=False)
        assert len(running) == 2
        assert sorted(codes) == [0, 0, 143, 143]
        assert all(child.poll() == -signal.SIGTERM for child in running)


def test_statistics_of_values_that_are_not_finite() -> None:
    results = {0: {"loss": 1.0, "top1": math.inf}, 1: {"loss": 3.0, "top1": 0.5}}
    summary = compare_runs.summarise(results)
    assert (summary["loss"]["best"], summary["top1"]["best"]) == (1.0, math.inf)
    assert summary["loss"]["std"] == pytest.approx(statistics.stdev([1.0, 3.0]))
    assert math.isnan(summary["top1"]["std"])
    assert summary["top1"]["mean"] == math.inf
    settings = {
        "a": summary,
        "b": compare_runs.summarise({0: {"top1": math.inf}, 1: {"top1": 1.0}}),
    }
    compare_runs.add_differences(settings)
    assert math.isnan(settings["b"]["top1"]["difference"])  # inf - inf
    for values in ([math.nan, 0.5, 0.4], [0.5, 0.4, math.nan]):
        assert compare_runs.best("loss", values) == 0.4


def test_a_metric_that_a_seed_lacks(capsys: pytest.CaptureFixture[str]) -> None:
    summary = compare_runs.summarise({0: {"x": 0.25}, 1: {"y": 0.5}, 2: {"x": 0.75}})
    assert summary["x"]["seeds"] == {"0": 0.25, "2": 0.75}
    metrics_report.show_seeds(summary, "three seeds")
    cells = {
        line.split()[1]: line.split("│")[5:8]
        for line in capsys.readouterr().out.splitlines()
        if line[:1] == "│"
    }
    assert [cell.strip() for cell in cells["x"]] == ["0.2500", "nan", "0.7500"]
    assert [cell.strip() for cell in cells["y"]] == ["nan", "0.5000", "nan"]


def test_long_settings_are_shown_completely(capsys: pytest.CaptureFixture[str]) -> None:
    name = ",".join(f"option_{i}=1e-{i}" for i in range(12))
    metrics_report.show_rows("", ("metric", "mean"), {name: ["1"]})
    shown = "".join(
        line.split("│")[1].strip()
        for line in capsys.readouterr().out.splitlines()
        if line[:1] == "│"
    )
    assert shown == name


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_the_wait_for_a_lock(
    number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subprocess_runs.RunDirectory, "is_locked", lambda _: True)
    timer = threading.Timer(0.5, os.kill, (os.getpid(), number))
    timer.start()
    with subprocess_runs.forwarded_signals():
        subprocess_runs.wait_until_unlocked(tmp_path, limit=20)
