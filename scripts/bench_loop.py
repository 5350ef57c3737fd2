"""Benchmark of training steps: `fourfold fit` against a plain Trainer and a plain loop.

    python scripts/bench_loop.py [--rounds 7] [--steps 30] [--probe] [--out DIR]

The same causal LM trains on the same batches with one thread, bf16 autocast and gradient clipping,
in three ways that are measured in interleaved rounds: a loop of ten lines, a LightningModule of ten
lines in a Trainer without callbacks and loggers, and `fourfold fit` with normalization over
micro-batches, checks for non-finite losses, a seed for each step, resumable data order and logging.
A tiny model shows the overhead of a step. The time to save a checkpoint is compared between
Lightning's CheckpointIO and fourfold's, which waits for the disk. DIR receives loop.json. With
--probe, the cost of `AttentionProbe` is measured instead, and DIR receives probe.json.
"""

import argparse
import itertools
import json
import os
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))
os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch  # noqa: E402
from lightning import Callback, LightningModule, Trainer  # noqa: E402
from lightning.fabric.plugins.io.torch_io import TorchCheckpointIO  # noqa: E402

from fourfold.callbacks.checkpointing.atomic_io import AtomicCheckpointIO  # noqa: E402
from fourfold.checkpoints.files import read_file  # noqa: E402
from fourfold.cli import main as fourfold  # noqa: E402
from fourfold.data import CausalTextData  # noqa: E402
from fourfold.models import CausalLMConfig  # noqa: E402
from fourfold.optim import OptimizerConfig  # noqa: E402
from fourfold.schedules import ScheduleConfig  # noqa: E402
from fourfold.tasks import CausalLanguageModeling  # noqa: E402

# Width, layers, tokens per row and rows. A step of "large" takes about 200 ms.
SHAPES = {"large": (384, 6, 128, 2), "tiny": (32, 1, 32, 2)}
N_WARMUP = 2  # steps that are not measured
GRADIENT_CLIP = 1.0
PROBE_STEPS = 8  # steps between two measurements of the probe


class Clock(Callback):
    """Records the time at the end of each training batch; the CLI creates the instance."""

    times: list[float] = []  # noqa: RUF012  (shared)
    clock = staticmethod(time.perf_counter)

    def on_train_batch_end(self, *arguments: Any) -> None:
        self.times.append(self.clock())


def recipe(shape: tuple[int, int, int, int]) -> tuple[CausalLanguageModeling, CausalTextData]:
    width, layers, length, rows = shape
    torch.manual_seed(0)
    config = CausalLMConfig(
        d_model=width,
        n_layers=layers,
        n_heads=width // 32,
        d_ff=4 * width,
        vocab_size=None,
        max_len=length,
    )
    task = CausalLanguageModeling(config, OptimizerConfig(), ScheduleConfig())
    return task, CausalTextData(block_size=length, batch_size=rows)


def plain_loop(shape: tuple[int, int, int, int], steps: int, folder: Path) -> list[float]:
    """Train with a loop of ten lines; return the time after each step."""
    task, data = recipe(shape)
    task.config = type(task.config)(**{**vars(task.config), "vocab_size": data.vocab_size})
    task.configure_model()
    weights = list(task.parameters())
    optimizer = torch.optim.AdamW(weights, lr=1e-3, weight_decay=0.01, fused=True)
    times = [time.perf_counter()]
    for number, batch in enumerate(endless(data)):
        if number == steps:
            return times
        with torch.autocast("cpu", torch.bfloat16):
            total, count = task.step(batch)
        (total / count).backward()
        torch.nn.utils.clip_grad_norm_(weights, GRADIENT_CLIP)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        times.append(time.perf_counter())
    raise AssertionError("the loader is endless")


def endless(data: CausalTextData) -> Iterator[Any]:
    loader = data.train_dataloader()
    while True:
        yield from loader


