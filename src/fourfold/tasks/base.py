"""A model meets a batch: what all tasks share.

From `fourfold fit` to the loss: Lightning calls `training_step`, that calls the family's `step`,
which returns a sum over targets and their number; here the one is divided by the other, over all
micro-batches and devices of an optimizer step.
"""

from collections.abc import Callable
from dataclasses import asdict, replace
from typing import Any, ClassVar

from lightning import LightningModule
from torch import Tensor, nn
from torch.optim import Optimizer

from fourfold.callbacks.step_metrics import is_logged
from fourfold.core.config import ModelConfig
from fourfold.core.errors import InputError
from fourfold.data.tokenizer import Tokenizer
from fourfold.models.depths import depths
from fourfold.optim import OptimizerConfig, make_optimizer
from fourfold.schedules import ScheduleConfig, make_schedule
from fourfold.tasks.plain import from_plain
from fourfold.tasks.sameness import (
    refuse_another,
    refuse_lost_average,
    refuse_other_settings,
)
from fourfold.tasks.sharding import FSDP2, fit_strategy
from fourfold.tasks.start import InitFrom, start_from
from fourfold.tasks.steps import optimizer_steps, warn_of_warm_up
from fourfold.tasks.tuning import TuningConfig, adapt, hold_statistics, still_frozen
from fourfold.tasks.window import Window, gradient_norm, refuse_idle


