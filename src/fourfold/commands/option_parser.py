"""Argument parser with one-line errors, for commands that start without torch."""

import re
from argparse import ArgumentParser, Namespace, RawDescriptionHelpFormatter
from collections.abc import Sequence
from difflib import get_close_matches
from typing import Any, NoReturn

from fourfold.core.precision import AUTO, PRECISIONS
from fourfold.errors import InputError


class OptionParser(ArgumentParser):
    """`ArgumentParser` whose errors are InputErrors that suggest the closest option name.

    Options may be spelled with dashes or underscores, but not abbreviated. The description keeps
    its line breaks.

    Args:
        **options: Arguments of `ArgumentParser`, such as `prog` and `description`.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(allow_abbrev=False, formatter_class=RawDescriptionHelpFormatter, **options)
        self.renamed: dict[str, str] = {}  # new names of options by old ones, with dashes
        self._names: list[str] = []  # of the given options

    def add_allow_class(self) -> None:
        """Add the option `--allow_class`.

        Its value is the import path of a class outside of this package. Such a class is imported
        for a checkpoint only if it is given with this option.
        """
        help_text = "import path of your own class that the checkpoint names; may be repeated"
        self.add_argument(
            "--allow_class", action="append", default=[], metavar="pkg.Class", help=help_text
        )

    def add_loading_options(self, batch_size: int) -> None:
        """Add the options of `load_model` for inference, and the default of `--batch-size`."""
        self.add_allow_class()
        add = self.add_argument
        add("--batch-size", type=int, default=batch_size, help="lines per batch (%(default)s)")
        add("--device", default="auto", help="auto, cpu, cuda or cuda:N (%(default)s)")
        help_text = "(%(default)s); auto is bf16-mixed if the device is fast at it, or 32-true"
        add("--precision", default="32-true", choices=(AUTO, *PRECISIONS), help=help_text)
        add("--quantize", choices=("int8",), help="weights in int8, on a CPU only")

    def parse_known_args(  # type: ignore[override]
        self, args: Sequence[str], namespace: Namespace | None = None
    ) -> tuple[Namespace, list[str]]:
        """Parse options like `ArgumentParser`, but accept both `--n_best` and `--n-best`.

        Returns:
            The namespace of the known options, and a list of the remaining arguments.
        """
        own = {option.replace("_", "-"): option for option in self._option_string_actions}
        spellings = own | self.renamed
        known = []
        for argument in args:
            name, equals, value = argument.partition("=")
            known.append(spellings.get(name.replace("_", "-"), name) + equals + value)
        self._names = [x.partition("=")[0] for x in known if x.startswith("--")]
        return super().parse_known_args(known, namespace)

    def error(self, message: str) -> NoReturn:
        """Raise an InputError with a message of argparse and a suggestion for a misspelt option."""
        if match := re.match(r"argument (\S+?)(?:/\S+)?: (.*)", message):
            raise InputError(match[2], option=f"{match[1]}:")
        if match := re.match(r"the following arguments are required: (.*)", message):
            for name in self._names:  # the missing option may be misspelt
                if hint := self._suggest(name):
                    raise InputError(f"is not an option of `{self.prog}`{hint}", option=name)
            raise InputError("must be given", option=match[1])
        if match := re.match(r"unrecognized arguments: (.*)", message):
            name = match[1].split()[0].partition("=")[0]
            raise InputError(f"is not an option of `{self.prog}`{self._suggest(name)}", option=name)
        raise InputError(message, option=self.prog)

    def _suggest(self, name: str) -> str:
        """Return "; did you mean ...?" for an unknown option that is similar to a known argument.

        The result is "" for a known option, and if no argument is similar.
        """
        if name in (options := self._option_string_actions):
            return ""
        names = dict(zip(options, options, strict=True))
        for action in self._get_positional_actions():
            shown = str(action.metavar or action.dest)
            names.setdefault(f"--{shown.lower()}", f"{shown} without an option name")
        close = get_close_matches(name, names, n=1, cutoff=0.75)
        return f"; did you mean {names[close[0]]}?" if close else ""
