"""FSDP2: weights, gradients and moments are split over the devices (Zhao et al. 2023).

Each block, and what is left of the model around the blocks, is gathered when it is needed and
dropped again. A family's step reads its model in many ways: an encoder's states here, a tied
embedding as the matrix of a loss there. So the whole step is one "forward" of the model for torch:
what stands around the blocks is whole from its first line until its gradients are there.
"""

from collections.abc import Mapping
from typing import Any

import torch
import torch.distributed as dist
from lightning import Trainer
from lightning.pytorch.callbacks import WeightAveraging
from lightning.pytorch.strategies import (
    DeepSpeedStrategy,
    FSDPStrategy,
    ModelParallelStrategy,
    StrategyRegistry,
)
from torch import nn
from torch.distributed.fsdp import FSDPModule, fully_shard, register_fsdp_forward_method
from torch.optim import Optimizer

from fourfold.core.errors import InputError
from fourfold.core.stack import Block

OTHERS = (ModelParallelStrategy, FSDPStrategy, DeepSpeedStrategy)


class FSDP2(ModelParallelStrategy):
    """`--trainer.strategy fsdp2`: Lightning's ModelParallelStrategy over one dimension, the data.

    A checkpoint is the same single file as that of one process. Evaluation takes all weights whole
    on each device: ranks have different numbers of batches there, and write texts of different
    lengths, so they could not meet at each block.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(tensor_parallel_size=1, save_distributed_checkpoint=False, **options)

    def setup_environment(self) -> None:
        """Join the other processes.

        Raises:
            InputError: A moving average is asked for, which would copy split weights.
        """
        assert self.lightning_module is not None
        callbacks = self.lightning_module.trainer.callbacks  # type: ignore[attr-defined]
        if any(isinstance(callback, WeightAveraging) for callback in callbacks):
            raise InputError(
                "ema_decay cannot follow weights that are split over devices: use --average_last,"
                " or --trainer.strategy ddp"
            )
        self._data_parallel_size = self.num_nodes * self.num_processes
        super().setup_environment()

    def shard(self, model: nn.Module) -> None:
        """Split the weights of `model`, which are then those of the first process.

        Raises:
            InputError: One of them is a single number.
        """
        for name, parameter in model.named_parameters():
            if parameter.dim() == 0:
                raise InputError(
                    f"fsdp2 splits weights by rows, but {name} is a single number: use"
                    " --trainer.strategy ddp"
                )
        with torch.no_grad():
            for tensor in (*model.parameters(), *model.buffers()):
                whole = tensor.to(self.root_device)
                dist.broadcast(whole, 0)
                tensor.copy_(whole)
        mesh = self.device_mesh["data_parallel"]
        for module in [m for m in model.modules() if isinstance(m, Block)]:
            fully_shard(module, mesh=mesh)
        model.during = lambda function, *arguments: function(*arguments)  # type: ignore[assignment]
        fully_shard(model, mesh=mesh)
        register_fsdp_forward_method(model, "during")

    @property
    def _core(self) -> Any:
        assert self.lightning_module is not None
        return self.lightning_module.model

    # A step as the model's forward.

    def training_step(self, *args: Any, **kwargs: Any) -> Any:
        """The module's, while what stands around the blocks is whole."""
        return self._core.during(super().training_step, *args)

    def validation_step(self, *args: Any, **kwargs: Any) -> Any:
        """The same."""
        return self._core.during(super().validation_step, *args)

    def test_step(self, *args: Any, **kwargs: Any) -> Any:
        """The same."""
        return self._core.during(super().test_step, *args)

    def predict_step(self, *args: Any, **kwargs: Any) -> Any:
        """The same."""
        return self._core.during(super().predict_step, *args)

    # Evaluation with whole weights.

    def _hold(self, whole: bool) -> None:
        """Gather all weights until further notice, or split them again."""
        # Tensors made in inference mode could never be trained on.
        with torch.inference_mode(False):
            for module in self._core.modules():
                if isinstance(module, FSDPModule):
                    if module is not self._core:  # around the blocks it is never dropped there
                        module.set_reshard_after_forward(not whole, recurse=False)
                    module.unshard() if whole else module.reshard()

    def on_validation_start(self) -> None:
        """Gather the weights."""
        self._hold(whole=True)

    def on_test_start(self) -> None:
        """Gather the weights."""
        self._hold(whole=True)

    def on_predict_start(self) -> None:
        """Gather the weights."""
        self._hold(whole=True)

    def on_validation_end(self) -> None:
        """Split them again."""
        self._hold(whole=False)

    # One file, as everywhere else.

    @property
    def lightning_restore_optimizer(self) -> bool:
        """Have `load_optimizer_state_dict` called."""
        return True

    def lightning_module_state_dict(self) -> dict[str, Any]:
        """Whole weights on the first rank, nothing on others."""
        self._hold(whole=False)  # a callback may save before `on_validation_end` comes here
        return super().lightning_module_state_dict()

    def load_checkpoint(
        self, checkpoint_path: Any, weights_only: bool | None = None
    ) -> dict[str, Any]:
        """The file's content, on every rank."""
        return self.checkpoint_io.load_checkpoint(checkpoint_path)

    def load_model_state_dict(self, checkpoint: Mapping[str, Any], strict: bool = True) -> None:
        """Take each rank's part of the weights."""
        assert self.lightning_module is not None
        pieces, full = _pieces()
        pieces.set_model_state_dict(self.lightning_module, checkpoint["state_dict"], options=full)

    def optimizer_state(self, optimizer: Optimizer) -> dict[str, Any]:
        """Whole moments on the first rank, nothing on others; numbered as torch numbers them.

        Lightning's own numbers are those of the model's parameters, though an optimizer with
        several groups has another order.
        """
        assert self.lightning_module is not None
        plain = getattr(optimizer, "_optimizer", optimizer)
        pieces, full = _pieces(cpu_offload=True)
        state = pieces.get_optimizer_state_dict(self.lightning_module, plain, options=full)
        if self.global_rank != 0:
            return {}
        names = [name for group in state["param_groups"] for name in group["params"]]
        return _renamed(state, {name: number for number, name in enumerate(names)})

    def load_optimizer_state_dict(self, checkpoint: Mapping[str, Any]) -> None:
        """Take each rank's part of the moments."""
        module = self.lightning_module
        assert module is not None
        pieces, full = _pieces()
        names = {parameter: name for name, parameter in module.named_parameters()}
        for optimizer, state in zip(self.optimizers, checkpoint["optimizer_states"], strict=True):
            order = [names[p] for group in optimizer.param_groups for p in group["params"]]
            named = _renamed(state, dict(enumerate(order)))
            pieces.set_optimizer_state_dict(module, optimizer, named, options=full)


