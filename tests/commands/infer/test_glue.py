"""`fourfold evaluate glue`: table, control, resuming, changed checkpoints and bad input."""

import gzip
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

import fourfold
from fourfold import cli
from fourfold.commands import subprocess_runs, sweep
from fourfold.commands.infer import glue
from tests.commands.conftest import WORDS
from tests.commands.infer.test_score import build

Run = Callable[..., Any]
SHORT = ("--trainer.max_steps=2", "--data.max_len=16", "--trainer.accelerator=cpu")
SHORT += ("--tensorboard=false", "--log_samples=false", "--data.batch_size=8")
COLA = {"train": "1110110101", "dev": "1101001"}  # labels: most are 1
MRPC = {"train": "0111011", "dev": "10110101"}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with CoLA, compressed and without a header, MRPC, RTE and a STS-B without dev."""
    for task in ("CoLA", "MRPC", "RTE", "STS-B"):
        (tmp_path / "glue" / task).mkdir(parents=True)

    def text(i: int) -> str:
        return " ".join(WORDS[(i * k) % 10] for k in (1, 3, 7))

    for split, labels in COLA.items():
        lines = [f"source\t{label}\t\t{text(i)}\n" for i, label in enumerate(labels)]
        with gzip.open(tmp_path / "glue/CoLA" / f"{split}.tsv.gz", "wt") as file:
            file.writelines(lines)
    header = "Quality\t#1 ID\t#2 ID\t#1 String\t#2 String\n"
    for split, labels in MRPC.items():
        lines = [f"{x}\t1\t2\t{text(i)}\t{text(i + 1)}\n" for i, x in enumerate(labels)]
        (tmp_path / "glue/MRPC" / f"{split}.tsv").write_text(header + "".join(lines), "utf-8-sig")
    row = "0\tone two\tthree\tentailment\n"
    (tmp_path / "glue/RTE/train.tsv").write_text("index\tsentence1\tsentence2\tlabel\n" + row)
    (tmp_path / "glue/RTE/dev.tsv").write_text("index\tsentence1\tsentence2\tlabel\n1\ta\tb\tno\n")
    (tmp_path / "glue/STS-B/train.tsv").write_text("sentence1\tsentence2\tscore\none\ttwo\t2.5\n")
    return tmp_path / "glue"


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The runs that the command starts, such as "fit MRPC 0", in this process and not in others.

    A run "stop" at the beginning stops the run after it.
    """
    found: list[str] = []

    def start(command: str, options: list[str], environment: object, log: None) -> int:
        seed, folder = options[-1], Path(options[options.index("--run_dir") + 1])
        found.append(f"{command} {folder.parent.name} {seed}")
        if found[0] == "stop" and len(found) == 4:
            return 128 + signal.SIGTERM
        return cli.main([command, *options])

    monkeypatch.setattr(subprocess_runs, "run", start)
    return found


def f1(confusion: list[list[int]]) -> float:
    (_, fp), (fn, tp) = confusion
    return 2 * tp / (2 * tp + fp + fn)


def test_masked_and_causal_models_are_compared(
    folder: Path, trained: Callable[[str], Path], run: Run, runs: list[str], tmp_path: Path
) -> None:
    out = tmp_path / "out"
    models = [trained("mlm"), trained("lm")]
    named = [x for path in models for x in ("--checkpoint", path)]
    call = ["evaluate", "glue", folder, *named, "--tasks=MRPC", "--seeds=3", "--out", out]
    result = run(*call, *SHORT)
    assert result.code == 0, result.err
    content = json.loads((out / "metrics.json").read_text())
    row = content["tasks"][0]
    for letter, task, path in zip("AB", ("", "Causal"), models, strict=True):
        name, *recipe = content["models"][letter]
        assert recipe[-1] == str(path)
        assert f"{letter}: {' '.join(recipe)}" in result.out
        folder_of_run = out / name / "MRPC/seed_3"
        confusion = json.loads((folder_of_run / "metrics.json").read_text())["test/confusion"]
        assert [sum(x) for x in confusion] == [MRPC["dev"].count(x) for x in "01"]
        assert row[f"{letter} seeds"] == pytest.approx([100 * f1(confusion)])
        # The recipe of each checkpoint, its architecture and tokenizer, and the user's options.
        config = yaml.safe_load((folder_of_run / "config.yaml").read_text())
        assert config["model"]["class_path"] == f"fourfold.tasks.{task}SequenceClassification"
        assert config["data"]["init_args"]["max_len"] == 16
        assert config["model"]["init_args"]["optimizer"]["lr"] == 5e-5
        assert config["seed_everything"] == 3
        tuned, source = fourfold.load(folder_of_run), fourfold.load(path)
        assert tuned.config.d_model == source.config.d_model
        assert tuned.tokenizer.vocabulary == source.tokenizer.vocabulary  # type: ignore[union-attr]
    # Another start, with the checkpoints in another order, trains nothing.
    assert len(runs) == 4
    again = run(*call[:3], *named[2:], *named[:2], *call[-4:], *SHORT)
    assert (again.code, len(runs)) == (0, 4), again.err
    swapped = json.loads((out / "metrics.json").read_text())["tasks"][0]
    assert (swapped["A"], swapped["B"]) == (row["B"], row["A"])


