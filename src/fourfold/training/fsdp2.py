"""FSDP2 strategy: weights, gradients and optimizer states sharded over devices (Zhao et al. 2023).

The weights of a block are gathered before the block runs and resharded afterwards. The training
step of a task does not only call `model.forward`. The loss also multiplies hidden states by the
output matrix, which may be a tied embedding. Therefore the whole step is registered as one forward
method of the model. The weights outside of the blocks stay gathered from the beginning of the step
until their gradients are computed.
"""

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
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
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard, register_fsdp_forward_method
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer

from fourfold.callbacks.checkpointing.weight_averaging import ExponentialMovingAverage
from fourfold.core.block import Block
from fourfold.core.precision import PRECISIONS, canonical_precision
from fourfold.errors import InputError
from fourfold.lightning_internals import is_last_evaluation_batch, set_data_parallel_size


class FSDP2(ModelParallelStrategy):
    """Lightning strategy that shards weights, gradients and optimizer states (FSDP2).

    The option `--trainer.strategy fsdp2` selects this strategy. It is ModelParallelStrategy without
    tensor parallelism. A checkpoint is a single file, as in a training with one process.

    Args:
        reshard_after_forward: False keeps the weights of all blocks gathered between the forward
            and the backward pass, and in evaluation, which saves communication and costs memory.
        sync_each_micro_batch: False adds up the complete gradients of the micro-batches of an
            optimizer step on each device, and communicates them once.
        **options: Further options of Lightning's ModelParallelStrategy.
    """

    def __init__(
        self,
        reshard_after_forward: bool = True,
        sync_each_micro_batch: bool = True,
        **options: Any,
    ) -> None:
        super().__init__(tensor_parallel_size=1, save_distributed_checkpoint=False, **options)
        self.reshard_after_forward = reshard_after_forward
        self.sync_each_micro_batch = sync_each_micro_batch
        self.full_state_dicts = True  # False: with the shards of this rank (DTensors) as values
        self._units: list[Any] = []  # modules whose weights are gathered together
        self._gathered: set[int] = set()  # numbers of those that stay gathered in an evaluation
        self._is_evaluating = False

    def setup_environment(self) -> None:
        """Initialize the process group.

        Raises:
            InputError: A callback of Lightning averages the weights. It would copy the model, which
                is not possible with sharded weights. Or weights in 16 bits are to be averaged.
        """
        for callback in self._task.trainer.callbacks:
            if not isinstance(callback, WeightAveraging):
                continue
            if not isinstance(callback, ExponentialMovingAverage):
                message = f"must not contain {type(callback).__name__}: use --ema_decay"
                raise InputError(message, option="--trainer.callbacks")
            if "true" in (precision := self._task.trainer.precision) and "16" in precision:
                message = f"cannot average sharded weights in {precision}: use bf16-mixed"
                raise InputError(message, option="--ema_decay")
        set_data_parallel_size(self, self.num_nodes * self.num_processes)
        super().setup_environment()

    def sharded_init(self) -> Any:
        """Return the mode in which a model is built from shards, with equal weights on all ranks.

        The random generators of all ranks get the state of those of the first rank.
        """
        from fourfold.training.sharded_init import ShardedInit

        device = self.root_device
        generators = [torch.default_generator]
        if device.type == "cuda":
            generators.append(torch.cuda.default_generators[device.index])
        states = self.broadcast([generator.get_state() for generator in generators])
        for generator, state in zip(generators, states, strict=True):
            generator.set_state(state)
        return ShardedInit(self.device_mesh["data_parallel"], device)

    def shard(self, model: nn.Module) -> None:
        """Shard the weights in place, unless they are shards already, and replicate all others.

        Complete weights are those of the first process, which are copied to all others.
        """
        weights = dict(model.named_parameters(remove_duplicate=False))
        shards = {name: x for name, x in weights.items() if isinstance(x, DTensor)}
        with torch.no_grad():
            for tensor in (*model.parameters(), *model.buffers()):
                if not isinstance(tensor, DTensor):
                    of_first_rank = tensor.to(self.root_device)
                    dist.broadcast(of_first_rank, 0)
                    tensor.copy_(of_first_rank)
        # FSDP2 would take a shard for a complete weight, and gets a weight without values instead.
        metas = {
            x: nn.Parameter(torch.empty(x.shape, dtype=x.dtype, device="meta"), x.requires_grad)
            for x in shards.values()
        }
        for name, shard in shards.items():
            module, _, own_name = name.rpartition(".")
            setattr(model.get_submodule(module), own_name, metas[shard])
        # Scalars, such as the temperature of CLIP, are replicated: a shard would be empty.
        scalars = {parameter for parameter in model.parameters() if not parameter.ndim}
        options: Any = {"mesh": self.device_mesh["data_parallel"], "ignored_params": scalars}
        policy = self._precision_policy()
        options["reshard_after_forward"] = self.reshard_after_forward
        blocks = [module for module in model.modules() if isinstance(module, Block)]
        await_turn = torch.compiler.disable(self._await_turn)  # as torch does with its own hooks
        for number, block in enumerate(blocks, start=1):
            fully_shard(block, **options, mp_policy=policy)
            block.register_forward_pre_hook(partial(await_turn, number), prepend=True)
        self._units = [model, *blocks]
        model.run_step = lambda step, *arguments: step(*arguments)  # type: ignore[assignment]
        del options["reshard_after_forward"]  # the weights outside of the blocks stay gathered
        fully_shard(model, **options, mp_policy=replace(policy, param_dtype=None))
        model.load_state_dict(shards, strict=False, assign=True)
        register_fsdp_forward_method(model, "run_step")

    def _precision_policy(self) -> MixedPrecisionPolicy:
        """Return the policy of the blocks for the Trainer's precision.

        Under mixed precision, matrices are gathered in 16 bits, as autocast would convert them.
        """
        precision = PRECISIONS[canonical_precision(self.precision_plugin.precision)]
        if precision.weights == precision.compute:
            is_half = precision.weights in ("float16", "bfloat16")
            return MixedPrecisionPolicy(reduce_dtype=torch.float32 if is_half else None)
        # The residual stream stays in fp32.
        options: Any = {"reduce_dtype": torch.float32, "cast_forward_inputs": False}
        if not hasattr(MixedPrecisionPolicy, "param_dtype_override_fn"):
            # Before torch 2.15, norms would need groups with hooks, which divide compiled blocks.
            return MixedPrecisionPolicy(**options)
        return MixedPrecisionPolicy(
            param_dtype=getattr(torch, precision.compute),
            param_dtype_override_fn=lambda x: x.dtype if x.ndim < 2 else None,
            **options,
        )

    @property
    def _task(self) -> Any:
        return self.lightning_module

    @contextmanager
    def block_backward_sync(self) -> Iterator[None]:
        """Context of the micro-batches before the last one of an optimizer step."""
        model = self._task.model
        model.set_requires_gradient_sync(self.sync_each_micro_batch)
        try:
            yield
        finally:
            model.set_requires_gradient_sync(True)

    def post_backward(self, closure_loss: Any) -> None:
        """Average the gradients of scalars over the ranks, as FSDP2 does with those of shards.

        An average of earlier micro-batches is equal on all ranks, so that it does not change.
        """
        for parameter in self._task.model.parameters():
            if not parameter.ndim and parameter.grad is not None:
                parameter.grad.copy_(self.reduce(parameter.grad, reduce_op="mean"))
        super().post_backward(closure_loss)

    # Steps run as a forward method of the model.

    def training_step(self, *args: Any, **kwargs: Any) -> Any:
        return self._task.model.run_step(super().training_step, *args)

    def validation_step(self, *args: Any, **kwargs: Any) -> Any:
        return self._evaluate(super().validation_step, *args)

    def test_step(self, *args: Any, **kwargs: Any) -> Any:
        return self._evaluate(super().test_step, *args)

    def predict_step(self, *args: Any, **kwargs: Any) -> Any:
        return self._evaluate(super().predict_step, *args)

    # Evaluation. The ranks have different numbers of batches, and generate texts with different
    # numbers of forward passes, but must gather weights together. Before a rank gathers those of a
    # unit (a block, or all other weights), the ranks agree by an all-reduce on the lowest number
    # of a unit that any of them needs. All ranks gather it, and those that need it run it. A rank
    # that has finished takes part until all have. This costs a synchronization of the host per
    # block, but needs no knowledge about the batches or about what a task computes.

    def on_validation_start(self) -> None:
        self._is_evaluating = True

    on_test_start = on_predict_start = on_validation_start

    def _evaluate(self, step: Any, *args: Any) -> Any:
        self._await_turn(0)
        # The model becomes the root of its units. The step itself is no forward pass of the root:
        # if it also called the model, FSDP2 would reshard the weights of the root at its end.
        self._task.model.run_step(lambda: None)
        output = step(*args)
        if is_last_evaluation_batch(self._task.trainer):
            self.end_evaluation()
        return output

    def end_evaluation(self) -> None:
        """Gather weights with the other ranks until all have evaluated their batches, once."""
        if not self._is_evaluating:
            return
        self._await_turn(len(self._units))
        self._is_evaluating = False
        self._gathered.clear()
        for unit in self._units:
            unit.reshard()

    def _await_turn(self, number: int, *_: Any) -> None:
        """Gather the units that the ranks agree on, in evaluation, until this is unit `number`."""
        turn = number if not self._is_evaluating or number in self._gathered else -1
        while turn != number:
            needed = torch.tensor(number, device=self.root_device)
            dist.all_reduce(needed, dist.ReduceOp.MIN)
            turn = int(needed)
            if turn == len(self._units):  # all ranks have finished
                return
            unit = self._units[turn]
            with torch.inference_mode(False):  # tensors of inference mode could never be trained
                unit.unshard()
            if turn == 0 or not self.reshard_after_forward:
                self._gathered.add(turn)
            elif turn != number:
                unit.reshard()

    # Checkpoints: a single file with complete state dicts, or a directory of shards.

    @property
    def lightning_restore_optimizer(self) -> bool:
        """True, so that Lightning calls `load_optimizer_state_dict`."""
        return True

    def lightning_module_state_dict(self) -> dict[str, Any]:
        """Return the complete state dict on the first rank, and an empty dict on other ranks."""
        if self.full_state_dicts:
            return super().lightning_module_state_dict()
        module, options = _state_dict_functions(full=False)
        state = module.get_model_state_dict(self._task, options=options)
        # An averaging callback then exchanges the weights in place.
        return {name: tensor.clone() for name, tensor in state.items()}

    def load_checkpoint(self, checkpoint_path: Any, weights_only: Any = None) -> dict[str, Any]:
        """Read the checkpoint on every rank, of shards without the tensors that are sharded."""
        target = "meta" if Path(checkpoint_path).is_dir() else None
        return self.checkpoint_io.load_checkpoint(checkpoint_path, map_location=target)

    def load_model_state_dict(self, checkpoint: Mapping[str, Any], strict: bool = True) -> None:
        state = checkpoint["state_dict"]
        module, options = _state_dict_functions(full=not _are_meta(state))
        if _are_meta(state):
            own = module.get_model_state_dict(self._task, options=options)
            state = _read_shards(state, own)
        module.set_model_state_dict(self._task, state, options=options)

    def optimizer_state(self, optimizer: Optimizer) -> dict[str, Any]:
        """Return the complete state dict of an optimizer on the first rank, and {} on the others.

        Parameters are numbered in the order of the optimizer's parameter groups, as in torch.
        Lightning's ModelParallelStrategy numbers parameters in the order of the model, which is
        another order if there are several groups.
        """
        plain = getattr(optimizer, "optimizer", optimizer)  # of a LightningOptimizer
        full = self.full_state_dicts
        module, options = _state_dict_functions(full=full, cpu_offload=full)
        state = module.get_optimizer_state_dict(self._task, plain, options=options)
        if self.global_rank != 0 and full:
            return {}
        names = [name for group in state["param_groups"] for name in group["params"]]
        return _rename_parameters(state, {name: number for number, name in enumerate(names)})

    def load_optimizer_state_dict(self, checkpoint: Mapping[str, Any]) -> None:
        names = {parameter: name for name, parameter in self._task.named_parameters()}
        for optimizer, state in zip(self.optimizers, checkpoint["optimizer_states"], strict=True):
            if not state["state"]:
                optimizer.load_state_dict(state)  # of SGD without momentum, where torch would fail
                continue
            order = [names[p] for group in optimizer.param_groups for p in group["params"]]
            named = _rename_parameters(state, dict(enumerate(order)))
            is_sharded = any(_are_meta(moments) for moments in named["state"].values())
            module, options = _state_dict_functions(full=not is_sharded)
            if is_sharded:
                own = module.get_optimizer_state_dict(self._task, optimizer, options=options)
                for name, moments in named["state"].items():
                    named["state"][name] = _read_shards(moments, own["state"][name])
            module.set_optimizer_state_dict(self._task, optimizer, named, options=options)


