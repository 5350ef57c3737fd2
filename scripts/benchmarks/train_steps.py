"""Benchmarks of training and evaluation steps, and the record of one measurement."""

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from fourfold.analysis.flops import TRAINING_TO_FORWARD
from fourfold.reproduce.interleaved_timing import WARMUP_ROUNDS
from scripts.benchmarks.contenders import COMPILED_SUFFIX, DTYPES, batch_flops
from scripts.benchmarks.measurements import feed_forward_product, measure_rounds, ratios
from scripts.benchmarks.peers.registry import PeerUnavailable, peers_with
from scripts.benchmarks.workers import STEPS_PER_CALL, Worker, worker_processes
from scripts.benchmarks.workloads import FOURFOLD, Settings, Shape, make_batch

FEED_FORWARD_PRODUCT = "feed-forward product"
MS_PER_STEP = "ms per step"
FORWARD_PASSES = {"train": TRAINING_TO_FORWARD, "evaluate": 1}  # FLOPs of a step, in forward passes


@dataclass(frozen=True)
class Measurement:
    """Measurements of one contender in one workload; the lists have one value per round."""

    workload: str
    family: str
    contender: str  # `FOURFOLD` or a peer, with `COMPILED_SUFFIX` if it is compiled
    unit: str
    case: str = ""  # distinguishes several measurements of one workload, such as batch sizes
    values: Sequence[float] = ()
    ratios: Sequence[float] = ()  # values divided by those of `FOURFOLD` in the same round
    utilization: Sequence[float] = ()  # fraction of the rate of `limit`
    limit: str = ""  # feed-forward product or memory bandwidth
    n_parameters: int | None = None
    note: str = ""  # a remark, or the reason why there are no values


def start_workers(
    workload: str,
    family: str,
    shape: Shape,
    settings: Settings,
    names: Sequence[str],
    workers: list[Worker],
) -> tuple[dict[str, Worker], dict[str, str]]:
    """Start a worker for each contender, and a compiled one if the settings say so.

    Returns the workers by name, and by name the reason why others are unavailable. The workers are
    added to `workers`, the list of `worker_processes`.
    """
    started: dict[str, Worker] = {}
    unavailable: dict[str, str] = {}
    for name in names:
        for compile in (False, True) if settings.compile else (False,):
            full_name = name + COMPILED_SUFFIX if compile else name
            print(f"{workload}: {family}, starting {full_name}", file=sys.stderr, flush=True)
            worker = Worker(workload, name, family, shape, settings, compile=compile)
            workers.append(worker)
            started[full_name] = worker
    for full_name, worker in list(started.items()):
        try:
            worker.wait()
            worker()  # needs more memory than the first step, which had no optimizer states
        except PeerUnavailable as error:
            unavailable[full_name] = str(error)
            del started[full_name]
    return started, unavailable


def measure_steps(
    workload: str, family: str, shape: Shape, settings: Settings
) -> Iterator[Measurement]:
    """Measure training or evaluation steps of all contenders, interleaved with torch.mm."""
    device = torch.device(settings.device)
    dtype = DTYPES[settings.precision]
    n_steps = STEPS_PER_CALL[device.type]
    product, product_flops = feed_forward_product(
        shape.n_tokens(family), shape.d_model, shape.d_ff, dtype, device
    )
    names = [FOURFOLD, *peers_with(family, settings.peers)]
    with worker_processes() as workers:
        started, unavailable = start_workers(workload, family, shape, settings, names, workers)
        functions = {**started, FEED_FORWARD_PRODUCT: product}
        title = f"{workload}: {family}"
        seconds = measure_rounds(title, functions, settings.rounds, WARMUP_ROUNDS, device)
    peaks = {name: worker.peak for name, worker in started.items() if worker.peak}
    batch = make_batch(family, shape, torch.device("cpu"))
    flops = FORWARD_PASSES[workload] * batch_flops(family, shape, batch)
    rates = [product_flops / value for value in seconds.pop(FEED_FORWARD_PRODUCT)]
    relative = ratios(seconds, FOURFOLD)
    for name, values in seconds.items():
        yield Measurement(
            workload,
            family,
            name,
            MS_PER_STEP,
            values=[1000 * value / n_steps for value in values],
            ratios=relative[name],
            utilization=[
                n_steps * flops / value / rate for value, rate in zip(values, rates, strict=True)
            ],
            limit=FEED_FORWARD_PRODUCT,
            n_parameters=started[name].n_parameters,
        )
    for name, reason in unavailable.items():
        yield Measurement(workload, family, name, MS_PER_STEP, note=reason)
    reports_memory = workload == "train" and "memory" not in settings.workloads
    for name, peak in peaks.items() if reports_memory else ():
        relative_peak = [peak / peaks[FOURFOLD]]
        yield Measurement(
            "memory", family, name, "MiB", values=[peak / 2**20], ratios=relative_peak
        )
