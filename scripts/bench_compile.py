"""Benchmark of compiled against eager training steps with the public loss, for all four families.

    python scripts/bench_compile.py --out results/benchmarks/compile

A step is forward pass, loss and backward pass, without dropout, in fp32 unless `--low` is given.
One process per family times eager and compiled steps alternately; one process per family and mode
measures the peak memory (VmHWM of /proc, Linux only) of the steps after the first, which compiles.
Writes OUT.csv and OUT.md.
"""

import argparse
import csv
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

FAMILIES = ("causal LM", "masked LM", "ViT", "encoder-decoder")
MODES = ("eager", "compiled")


def training_step(family: str, low: bool) -> tuple[Any, Callable[..., Any], Any]:
    """Build a model, the function that computes its loss, and a batch."""
    import torch

    from fourfold import models
    from fourfold.losses import classification_loss

    torch.manual_seed(0)
    shape: Any = {"d_model": 384, "n_heads": 6, "d_ff": 1536, "dropout": 0.0, "attn_dropout": 0.0}
    model: Any
    if family == "causal LM":  # 2,048 tokens
        config = models.CausalLMConfig(**shape, n_layers=6, vocab_size=50304, max_len=512)
        model, ids = models.CausalLM(config), torch.randint(50304, (4, 513))
        inputs = ids[:, :-1].contiguous(), ids[:, 1:].contiguous()
    elif family == "masked LM":  # 2,048 tokens, of which 15 % are targets, and padding
        config = models.MaskedLMConfig(**shape, n_layers=6, vocab_size=30522, max_len=128)
        model, ids = models.MaskedLM(config), torch.randint(30522, (16, 128))
        real = torch.arange(128) < torch.randint(64, 129, (16, 1))
        targets = ids.masked_fill((torch.rand(16, 128) > 0.15) | ~real, -100)
        inputs = ids, None, real, targets  # no segments
    elif family == "ViT":  # 32 images of 64 patches
        options: Any = {"image_size": 32, "patch_size": 4, "n_classes": 10}
        model = models.ViT(models.ViTConfig(**shape, n_layers=6, **options))
        torch.nn.init.normal_(model.heads[0].weight, std=0.02)
        inputs = torch.randn(32, 3, 32, 32), torch.randint(10, (32,))
    else:  # 32 pairs of 40 tokens
        config = models.EncoderDecoderConfig(**shape, n_layers=3, vocab_size=10000, max_len=64)
        model, ids = models.EncoderDecoder(config), torch.randint(3, 10000, (2, 32, 41))
        real = torch.arange(40) < torch.randint(20, 41, (32, 1))
        inputs = ids[0, :, :-1].contiguous(), real, ids[1]

    def step(x: Any, *more: Any) -> Any:
        with torch.autocast("cpu", torch.bfloat16, enabled=low):
            if family == "ViT":
                return classification_loss(model(x), *more)
            if family == "encoder-decoder":
                real, tgt = more
                hidden = model.hidden(x, tgt[:, :-1], src_mask=real)
                return model.head.loss(hidden, tgt[:, 1:], label_smoothing=0.1)
            *options, targets = more
            return model.head.loss(model.hidden(x, *options), targets)

    return model, step, inputs


def measure(family: str, modes: list[str], low: bool, steps: int) -> dict[str, Any]:
    """Measure in this process: seconds of each step, peak memory, loss and gradients per mode."""
    import torch

    model, step, inputs = training_step(family, low)
    runs = {"eager": step, "compiled": torch.compile(step, fullgraph=True, dynamic=False)}
    found: dict[str, Any] = {mode: {"seconds": []} for mode in modes}
    gradients = {}

    def train(mode: str) -> float:
        model.zero_grad()
        loss = runs[mode](*inputs)
        loss.backward()
        return loss.item()

    for mode in modes:
        start = time.perf_counter()
        found[mode]["loss"] = train(mode)
        found[mode]["first"] = time.perf_counter() - start
        if len(modes) > 1:
            gradients[mode] = torch.cat([p.grad.flatten() for p in model.parameters()])
    Path("/proc/self/clear_refs").write_text("5")  # resets the peak
    for _ in range(steps):
        for mode in modes:
            start = time.perf_counter()
            train(mode)
            found[mode]["seconds"].append(time.perf_counter() - start)
    status = Path("/proc/self/status").read_text().splitlines()
    peak = next(int(line.split()[1]) for line in status if line.startswith("VmHWM")) / 1024
    if len(modes) > 1:
        difference = (gradients["compiled"] - gradients["eager"]).norm()
        found["gradients"] = (difference / gradients["eager"].norm()).item()
    else:
        found[modes[0]]["mib"] = peak
    return found


