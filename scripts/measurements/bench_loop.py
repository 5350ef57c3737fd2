"""Overhead of `fourfold fit` beside a plain training loop, in interleaved rounds.

    taskset -c 1 python scripts/measurements/bench_loop.py [--rounds 7] [--steps 30] [--out FILE]

The same causal LM trains on the same batches on one thread in fp32 with gradient clipping. A tiny
model shows the overhead of a step.
"""

import argparse
import json
import os
import random
import statistics
import sys
import tempfile
import time
from contextlib import redirect_stdout
from io import StringIO
from itertools import chain, pairwise, repeat
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))
os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch  # noqa: E402
from lightning import Callback  # noqa: E402

from fourfold.cli import main as fourfold  # noqa: E402
from fourfold.data import CausalTextData  # noqa: E402
from fourfold.environment import machine  # noqa: E402
from fourfold.models import CausalLMConfig  # noqa: E402
from fourfold.tasks import CausalLanguageModeling  # noqa: E402

# Width, layers, tokens per row and rows. A step of "large" takes about 200 ms.
SHAPES = {"large": (384, 6, 128, 2), "tiny": (32, 1, 32, 2)}
N_WARMUP = 2  # steps that are not measured
CLIP = 1.0
Shape = tuple[int, int, int, int]


class Clock(Callback):
    """Records the time at the end of each training batch; the CLI creates the instance."""

    times: list[float] = []  # noqa: RUF012  (shared)

    def on_train_batch_end(self, *arguments: Any) -> None:
        self.times.append(time.perf_counter())


def sizes(shape: Shape) -> dict[str, Any]:
    width, layers, length, _ = shape
    model = {"d_model": width, "n_layers": layers, "n_heads": width // 32, "d_ff": 4 * width}
    return {**model, "max_len": length}


def plain_loop(shape: Shape, steps: int, folder: Path) -> list[float]:
    """Train with a loop of ten lines; return the time after each step."""
    *_, length, rows = shape
    torch.manual_seed(0)
    data = CausalTextData(block_size=length, batch_size=rows)
    task = CausalLanguageModeling(CausalLMConfig(**sizes(shape), vocab_size=data.vocab_size))
    task.configure_model()
    weights = list(task.parameters())
    optimizer = torch.optim.AdamW(weights, lr=1e-3, weight_decay=0.01, fused=True)
    loader, times = data.train_dataloader(), []
    batches = chain.from_iterable(repeat(loader))
    for _, batch in zip(range(steps), batches, strict=False):
        total, count = task.step(batch)
        (total / count).backward()
        torch.nn.utils.clip_grad_norm_(weights, CLIP)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        times.append(time.perf_counter())
    return times


def fourfold_fit(shape: Shape, steps: int, folder: Path) -> list[float]:
    """Train with `fourfold fit`; return the time after each step."""
    *_, length, rows = shape
    Clock.times.clear()
    with tempfile.TemporaryDirectory(dir=folder) as run:
        code = fourfold(
            [
                *("fit", "--model=CausalLanguageModeling", "--data=CausalTextData"),
                *(f"--model.config.{name}={value}" for name, value in sizes(shape).items()),
                *("--model.config.vocab_size=null", "--log_samples=false", f"--run_dir={run}"),
                *(f"--data.block_size={length}", f"--data.batch_size={rows}"),
                *(f"--trainer.max_steps={steps}", "--trainer.limit_val_batches=0"),
                *("--trainer.accelerator=cpu", "--trainer.precision=32-true"),
                *(f"--trainer.gradient_clip_val={CLIP}", "--checkpoint.every_n_epochs=0"),
                "--trainer.callbacks+=scripts.measurements.bench_loop.Clock",
            ]
        )
    assert code == 0
    return list(Clock.times)


METHODS = {"plain loop": plain_loop, "fourfold fit": fourfold_fit}


def measure(shape: str, rounds: int, steps: int, folder: Path) -> dict[str, Any]:
    """Return median, minimum and maximum over the rounds of the median step and of the ratio."""
    medians: dict[str, list[float]] = {method: [] for method in METHODS}
    for number in range(rounds):
        for method in random.Random(number).sample(list(METHODS), len(METHODS)):
            with redirect_stdout(StringIO()):
                times = METHODS[method](SHAPES[shape], steps, folder)
            seconds = [after - before for before, after in list(pairwise(times))[N_WARMUP:]]
            medians[method].append(1000 * statistics.median(seconds))
        print(shape, {k: f"{v[-1]:.2f} ms" for k, v in medians.items()}, flush=True)
    pairs = list(zip(medians["fourfold fit"], medians["plain loop"], strict=True))
    found = {f"{method}, ms": values for method, values in medians.items()}
    found |= {"ratio": [a / b for a, b in pairs], "difference, ms": [a - b for a, b in pairs]}
    return {k: [round(f(v), 4) for f in (statistics.median, min, max)] for k, v in found.items()}


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--rounds", type=int, default=7, help="measurements of each method")
    parser.add_argument("--steps", type=int, default=30, help="steps of one measurement")
    parser.add_argument("--out", type=Path, help="JSON file")
    options = parser.parse_args()
    found: dict[str, Any] = {"machine": machine(torch.device("cpu"))}
    with tempfile.TemporaryDirectory() as folder:
        for shape, more in (("large", 1), ("tiny", 8)):
            found[shape] = measure(shape, options.rounds, options.steps * more, Path(folder))
    text = json.dumps(found, indent=1)
    print(text)
    if options.out:
        options.out.write_text(text + "\n")
    return 0


if __name__ == "__main__":
    from scripts.measurements.bench_loop import main as run  # the CLI imports `Clock` by this name

    sys.exit(run())