def test_means_deviations_and_differences(
    folder: Path,
    trained: Callable[[str], Path],
    run: Run,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    scores = {
        "CoLA": {"mlm": (0.1, 0.3), "lm": (0.2, 0.6)},
        "MRPC": {"mlm": (0.8, 0.4), "lm": (0.8, 0.4)},
    }

    def train(argv: list[str]) -> int:
        assert argv[0] == "seeds"
        given = {name: argv[argv.index(name) + 1] for name in argv if name.startswith("--")}
        task, out = given["--data.task"], Path(given["--run_dir"])
        values = scores[task][Path(given["--model.init_from"]).name]
        out.mkdir(parents=True)
        by_seed = {"seeds": dict(zip("01", values, strict=True))}
        other = {"seeds": {"0": 1.0, "1": 1.0}}
        content = {"test/accuracy": other, "test/f1": other, "test/mcc": other}
        content["test/mcc" if task == "CoLA" else "test/f1"] = by_seed
        (out / "seeds.json").write_text(json.dumps(content))
        return 0

    monkeypatch.setattr(sweep, "main", train)
    named = [x for name in ("mlm", "lm") for x in ("--checkpoint", trained(name))]
    out = tmp_path / "out"
    result = run("evaluate", "glue", folder, *named, "--tasks=CoLA,MRPC", "--out", out)
    assert result.code == 0, result.err
    rows = json.loads((out / "metrics.json").read_text())["tasks"]
    mean = rows[-1]
    assert [(row[""], row["metric"]) for row in rows] == [
        ("CoLA", "mcc"),
        ("MRPC", "f1"),
        ("mean of tasks", ""),
    ]
    # Class 1 is the most frequent one in each train.tsv; 5 of the 8 labels in dev.tsv of MRPC.
    constant = 100 * 2 * 5 / (8 + 5)
    assert [row["constant"] for row in rows] == pytest.approx([0.0, constant, constant / 2])
    assert [row["A"] for row in rows] == pytest.approx([20.0, 60.0, 40.0])
    assert [row["B"] for row in rows] == pytest.approx([40.0, 60.0, 50.0])
    assert [row["B-A"] for row in rows] == pytest.approx([20.0, 0.0, 10.0])
    assert mean["A seeds"] == pytest.approx([45.0, 35.0])
    assert mean["A std"] == pytest.approx(statistics.stdev([45.0, 35.0]))
    assert mean["B std"] == pytest.approx(0.0, abs=1e-9)  # the tasks cancel each other
    table = result.out.splitlines()
    assert table[0].split() == ["metric", "constant", "A", "A", "std", "B", "B", "std", "B-A"]
    assert table[1].split() == ["CoLA", "mcc", "0", "20", "14.14", "40", "28.28", "20"]
    assert table[3].split()[-5:] == ["40", "7.071", "50", table[3].split()[-2], "10"]


@pytest.mark.parametrize(
    ("task", "header", "train", "dev", "expected"),
    [
        ("RTE", "sentence1\tsentence2\tlabel", "eenee", "nenn", 25.0),
        ("RTE", "sentence1\tsentence2\tlabel", "nnnee", "nenn", 75.0),
        ("MRPC", "#1 String\t#2 String\tQuality", "000", "0011", 0.0),
        ("STS-B", "sentence1\tsentence2\tscore", "122", "0123", 0.0),
    ],
)
def test_score_of_a_constant_answer(
    task: str, header: str, train: str, dev: str, expected: float, tmp_path: Path
) -> None:
    names = {"e": "entailment", "n": "not_entailment"}
    (tmp_path / task).mkdir()
    for split, labels in (("train", train), ("dev", dev)):
        lines = [f"one\ttwo\t{names.get(label, label)}\n" for label in labels]
        (tmp_path / task / f"{split}.tsv").write_text(f"{header}\n{''.join(lines)}")
    assert glue._constant(task, str(tmp_path))["constant"] == pytest.approx(expected)


def test_a_stopped_command_continues(
    folder: Path, trained: Callable[[str], Path], run: Run, runs: list[str], tmp_path: Path
) -> None:
    source = tmp_path / "model"
    shutil.copytree(trained("mlm"), source)
    call = ["evaluate", "glue", folder, "--checkpoint", source, "--out", tmp_path / "out", *SHORT]
    call += ["--seeds=0", "--tasks=MRPC,CoLA"]
    runs.append("stop")
    assert run(*call).code == 128 + signal.SIGTERM
    assert runs == ["stop", "fit MRPC 0", "test MRPC 0", "fit CoLA 0"]
    assert not (tmp_path / "out/metrics.json").exists()
    runs[:] = []
    assert run(*call).code == 0
    assert runs == ["fit CoLA 0", "test CoLA 0"]
    row = json.loads((tmp_path / "out/metrics.json").read_text())["tasks"][0]
    assert row["A std"] == "nan"  # of one seed
    # A checkpoint with other weights is another model, although its path is the same.
    model = fourfold.load(source)
    next(iter(model.parameters())).data += 1.0
    shutil.rmtree(source)
    fourfold.save(model, source)
    runs[:] = []
    assert run(*call[:-1], "--tasks=CoLA").code == 0
    assert runs == ["fit CoLA 0", "test CoLA 0"]


def test_bad_input_is_reported_before_a_training(
    folder: Path, trained: Callable[[str], Path], run: Run, runs: list[str], tmp_path: Path
) -> None:
    good, bare = ["--checkpoint", trained("mlm")], tmp_path / "bare"
    model = build("masked").float()
    model.tokenizer = None
    fourfold.save(model, bare)
    for arguments, message in (
        ([folder, *good, "--tasks", "CoLA,IMDb"], "task must be"),
        ([tmp_path, *good], f"{tmp_path}/CoLA/train.tsv: there is no such file"),
        ([folder, *good, "--tasks", "STS-B"], "STS-B/dev.tsv: there is no such file"),
        ([folder, *good, "--tasks", "RTE"], "RTE/dev.tsv:2: "),
        ([folder, "--checkpoint", trained("vit")], "must be one of MaskedLM, CausalLM, got 'ViT"),
        (
            [folder, *good, "--checkpoint", trained("mt")],
            "must be one of MaskedLM, CausalLM, got 'Enc",
        ),
        ([folder, "--checkpoint", bare], "got 'MaskedLM without a tokenizer'"),
        ([folder, "--checkpoint", tmp_path / "none"], f"{tmp_path / 'none'}"),
        ([folder], "--checkpoint must be given"),
        ([folder, *good, "--seeds", "0,0"], "--seeds must be different integers"),
        ([folder, *good, "--seed_everything", "1"], "--seed_everything is set by"),
    ):
        tasks = () if "--tasks" in arguments else ("--tasks", "CoLA")
        result = run("evaluate", "glue", *arguments, *tasks, "--out", tmp_path / "out")
        assert (result.code, result.err.count("\n")) == (2, 1), (arguments, result.err)
        assert message in result.err
        assert not (tmp_path / "out").exists()
    assert runs == []


@pytest.mark.slow
def test_sigterm_stops_the_processes(
    folder: Path, trained: Callable[[str], Path], tmp_path: Path
) -> None:
    out = tmp_path / "out"
    call = [sys.executable, "-m", "fourfold", "evaluate", "glue", str(folder), "--seeds=0"]
    call += ["--checkpoint", str(trained("lm")), "--tasks=MRPC,CoLA", "--out", str(out), *SHORT]
    process = subprocess.Popen(call)
    while not (done := [*out.glob("*/MRPC/seed_0/metrics.json")]):
        assert process.poll() is None
        time.sleep(0.1)
    written = os.stat(done[0]).st_mtime_ns
    while not [*out.glob("*/CoLA/seed_0")]:
        assert process.poll() is None
        time.sleep(0.1)
    process.terminate()
    assert subprocess_runs.is_stop(process.wait())
    assert not (out / "metrics.json").exists()
    assert subprocess.run(call, check=True).returncode == 0
    assert os.stat(done[0]).st_mtime_ns == written
    assert len(json.loads((out / "metrics.json").read_text())["tasks"]) == 3