def child(case: dict[str, Any], threads: int) -> dict[str, Any]:
    """Run `measure` in a process of its own."""
    command = [sys.executable, __file__, "--child", json.dumps(case)]
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads)}
    output = subprocess.run(command, check=True, capture_output=True, env=environment).stdout
    result: dict[str, Any] = json.loads(output.splitlines()[-1])
    return result


def compare(family: str, low: bool, steps: int, threads: int) -> dict[str, Any]:
    """Return the row of a family: medians, spread of the ratios, memory, loss and gradients."""
    case = {"family": family, "low": low}
    times = child({**case, "modes": MODES, "steps": steps}, threads)
    eager, compiled = (times[mode]["seconds"] for mode in MODES)
    ratios = sorted(c / e for c, e in zip(compiled, eager, strict=True))
    row = {
        "family": family,
        "precision": "bf16" if low else "fp32",
        "eager_s": statistics.median(eager),
        "compiled_s": statistics.median(compiled),
        "ratio": statistics.median(ratios),
        "ratio_min": ratios[0],
        "ratio_max": ratios[-1],
    }
    for mode in MODES:
        alone = child({**case, "modes": [mode], "steps": 2}, threads)
        row[f"{mode}_mib"] = alone[mode]["mib"]
    row |= {f"{mode}_loss": times[mode]["loss"] for mode in MODES}
    return {
        **row,
        "gradient_difference": times["gradients"],
        "compile_s": times["compiled"]["first"],
    }


def table(rows: list[dict[str, Any]]) -> str:
    """Format the rows as a Markdown table."""
    lines = [
        "| family | precision | eager s | compiled s | compiled / eager (range) "
        "| MiB eager, compiled | loss eager, compiled | gradient difference | first step s |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    lines += [
        f"| {row['family']} | {row['precision']} | {row['eager_s']:.3f} | {row['compiled_s']:.3f} "
        f"| {row['ratio']:.2f} ({row['ratio_min']:.2f} to {row['ratio_max']:.2f}) "
        f"| {row['eager_mib']:.0f}, {row['compiled_mib']:.0f} "
        f"| {row['eager_loss']:.5f}, {row['compiled_loss']:.5f} "
        f"| {row['gradient_difference']:.1e} | {row['compile_s']:.0f} |"
        for row in rows
    ]
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description="Compare compiled with eager training steps.")
    parser.add_argument("--families", nargs="+", choices=FAMILIES, default=FAMILIES)
    parser.add_argument("--low", action="store_true", help="bf16 autocast in place of fp32")
    parser.add_argument("--steps", type=int, default=7, help="timed steps per mode")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--out", type=Path, help="write OUT.csv and OUT.md")
    parser.add_argument("--child", type=json.loads, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        print(json.dumps(measure(**options.child)))
        return
    rows = []
    for family in options.families:
        rows.append(compare(family, options.low, options.steps, options.threads))
        print(table(rows[-1:]), flush=True)
    if options.out:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        with options.out.with_suffix(".csv").open("w", newline="") as file:
            writer = csv.DictWriter(file, rows[0])
            writer.writeheader()
            writer.writerows(rows)
        options.out.with_suffix(".md").write_text(table(rows))


if __name__ == "__main__":
    main()
