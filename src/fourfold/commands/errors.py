"""Errors of Lightning and torch that mean: the input is wrong, or the machine too small."""

import re

from lightning.pytorch.utilities.exceptions import MisconfigurationException

from fourfold.core.errors import InputError

# What other libraries say, and what it means here.
KNOWN = {
    r"Error\(s\) in loading state_dict": "the checkpoint's weights do not fit the model of the"
    " config: give the config that it was trained with",
    r"Early stopping conditioned on metric `(.+?)` which is not available": "EarlyStopping cannot"
    r" monitor \1: validation does not give it",
    r"you have set Trainer\(max_epochs=(\d+)\)": r"the run is already beyond \1 epochs: give a"
    " greater --trainer.max_epochs to go on",
    r"No space left on device": "there is no space left on the disk",
}


def input_error(error: BaseException) -> InputError | None:
    """What `error` says to the user; None if it is a mistake of the program."""
    if (found := hidden_input_error(error)) is not None:
        return found
    text = " ".join(str(error).split())
    for pattern, meaning in KNOWN.items():
        if match := re.search(pattern, text):
            return InputError(match.expand(meaning))
    if isinstance(error, OSError) and error.filename:
        return InputError(f"{error.filename}: {error.strerror}")
    if isinstance(error, MisconfigurationException):
        return InputError(text[:300])
    return None


def hidden_input_error(error: BaseException | None) -> InputError | None:
    """The InputError that others were raised from, if there is one."""
    while error is not None and not isinstance(error, InputError):
        error = error.__cause__ or error.__context__
    return error
