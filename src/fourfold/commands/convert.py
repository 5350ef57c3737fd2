"""`fourfold import` and `fourfold export`: weights from transformers, and back."""

from collections.abc import Sequence
from pathlib import Path

from fourfold.commands.overview import OVERVIEWS
from fourfold.core.errors import InputError


def main(argv: Sequence[str]) -> int:
    """Run one of the two and print what it did.

    Raises:
        InputError: Whatever is wrong with the arguments or the files.
    """
    command, *names = argv
    if any(name.startswith("-") for name in names) or len(names) != 2:
        raise InputError(
            f"fourfold {command} takes two paths: {OVERVIEWS[command].split(chr(10))[0]}"
        )
    from fourfold.tasks import convert  # torch and Lightning, not before the arguments are right

    run = convert.import_directory if command == "import" else convert.export_checkpoint
    print("\n".join(run(Path(names[0]), Path(names[1]))))
    return 0