class Task(LightningModule):
    """A family's model with its loss, metrics, optimizer and schedule.

    A subclass names its model and config class, and gives `step` and `evaluate`.

    Args:
        config: The model's description; what is None in it is taken from the data.
        optimizer: How weights are moved.
        schedule: How the learning rate moves.
        init_from: Weights to begin with: a checkpoint or run directory of ours, a directory or hub
            name of transformers or timm, a file of timm, nanoGPT or minGPT; of an encoder-decoder
            also two of them, `{encoder: PATH, decoder: PATH}`. What was loaded, resized, new or
            left out is printed.
        tuning: What of the model learns, and how it is fitted to those weights.
        options: The subclass's own arguments, kept in the checkpoint.
    """

    model_class: ClassVar[Callable[..., nn.Module]]
    config_class: ClassVar[type[ModelConfig]]
    config: Any  # of that class
    batch_class: ClassVar[type]  # what it learns from
    unit: ClassVar[str] = "tokens"  # what throughput counts
    from_data: ClassVar[tuple[str, ...]] = ("vocab_size",)  # fields of the config the data know
    exact: ClassVar[tuple[str, ...]] = ()  # those of them that may not be more than the data's

    def __init__(
        self,
        config: ModelConfig,  # no transformer's: its defaults would be laid under another's
        optimizer: OptimizerConfig,
        schedule: ScheduleConfig,
        init_from: InitFrom = None,
        tuning: TuningConfig = TuningConfig(),  # noqa: B008  (frozen)
        **options: Any,
    ) -> None:
        super().__init__()
        self.init_from, self.tuning = init_from, tuning
        self.config, self.optimizer_config, self.schedule_config = config, optimizer, schedule
        # Plain values only: a pickled dataclass could not be loaded with weights_only.
        self.init_args = {"config": asdict(config), "optimizer": asdict(optimizer),
                          "schedule": asdict(schedule), "init_from": init_from,
                          "tuning": asdict(tuning), **options}  # fmt: skip
        self.save_hyperparameters(self.init_args)
        self.model: Any = None
        self.artifacts: dict[str, Any] = {}
        self.summary: dict[str, Any] = {}
        self._tokenizer: Tokenizer | None = None
        self.window = Window()

    # What a family gives.

    def step(self, batch: Any) -> tuple[Tensor, Tensor]:
        """Sum of the loss over the batch's targets, and their number."""
        raise NotImplementedError

    def evaluate(self, batch: Any, split: str) -> None:
        """Update the metrics of `split` (val or test) with a batch."""
        raise NotImplementedError

    def results(self, split: str) -> dict[str, Any]:
        """Compute and reset the metrics of `split`."""
        raise NotImplementedError

    def size(self, batch: Any) -> int:
        """How many tokens or images a batch holds, for throughput."""
        raise NotImplementedError

    # From the data to the model.

    def setup(self, stage: str) -> None:
        """Take from the data what a checkpoint carries: tokenizer, classes, preprocessing.

        Raises:
            InputError: The data are those of another family.
        """
        data: Any = self.trainer.datamodule  # type: ignore[attr-defined]
        if not issubclass(data.batch_class, self.batch_class):
            raise InputError(
                f"{type(self).__name__} learns from a {self.batch_class.__name__},"
                f" but {type(data).__name__} makes a {data.batch_class.__name__}"
            )
        self.artifacts = self.trainer.datamodule.artifacts()  # type: ignore[attr-defined]

    @property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer that the data or the checkpoint brought (text tasks).

        Raises:
            InputError: The checkpoint was imported without one.
        """
        if self._tokenizer is None:
            if "tokenizer" not in self.artifacts:
                raise InputError("the checkpoint has no tokenizer: it was imported without one")
            self._tokenizer = Tokenizer.from_str(self.artifacts["tokenizer"])
        return self._tokenizer

    def configure_model(self) -> None:
        """Build the model, once the data are there to complete the config.

        Raises:
            InputError: The config's vocabulary or classes are fewer than the data's, or its
                longest sequence is shorter; or `init_from` does not fit.
        """
        if self.model is not None:
            return
        if self._trainer is not None:
            self._complete_config()
            self._refuse_long_rows()
        self.model = self.model_class(self.config)
        # Not for a task out of a checkpoint, which has all weights itself.
        if self.init_from and self._trainer is not None:
            # Asked of the data: an averaging callback builds the model before `setup` is called.
            words = self.trainer.datamodule.artifacts().get("tokenizer")  # type: ignore[attr-defined]
            report = start_from(self.model, self.init_from, words, self.tuning.resize)
            if self.trainer.is_global_zero:
                print(report, flush=True)
        adapt(self.model, self.tuning)
        if self._trainer is not None:
            fit_strategy(self.model, self.trainer)

    def _complete_config(self) -> None:
        for field in self.from_data:
            given = getattr(self.config, field)
            found = getattr(self.trainer.datamodule, field)  # type: ignore[attr-defined]
            if given is not None and (given < found or (field in self.exact and given != found)):
                raise InputError(
                    f"the model's {field} is {given}, but the data need {found}: null takes theirs"
                )
            if given is None:
                self.config = replace(self.config, **{field: found})
                self.init_args["config"][field] = found

    def _refuse_long_rows(self) -> None:
        """Now, rather than in the middle of the training."""
        # Of two stacks with positions of their own, each has a limit.
        parts = (self.config, getattr(self.config, "encoder", None))
        limits = [limit for part in parts if (limit := getattr(part, "max_len", None))]
        limit = min(limits, default=None)
        for name, split in self.trainer.datamodule.splits.items():  # type: ignore[attr-defined]
            if limit is not None and split.longest > limit:
                raise InputError(
                    f"the longest row of the {name} split has {split.longest} tokens, but the"
                    f" model's max_len is {limit}: raise it, or make the data's rows shorter"
                )

    # Training.

    def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
        """Also behind a validation, and in an epoch that is taken up within."""
        hold_statistics(self.model, self.tuning, self.current_epoch)

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        """Loss whose gradient, after Lightning's own averaging, is that of the global mean."""
        return self.window.add(*self.step(batch), self.trainer)

    def on_before_optimizer_step(self, optimizer: Optimizer) -> None:
        """All micro-batches are in: set the gradients right, and look at what they are."""
        if self.trainer.global_step == 0:
            refuse_idle(self.model, self.trainer)
        for parameter in still_frozen(self.model, self.tuning, self.current_epoch):
            parameter.grad = None
        self.window.close(self.parameters(), self.trainer)
        self.log("train/loss", self.window.mean, prog_bar=True)
        if is_logged(self.trainer):  # before clipping, and after fp16's scale is taken out
            self.log("train/grad_norm", gradient_norm(self.parameters()))

    def configure_optimizers(self) -> Any:
        """Optimizer and a schedule that steps with it."""
        # A fused step unscales by itself, which Lightning's clipping under fp16 cannot wait for.
        fused = not self.trainer.precision.startswith("16")
        if self.optimizer_config.name == "sgd" and (
            isinstance(self.trainer.strategy, FSDP2) or self.tuning.unfreeze_every is not None
        ):
            fused = False  # torch has none for split weights, nor for some with momenta alone
        optimizer = make_optimizer(
            self.model, self.optimizer_config, depths(self.model), fused=fused
        )
        lr, width, steps = self.optimizer_config.lr, self.config.d_model, self.total_steps()
        warn_of_warm_up(self.schedule_config, steps)
        schedule = make_schedule(optimizer, self.schedule_config, lr, steps, width)
        return [optimizer], [{"scheduler": schedule, "interval": "step"}]

    def configure_gradient_clipping(
        self,
        optimizer: Optimizer,
        gradient_clip_val: float | None = None,
        gradient_clip_algorithm: str | None = None,
    ) -> None:
        """Clip as Lightning does, which beside a fused step refuses to also without a scaler."""
        if gradient_clip_val and self.trainer.precision == "bf16-mixed":
            limit, by_value = float(gradient_clip_val), gradient_clip_algorithm == "value"
            clip = nn.utils.clip_grad_value_ if by_value else nn.utils.clip_grad_norm_
            clip([p for group in optimizer.param_groups for p in group["params"]], limit)
            return
        super().configure_gradient_clipping(optimizer, gradient_clip_val, gradient_clip_algorithm)

    def total_steps(self) -> int | None:
        """Optimizer steps of the whole run, if it has an end."""
        return optimizer_steps(self.trainer, self.schedule_config)

    # Evaluation.

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        """Update validation metrics."""
        self.evaluate(batch, "val")

    def test_step(self, batch: Any, batch_idx: int) -> None:
        """Update test metrics."""
        self.evaluate(batch, "test")

    def on_validation_epoch_end(self) -> None:
        """Log validation metrics, and keep them, also those that are no numbers."""
        self.summary = self._finish("val")

    def on_test_epoch_end(self) -> None:
        """Log test metrics and keep them as the summary of the run."""
        self.summary = self._finish("test")

    def _finish(self, split: str) -> dict[str, Any]:
        results = {f"{split}/{name}": value for name, value in self.results(split).items()}
        numbers = {k: float(v) for k, v in results.items() if isinstance(v, int | float)}
        self.log_dict(numbers, prog_bar=split == "val", rank_zero_only=False, sync_dist=False)
        return results

    # Checkpoints.

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Add what rebuilds the task from the file alone."""
        checkpoint["fourfold"] = {
            "version": 1,
            "task": type(self).__name__,
            "init_args": self.init_args,
            "data": self.artifacts,
        }

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Refuse a checkpoint of another family, or of another tokenizer or classes.

        Raises:
            InputError: Names what differs.
        """
        path = self.trainer.ckpt_path if self._trainer is not None else None
        try:
            if self._trainer is not None:  # the data may just have taken over the checkpoint's own
                self.artifacts = self.trainer.datamodule.artifacts()  # type: ignore[attr-defined]
            refuse_another(checkpoint.get("fourfold"), type(self).__name__, self.artifacts)
            training = self._trainer is not None and self.trainer.state.fn == "fit"
            if training:
                refuse_lost_average(checkpoint, self.trainer.callbacks)  # type: ignore[attr-defined]
            saved = checkpoint["fourfold"]["init_args"]
            refuse_other_settings(saved, self.init_args, training=training)
        except InputError as error:
            raise InputError(f"{path}: {error}" if path else str(error)) from error

    @classmethod
    def from_init_args(cls, init_args: dict[str, Any]) -> "Task":
        """The task that was made with `init_args` (plain values), its model built."""
        args = dict(init_args)
        args["config"] = from_plain(cls.config_class, args["config"])
        args["optimizer"] = OptimizerConfig(**args["optimizer"])
        args["schedule"] = ScheduleConfig(**args["schedule"])
        args["tuning"] = TuningConfig(**args.get("tuning", {}))
        task = cls(**args)
        task.configure_model()
        return task