class PlainModule(LightningModule):
    """LightningModule of ten lines."""

    def __init__(self, task: CausalLanguageModeling) -> None:
        super().__init__()
        self.task = task

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        total, count = self.task.step(batch)
        return total / count

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.task.parameters(), lr=1e-3, weight_decay=0.01, fused=True)

    def configure_gradient_clipping(self, *arguments: Any, **options: Any) -> None:
        torch.nn.utils.clip_grad_norm_(
            self.task.parameters(), GRADIENT_CLIP
        )  # Lightning rejects fused optimizers


def plain_lightning(shape: tuple[int, int, int, int], steps: int, folder: Path) -> list[float]:
    """Train with a Trainer without callbacks and loggers; return the time after each step."""
    task, data = recipe(shape)
    task.config = type(task.config)(**{**vars(task.config), "vocab_size": data.vocab_size})
    task.configure_model()
    Clock.times.clear()
    Trainer(
        max_steps=steps,
        accelerator="cpu",
        precision="bf16-mixed",
        gradient_clip_val=GRADIENT_CLIP,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        callbacks=[Clock()],
        enable_model_summary=False,
        use_distributed_sampler=False,
        default_root_dir=folder,
    ).fit(PlainModule(task), data.train_dataloader())
    return list(Clock.times)


def fourfold_fit(
    shape: tuple[int, int, int, int], steps: int, folder: Path, *options: str
) -> list[float]:
    """Train with `fourfold fit` and further options; return the time after each step."""
    width, layers, length, rows = shape
    sizes = {
        "d_model": width,
        "n_layers": layers,
        "n_heads": width // 32,
        "d_ff": 4 * width,
        "vocab_size": "null",
        "max_len": length,
    }
    Clock.times.clear()
    with tempfile.TemporaryDirectory(dir=folder) as run:
        code = fourfold(
            [
                *(
                    "fit",
                    "--model=CausalLanguageModeling",
                    "--data=CausalTextData",
                    "--run_dir",
                    run,
                ),
                *(f"--model.config.{name}={value}" for name, value in sizes.items()),
                *(f"--data.block_size={length}", f"--data.batch_size={rows}"),
                *(
                    f"--trainer.max_steps={steps}",
                    "--trainer.limit_val_batches=0",
                    "--log_samples=false",
                ),
                *("--trainer.accelerator=cpu", "--trainer.precision=bf16-mixed"),
                *(f"--trainer.gradient_clip_val={GRADIENT_CLIP}", "--checkpoint.every_n_epochs=0"),
                "--trainer.callbacks+=scripts.bench_loop.Clock",
                *options,
            ]
        )
    assert code == 0
    return list(Clock.times)


@contextmanager
def quiet() -> Iterator[None]:
    with redirect_stdout(StringIO()):
        yield


METHODS = {
    "plain loop": plain_loop,
    "plain Lightning": plain_lightning,
    "fourfold fit": fourfold_fit,
}


def step_times(times: list[float]) -> list[float]:
    """Return the milliseconds of each step after the warmup."""
    pairs = list(itertools.pairwise(times))[N_WARMUP:]
    return [1000 * (after - before) for before, after in pairs]


def measure(name: str, rounds: int, steps: int, folder: Path) -> dict[str, Any]:
    """Measure the median step of each method in each round, and the ratios."""
    medians: dict[str, list[float]] = {method: [] for method in METHODS}
    for number in range(rounds):
        for method in random.Random(number).sample(list(METHODS), len(METHODS)):
            with quiet():
                times = METHODS[method](SHAPES[name], steps, folder)
            medians[method].append(statistics.median(step_times(times)))
        print(
            name, {method: round(values[-1], 2) for method, values in medians.items()}, flush=True
        )
    result: dict[str, Any] = {"ms": {method: spread(values) for method, values in medians.items()}}
    for method in ("plain Lightning", "fourfold fit"):
        pairs = list(zip(medians[method], medians["plain loop"], strict=True))
        result[f"{method} / plain loop"] = spread([a / b for a, b in pairs])
        result[f"{method} - plain loop, ms"] = spread([a - b for a, b in pairs])
    return result


