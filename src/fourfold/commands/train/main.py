"""Entry point of `fourfold fit|validate|test|predict`: check of config keys without torch."""

from collections.abc import Sequence

from fourfold.commands.config_files import expand_arguments
from fourfold.commands.train.config_schema import check_keys, unknown_key


def main(argv: Sequence[str]) -> int:
    """Check the keys of a command line, run the command, and return the exit code 0.

    Args:
        argv: The command (fit, validate, test or predict) and its arguments.
    """
    command, *options = ["--help" if option == "--help-all" else option for option in argv]
    options = expand_arguments(options, evaluates=command != "fit")
    if options and not options[0].startswith("-"):
        raise unknown_key(options[0], [])
    classes = check_keys(options)
    from fourfold.commands.train.lightning_cli import FourfoldCLI  # imports torch and Lightning

    return FourfoldCLI.run([command, *options], classes)
