"""Peak memory of greedy decoding after a long prompt, of one library in this process.

    python -m scripts.benchmarks.decoding_memory fourfold --precision bf16 --batch 1

Prints the peak of resident memory during the decoding above that of the loaded models, in MiB. A
peer's process also holds fourfold's model, whose weights the peer has.
"""

import argparse
import ctypes
import gc
from collections.abc import Sequence

import torch

from scripts.benchmarks.decoding import LITGPT, TRANSFORMERS, sized_greedy_cases
from scripts.benchmarks.memory import peak_of
from scripts.benchmarks.workloads import FOURFOLD, PRECISIONS, SIZES, GreedyDecoding, Settings


def main(arguments: Sequence[str] | None = None) -> float:
    """Measure, print and return the peak in MiB."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("library", choices=(FOURFOLD, TRANSFORMERS, LITGPT))
    parser.add_argument("--size", choices=SIZES, default="laptop")
    parser.add_argument("--precision", choices=PRECISIONS, default="bf16")
    parser.add_argument("--prompt", type=int, default=4032, help="tokens of the prompt (4032)")
    parser.add_argument("--new", type=int, default=64, help="new tokens (64)")
    parser.add_argument("--batch", type=int, default=1, help="rows (1)")
    options = parser.parse_args(arguments)
    settings = Settings(size=options.size, precision=options.precision)
    device = torch.device(settings.device)
    torch.set_num_threads(settings.threads)
    peers = [] if options.library == FOURFOLD else [options.library]
    peak = 0
    # Decoding by a tiny model comes first, so that the buffers of the libraries are not counted.
    for size, sizes in (
        ("tiny", GreedyDecoding(8, 4, (1,))),
        (options.size, GreedyDecoding(options.prompt, options.new, (options.batch,))),
    ):
        names = dict.fromkeys(sizes.batch_sizes, "")
        shape = SIZES[size]["llama"]
        (case,) = sized_greedy_cases("llama", settings, shape, device, peers, names, sizes)
        gc.collect()
        if hasattr(libc := ctypes.CDLL(None), "malloc_trim"):
            libc.malloc_trim(0)  # decoding must not use memory that was freed after loading
        peak = peak_of(case.functions[options.library], device)
    print(f"{options.library}, {options.precision}, batch {options.batch}: {peak / 2**20:.1f} MiB")
    return peak / 2**20


if __name__ == "__main__":
    main()
