"""Errors of the command line and of configs as one sentence, with what was probably meant."""

from typing import Any, NoReturn

from lightning.pytorch.cli import LightningArgumentParser

from fourfold.core.errors import InputError


class Parser(LightningArgumentParser):
    """LightningCLI's parser, which prints pages of usage, made to say what is wrong."""

    def error(self, message: str, ex: Exception | None = None) -> NoReturn:
        """Raise InputError in place of printing and exiting."""
        raise InputError(explain(message, ex, self)) from ex


def explain(message: str, cause: BaseException | None, parser: Any) -> str:
    """The sentence for an error of jsonargparse."""
    return message
