"""Names of numeric precisions in Lightning, and the data types of each.

Data types are stored as strings, so that the command line can list the precisions without an import
of torch.
"""

from typing import NamedTuple

from fourfold.core.validation import check_choice


class Precision(NamedTuple):
    """Data types of a precision, as names of torch dtypes such as "float32".

    Args:
        weights: Type of weights, gradients and optimizer states.
        compute: Type of matrix products and of the activations that autograd keeps.
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