def probe(name: str, rounds: int, folder: Path) -> dict[str, Any]:
    """Measure the time that `AttentionProbe` adds to validations, interleaved with none.

    A validation of one batch follows every `PROBE_STEPS` steps. The first one with the probe also
    writes the page of attention maps; the later ones measure only. All times are CPU times, which
    do not depend on other processes.
    """
    options = ["--trainer.limit_val_batches=1", f"--trainer.val_check_interval={PROBE_STEPS}"]
    added = "--trainer.callbacks+=fourfold.callbacks.monitoring.attention_probe.AttentionProbe"
    pauses: dict[bool, list[list[float]]] = {False: [], True: []}
    Clock.clock = staticmethod(time.process_time)
    steps = []
    for number in range(rounds):
        for has_probe in random.Random(number).sample([False, True], 2):
            given = [*options, added] if has_probe else options
            with quiet():
                times = fourfold_fit(SHAPES[name], 3 * PROBE_STEPS + 1, folder, *given)
            found = [1000 * (after - before) for before, after in itertools.pairwise(times)]
            pauses[has_probe].append(found[PROBE_STEPS - 1 :: PROBE_STEPS])
            steps.append(statistics.median(found))
        print(name, pauses[False][-1], pauses[True][-1], flush=True)
    pairs = list(zip(pauses[True], pauses[False], strict=True))
    page = [one[0] - other[0] for one, other in pairs]
    measured = [statistics.mean(one[1:]) - statistics.mean(other[1:]) for one, other in pairs]
    step = statistics.median(steps)
    return {
        "step, ms": spread(steps),
        "first measurement with page, ms": spread(page),
        "later measurement, ms": spread(measured),
        "steps between validations for 1 %": 100 * statistics.median(measured) / step,
        "steps of training for 1 % with the page": 100 * statistics.median(page) / step,
    }


def spread(values: list[float]) -> dict[str, float]:
    """Return median, minimum and maximum."""
    found = {"median": statistics.median(values), "least": min(values), "greatest": max(values)}
    return {name: round(value, 4) for name, value in found.items()}


def checkpoints(rounds: int, folder: Path) -> dict[str, Any]:
    """Measure the seconds to save a checkpoint of 240 MB with both CheckpointIOs, interleaved."""
    weights = {str(i): torch.randn(1_000_000) for i in range(60)}
    plugins = {"Lightning": TorchCheckpointIO(), "fourfold": AtomicCheckpointIO(read_file)}
    seconds: dict[str, list[float]] = {name: [] for name in plugins}
    for _ in range(rounds):
        for name, io in plugins.items():
            began = time.perf_counter()
            io.save_checkpoint({"state_dict": weights}, folder / f"{name}.ckpt")
            seconds[name].append(time.perf_counter() - began)
    pairs = zip(seconds["fourfold"], seconds["Lightning"], strict=True)
    return {
        "MB": 240,
        "seconds": {name: spread(found) for name, found in seconds.items()},
        "fourfold / Lightning": spread([a / b for a, b in pairs]),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rounds", type=int, default=7, help="measurements of each method")
    parser.add_argument("--steps", type=int, default=30, help="steps of one measurement")
    parser.add_argument("--out", type=Path, help="directory for loop.json")
    parser.add_argument("--probe", action="store_true", help="measure AttentionProbe instead")
    options = parser.parse_args()
    found: dict[str, Any] = {"machine": machine()}
    file = "probe.json" if options.probe else "loop.json"
    with tempfile.TemporaryDirectory() as name:
        for shape, more in (("large", 1), ("tiny", 8)):
            if options.probe:
                found[shape] = probe(shape, options.rounds, Path(name))
            else:
                found[shape] = measure(shape, options.rounds, options.steps * more, Path(name))
        if not options.probe:
            found["checkpoint"] = checkpoints(options.rounds, Path(name))
    text = json.dumps(found, indent=1)
    print(text)
    if options.out:
        options.out.mkdir(parents=True, exist_ok=True)
        (options.out / file).write_text(text + "\n")
    return 0


def machine() -> str:
    """Describe processor, threads and version of torch."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    name = next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), "")
    return f"{name}, {torch.get_num_threads()} thread, torch {torch.__version__}"


if __name__ == "__main__":
    from scripts.bench_loop import main as run  # the CLI imports `Clock` by this name

    sys.exit(run())
