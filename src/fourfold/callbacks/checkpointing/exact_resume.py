"""Exact resume, bit for bit: seeds of dropout, position in the data, end of an epoch.

With Lightning alone, a resumed run differs from an uninterrupted run, because Lightning prefetches
batches and restores random numbers differently. In this package each batch has the fields `epoch`
and `position`. The position is the number of batches that all ranks together have trained in this
epoch when the step with this batch ends. Dropout is seeded by the index of the batch. See
"Guarantees of a run" in CONTRIBUTING.md.
"""

from typing import Any

import torch
from lightning import Callback, LightningModule, Trainer

from fourfold.data.loading.datamodule import ResumableDataModule
from fourfold.lightning_internals import clear_restart_flags


class ExactResume(Callback):
    """Callback that seeds dropout by the batch index, and saves the position in the data.

    Each rank has its own seed, so dropout masks differ between ranks. Lightning alone gives all
    ranks the same seed. No random state is saved. A plain LightningDataModule does not save the
    position in the data; a resumed run then starts the interrupted epoch again.

    Example:
        >>> import tempfile
        >>> from pathlib import Path
        >>> from fourfold.callbacks.checkpointing.run_checkpoints import RunCheckpoints
        >>> from fourfold.data import RecallData
        >>> from fourfold.models import CausalLMConfig
        >>> from fourfold.tasks import CausalLanguageModeling
        >>> quiet = {"enable_progress_bar": False, "enable_model_summary": False, "logger": False}
        >>> def train(max_steps, folder, checkpoint=None):
        ...     torch.manual_seed(0)
        ...     config = CausalLMConfig(d_model=16, n_layers=1, n_heads=2, vocab_size=None)
        ...     task, data = CausalLanguageModeling(config), RecallData(distance=4)
        ...     callbacks = [ExactResume(), RunCheckpoints(Path(folder))]
        ...     trainer = Trainer(max_steps=max_steps, callbacks=callbacks, **quiet)
        ...     trainer.fit(task, data, ckpt_path=checkpoint)
        ...     return task.state_dict()
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     _ = train(2, folder)
        ...     resumed = train(4, folder, f"{folder}/last.ckpt")
        ...     uninterrupted = train(4, folder)
        >>> all(torch.equal(resumed[name], uninterrupted[name]) for name in resumed)
        True
    """

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Set Lightning's batch counters from the position in the data and the number of ranks.

        Lightning counts the batches of one rank, and the DataModule counts the batches of all
        ranks. If the interrupted run had another number of ranks, the counters that Lightning
        restores are wrong. Gradient accumulation would then end at the wrong batches.
        """
        data = resumable_data(trainer)
        progress = trainer.fit_loop.epoch_loop.batch_progress
        if not progress.current.ready or progress.is_last_batch:
            return
        done = 0 if data is None else data.n_train_batches(upto=data.position.batch)
        difference = done - progress.current.ready
        for counts in (progress.current, progress.total):
            for name in ("ready", "started", "processed", "completed"):
                setattr(counts, name, getattr(counts, name) + difference)

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, *_: Any) -> None:
        """Seed torch's random-number generator, which dropout uses, by `step_seed`."""
        torch.manual_seed(step_seed(trainer))

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Pass epoch and position of the batch to the DataModule, for its state in checkpoints."""
        data = resumable_data(trainer)
        if data is not None:
            data.mark_trained(batch.epoch, batch.position)


def resumable_data(trainer: Trainer) -> ResumableDataModule | None:
    """Return the DataModule of the Trainer if it is a `ResumableDataModule`, otherwise None.

    Example:
        >>> from fourfold.data import RecallData
        >>> from fourfold.models import CausalLMConfig
        >>> from fourfold.tasks import CausalLanguageModeling
        >>> config = CausalLMConfig(d_model=16, n_layers=1, n_heads=2, vocab_size=None)
        >>> task, data = CausalLanguageModeling(config), RecallData(distance=4)
        >>> quiet = {"enable_progress_bar": False, "enable_model_summary": False}
        >>> trainer = Trainer(fast_dev_run=True, **quiet)
        >>> trainer.fit(task, data)
        >>> resumable_data(trainer) is data
        True
    """
    data = getattr(trainer, "datamodule", None)
    return data if isinstance(data, ResumableDataModule) else None


def step_seed(trainer: Trainer) -> int:
    """Compute the seed of the current batch, which differs between batches and ranks.

    The seed is computed from the seed of the DataModule, the index of the batch (counted over all
    epochs) and the rank of this process.

    Example:
        >>> from fourfold.data import RecallData
        >>> from fourfold.models import CausalLMConfig
        >>> from fourfold.tasks import CausalLanguageModeling
        >>> config = CausalLMConfig(d_model=16, n_layers=1, n_heads=2, vocab_size=None)
        >>> task, data = CausalLanguageModeling(config), RecallData(distance=4)
        >>> quiet = {"enable_progress_bar": False, "enable_model_summary": False}
        >>> class PrintSeed(Callback):
        ...     def on_train_batch_start(self, trainer, *_):
        ...         print(step_seed(trainer))
        >>> Trainer(fast_dev_run=2, callbacks=[PrintSeed()], **quiet).fit(task, data)
        0
        7919
    """
    seed = getattr(trainer.datamodule, "seed", 0)  # type: ignore[attr-defined]
    number = trainer.fit_loop.total_batch_idx
    # The odd multipliers give different seeds for different (seed, number, rank). torch's generator
    # mixes the bits of a seed.
    return (seed * 1_000_003 + number * 7_919 + trainer.global_rank * 104_729) % 2**63


class FixEpochEndResume(Callback):
    """Callback that starts the next epoch in a run that resumes from the end of an epoch.

    With `max_steps`, Lightning's FitLoop resumes the epoch that is already complete, runs no batch
    and counts this epoch a second time. Without this callback, the data of the next epoch would be
    skipped, and the logged step numbers would be too high by one. With `max_epochs`, Lightning
    starts the next epoch itself.

    Example:
        >>> from fourfold.data import RecallData
        >>> from fourfold.models import CausalLMConfig
        >>> from fourfold.tasks import CausalLanguageModeling
        >>> config = CausalLMConfig(d_model=16, n_layers=1, n_heads=2, vocab_size=None)
        >>> task, data = CausalLanguageModeling(config), RecallData(distance=4)
        >>> quiet = {"enable_progress_bar": False, "enable_model_summary": False}
        >>> callbacks = [ExactResume(), FixEpochEndResume()]
        >>> trainer = Trainer(fast_dev_run=2, callbacks=callbacks, **quiet)
        >>> trainer.fit(task, data)
        >>> trainer.global_step
        2
    """

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """If the run resumes from the end of an epoch, count this epoch as complete.

        The run then begins with the next epoch.
        """
        loop = trainer.fit_loop
        if loop.restarted_on_epoch_end:
            loop.epoch_progress.increment_completed()
            loop.reset_restart_stage()
            clear_restart_flags(trainer)
