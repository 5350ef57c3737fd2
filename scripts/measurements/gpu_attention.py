"""Time and peak memory of attention over long rows on a GPU, by mask and kernel.

    python scripts/measurements/gpu_attention.py OUT.csv

Each call lowers the mask, and runs the forward and backward pass of one layer in bf16. `sdpa` gets
a dense mask, `flex` a BlockMask, and `auto` what fourfold chooses. Calls of a length take turns in
interleaved rounds; `new mask` makes the mask anew in each call, as for the documents of a batch.
"""

import csv
import statistics
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

if __name__ == "__main__":  # the root of the repository, for the benchmarks
    sys.path[0] = str(Path(__file__).resolve().parents[2])

import torch

from fourfold.core.attention import attend, attention_backend, lower_mask
from fourfold.core.masks import Mask
from fourfold.reproduce.interleaved_timing import interleave
from scripts.benchmarks.memory import peak_of

BATCH, HEADS, KV_HEADS, WIDTH, WINDOW, DOCUMENT = 2, 12, 4, 64, 512, 700
LENGTHS = {"cuda": (2048, 8192, 16384), "cpu": (64,)}
ROUNDS = 7
COLUMNS = ("length", "mask", "kernel", "ms", "least", "greatest", "mib")


def make_masks(length: int, device: torch.device) -> dict[str, Callable[[], Mask]]:
    """Return a function that makes each mask."""
    documents = (torch.arange(length, device=device) // DOCUMENT).expand(BATCH, -1)
    keys = torch.ones(BATCH, length, dtype=torch.bool, device=device)
    window = Mask(causal=True, window=WINDOW)
    packed = Mask(causal=True, documents=documents)
    return {
        "causal": lambda: Mask(causal=True),
        "window": lambda: window,
        "documents": lambda: packed,
        "documents, new mask": lambda: Mask(causal=True, documents=documents.clone()),
        "window and padding": lambda: Mask(causal=True, window=WINDOW, keys=keys),
    }


def attend_once(make: Callable[[], Mask], kernel: str, qkv: Sequence[torch.Tensor]) -> None:
    """Lower a mask, and run the forward and backward pass of attention."""
    q, k, v = qkv
    with attention_backend(kernel):
        lowered = lower_mask(make(), q.shape[2], k.shape[2], q)
        y = attend(q, k, v, mask=lowered.mask, causal=lowered.causal, window=lowered.window)
    if y.requires_grad:
        torch.autograd.grad(y.sum(), (q, k, v))


def measure(length: int, device: torch.device) -> list[tuple[object, ...]]:
    """Measure all masks with all kernels at one length; return the rows of the table."""
    shapes = ((BATCH, n, length, WIDTH) for n in (HEADS, KV_HEADS, KV_HEADS))
    cuda = device.type == "cuda"  # FlexAttention has no backward pass on a CPU
    dtype = torch.bfloat16 if cuda else torch.float32
    qkv = [torch.randn(*s, device=device, dtype=dtype, requires_grad=cuda) for s in shapes]
    calls = {
        (name, kernel): partial(attend_once, make, kernel, qkv)
        for name, make in make_masks(length, device).items()
        for kernel in ("sdpa", "flex", "auto")
    }
    mib = {}
    for key, call in calls.items():
        call()  # compiles
        mib[key] = peak_of(call, device) / 2**20
    named = {"/".join(key): call for key, call in calls.items()}
    seconds = interleave(named, ROUNDS, device=device)
    rows: list[tuple[object, ...]] = []
    for key in calls:
        ms = [1000 * x for x in seconds["/".join(key)]]
        times = (f"{f(ms):.3f}" for f in (statistics.median, min, max))
        rows.append((length, *key, *times, round(mib[key])))
    return rows


def main(argv: Sequence[str]) -> int:
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    with open(argv[0], "w", encoding="utf-8", newline="") as file:
        table = csv.writer(file)
        table.writerow(COLUMNS)
        for length in LENGTHS[device.type]:
            table.writerows(measure(length, device))
            file.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
