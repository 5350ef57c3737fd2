"""Smaller micro-batches after an out-of-memory error, with the gradient of the whole batch."""

from collections.abc import Callable
from typing import Any, TypeVar

import torch
from lightning import Callback, LightningModule, Trainer
from lightning.pytorch.strategies import SingleDeviceStrategy
from lightning.pytorch.utilities.memory import garbage_collection_cuda, is_oom_error
from lightning.pytorch.utilities.rank_zero import rank_zero_warn
from torch import nn

from fourfold.data.loading.batches import DocumentBatch, row_range
from fourfold.errors import InputError

T = TypeVar("T")
# Texts of a RuntimeError that `is_oom_error` does not know.
MESSAGES = ("CUBLAS_STATUS_ALLOC_FAILED", "CUDNN_STATUS_ALLOC_FAILED", "MPS backend out of memory")


class AutoMicroBatch(Callback):
    """Callback that divides batches into micro-batches when the memory of the device is exhausted.

    After an out-of-memory error of a training step, the gradients of the step are cleared, and the
    step runs again with twice as many micro-batches, as do all later steps. The loss is divided by
    the number of targets of the whole batch, so the gradient is that of the whole batch, except for
    dropout masks, which are drawn for each micro-batch. Checkpoints store the number.

    Attributes:
        n_parts: Number of micro-batches of a batch, a power of 2.
    """

    def __init__(self) -> None:
        self.n_parts = 1

    def state_dict(self) -> dict[str, Any]:
        return {"n_parts": self.n_parts}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.n_parts = int(state_dict["n_parts"])

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Replace forward and backward pass of the training steps of this `fit`.

        Raises:
            InputError: There are several devices or `accumulate_grad_batches`; or the loss of a row
                depends on the other rows of its batch.
        """
        option = "--auto_micro_batch"
        # A rank that fails in its backward pass would leave the others waiting for its gradients.
        if not isinstance(trainer.strategy, SingleDeviceStrategy):
            raise InputError("must be false with several devices", option=option)
        if trainer.accumulate_grad_batches > 1:
            raise InputError("excludes trainer.accumulate_grad_batches above 1", option=option)
        task: Any = pl_module
        has_batch_norm = any(isinstance(x, nn.BatchNorm2d) for x in task.modules())
        if has_batch_norm or task.compares_rows or issubclass(task.batch_class, DocumentBatch):
            message = f"must be false: the batches of {type(task).__name__} cannot be divided"
            raise InputError(message, option=option)
        self._trainer, self._task = trainer, task
        self._step = task.training_step
        task.training_step, task.backward = self._forward_first, self._backward
        task.loss_normalizer.restart(in_parts=self.n_parts > 1)

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        task: Any = pl_module
        del task.training_step, task.backward, self._step

    def _forward_first(self, batch: Any, batch_idx: int) -> dict[str, Any]:
        """Run the forward pass of the first micro-batch, in place of `training_step`."""
        self._batch, self._batch_idx, self._seed = batch, batch_idx, torch.initial_seed()
        while (output := self._try(lambda: self._forward(0))) is None:
            pass
        self._loss = output["loss"]
        # Lightning keeps the loss that it gets; its graph could not be freed after an error.
        return {**output, "loss": output["loss"].detach()}

    def _forward(self, part: int) -> dict[str, Any]:
        size = self._size()
        rows = row_range(self._batch, part * size, (part + 1) * size)
        torch.manual_seed(self._seed + part)
        output: dict[str, Any] = self._step(rows, self._batch_idx)
        return output

    def _size(self) -> int:
        """Return the number of rows of a micro-batch."""
        return -(-len(self._batch[0]) // self.n_parts)

    def _backward(self, *_: Any, **__: Any) -> None:
        """Run the rest of the step, in place of `backward`."""
        while self._try(self._backward_parts) is None:
            pass
        del self._batch

    def _backward_parts(self) -> bool:
        precision = self._trainer.precision_plugin
        for part in range(-(-len(self._batch[0]) // self._size())):
            if part or self._loss is None:
                with precision.train_step_context():
                    self._loss = self._forward(part)["loss"]
            loss, self._loss = self._loss, None
            precision.pre_backward(loss, self._task).backward()
        return True

    def _try(self, run: Callable[[], T]) -> T | None:
        """Return the result of a function, or None after an error that smaller parts may avoid."""
        try:
            return run()
        except RuntimeError as error:
            if not is_out_of_memory(error) or self._size() == 1:
                raise
        # Not in the except clause, because the traceback holds the tensors of the step.
        self._loss = None
        for parameter in self._task.parameters():
            parameter.grad = None
        garbage_collection_cuda()
        self.n_parts *= 2
        self._task.loss_normalizer.restart(in_parts=True)
        rank_zero_warn(
            f"out of memory in step {self._trainer.global_step + 1:,}: batches are now divided into"
            f" {self.n_parts} micro-batches, in this step of {self._size()} rows; the gradient is"
            " that of the whole batch"
        )
        return None


def is_out_of_memory(error: RuntimeError) -> bool:
    """Return True for an error that says that the memory of a device is exhausted."""
    known = isinstance(error, torch.OutOfMemoryError) or is_oom_error(error)
    return known or any(text in str(error) for text in MESSAGES)
