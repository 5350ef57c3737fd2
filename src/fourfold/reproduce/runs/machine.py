"""Devices that the runs of a table are trained on, and the split of a batch for these devices.

A run is the training and test of one row (line) of a table with one seed.
"""

from dataclasses import dataclass
from pathlib import Path

from fourfold.commands.train.config_files import leaves
from fourfold.core.validation import check_range
from fourfold.errors import InputError

# Options that describe the machine and not the recipe. They change results by rounding only.
MACHINE_OPTIONS = (
    *(f"trainer.{name}" for name in ("accelerator", "devices", "num_nodes", "strategy")),
    *(f"trainer.{name}" for name in ("precision", "benchmark", "deterministic")),
    "data.num_workers",
)


@dataclass(frozen=True)
class Machine:
    """Devices for which the batch of a recipe is split so that the global batch stays the same.

    Args:
        config: Config of the Trainer such as configs/trainer/ddp.yaml; None for the recipe's own.
        memory: Memory of one device in GiB; None if every micro-batch fits.

    Raises:
        InputError: The config sets an option that belongs to the recipe, or `memory` is invalid.
    """

    config: str | None = None
    memory: float | None = None

    def __post_init__(self) -> None:
        if self.memory is not None:
            check_range("--memory", self.memory, above=0.0)
        for key, line, value in leaves(Path(self.config)) if self.config else ():
            problem = ""
            if key not in MACHINE_OPTIONS:
                problem = f"belongs to the recipe; --machine takes {', '.join(MACHINE_OPTIONS)}"
            elif key == "trainer.devices" and value in ("auto", "-1"):
                problem = f"must be a number by which the batch can be divided, got {value}"
            if problem:
                raise InputError(problem, option=key, file=self.config, line=line)

    def options(self, given: list[str]) -> list[str]:
        """Return options followed by the config of this machine, which overrides the recipe."""
        return [*given, *(["--config", self.config] if self.config else [])]

    def split_batch(self, fit: list[str]) -> dict[str, int]:
        """Compute the options, by key, that keep the global batch of a recipe on this machine.

        Args:
            fit: Options of `fourfold fit`; empty if nothing is trained.

        Raises:
            InputError: The data that determine the model's size are missing, the batch is not
                divisible by the number of devices, or no micro-batch fits into memory.
        """
        from fourfold.commands.plan import micro_batch_options

        if self == RECIPE_MACHINE or not fit:
            return {}
        return micro_batch_options(self.options(fit), self.memory)


RECIPE_MACHINE = Machine()  # the devices named in the recipe
