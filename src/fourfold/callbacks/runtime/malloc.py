"""Settings of glibc's malloc that keep freed memory in the process, for training on a CPU."""

import ctypes

from lightning import Callback, LightningModule, Trainer

# Options of mallopt, from glibc's malloc.h.
M_TRIM_THRESHOLD = -1
M_TOP_PAD = -2
M_MMAP_MAX = -4


def disable_malloc_trim() -> bool:
    """Keep freed memory in the process; return False if the C library is not glibc.

    By default, glibc requests each block above 32 MiB from the operating system, which fills the
    block with zeros. These requests take a fifth of the time of a training step (results/LOG.md).
    The settings do not change the peak memory use. They are in effect until the process ends.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):  # musl, macOS, Windows
        return False
    settings = {M_MMAP_MAX: 0, M_TRIM_THRESHOLD: 2**31 - 1, M_TOP_PAD: 2**26}
    return all(mallopt(option, value) for option, value in settings.items())


class DisableMallocTrim(Callback):
    """Callback that calls `disable_malloc_trim` if the model runs on a CPU."""

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Call `disable_malloc_trim` before large tensors are allocated."""
        if trainer.strategy.root_device.type == "cpu":
            disable_malloc_trim()
