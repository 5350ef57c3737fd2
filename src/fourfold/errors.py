"""InputError, DiskError, TrainingStopped: exceptions that the command line reports in one line."""

from collections.abc import Iterator
from contextlib import contextmanager
from os import PathLike


class InputError(ValueError):
    """Invalid input. The command line prints the message in one line and exits with code 2.

    `option` or `file` (or both) must be given, so that every message names its origin. The message
    begins with a lower-case letter and has no full stop at its end.

    Args:
        message: With `option`, the predicate of a sentence whose subject is that option; otherwise
            a whole clause.
        option: Name of the command-line option, config field or argument at fault.
        file: Path of the file at fault.
        line: Line number in that file, from 1.

    Example:
        >>> str(InputError("must be at least 1, got 0", option="--rounds"))
        '--rounds must be at least 1, got 0'
        >>> str(InputError("the row has 3 columns, but the header has 4", file="a.tsv", line=7))
        'a.tsv:7: the row has 3 columns, but the header has 4'
    """

    def __init__(
        self,
        message: str,
        *,
        option: str | None = None,
        file: str | PathLike[str] | None = None,
        line: int | None = None,
    ) -> None:
        self.message, self.option, self.file, self.line = message, option, file, line
        location = "" if file is None else f"{file}: " if line is None else f"{file}:{line}: "
        subject = "" if option is None else f"{option} "
        super().__init__(f"{location}{subject}{message}")

    def in_file(self, file: str | PathLike[str], line: int | None = None) -> "InputError":
        """Return a copy of the error whose location is `file`, before a location that it has."""
        text = self.message if self.file is None else str(self)
        option = self.option if self.file is None else None
        return InputError(text, option=option, file=file, line=line)


@contextmanager
def errors_in(file: str | PathLike[str]) -> Iterator[None]:
    """Context that adds `file` to an InputError of its block, if the error names no file yet."""
    try:
        yield
    except InputError as error:
        if error.file is not None:
            raise
        raise error.in_file(file) from error


# Errors of code that reads a value of another type, kind or size than the code expects.
_UNEXPECTED = (ArithmeticError, AttributeError, LookupError, OSError, TypeError, ValueError)


@contextmanager
def reading(file: str | PathLike[str]) -> Iterator[None]:
    """Context of code of fourfold that reads a file of somebody else; every error is an InputError.

    The code of users does not belong into it, since their own errors must keep their class.
    """
    try:
        with errors_in(file):
            yield
    except (InputError, DiskError):
        raise
    except (*_UNEXPECTED, RecursionError) as error:
        text = " ".join(str(error).split())[:160]
        raise InputError(f"the content is invalid: {text}", file=file) from error


class DiskError(OSError):
    """Error of fourfold or Lightning while writing to a full or failing disk.

    The command line prints the message in one line, and exits with the code `exit_code`.
    """

    exit_code = 2


class TrainingStopped(RuntimeError):
    """Error of a training that cannot continue although the input is valid, such as a NaN loss.

    The command line prints the message in one line and exits with code 1.
    """
