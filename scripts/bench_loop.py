"""What exactness costs: `fourfold fit` against Lightning's Trainer alone and against a bare loop.

    python scripts/bench_loop.py [--rounds 7] [--steps 30] [--out DIR]

The same causal LM takes the same batches, one thread, bf16 autocast, gradients clipped, in three
ways that take turns: a loop of ten lines; a LightningModule of ten lines in a Trainer without
callbacks and loggers; and the whole of `fourfold fit`, which normalises over micro-batches, looks
for losses that are not finite, seeds each step, keeps the place in the data and logs. A second,
tiny model shows what a step costs beside its arithmetic. Then the same checkpoint is written by
Lightning's own CheckpointIO and by ours, which waits for the disk. DIR gets loop.json.
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

from fourfold.callbacks.checkpoint_io import AtomicCheckpointIO  # noqa: E402
from fourfold.cli import main as fourfold  # noqa: E402
from fourfold.data import CausalTextData  # noqa: E402
from fourfold.models import CausalLMConfig  # noqa: E402
from fourfold.optim import OptimizerConfig  # noqa: E402
from fourfold.schedules import ScheduleConfig  # noqa: E402
from fourfold.tasks import CausalLanguageModeling, read_file  # noqa: E402

# Width, layers, tokens of a row, rows: one of about 200 ms a step, and one of next to nothing.
SHAPES = {"large": (384, 6, 128, 2), "tiny": (32, 1, 32, 2)}
WARM = 2  # steps that are not counted
CLIP = 1.0


class Clock(Callback):
    """When each training batch was over."""

    times: list[float] = []  # noqa: RUF012  (of whichever of them the CLI makes)

    def on_train_batch_end(self, *arguments: Any) -> None:
        self.times.append(time.perf_counter())


def recipe(shape: tuple[int, int, int, int]) -> tuple[CausalLanguageModeling, CausalTextData]:
    width, layers, length, rows = shape
    torch.manual_seed(0)
    config = CausalLMConfig(
        d_model=width, n_layers=layers, n_heads=width // 32, d_ff=4 * width, vocab_size=None,
        max_len=length,
    )  # fmt: skip
    task = CausalLanguageModeling(config, OptimizerConfig(), ScheduleConfig())
    return task, CausalTextData(block_size=length, batch_size=rows)


def bare_loop(shape: tuple[int, int, int, int], steps: int, folder: Path) -> list[float]:
    """Ten lines of torch."""
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
        torch.nn.utils.clip_grad_norm_(weights, CLIP)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        times.append(time.perf_counter())
    raise AssertionError("an endless loader has ended")


def endless(data: CausalTextData) -> Iterator[Any]:
    loader = data.train_dataloader()
    while True:
        yield from loader


class Bare(LightningModule):
    """Ten lines of Lightning."""

    def __init__(self, task: CausalLanguageModeling) -> None:
        super().__init__()
        self.task = task

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        total, count = self.task.step(batch)
        return total / count

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.task.parameters(), lr=1e-3, weight_decay=0.01, fused=True)

    def configure_gradient_clipping(self, *arguments: Any, **options: Any) -> None:
        torch.nn.utils.clip_grad_norm_(self.task.parameters(), CLIP)  # Lightning's refuses fused


def bare_lightning(shape: tuple[int, int, int, int], steps: int, folder: Path) -> list[float]:
    """The Trainer, without anything it could do besides."""
    task, data = recipe(shape)
    task.config = type(task.config)(**{**vars(task.config), "vocab_size": data.vocab_size})
    task.configure_model()
    Clock.times.clear()
    Trainer(
        max_steps=steps, accelerator="cpu", precision="bf16-mixed", gradient_clip_val=CLIP,
        logger=False, enable_checkpointing=False, enable_progress_bar=False, callbacks=[Clock()],
        enable_model_summary=False, use_distributed_sampler=False, default_root_dir=folder,
    ).fit(Bare(task), data.train_dataloader())  # fmt: skip
    return list(Clock.times)


def whole_fit(shape: tuple[int, int, int, int], steps: int, folder: Path) -> list[float]:
    """`fourfold fit` as users run it."""
    width, layers, length, rows = shape
    sizes = {"d_model": width, "n_layers": layers, "n_heads": width // 32, "d_ff": 4 * width,
             "vocab_size": "null", "max_len": length}  # fmt: skip
    Clock.times.clear()
    with tempfile.TemporaryDirectory(dir=folder) as run:
        code = fourfold([
            *("fit", "--model=CausalLanguageModeling", "--data=CausalTextData", "--run_dir", run),
            *(f"--model.config.{name}={value}" for name, value in sizes.items()),
            *(f"--data.block_size={length}", f"--data.batch_size={rows}"),
            *(f"--trainer.max_steps={steps}", "--trainer.limit_val_batches=0", "--pictures=false"),
            *("--trainer.accelerator=cpu", "--trainer.precision=bf16-mixed"),
            *(f"--trainer.gradient_clip_val={CLIP}", "--checkpoint.every_n_epochs=0"),
            "--trainer.callbacks+=scripts.bench_loop.Clock",
        ])  # fmt: skip
    assert code == 0
    return list(Clock.times)


@contextmanager
def quiet() -> Iterator[None]:
    with redirect_stdout(StringIO()):
        yield


WAYS = {"bare loop": bare_loop, "bare Lightning": bare_lightning, "fourfold fit": whole_fit}


def steps_of(times: list[float]) -> list[float]:
    """Milliseconds of each step that counts."""
    pairs = list(itertools.pairwise(times))[WARM:]
    return [1000 * (after - before) for before, after in pairs]


def measure(name: str, rounds: int, steps: int, folder: Path) -> dict[str, Any]:
    """The median step of each way in each round, and their ratios."""
    medians: dict[str, list[float]] = {way: [] for way in WAYS}
    for number in range(rounds):
        for way in random.Random(number).sample(list(WAYS), len(WAYS)):
            with quiet():
                times = WAYS[way](SHAPES[name], steps, folder)
            medians[way].append(statistics.median(steps_of(times)))
        print(name, {way: round(found[-1], 2) for way, found in medians.items()}, flush=True)
    result: dict[str, Any] = {"ms": {way: spread(found) for way, found in medians.items()}}
    for way in ("bare Lightning", "fourfold fit"):
        pairs = list(zip(medians[way], medians["bare loop"], strict=True))
        result[f"{way} / bare loop"] = spread([a / b for a, b in pairs])
        result[f"{way} - bare loop, ms"] = spread([a - b for a, b in pairs])
    return result


def spread(values: list[float]) -> dict[str, float]:
    """Median, least and greatest."""
    found = {"median": statistics.median(values), "least": min(values), "greatest": max(values)}
    return {name: round(value, 4) for name, value in found.items()}


def checkpoints(rounds: int, folder: Path) -> dict[str, Any]:
    """Seconds to write one checkpoint of 12 bytes a parameter, in two ways that take turns."""
    weights = {str(i): torch.randn(1_000_000) for i in range(60)}
    ways = {"Lightning": TorchCheckpointIO(), "fourfold": AtomicCheckpointIO(read_file)}
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(rounds):
        for name, io in ways.items():
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
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    found: dict[str, Any] = {"machine": machine()}
    with tempfile.TemporaryDirectory() as name:
        for shape, more in (("large", 1), ("tiny", 8)):
            found[shape] = measure(shape, options.rounds, options.steps * more, Path(name))
        found["checkpoint"] = checkpoints(options.rounds, Path(name))
    text = json.dumps(found, indent=1)
    print(text)
    if options.out:
        options.out.mkdir(parents=True, exist_ok=True)
        (options.out / "loop.json").write_text(text + "\n")
    return 0


def machine() -> str:
    """Processor, threads and versions."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    name = next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), "")
    return f"{name}, {torch.get_num_threads()} thread, torch {torch.__version__}"


if __name__ == "__main__":
    from scripts.bench_loop import main as run  # under the name by which the CLI finds `Clock`

    sys.exit(run())
