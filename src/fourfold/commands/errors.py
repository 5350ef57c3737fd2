"""Errors of Lightning and torch that mean: the input is wrong, or the machine too small."""

import re
from traceback import walk_tb

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
    r"`val_check_interval` \((\d+)\) must be less than or equal to the number of the training"
    r" batches \((\d+)\)": r"val_check_interval is \1, but an epoch has \2 batches: with"
    " --trainer.check_val_every_n_epoch null it counts on from epoch to epoch",
    r"^'pytorch-lightning_version'$": "the checkpoint is none that fourfold has written",
    # Of Lightning, asked to go on from weights that were imported.
    r"checkpoint contains only the model": "the checkpoint holds weights alone, and no training to"
    " go on with: begin with it by --model.init_from",
    r"can't allocate memory|not enough memory: you tried|Storage size calculation overflowed|"
    r"Unable to allocate": "the machine has too little memory for the model or a batch: make them"
    " smaller",
    r"No space left on device|Disk quota exceeded": "there is no space left on the disk",
}


def input_error(error: BaseException) -> InputError | None:
    """What `error` says to the user; None if it is a mistake of the program."""
    if (found := hidden_input_error(error)) is not None:
        return found
    text = " ".join(str(error).split())
    for pattern, meaning in KNOWN.items():
        if match := re.search(pattern, text):
            return InputError(match.expand(meaning))
    if isinstance(error, MemoryError):
        return InputError("the machine has too little memory for this")
    if isinstance(error, OSError) and error.filename:
        return InputError(f"{error.filename}: {error.strerror}")
    if isinstance(error, MisconfigurationException):
        return InputError(text[:300])
    if _in_restoring(error):
        return InputError(
            "the checkpoint's record of its training cannot be read: it is of another version of"
            f" Lightning, or damaged ({text[:80]})"
        )
    return None


def _in_restoring(error: BaseException) -> bool:
    """Whether Lightning was taking up a checkpoint, in whose content it believes."""
    frames = walk_tb(error.__traceback__)
    return not isinstance(error, AssertionError) and any(
        f.f_code.co_filename.endswith("checkpoint_connector.py") for f, _ in frames
    )


def hidden_input_error(error: BaseException | None) -> InputError | None:
    """The InputError that others were raised from, if there is one."""
    while error is not None and not isinstance(error, InputError):
        error = error.__cause__ or error.__context__
    return error
