"""Peak memory and time of `linear_cross_entropy` against the plain formula, forward and backward.

    python scripts/bench_cross_entropy.py --out metrics.json

The plain formula is F.cross_entropy(F.linear(hidden, weight), targets). Each measurement is a
process of its own, ours and plain in turns, so that neither inherits the other's memory or a
quieter machine. Peak memory is what the kernel saw (VmHWM of /proc, Linux only) from the moment
inputs and libraries are there; time is the best of a few passes in that process, and CPU time is
given with it because others' work on the machine does not lengthen it.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

METHODS = ("plain", "ours")


def measure(method: str, tokens: int, words: int, width: int, low: bool, passes: int) -> Any:
    """In a fresh process: MiB beyond inputs, MiB in all, seconds, and the loss."""
    import torch
    import torch.nn.functional as F

    from fourfold.losses import linear_cross_entropy

    torch.manual_seed(0)
    hidden = torch.randn(tokens, width, requires_grad=True)
    weight = (0.02 * torch.randn(words, width)).requires_grad_()
    targets = torch.randint(words, (tokens,))

    def step(n: int) -> float:
        hidden.grad = weight.grad = None
        with torch.autocast("cpu", torch.bfloat16, enabled=low):
            if method == "ours":
                loss = linear_cross_entropy(hidden[:n], weight, None, targets[:n])
            else:
                loss = F.cross_entropy(F.linear(hidden[:n], weight), targets[:n])
        loss.backward()
        return loss.item()

    step(8)  # loads the kernels
    hidden.grad = weight.grad = None
    Path("/proc/self/clear_refs").write_text("5")  # the peak starts again from here
    before = status("VmRSS")
    loss = step(tokens)
    after = status("VmHWM")
    seconds, cpu_seconds = [], []
    for _ in range(passes):
        start, cpu_start = time.perf_counter(), time.process_time()
        step(tokens)
        seconds.append(time.perf_counter() - start)
        cpu_seconds.append(time.process_time() - cpu_start)
    return {
        "extra_mib": after - before,
        "total_mib": after,
        "seconds": min(seconds),
        "cpu_seconds": min(cpu_seconds),
        "loss": loss,
    }


def status(field: str) -> float:
    """MiB of a line of /proc/self/status."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(field)) / 1024


def compare(case: dict[str, Any], repeats: int, threads: int) -> dict[str, Any]:
    """Median and range of each figure of both methods, and ours over plain."""
    runs: dict[str, list[dict[str, float]]] = {method: [] for method in METHODS}
    for _ in range(repeats):
        for method in METHODS:
            child = [sys.executable, __file__, "--child", json.dumps({**case, "method": method})]
            environment = {**os.environ, "OMP_NUM_THREADS": str(threads)}
            output = subprocess.run(child, check=True, capture_output=True, env=environment).stdout
            runs[method].append(json.loads(output))
    result: dict[str, Any] = {**case, "ratio": {}}
    for method in METHODS:
        result[method] = {}
        for figure in runs[method][0]:
            values = [run[figure] for run in runs[method]]
            middle = statistics.median(values)
            result[method][figure] = {"median": middle, "min": min(values), "max": max(values)}
    for figure in ("extra_mib", "total_mib", "seconds", "cpu_seconds"):
        ours, plain = (result[method][figure]["median"] for method in ("ours", "plain"))
        result["ratio"][figure] = ours / plain
    return result


def show(result: dict[str, Any]) -> None:
    precision = "bf16" if result["low"] else "fp32"
    for method in METHODS:
        figures = result[method]
        memory, seconds = figures["extra_mib"], figures["seconds"]
        print(
            f"D {result['width']}  {precision}  {method:5}  "
            f"{memory['median']:7.0f} MiB  {figures['total_mib']['median']:7.0f} MiB in all  "
            f"{seconds['median']:6.2f} s ({seconds['min']:.2f} to {seconds['max']:.2f})  "
            f"{figures['cpu_seconds']['median']:6.2f} CPU s  "
            f"loss {figures['loss']['median']:.5f}"
        )
    ratio = result["ratio"]
    print(
        f"ours / plain: memory {ratio['extra_mib']:.2f} ({ratio['total_mib']:.2f} in all), "
        f"time {ratio['seconds']:.2f}, CPU time {ratio['cpu_seconds']:.2f}",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description="linear_cross_entropy against the plain formula")
    parser.add_argument("--tokens", type=int, default=2048)
    parser.add_argument("--words", type=int, default=50304)
    parser.add_argument("--widths", type=int, nargs="+", default=[384, 768])
    parser.add_argument("--repeats", type=int, default=5, help="processes per method")
    parser.add_argument("--passes", type=int, default=3, help="timed passes per process")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--out", type=Path, help="JSON file to write")
    parser.add_argument("--child", type=json.loads, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        print(json.dumps(measure(**options.child)))
        return
    results = []
    for width in options.widths:
        for low in (False, True):
            case = {"tokens": options.tokens, "words": options.words, "width": width}
            case |= {"low": low, "passes": options.passes}
            results.append(compare(case, options.repeats, options.threads))
            show(results[-1])
    if options.out:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
