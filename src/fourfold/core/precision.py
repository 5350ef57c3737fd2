"""Names of numeric precisions in Lightning, their data types, and the fast one for a device.

Data types are stored as strings, so that the command line can list the precisions without an import
of torch.
"""

from pathlib import Path
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
AUTO = "auto"  # stands for bf16-mixed on a device that multiplies bf16 natively, else 32-true
# Flags in /proc/cpuinfo of CPUs that multiply bf16 matrices: Intel AMX, and AVX512-BF16.
BF16_FLAGS = ("amx_bf16", "avx512_bf16")

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

    "auto" becomes "bf16-mixed" if the device multiplies bf16 matrices natively, and "32-true"
    otherwise. All other names are returned as `canonical_precision` does.

    Args:
        name: A name or short spelling, or "auto".
        device: A torch.device or its name.
        option: Name of the option that has this value, for the error message.

    Example:
        >>> resolve_precision("auto", "cpu") in ("bf16-mixed", "32-true")
        True
        >>> resolve_precision("16", "cpu")
        '16-mixed'
    """
    if name != AUTO:
        return canonical_precision(name, option)
    return "bf16-mixed" if has_bf16(device) else "32-true"


def has_bf16(device: object = "cpu") -> bool:
    """Return True if a device, a torch.device or its name, multiplies bf16 matrices natively."""
    kind = str(device).partition(":")[0]
    if kind == "cuda":
        import torch

        return torch.cuda.is_bf16_supported(including_emulation=False)
    return kind == "cpu" and cpu_flag() is not None


def cpu_flag(cpuinfo: Path = Path("/proc/cpuinfo")) -> str | None:
    """Return the flag in `BF16_FLAGS` that the CPU has; None without one, and if it is unknown."""
    words = cpuinfo.read_text(encoding="utf-8").split() if cpuinfo.is_file() else []
    return next((flag for flag in BF16_FLAGS if flag in words), None)


def describe_bf16(device: object = "cpu") -> str:
    """Describe the support of bf16 on a device by a clause, for messages."""
    kind = str(device).partition(":")[0]
    name = {"cuda": "this GPU", "cpu": "this CPU"}.get(kind, str(device))
    if not has_bf16(device):
        return f"{name} does not multiply bf16 natively"
    return f"{name} multiplies bf16 natively" + (f" ({cpu_flag()})" if kind == "cpu" else "")


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
    if PRECISIONS[precision].compute != "bfloat16" or has_bf16(device):
        return None
    return f"{option} {precision} is slow: {describe_bf16(device)}; {AUTO} or 32-true is faster"
