"""Names of numeric precisions in Lightning, their data types, and the fast one for a processor.

Data types are stored as strings, so that the command line can list the precisions without an import
of torch.
"""

import math
import os
import time
from typing import NamedTuple

from fourfold.core.validation import check_choice


class Precision(NamedTuple):
    """Data types of a precision, as names of torch dtypes such as "float32".

    Args:
        weights: Type of weights, gradients and optimizer states.
        compute: Type of matrix products and of the activations that autograd keeps.

    Example:
        >>> PRECISIONS["bf16-mixed"].weights, PRECISIONS["bf16-mixed"].compute
        ('float32', 'bfloat16')
    """

    weights: str
    compute: str


PRECISIONS = {
    "64-true": Precision("float64", "float64"),
    "32-true": Precision("float32", "float32"),
    "16-true": Precision("float16", "float16"),
    "bf16-true": Precision("bfloat16", "bfloat16"),
    "16-mixed": Precision("float32", "float16"),
    "bf16-mixed": Precision("float32", "bfloat16"),
}
AUTO = "auto"  # stands for bf16-mixed or 32-true, whichever is faster on the device
# Variable with the result of `bf16_speedup` on the CPU. Processes that this process starts, such as
# the ranks of a training on several devices, read it and make the same choice.
SPEEDUP_VARIABLE = "FOURFOLD_BF16_SPEEDUP"
MEASURED_SIZE = 192  # rows and columns of the matrices that are multiplied to measure the CPU
N_ROUNDS = 12  # products of each data type
SLOW = 0.9  # a warning is given if bf16 has less than this share of the rate of fp32

# Short spellings that Lightning accepts.
ALIASES = {"64": "64-true", "32": "32-true", "16": "16-mixed", "bf16": "bf16-mixed"}


def canonical_precision(name: str | int | None, option: str = "trainer.precision") -> str:
    """Return the full name of a precision, a key of `PRECISIONS`; None stands for "32-true".

    Args:
        name: A name or short spelling, such as "bf16-mixed", "bf16" or 32.
        option: Name of the option that has this value, for the error message.

    Raises:
        InputError: The precision is unknown.

    Example:
        >>> canonical_precision("bf16")
        'bf16-mixed'
    """
    text = "32-true" if name is None else str(name)
    canonical = ALIASES.get(text, text)
    check_choice(option, canonical, tuple(PRECISIONS))
    return canonical


def resolve_precision(
    name: str | int | None, device: object = "cpu", option: str = "trainer.precision"
) -> str:
    """Return the full name of a precision, where "auto" stands for the faster one on a device.

    "auto" becomes "bf16-mixed" if the device multiplies bf16 matrices faster than fp32 matrices,
    and "32-true" otherwise. All other names are returned as `canonical_precision` does.

    Args:
        name: A name or short spelling, or "auto".
        device: A torch.device or its name.
        option: Name of the option that has this value, for the error message.

    Raises:
        InputError: The precision is unknown.

    Example:
        >>> resolve_precision("auto", "cpu") in ("bf16-mixed", "32-true")
        True
        >>> resolve_precision("16", "cpu")
        '16-mixed'
    """
    if name != AUTO:
        return canonical_precision(name, option)
    return "bf16-mixed" if bf16_speedup(device) > 1 else "32-true"


def bf16_speedup(device: object = "cpu") -> float:
    """Return the rate of matrix products in bf16 on a device, divided by the rate in fp32.

    The rates of a CPU are measured once, in some milliseconds, because its flags do not show them:
    some CPUs with bf16 instructions multiply bf16 matrices more slowly than fp32 matrices. The
    result is stored in the environment variable `SPEEDUP_VARIABLE`. A GPU is not measured: the
    result is infinite if the GPU multiplies bf16 natively, otherwise 0. It is 0 for all other
    devices.

    Args:
        device: A torch.device or its name.

    Example:
        >>> bf16_speedup("cpu") > 0  # measured once
        True
        >>> bf16_speedup("mps")
        0.0
    """
    kind = str(device).partition(":")[0]
    if kind == "cuda":
        import torch

        return math.inf if torch.cuda.is_bf16_supported(including_emulation=False) else 0.0
    if kind != "cpu":
        return 0.0
    if SPEEDUP_VARIABLE not in os.environ:
        os.environ[SPEEDUP_VARIABLE] = f"{measure_cpu():.3g}"
    return float(os.environ[SPEEDUP_VARIABLE])


def measure_cpu() -> float:
    """Time products of square matrices; return the shortest fp32 time over the shortest bf16 time.

    One thread is used, because other processes on the machine then hardly affect the ratio.

    Example:
        >>> rate = measure_cpu()  # 2 means that bf16 is twice as fast as fp32
        >>> rate > 0
        True
    """
    import torch

    matrix = torch.ones(MEASURED_SIZE, MEASURED_SIZE)
    operands = (matrix, matrix.bfloat16())
    seconds: list[list[float]] = [[], []]
    n_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        for operand in operands:  # the first product of a type prepares its kernel
            operand @ operand.T
        for _ in range(N_ROUNDS):
            for operand, measured in zip(operands, seconds, strict=True):
                start = time.perf_counter()
                operand @ operand.T
                measured.append(time.perf_counter() - start)
    finally:
        torch.set_num_threads(n_threads)
    return min(seconds[0]) / min(seconds[1])


def describe_bf16(device: object = "cpu") -> str:
    """Describe the speed of bf16 on a device by a clause, for messages.

    Example:
        >>> describe_bf16("cpu").startswith("this CPU multiplies bf16 matrices")
        True
    """
    speedup = bf16_speedup(device)
    if str(device).startswith("cuda"):
        return f"this GPU {'multiplies' if speedup else 'does not multiply'} bf16 natively"
    measured = f"this CPU multiplies bf16 matrices {speedup:.2g} times as fast as fp32 matrices"
    return measured if str(device) == "cpu" else f"bf16 on {device} is taken to be slow"


def slow_precision(precision: str, device: object, option: str) -> str | None:
    """Return a warning if a precision computes in bf16 and the device is slow at it, else None.

    Args:
        precision: A key of `PRECISIONS`.
        device: A torch.device or its name.
        option: Name of the option that has this value.

    Example:
        >>> slow_precision("32-true", "cpu", "trainer.precision")  # None: no warning
        >>> "bf16-mixed is slow" in str(slow_precision("bf16-mixed", "mps", "trainer.precision"))
        True
    """
    if PRECISIONS[precision].compute != "bfloat16" or bf16_speedup(device) >= SLOW:
        return None
    return f"{option} {precision} is slow: {describe_bf16(device)}; {AUTO} or 32-true is faster"
