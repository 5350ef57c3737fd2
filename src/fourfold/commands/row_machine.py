"""Where the runs of a table are trained, and how a recipe's batch is cut for the devices there."""

import math
from dataclasses import dataclass
from pathlib import Path

from fourfold.commands.config_files import leaves
from fourfold.core.errors import InputError

# What is of the machine and not of the recipe: of the results it changes no more than rounding.
KEYS = (
    "trainer.accelerator", "trainer.devices", "trainer.num_nodes", "trainer.strategy",
    "trainer.precision", "trainer.benchmark", "trainer.deterministic", "data.num_workers",
)  # fmt: skip


@dataclass(frozen=True)
class Machine:
    """Devices for which a recipe is cut so that its global batch stays what it is.

    Args:
        config: A config of the Trainer, such as configs/trainer/ddp.yaml; None: the recipe's own.
        memory: Of one device, in GiB; None: no micro-batch is too large.

    Raises:
        InputError: The config is missing, or says what is the recipe's to say; no such memory.
    """

    config: str | None = None
    memory: float | None = None

    def __post_init__(self) -> None:
        if self.memory is not None and not 0 < self.memory < math.inf:
            raise InputError(f"--memory is {self.memory:g}, but must be a number of GiB above 0")
        for key, line, value in leaves(Path(self.config)) if self.config else ():
            where = f"{self.config}, line {line}: {key} is"
            if key not in KEYS:
                raise InputError(f"{where} the recipe's to say: --machine takes {', '.join(KEYS)}")
            if key == "trainer.devices" and value in ("auto", "-1"):
                raise InputError(f"{where} {value}, but must be a number, to share a batch by")

    def options(self, given: list[str]) -> list[str]:
        """Options of a run on this machine, which overrules what a recipe says of another."""
        return [*given, *(["--config", self.config] if self.config else [])]

    def cut(self, fit: list[str]) -> dict[str, int]:
        """Options of a training on this machine, by key, that keep the recipe's global batch.

        Raises:
            InputError: No plan is possible: the data are not here that a model's size follows from,
                or the batch cannot be shared by so many devices, or nothing fits.
        """
        from fourfold.commands.plan import cut

        return {} if self == HERE or not fit else cut(self.options(fit), self.memory)


HERE = Machine()  # as the recipe says
