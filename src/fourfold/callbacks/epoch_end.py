"""A mend of Lightning: with `max_steps`, a run resumed at the end of an epoch skips the next one.

FitLoop then takes the complete epoch for one to be finished, runs it once more without a batch, and
counts it: the data of the next epoch are never seen, and logged steps are one ahead.
"""

from lightning import Callback, LightningModule, Trainer


class EpochEndResume(Callback):
    """Makes such a run begin the next epoch, as Lightning itself does with `max_epochs`."""

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """The state is restored, and no batch has been taken yet."""
        loop = trainer.fit_loop
        if loop.restarted_on_epoch_end:
            loop.epoch_progress.increment_completed()
            loop.reset_restart_stage()
            loop._restarting = loop.epoch_loop.restarting = False
