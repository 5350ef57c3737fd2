"""Entry point of `fourfold fit|validate|test|predict`: check of config keys without torch."""

from collections.abc import Sequence

from fourfold.commands.train.config_files import expand_arguments, unknown_key
from fourfold.commands.train.known_keys import check_keys


def main(argv: Sequence[str]) -> int:
    """Check the keys of a command line, run the command, and return the exit code 0.

    Args:
        argv: The command (fit, validate, test or predict) and its arguments.

    Raises:
        InputError: An option, a config, the data or the checkpoint is invalid.
    """
    command = argv[0]
    options = ["--help" if option == "--help-all" else option for option in argv[1:]]
    options = expand_arguments(options, evaluates=command != "fit")
    if options and not options[0].startswith("-"):
        raise unknown_key(options[0], ())
    check_keys(options)
    from fourfold.commands.train.lightning_cli import run  # imports torch and Lightning

    return run(command, options)
