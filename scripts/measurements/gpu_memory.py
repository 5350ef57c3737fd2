"""Peak memory and time of training steps on a GPU, beside the estimate of `fourfold plan`.

    python scripts/measurements/gpu_memory.py OUT.csv [RECIPE ...]

Measures all values of `model.activation_checkpointing` for the recipes of `CHECKPOINTED`, and
`none` for the others. Inputs are random, sentences of pairs have the length that `plan` assumes,
and the optimizer is AdamW. Each row of OUT.csv is written when it is measured.
"""

import csv
import gc
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

if __name__ == "__main__":  # the root of the repository, for the benchmarks
    sys.path[0] = str(Path(__file__).resolve().parents[2])

import torch

from fourfold.commands.config_files import expand_arguments
from fourfold.commands.plan import micro_batch_memory, row_length
from fourfold.commands.recipe import Recipe, make_parser, parse, read_recipe
from fourfold.data.loading.batches import PairBatch
from fourfold.reproduce.interleaved_timing import wait
from scripts.benchmarks.contenders import autocast
from scripts.benchmarks.memory import peak_of
from scripts.benchmarks.workloads import Shape, make_batch

# Recipes with the family of their batch, and the rows or, of pairs, the tokens of a micro-batch.
RECIPES = {
    "gpt2/small": ("causal_lm", 16),
    "vit/b16": ("vit", 128),
    "bert/base": ("masked_lm", 32),
    "vaswani2017/base": ("encoder_decoder", 12_000),
    "gpt2/medium": ("causal_lm", 8),
    "gpt1/base": ("causal_lm", 32),
    "roberta/base": ("masked_lm", 32),
    "vaswani2017/big": ("encoder_decoder", 12_000),
    "vit/l16": ("vit", 64),
    "deit/s": ("vit", 256),
}
CHECKPOINTED = ("gpt2/small", "vit/b16")
MODES: tuple[str | int, ...] = ("none", "attention", 2, "block")
N_STEPS = 6
COLUMNS = ("recipe", "batch", "checkpointing", "estimate_mib", "measured_mib", "ratio", "ms")


def read(name: str) -> Recipe:
    """Read a recipe of the package in bf16-mixed."""
    parser = make_parser("fourfold fit")
    argv = ["--config", name, "--trainer.precision", "bf16-mixed"]
    return read_recipe(parser, parse(parser, expand_arguments(argv, evaluates=True)))


def batch_of(recipe: Recipe, family: str, size: int, device: torch.device) -> Any:
    """Create a random batch of a recipe."""
    config: Any = recipe.task.config
    length = row_length(recipe)
    if family == "vit":
        n_out, length = config.n_classes, config.image_size
    else:
        n_out = config.vocab_size
    if family == "encoder_decoder":
        ids = torch.randint(4, n_out, (2, size // length, length), device=device)
        mask = torch.ones_like(ids[0], dtype=torch.bool)
        return PairBatch(ids[0], ids[1], mask, mask, torch.arange(len(mask), device=device))
    return make_batch(family, Shape(0, 0, 0, n_out, size, length or 0), device)


def train(task: Any, batch: Any, device: torch.device) -> list[float]:
    """Train a few steps with the model of a task; return the seconds of each."""
    optimizer = torch.optim.AdamW(task.model.parameters(), lr=1e-4, fused=True)
    seconds = []
    for _ in range(N_STEPS):
        begin = time.perf_counter()
        with autocast("bf16", device):
            total, count = task.step(batch)
        (total / count).backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        wait(device)
        seconds.append(time.perf_counter() - begin)
    return seconds


def measure(name: str, device: torch.device) -> Iterator[tuple[Any, ...]]:
    """Yield a row of the table for each value of activation checkpointing."""
    recipe = read(name)
    task: Any = recipe.task
    family, size = RECIPES[name]
    planned = task.model
    for mode in MODES if name in CHECKPOINTED else MODES[:1]:
        planned.set_activation_checkpointing(mode)
        estimate = micro_batch_memory(recipe, row_length(recipe), size, 1).total
        seconds: list[float] = []

        def build_and_train(mode: Any = mode, seconds: list[float] = seconds) -> None:
            task.model = type(planned)(recipe.task.config).to(device).train()
            task.model.set_activation_checkpointing(mode)
            seconds += train(task, batch_of(recipe, family, size, device), device)

        peak = peak_of(build_and_train, device)
        task.model = planned
        gc.collect()
        ms = 1000 * statistics.median(seconds[2:])
        yield name, size, mode, estimate / 2**20, peak / 2**20, estimate / peak, ms


def main(argv: Sequence[str]) -> int:
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    with open(argv[0], "w", encoding="utf-8", newline="") as file:
        table = csv.writer(file)
        table.writerow(COLUMNS)
        for name in argv[1:] or RECIPES:
            for row in measure(name, device):
                table.writerow([f"{x:.4g}" if isinstance(x, float) else x for x in row])
                file.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