def _state_dict_functions(*, full: bool, **options: Any) -> tuple[Any, Any]:
    """Return torch's module for sharded state dicts, and options for complete or sharded ones.

    Its import, only when FSDP2 is used, takes half a second.
    """
    from torch.distributed.checkpoint import state_dict

    return state_dict, state_dict.StateDictOptions(full_state_dict=full, **options)


def _are_meta(tensors: Mapping[str, Any]) -> bool:
    return any(getattr(tensor, "is_meta", False) for tensor in tensors.values())


def _read_shards(stored: Mapping[str, Any], own: dict[str, Any]) -> dict[str, Any]:
    """Read the parts on this rank of tensors of a sharded checkpoint into tensors of this model."""
    from fourfold.checkpoints.sharded import read_tensors

    return read_tensors(stored, own)


def _rename_parameters(state: Mapping[str, Any], names: Mapping[Any, Any]) -> dict[str, Any]:
    """Rename the parameters in the state dict of an optimizer by old and new keys, in a copy."""
    groups = [
        {**group, "params": [names[p] for p in group["params"]]} for group in state["param_groups"]
    ]
    states = {names[p]: of_parameter for p, of_parameter in state["state"].items()}
    return {"state": states, "param_groups": groups}


StrategyRegistry.register("fsdp2", FSDP2, description="Weights sharded over devices (FSDP2)")


def init_for_strategy(trainer: Trainer) -> AbstractContextManager[Any]:
    """Return a context in which a new model has shards as weights if the strategy is FSDP2."""
    strategy = trainer.strategy
    return strategy.sharded_init() if isinstance(strategy, FSDP2) else nullcontext()


def prepare_for_strategy(model: nn.Module, trainer: Trainer) -> None:
    """Shard the weights of a model in place if the Trainer's strategy is FSDP2.

    Raises:
        InputError: The strategy shards weights in another way, which tasks do not support.
    """
    strategy = trainer.strategy
    if isinstance(strategy, FSDP2):
        strategy.shard(model)
    elif isinstance(strategy, ModelParallelStrategy | FSDPStrategy | DeepSpeedStrategy):
        raise InputError(
            f"must be fsdp2 to shard these models, got {type(strategy).__name__}",
            option="--trainer.strategy",
        )