def _pieces(**options: Any) -> tuple[Any, Any]:
    """torch's module that puts split states together, and what says: whole ones, on every rank.

    Imported here, since no other run should wait half a second for it.
    """
    from torch.distributed.checkpoint import state_dict

    return state_dict, state_dict.StateDictOptions(full_state_dict=True, **options)


def _renamed(state: Mapping[str, Any], names: Mapping[Any, Any]) -> dict[str, Any]:
    """The state of an optimizer with its parameters called otherwise."""
    groups = [{**group, "params": [names[p] for p in group["params"]]}
              for group in state["param_groups"]]  # fmt: skip
    return {"state": {names[p]: kept for p, kept in state["state"].items()}, "param_groups": groups}


StrategyRegistry.register("fsdp2", FSDP2, description="Weights split over devices (FSDP2)")


def fit_strategy(model: nn.Module, trainer: Trainer) -> None:
    """Make a model that has all its weights ready for the Trainer's strategy.

    Raises:
        InputError: The strategy splits weights in a way that our steps do not know.
    """
    strategy = trainer.strategy
    if isinstance(strategy, FSDP2):
        strategy.shard(model)
    elif isinstance(strategy, OTHERS):
        raise InputError(
            f"{type(strategy).__name__} does not fit these models: use --trainer.strategy fsdp2"
        )
