"""Profile of training and greedy decoding steps of fourfold: operations by share of the time.

    python scripts/profile_step.py --out results/bench/profile --threads 2

torch's profiler records the steps of the benchmark workloads, after a warm-up. The time of an
operation does not contain the operations that it calls; on a GPU, it is the time of its kernels.
The rest of the time is spent in Python and between operations. A matrix product also has its rate,
as a share of the rate of torch.mm at the shape of the feed-forward layer, which is measured before
and after. As in `fourfold fit`, freed memory stays in the process. The profiler slows down steps
with many small operations, so the times are compared with each other, not with other benchmarks.
Writes OUT.csv with all operations and OUT.md with those that make up 95 % of the time.
"""

import argparse
import csv
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile

sys.path.insert(0, str(Path(__file__).parents[1]))

from fourfold.callbacks.runtime.malloc import disable_malloc_trim
from fourfold.environment import commit, processor
from fourfold.reproduce.interleaved_timing import wait
from scripts.benchmarks.contenders import DTYPES, fourfold_contender, training_step
from scripts.benchmarks.decoding import greedy_cases
from scripts.benchmarks.measurements import feed_forward_product
from scripts.benchmarks.workloads import FAMILIES, FOURFOLD, PRECISIONS, SIZES, Settings, make_batch

COVERED = 0.95  # share of the time that OUT.md lists
PYTHON = "Python, and gaps between operations"


class Row(NamedTuple):
    """Time of one operation in one workload.

    Attributes:
        workload: Family, or greedy decoding with its batch size.
        precision: fp32 or bf16.
        step_ms: Time of a step in milliseconds.
        operation: Name in torch's profiler, or `PYTHON`.
        calls: Number of calls in a step.
        share: Share of the time of the step, from 0 to 1.
        rate: FLOP/s relative to torch.mm; None if the operation is not a matrix product.
    """

    workload: str
    precision: str
    step_ms: float
    operation: str
    calls: float
    share: float
    rate: float | None


def profile_steps(
    name: str,
    precision: str,
    step: Callable[[], Any],
    n_steps: int,
    product: Any,
    device: torch.device,
) -> Iterator[Row]:
    """Profile `n_steps` calls of `step` after two unrecorded calls."""
    multiply, product_flops = product
    step()
    step()
    is_cuda = device.type == "cuda"
    if is_cuda:
        multiply()  # loads its kernel
    rates = [product_flops / _seconds(multiply, device) for _ in range(3)]
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if is_cuda else [])]
    with profile(activities=activities, with_flops=True) as profiler:
        total = _seconds(lambda: [step() for _ in range(n_steps)], device)
    rates += [product_flops / _seconds(multiply, device) for _ in range(3)]
    rate = sorted(rates)[len(rates) // 2]
    seconds: dict[str, float] = defaultdict(float)
    calls: dict[str, int] = defaultdict(int)
    flops: dict[str, int] = defaultdict(int)
    for event in profiler.key_averages():
        if event.device_type != DeviceType.CPU:  # a kernel, which is counted with its operation
            continue
        microseconds = event.self_device_time_total if is_cuda else event.self_cpu_time_total
        seconds[event.key] += microseconds / 1e6
        calls[event.key] += event.count
        flops[event.key] += event.flops or 0
    seconds[PYTHON] = total - sum(seconds.values())
    for key, value in sorted(seconds.items(), key=lambda item: -item[1]):
        is_product = key.removeprefix("aten::") in ("mm", "addmm", "bmm", "baddbmm")
        relative = flops[key] / value / rate if is_product and value > 0 else None
        calls_per_step = calls[key] / n_steps
        yield Row(
            name, precision, 1000 * total / n_steps, key, calls_per_step, value / total, relative
        )


def _seconds(call: Callable[[], Any], device: torch.device) -> float:
    wait(device)
    start = time.perf_counter()
    call()
    wait(device)
    return time.perf_counter() - start


def workloads(settings: Settings, families: list[str]) -> Iterator[Row]:
    """Profile a training step of each family, and greedy decoding of the causal LM."""
    device = torch.device(settings.device)
    dtype = DTYPES[settings.precision]
    for family in families:
        shape = SIZES[settings.size][family]
        product = feed_forward_product(
            shape.n_tokens(family), shape.d_model, shape.d_ff, dtype, device
        )
        torch.manual_seed(0)
        contender = fourfold_contender(family, shape, 0.0)
        batch = make_batch(family, shape, device)
        step = training_step(contender, [batch], settings.precision, device)
        yield from profile_steps(family, settings.precision, step, 5, product, device)
    if "causal_lm" in families:
        shape = SIZES[settings.size]["causal_lm"]
        for case in greedy_cases("causal_lm", settings, shape, device, []):
            product = feed_forward_product(
                case.batch_size, shape.d_model, shape.d_ff, dtype, device
            )
            name = f"greedy decoding, {case.name}"
            decode = case.functions[FOURFOLD]
            yield from profile_steps(name, settings.precision, decode, 1, product, device)


def table(rows: list[Row]) -> str:
    """Format the operations that make up `COVERED` of the time of each workload as Markdown."""
    lines = []
    for key in dict.fromkeys((row.workload, row.precision, row.step_ms) for row in rows):
        workload, precision, step_ms = key
        lines += [f"\n**{workload}, {precision}** ({step_ms:,.1f} ms, with profiler)\n"]
        lines += ["| operation | calls | share of the time | rate of torch.mm |"]
        lines += ["| --- | ---: | ---: | ---: |"]
        covered = 0.0
        for row in rows:
            if row[:3] != key or covered >= COVERED:
                continue
            covered += row.share
            rate = "-" if row.rate is None else f"{100 * row.rate:.0f} %"
            lines += [f"| {row.operation} | {row.calls:,.0f} | {100 * row.share:.1f} % | {rate} |"]
        lines += [f"| together | | {100 * covered:.1f} % | |"]
    return "\n".join(lines) + "\n"


def main() -> None:
    """Profile the selected families and precisions, and write the tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True, help="OUT.csv and OUT.md are written")
    parser.add_argument("--size", choices=SIZES, default="laptop")
    parser.add_argument("--family", nargs="+", choices=FAMILIES, default=list(FAMILIES))
    parser.add_argument("--precision", nargs="+", choices=PRECISIONS, default=list(PRECISIONS))
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--threads", type=int, help="CPU threads (default: torch's)")
    options = parser.parse_args()
    if options.threads:
        torch.set_num_threads(options.threads)
    disable_malloc_trim()
    families = [family for family in options.family if family in SIZES[options.size]]
    settings = Settings(size=options.size, precision="fp32", device=options.device, peers=())
    rows: list[Row] = []
    for precision in options.precision:
        rows += workloads(replace(settings, precision=precision), families)
    options.out.parent.mkdir(parents=True, exist_ok=True)
    with options.out.with_suffix(".csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(Row._fields)
        writer.writerows(rows)
    about = f"Processor {processor()}, {torch.get_num_threads()} threads, torch {torch.__version__}"
    if options.device == "cuda":
        about += f", GPU {torch.cuda.get_device_name()}"
    about += f", commit {commit()}."
    options.out.with_suffix(".md").write_text(f"{about}\n{table(rows)}")


if __name__ == "__main__":
    main()
