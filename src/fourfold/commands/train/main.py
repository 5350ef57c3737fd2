"""Entry point of `fourfold fit|validate|test|predict|tune`: check of config keys without torch."""

from collections.abc import Sequence

from fourfold.commands.config_files import expand_arguments
from fourfold.commands.train.config_schema import check_keys, unknown_key
from fourfold.core.validation import check_choice

TUNER_METHODS = ("lr_find", "scale_batch_size")  # of Lightning's Tuner


def main(argv: Sequence[str]) -> int:
    """Check the keys of a command line, run the command, and return the exit code 0.

    Args:
        argv: The command (fit, validate, test, predict or tune) and its arguments.
    """
    command, *options = ["--help" if option == "--help-all" else option for option in argv]
    method = options.pop(0) if command == "tune" and options else ""
    if command == "tune":
        check_choice("the first argument of `fourfold tune`", method, TUNER_METHODS)
    options = expand_arguments(options, evaluates=command not in ("fit", "tune"))
    if options and not options[0].startswith("-"):
        raise unknown_key(options[0], [])
    classes = check_keys(options)
    from fourfold.commands.train.lightning_cli import FourfoldCLI  # imports torch and Lightning

    if command == "tune":
        from fourfold.commands.train.tune import TuneCLI

        TuneCLI.method = method
        return TuneCLI.run(["fit", *options], classes)
    return FourfoldCLI.run([command, *options], classes)
