"""Task: base class of the LightningModules that train and evaluate the models.

The class implements loss normalization, logging of metrics, optimizer, fine-tuning, config values
from the data, and checkpoints. `training_step` calls the method `step` of the subclass, which
returns the sum of the loss over the targets of a batch and the number of targets. A target is a
token or a label that the model is trained to predict. The gradient is divided by the number of
targets in all micro-batches and processes of an optimizer step.
"""

import inspect
import math
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Generic, Self, TypeVar

import torch
from lightning import Callback, LightningModule
from lightning.pytorch.callbacks import WeightAveraging
from lightning.pytorch.utilities.rank_zero import rank_zero_warn
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR
from torchmetrics import Metric

from fourfold.callbacks.runtime.required import add_required_callbacks
from fourfold.checkpoints.classes import class_path, model_name
from fourfold.checkpoints.compatibility import check_same_settings, check_same_task
from fourfold.checkpoints.load import check_fits
from fourfold.checkpoints.schema import (
    TASK_SECTIONS,
    VERSION,
    check_version,
    config_from_dict,
    dataclass_from_dict,
    init_annotations,
)
from fourfold.core.config import ModelConfig
from fourfold.core.validation import check_kinds
from fourfold.errors import InputError, errors_in
from fourfold.families import members
from fourfold.finetuning.config import TuningConfig
from fourfold.finetuning.layer_lr_decay import layer_lr_scales
from fourfold.layers.base_model import ActivationCheckpointing, Model, check_checkpointing
from fourfold.lightning_internals import attached_trainer, is_logged
from fourfold.metrics.base import Mean
from fourfold.optim import OptimizerConfig, make_optimizer
from fourfold.schedules import ScheduleConfig, learning_rate_factor
from fourfold.tokenization.tokenizer import Tokenizer
from fourfold.training.equal_tables import artifacts_of, check_equal_tables
from fourfold.training.finetuning import apply_finetuning, freeze_batchnorm, frozen_at_epoch
from fourfold.training.fsdp2 import FSDP2, init_for_strategy, prepare_for_strategy
from fourfold.training.loading import load_task
from fourfold.training.loss_normalization import (
    LossNormalizer,
    check_unused_parameters,
    divisor,
    gradient_norm,
)
from fourfold.training.total_steps import TunableLearningRate, total_optimizer_steps

ModelT = TypeVar("ModelT", bound=Model)
BatchT = TypeVar("BatchT")


