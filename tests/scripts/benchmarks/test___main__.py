"""Tests of the command line of the benchmarks, and of each workload with tiny models."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from fourfold.cli import run_main
from scripts.benchmarks import memory, train_steps, workers
from scripts.benchmarks.__main__ import main, make_parser, make_settings, measure
from scripts.benchmarks.memory import MeasurementFailed
from scripts.benchmarks.peers.registry import PeerUnavailable
from scripts.benchmarks.report import heading
from scripts.benchmarks.workloads import FAMILIES, SIZES, Settings, Shape

TINY = Settings(size="tiny", peers=("transformers", "timm"), rounds=2)


class InProcessWorker:
    """Replacement of `Worker` that needs no subprocess."""

    def __init__(
        self,
        workload: str,
        contender: str,
        family: str,
        shape: Shape,
        settings: Settings,
        *,
        compile: bool,
    ) -> None:
        job = {
            "workload": workload,
            "contender": contender,
            "family": family,
            "compile": compile,
        }
        self.given = job, shape, settings
        self.peak = 0

    def wait(self) -> None:
        self.step, self.n_parameters = workers.make_step(*self.given)

    def __call__(self) -> None:
        self.step()

    def close(self) -> None:
        pass


@pytest.fixture
def in_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(train_steps, "Worker", InProcessWorker)
    monkeypatch.setattr(workers, "disable_malloc_trim", lambda: True)


@pytest.fixture
def fixed_peak_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace the measurement of memory: peers need 3 MiB, and fail above length 8."""

    def peak_memory(contender: str, family: str, shape: Shape, settings: Settings) -> int:
        if contender != "fourfold" and shape.length > 8:
            raise MeasurementFailed("out of memory")
        return 2**20 * (1 if contender == "fourfold" else 3)

    monkeypatch.setattr(memory, "peak_memory", peak_memory)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--size", "tiy"], "argument --size: invalid choice: 'tiy'"),
        (["--family", "bert"], "argument --family: invalid choice: 'bert'"),
        (["--work", "train", "fit"], "argument --work: invalid choice: 'fit'"),
        (["--peers", "tim"], "argument --peers: invalid choice: 'tim'"),
        (["--precision", "fp16"], "argument --precision: invalid choice: 'fp16'"),
        (["--sise", "tiny"], "unrecognized arguments: --sise tiny"),
        (["--rounds", "0"], "--rounds must be at least 1, got 0"),
        (["--dropout", "1"], "--dropout must be at least 0 and below 1, got 1.0"),
    ],
)
def test_invalid_options_are_rejected(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_main(main, arguments) == 2
    out, err = capsys.readouterr()
    assert message in err
    assert "Traceback" not in err
    assert out == ""


def test_help_describes_every_option(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_main(main, ["--help"]) == 0
    assert capsys.readouterr().out == make_parser().format_help()
    assert all(action.help for action in make_parser()._actions)


@pytest.mark.slow
def test_report_is_printed_and_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "deep" / "bench"
    options = ["--size", "tiny", "--peers", "none", "--rounds", "1", "--device", "cpu"]
    selection = ["--work", "train", "evaluate", "--family", "causal_lm", "vit"]
    assert run_main(main, [*options, *selection, "--out", str(out)]) == 0
    page = (out / "bench.md").read_text()
    assert page in capsys.readouterr().out
    assert page.startswith("# Benchmark, size tiny")
    measurements = json.loads((out / "bench.json").read_text())["measurements"]
    assert [(m["workload"], m["family"]) for m in measurements] == [
        ("train", "causal_lm"),
        ("train", "vit"),
        ("evaluate", "causal_lm"),
        ("evaluate", "vit"),
    ]


@pytest.mark.usefixtures("in_process")
@pytest.mark.parametrize("workload", ["train", "evaluate"])
@pytest.mark.parametrize("family", FAMILIES)
def test_steps_are_measured_relative_to_fourfold(workload: str, family: str) -> None:
    settings = replace(TINY, workloads=(workload,), families=(family,))
    reference, *others = measure(settings)
    assert reference.contender == "fourfold"
    assert reference.ratios == [1.0, 1.0]
    for measurement in [reference, *others]:
        if not measurement.note:
            assert len(measurement.values) == 2
            assert len(measurement.utilization) == 2
            assert min(measurement.utilization) > 0


@pytest.mark.usefixtures("in_process")
def test_peak_memory_of_a_gpu_is_measured_with_the_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("transformers")
    peaks = iter([2.0, 3.0])

    def wait(worker: InProcessWorker) -> None:
        worker.step, worker.n_parameters = workers.make_step(*worker.given)
        worker.peak = int(next(peaks) * 2**20)

    monkeypatch.setattr(InProcessWorker, "wait", wait)
    settings = replace(TINY, families=("causal_lm",), workloads=("train",), peers=("transformers",))
    memory = [m for m in measure(settings) if m.workload == "memory"]
    assert [(m.contender, m.unit, m.values, m.ratios) for m in memory] == [
        ("fourfold", "MiB", [2.0], [1.0]),
        ("transformers", "MiB", [3.0], [1.5]),
    ]
    peaks = iter([2.0, 3.0])
    both = replace(settings, workloads=("train", "memory"))  # the latter measures it then
    steps = train_steps.measure_steps("train", "causal_lm", SIZES["tiny"]["causal_lm"], both)
    assert {m.workload for m in steps} == {"train"}


@pytest.mark.usefixtures("in_process")
def test_peer_that_fails_in_its_second_step_is_unavailable(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pytest.importorskip("transformers")

    def fail(worker: InProcessWorker) -> None:
        if worker.given[0]["contender"] != "fourfold":
            raise PeerUnavailable("out of memory")
        worker.step()

    monkeypatch.setattr(InProcessWorker, "__call__", fail)
    settings = replace(TINY, families=("causal_lm",), workloads=("train",), peers=("transformers",))
    reference, peer = measure(settings)
    assert (len(reference.values), peer.note) == (2, "out of memory")


def test_decoding_is_measured_with_equal_outputs() -> None:
    pytest.importorskip("transformers")
    settings = replace(TINY, workloads=("greedy", "beam"), precision="fp32", rounds=1)
    settings = replace(settings, peers=("transformers",))
    measurements = list(measure(settings))
    assert [m.contender for m in measurements] == ["fourfold", "transformers"] * 5
    assert {m.note for m in measurements} == {"", "100 % of the rows are equal"}
    has_utilization = [bool(m.utilization) for m in measurements]
    one_row, several_rows = [True, True], [False, False]
    assert has_utilization == [*(one_row + several_rows) * 2, *several_rows]


@pytest.mark.usefixtures("fixed_peak_memory")
def test_failed_memory_measurement_gives_a_note() -> None:
    pytest.importorskip("transformers")
    settings = replace(TINY, workloads=("memory",), peers=("transformers", "nanogpt"))
    measurements = list(measure(replace(settings, families=("causal_lm",))))
    assert [(m.contender, m.values, m.note) for m in measurements] == [
        ("fourfold", [1.0], ""),
        ("transformers", (), "out of memory"),
        ("nanogpt", (), "requires --nanogpt FILE"),
    ]


@pytest.mark.parametrize(("flag", "chosen"), [(None, "fp32"), ("amx_bf16", "bf16")])
def test_default_precision_is_the_fast_one(
    flag: str | None,
    chosen: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr("fourfold.core.precision.cpu_flag", lambda: flag)
    settings = make_settings(make_parser().parse_args(["--device", "cpu"]))
    assert settings.precision == chosen
    assert f"--precision auto: {chosen}" in capsys.readouterr().err
    assert f"Precision {chosen}" in heading({}, settings)
