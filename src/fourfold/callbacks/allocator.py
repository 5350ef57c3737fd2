"""How a process on a CPU keeps the memory that its tensors leave."""

import ctypes

from lightning import Callback, LightningModule, Trainer

# Names and numbers of glibc's malloc.h.
TRIM_THRESHOLD, TOP_PAD, MMAP_MAX = -1, -2, -4


def keep_freed_memory() -> bool:
    """Never hand freed memory back to the system while the process lives; whether that was done.

    glibc asks the system anew for each block above 32 MiB, which then fills it with zeros page by
    page; every step of a training does that again, for a fifth of its time (results/LOG.md). The
    peak stays what it was. On other systems nothing is changed.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):  # musl, macOS, Windows
        return False
    most = 2**31 - 1
    return all(
        mallopt(option, value) for option, value in ((MMAP_MAX, 0), (TRIM_THRESHOLD, most),
                                                     (TOP_PAD, 2**26))
    )  # fmt: skip


class KeepFreedMemory(Callback):
    """Does so where a CPU computes; a GPU's memory has an allocator of torch's own."""

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Before anything large is made."""
        if trainer.strategy.root_device.type == "cpu":
            keep_freed_memory()
