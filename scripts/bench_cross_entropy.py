"""Benchmark of peak memory and time of `linear_cross_entropy` against the plain formula.

    python scripts/bench_cross_entropy.py --out metrics.json

The plain formula is F.cross_entropy(F.linear(hidden, weight), targets), with its backward pass.
Each measurement runs in its own process, alternating between both methods. Peak memory is VmHWM of
/proc (Linux only) after libraries and inputs are loaded. Time is the minimum of a few passes in the
process; CPU time does not depend on other processes of the machine.
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

METHODS = ("plain", "fourfold")


def measure(method: str, tokens: int, vocab_size: int, width: int, low: bool, passes: int) -> Any:
    """Measure in this process: MiB beyond the inputs, total MiB, seconds, and the loss."""
    import torch
    import torch.nn.functional as F

    from fourfold.losses import linear_cross_entropy

    torch.manual_seed(0)
    hidden = torch.randn(tokens, width, requires_grad=True)
    weight = (0.02 * torch.randn(vocab_size, width)).requires_grad_()
    targets = torch.randint(vocab_size, (tokens,))

    def step(n: int) -> float:
        hidden.grad = weight.grad = None
        with torch.autocast("cpu", torch.bfloat16, enabled=low):
            if method == "fourfold":
                loss = linear_cross_entropy(hidden[:n], weight, None, targets[:n])
            else:
                loss = F.cross_entropy(F.linear(hidden[:n], weight), targets[:n])
        loss.backward()
        return loss.item()

    step(8)  # loads the kernels
    hidden.grad = weight.grad = None
    Path("/proc/self/clear_refs").write_text("5")  # resets the peak
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
    """Read a field of /proc/self/status in MiB."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(field)) / 1024


def compare(case: dict[str, Any], repeats: int, threads: int) -> dict[str, Any]:
    """Return median and range of all values of both methods, and ratios fourfold / plain."""
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
        fourfold, plain = (result[method][figure]["median"] for method in ("fourfold", "plain"))
        result["ratio"][figure] = fourfold / plain
    return result


def show(result: dict[str, Any]) -> None:
    precision = "bf16" if result["low"] else "fp32"
    for method in METHODS:
        figures = result[method]
        memory, seconds = figures["extra_mib"], figures["seconds"]
        print(
            f"D {result['width']}  {precision}  {method:8}  "
            f"{memory['median']:7.0f} MiB  {figures['total_mib']['median']:7.0f} MiB in total  "
            f"{seconds['median']:6.2f} s ({seconds['min']:.2f} to {seconds['max']:.2f})  "
            f"{figures['cpu_seconds']['median']:6.2f} CPU s  "
            f"loss {figures['loss']['median']:.5f}"
        )
    ratio = result["ratio"]
    print(
        f"fourfold / plain: memory {ratio['extra_mib']:.2f} ({ratio['total_mib']:.2f} in total), "
        f"time {ratio['seconds']:.2f}, CPU time {ratio['cpu_seconds']:.2f}",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description="Compare linear_cross_entropy with the plain formula."
    )
    parser.add_argument("--tokens", type=int, default=2048)
    parser.add_argument("--vocab_size", type=int, default=50304)
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
            case = {"tokens": options.tokens, "vocab_size": options.vocab_size, "width": width}
            case |= {"low": low, "passes": options.passes}
            results.append(compare(case, options.repeats, options.threads))
            show(results[-1])
    if options.out:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
