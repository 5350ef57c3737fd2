"""`fourfold replay`: find the module whose output was not finite when a training stopped."""

from collections.abc import Sequence

from fourfold.commands.option_parser import OptionParser
from fourfold.core.precision import PRECISIONS

DESCRIPTION = """\
A training whose loss is not finite stops before the step and saves the batch and the
weights in RUN_DIR/nonfinite_step=N.pt. This command runs the batch again, with the same
dropout, in the same precision and then in fp32, and names the first module whose output
is not finite."""


def main(argv: Sequence[str]) -> int:
    """Run `fourfold replay`, and return the exit code 0, even if an output is Inf or NaN.

    Args:
        argv: Path of the file that the stopped training wrote, and options such as `--device`.

    Raises:
        InputError: An option is invalid, or the file was not written by a training that stopped.
    """
    parser = OptionParser(prog="fourfold replay", description=DESCRIPTION)
    parser.add_argument("file", metavar="RUN_DIR/nonfinite_step=N.pt")
    parser.add_argument("--device", help="auto, cpu, cuda or cuda:N; default: the training's")
    parser.add_argument("--precision", choices=tuple(PRECISIONS), help="default: the training's")
    parser.add_allow_class()
    options = parser.parse_args(list(argv))
    from fourfold.commands.replay_nonfinite import replay  # imports torch

    return replay(options)