@dataclass(eq=False, repr=False)
class Task(TunableLearningRate, LightningModule, Generic[ModelT, BatchT]):
    """Base class of all tasks, which are LightningModules with a model, a loss and metrics.

    A subclass sets the class variables, and implements `step`, `update_metrics` and
    `compute_metrics`. The tasks of fourfold are dataclasses, whose fields are the arguments of the
    constructor. A constructor of your own must store each further argument in an attribute of the
    same name, because checkpoints store these attributes.

    The DataModule may be any LightningDataModule. One with the attributes and methods of
    `ResumableDataModule` also gives the task sizes such as `vocab_size`, and the artifacts: plain
    values about the data, such as the tokenizer, the class names and the preprocessing.

    Args:
        config: Config of the model. A size in `inferred_from_data` that is None is taken from the
            data.
        optimizer: Options of the optimizer.
        schedule: Options of the learning-rate schedule.
        init_from: Path of a model, in any format that `fourfold.load` accepts, whose weights
            initialize the model. For an encoder-decoder, two paths may be given as `{encoder: PATH,
            decoder: PATH}`. A report of loaded, resized, new and unused tensors is printed. A path
            with the suffix .txt or .vec is a file of word vectors for the token embeddings.
        tuning: Options of fine-tuning: freezing of layers, gradual unfreezing and LoRA.
        activation_checkpointing: What is computed again in the backward pass instead of being
            stored: none, block (all blocks), attention, or a number N (every N-th block).

    Attributes:
        model_class: Class of the model.
        config_class: Class of the model's config; None means that of the default `config`.
        batch_class: Class of the batches that the DataModule makes.
        unit: Unit of the throughput, tokens or images.
        inferred_from_data: Fields of the config that are taken from the DataModule if they are
            None, and otherwise must not be smaller than the values of the DataModule.
        must_equal_data: Fields among these that must equal the values of the DataModule.
        compares_rows: True if the loss of a row depends on the other rows of its batch.
        model: The model; None until `configure_model` has built it.
        allowed_classes: Your classes, or their import paths, that the checkpoint `init_from` may
            name.
        artifacts: Artifacts of the DataModule by name, which a checkpoint stores.
        summary: Metrics of the last evaluation by name, including those that are not numbers.
        resumes: True if the weights will be loaded from a checkpoint, so that `init_from` is not
            read. Lightning knows the checkpoint only after the model is built.
    """

    model_class: ClassVar[type[Model]]
    config_class: ClassVar[type[ModelConfig] | None] = None
    batch_class: ClassVar[type[Any]]
    unit: ClassVar[str] = "tokens"
    inferred_from_data: ClassVar[tuple[str, ...]] = ("vocab_size",)
    must_equal_data: ClassVar[tuple[str, ...]] = ()
    compares_rows: ClassVar[bool] = False
    model: ModelT = field(init=False)

    # Not TransformerConfig: jsonargparse would merge its defaults into those of a subclass.
    config: ModelConfig
    optimizer: OptimizerConfig
    schedule: ScheduleConfig
    init_from: str | dict[str, str] | None = field(default=None, kw_only=True)
    tuning: TuningConfig = field(default=TuningConfig(), kw_only=True)
    activation_checkpointing: ActivationCheckpointing = field(default="none", kw_only=True)

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        # Configs and checkpoints name the public module, wherever the file of a task is.
        if members("tasks").get(cls.__name__) == cls.__module__:
            cls.__module__ = "fourfold.tasks"

    def __post_init__(self) -> None:
        super().__init__()
        check_checkpointing(self.activation_checkpointing)
        self.model = None  # type: ignore[assignment]
        self.allowed_classes: tuple[type[Any] | str, ...] = ()
        self.resumes = False
        self.artifacts: dict[str, Any] = {}
        self.summary: dict[str, Any] = {}
        self.eval_loss = Mean()  # of the evaluation
        self.loss_normalizer = LossNormalizer()
        self._micro_batches: list[tuple[Any, int, Tensor]] = []  # of the current optimizer step

    # Implemented by subclasses.

    def step(self, batch: BatchT) -> tuple[Tensor, Tensor | int]:
        """Return the loss of a batch, summed over its targets, and the number of targets.

        The number may be the sum of the weights of the targets, if the loss is a weighted mean.
        """
        raise NotImplementedError

    def update_metrics(self, batch: BatchT, split: str) -> None:
        """Update the metrics with a batch of the split val or test."""
        raise NotImplementedError

    def compute_metrics(self, split: str) -> dict[str, Any]:
        """Return the metrics of all batches since the last reset by name, such as "loss".

        Numbers and tensors with one element are logged. The caller resets the metrics of
        torchmetrics that are attributes of the task; other sums must be reset here.
        """
        raise NotImplementedError

    def n_units(self, batch: Any) -> int:
        """Return the number of images, or of tokens with padding, in a batch."""
        return len(batch.images) if self.unit == "images" else batch.ids.numel()

    # Data and model.

    def configure_callbacks(self) -> list[Callback]:
        """Add the callbacks that every task needs to the Trainer."""
        add_required_callbacks(self.trainer)
        return []

    @property
    def datamodule(self) -> Any:
        """DataModule of the Trainer; None without a Trainer, or if it has only DataLoaders."""
        return getattr(attached_trainer(self), "datamodule", None)

    def setup(self, stage: str) -> None:
        """Store the artifacts of the DataModule.

        Raises:
            InputError: The batches of the DataModule are not of the class `batch_class`, or the
                ranks have different artifacts or data.
        """
        made = getattr(self.datamodule, "batch_class", self.batch_class)
        if not issubclass(made, self.batch_class):
            needed = f"must make a {self.batch_class.__name__} for {type(self).__name__}"
            found = f"{type(self.datamodule).__name__} makes a {made.__name__}"
            raise InputError(f"{needed}, but {found}", option="--data")
        self.artifacts = artifacts_of(self.datamodule)
        check_equal_tables(self.trainer, self.artifacts, self.datamodule)
        self.save_hyperparameters({"config": asdict(self.config), **self.init_args()})

    @cached_property
    def tokenizer(self) -> Tokenizer:
        """Tokenizer of the data or of the checkpoint; an InputError if it has none."""
        if "tokenizer" not in self.artifacts:
            source = "--checkpoint" if self.datamodule is None else "--data"
            raise InputError("must have a tokenizer among its artifacts", option=source)
        return Tokenizer.from_str(self.artifacts["tokenizer"])

    def configure_model(self) -> None:
        """Build the model and, for training, initialize it from `init_from` and freeze layers.

        Later calls do nothing.

        Raises:
            InputError: A size of the config does not fit the data; an example is longer than
                `max_len`; or the model at `init_from` has other layers than this model.
        """
        if self.model is not None:
            return
        trainer = attached_trainer(self)  # None for a task from a checkpoint, or without data
        if trainer is not None:
            self._complete_config()
            self._check_row_lengths()
        source = self.init_from
        if trainer is None or self.resumes or trainer.ckpt_path:
            source = None
        # The weights at `init_from` are complete, and a recurrent layer changes parts of weights.
        is_complete = trainer is None or source or self.model_class.is_recurrent
        with nullcontext() if is_complete else init_for_strategy(trainer):
            self.model = self.model_class(self.config)
            if source:
                self._initialize_from(source)
            apply_finetuning(self.model, self.tuning)
        self.model.set_activation_checkpointing(self.activation_checkpointing)
        if trainer is not None:
            prepare_for_strategy(self.model, trainer)

    def _initialize_from(self, source: str | dict[str, str]) -> None:
        """Load the weights of a model, and print which tensors were loaded."""
        from fourfold.checkpoints.init_from import initialize_from  # imports several families

        # Not from `self.artifacts`: an averaging callback builds the model before `setup`.
        tokenizer = artifacts_of(self.datamodule).get("tokenizer")
        interpolation = self.tuning.pos_embed_interpolation
        report = initialize_from(self.model, source, tokenizer, interpolation, self.allowed_classes)
        if self.trainer.is_global_zero:
            print(report, flush=True)

    def _complete_config(self) -> None:
        """Complete the sizes of the config that `inferred_from_data` names, from the data.

        A size that is None is replaced by the size in the data.
        """
        sizes = {name: self._size(name, self.config) for name in self.inferred_from_data}
        self.config = replace(self.config, **sizes)

    def _size(self, name: str, config: Any, section: str = "model.config") -> int:
        """Return a size from a config, or from the data if the size is None in the config."""
        size: int | None = getattr(config, name)
        needed: int | None = getattr(self.datamodule, name, None)
        if needed is None and size is None:
            problem = f"must be given: {type(self.datamodule).__name__} has no attribute {name}"
            raise InputError(problem, option=f"{section}.{name}")
        if needed is None or size is None:
            return size or needed or 0
        if size != needed if name in self.must_equal_data else size < needed:
            limit = needed if name in self.must_equal_data else f"at least {needed}"
            problem = f"must be {limit}, as in the data, got {size}"
            raise InputError(problem, option=f"{section}.{name}")
        return size

    def _check_row_lengths(self) -> None:
        """Check that the model supports the longest example of each split."""
        configs = (self.config, getattr(self.config, "encoder", None))
        limit = min(getattr(config, "max_len", None) or math.inf for config in configs)
        for name, split in getattr(self.datamodule, "splits", {}).items():
            if split.max_length > limit:
                found = f"the longest row of the {name} split has {split.max_length} tokens"
                problem = f"is {limit}, but {found}: raise it, or shorten the rows"
                raise InputError(problem, option="model.config.max_len")

    # Training.

    def on_train_batch_start(self, batch: BatchT, batch_idx: int) -> None:
        """Freeze the running statistics of batch norms in layers that are frozen in this epoch."""
        freeze_batchnorm(self.model, self.tuning, self.current_epoch)

    def training_step(self, batch: BatchT, batch_idx: int) -> dict[str, Tensor]:
        """Return the loss of a micro-batch, which callbacks receive as `outputs`.

        "loss" is scaled for the backward pass by `LossNormalizer`. "mean_loss" is the mean loss
        over the targets of this micro-batch on this device, for people to read.
        """
        total, count = self.step(batch)
        mean = total.detach() / (divisor(count) if isinstance(count, Tensor) else count or 1)
        loss = self.loss_normalizer.scale_loss(total, count, self.trainer)
        # Examined only if the step fails, because examining each loss would wait for the GPU.
        self._micro_batches.append((batch, torch.initial_seed(), self.loss_normalizer.nonfinite))
        return {"loss": loss, "mean_loss": mean}

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Return the output of the model, which is built at the first call."""
        self.configure_model()
        return self.model(*args, **kwargs)

    def on_before_optimizer_step(self, optimizer: Optimizer) -> None:
        """Normalize the gradients, and log the loss and the norm of the gradients.

        Gradients of layers that gradual unfreezing still freezes are set to None.

        Raises:
            TrainingStopped: A loss of this step is NaN or infinite.
        """
        if self.trainer.global_step == 0:
            check_unused_parameters(self.model, self.trainer)
        for parameter in frozen_at_epoch(self.model, self.tuning, self.current_epoch):
            parameter.grad = None
        micro_batches, self._micro_batches = self._micro_batches, []

        def explain() -> str:
            from fourfold.training.nonfinite_loss import find_nonfinite

            return find_nonfinite(self, micro_batches)

        self.loss_normalizer.finalize_gradients(self.parameters(), self.trainer, explain)
        self.log("train/loss", self.loss_normalizer.mean, prog_bar=True)
        if is_logged(self.trainer):  # before clipping, and after unscaling under fp16
            self.log("train/grad_norm", gradient_norm(self.parameters()))

    def configure_optimizers(self) -> Any:
        """Build the optimizer and the learning-rate schedule, which advances after each step."""
        # torch has no fused SGD for sharded weights, nor for weights without a momentum.
        fused = self.optimizer.name != "sgd" or not (
            isinstance(self.trainer.strategy, FSDP2) or self.tuning.gradual_unfreezing_epochs
        )
        decay = self.optimizer.layer_decay
        lr_scales = None if decay == 1.0 else layer_lr_scales(self.model, decay)
        optimizer: Any = make_optimizer(self.model, self.optimizer, lr_scales, fused=fused)
        # A fused optimizer would unscale the gradients of fp16 itself, after Lightning has clipped
        # them. Lightning therefore rejects clipping, even for bf16, unless this flag is False.
        optimizer._step_supports_amp_scaling = False
        steps, warmup = self.total_steps(), self.schedule.warmup_steps
        if steps is not None and warmup >= max(2, steps):
            message = f"schedule.warmup_steps is {warmup:,}, but training has {steps:,} steps"
            rank_zero_warn(f"{message}: the learning rate will grow until the end")
        d_model = self.config.d_model  # type: ignore[attr-defined]  # every config has one
        factor = learning_rate_factor(self.schedule, self.optimizer.lr, steps, d_model)
        return [optimizer], [{"scheduler": LambdaLR(optimizer, factor), "interval": "step"}]

    def total_steps(self) -> int | None:
        """Return the number of optimizer steps of the training, or None for no limit of steps."""
        return total_optimizer_steps(self.trainer, self.schedule)

    # Evaluation.

    # The metrics are those of the examples of all DataLoaders together.

    def validation_step(self, batch: BatchT, batch_idx: int, dataloader_idx: int = 0) -> None:
        self.update_metrics(batch, "val")

    def test_step(self, batch: BatchT, batch_idx: int, dataloader_idx: int = 0) -> None:
        self.update_metrics(batch, "test")

    def on_validation_epoch_start(self) -> None:
        self._update_counts = [(m, m.update_count) for m in self.modules() if isinstance(m, Metric)]

    on_test_epoch_start = on_validation_epoch_start

    def on_validation_epoch_end(self) -> None:
        self._log_metrics("val")

    def on_test_epoch_end(self) -> None:
        self._log_metrics("test")

    def _log_metrics(self, split: str) -> None:
        """Compute the metrics of a split, store and log them, and reset those that were updated."""
        self.summary = {
            f"{split}/{name}": x.item() if isinstance(x, Tensor) and x.numel() == 1 else x
            for name, x in self.compute_metrics(split).items()
        }
        for metric, earlier_count in self._update_counts:
            if not earlier_count or metric.update_count > earlier_count:
                metric.reset()
        numbers = {name: float(x) for name, x in self.summary.items() if isinstance(x, int | float)}
        self.log_dict(numbers, prog_bar=split == "val")

    def look(self, split: str, n_rows: int = 4, checkpoint: str = "") -> Any:
        """Return the page of `fourfold.look` for the first examples of a split of the DataModule.

        Args:
            split: Name of the split.
            n_rows: Number of examples.
            checkpoint: Name of the weights, which the page shows.

        Raises:
            InputError: The model has no attention, or there is no page for its family.
        """
        from fourfold.explorer.write import make_task_page

        return make_task_page(self, split, n_rows, checkpoint)

    # Checkpoints.

    def init_args(self) -> dict[str, Any]:
        """Return the arguments of the constructor, except the config, as plain values."""
        init_args = {name: getattr(self, name) for name in init_annotations(type(self))}
        return init_args | {name: asdict(init_args[name]) for name in TASK_SECTIONS}

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Add the entry `fourfold`, from which model and task can be built, to a checkpoint."""
        checkpoint["fourfold"] = {
            "version": VERSION,
            "model": {"class": model_name(self.model_class), "config": asdict(self.config)},
            "task": {"class": class_path(type(self)), "init_args": self.init_args()},
            "data": self.artifacts,
        }

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Check that the checkpoint matches this task, its settings and its data.

        Raises:
            InputError: The checkpoint has another version of the format; the task, the tokenizer,
                the class names or a setting differ; or a training would resume from averaged
                weights.
        """
        trainer: Any = attached_trainer(self)
        path = getattr(trainer, "ckpt_path", None)
        check_version(checkpoint.get("fourfold"), path)
        saved = checkpoint["fourfold"]
        is_training = trainer is not None and trainer.state.fn == "fit"
        if trainer is not None:  # the DataModule may just have adopted the checkpoint's artifacts
            self.artifacts = artifacts_of(self.datamodule)
        with errors_in(path or "checkpoint"):
            check_same_task(saved, class_path(type(self)), self.artifacts)
            if is_training:
                averages = any(isinstance(x, WeightAveraging) for x in trainer.callbacks)
                if "current_model_state" in checkpoint and not averages:
                    # Lightning would train the averaged weights in place of the trained ones.
                    message = "must be given again: the checkpoint holds averaged weights"
                    raise InputError(message, option="--ema_decay")
            check_same_settings(
                {"config": saved["model"]["config"], **saved["task"]["init_args"]},
                {"config": asdict(self.config), **self.init_args()},
                training=is_training,
            )

    def load_state_dict(
        self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False
    ) -> Any:
        """Load a state dict; weights of a checkpoint that do not match raise an InputError."""
        path = getattr(attached_trainer(self), "ckpt_path", None)
        try:
            with errors_in(path or "checkpoint"):
                check_kinds(state_dict, self.state_dict())
            return super().load_state_dict(state_dict, strict=strict, assign=assign)
        except RuntimeError as error:
            if path is None:
                raise
            raise InputError("the weights do not match the model's config", file=path) from error

    @classmethod
    def load_from_checkpoint(  # type: ignore[override]
        cls,
        checkpoint_path: str | Path,
        map_location: Any = None,
        strict: bool = True,
        weights_only: bool | None = None,
        **overrides: Any,
    ) -> Self:
        """Load a task of this class from a checkpoint, in training mode as in Lightning.

        Args:
            checkpoint_path: The checkpoint, or a run directory.
            map_location: Device of the task; None means the CPU.
            strict: False ignores weights that only the checkpoint or only the task has.
            weights_only: Ignored; a checkpoint is always read without unpickling objects.
            **overrides: Arguments of the constructor that replace those in the checkpoint. A
                dataclass may be given as a mapping of the fields that change, as in
                `config={"dropout": 0.0}`.

        Raises:
            InputError: There is no such checkpoint; it holds a task of another class; or its
                weights do not match the config.
        """
        task: Self = load_task(checkpoint_path, cls.__name__, (cls,), overrides, strict)  # type: ignore[assignment]
        return task.to(map_location).train()

    @classmethod
    def from_checkpoint(
        cls,
        config: Mapping[str, Any],
        init_args: Mapping[str, Any],
        state: Mapping[str, Tensor] | None = None,
    ) -> Self:
        """Build a task, without its model, from the settings in a checkpoint.

        Args:
            config: Fields of the model's config.
            init_args: Arguments of the constructor, except the config.
            state: State dict in the checkpoint, which bounds the size of the model; None for no
                bound.

        Raises:
            InputError: The config is invalid, or describes a larger model than `state`.
        """
        parameters = inspect.signature(cls).parameters
        default = parameters["config"].default
        own = cls.config if default is inspect.Parameter.empty else default  # type: ignore[misc]
        config_class = cls.config_class or type(own)
        arguments = {**init_args, "config": config_from_dict(config_class, config)}
        if state is not None:
            check_fits(cls.model_class, arguments["config"], state)
        for name, section in TASK_SECTIONS.items():
            arguments[name] = dataclass_from_dict(section, arguments.get(name))
        if not any(p.kind == p.VAR_KEYWORD for p in parameters.values()):
            # A user's constructor may set its own optimizer, schedule or tuning.
            arguments = {name: x for name, x in arguments.items() if name in parameters}
        return cls(**arguments)
