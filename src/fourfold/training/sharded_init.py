"""Initialization of sharded models, in which each rank keeps only its shard of a weight."""

from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Shard
from torch.nn.modules.module import register_module_parameter_registration_hook
from torch.overrides import TorchFunctionMode

from fourfold.errors import InputError


class ShardedInit(TorchFunctionMode):
    """Mode in which new modules keep a shard of each parameter, with the values of one device.

    A parameter becomes a `DTensor` when it is registered, except for a scalar. A random fill draws
    the complete tensor, so that the random numbers are those of one device, and keeps the shard.
    The memory needed beyond the shards is therefore that of the largest parameter. All ranks must
    start with the same state of torch's random generators.

    Raises:
        InputError: A part of a parameter is changed in place, which would not reach the shards.
    """

    def __init__(self, mesh: DeviceMesh, device: torch.device) -> None:
        super().__init__()
        self.mesh, self.device = mesh, device
        self._storages: set[int] = set()  # of the shards

    def __enter__(self) -> Self:
        self._hook = register_module_parameter_registration_hook(self._register)  # type: ignore[arg-type]
        super().__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self._hook.remove()
        super().__exit__(*error)

    def _part(self, whole: Tensor) -> Tensor:
        """Return the rows of this rank, divided as FSDP2 does."""
        parts = whole.detach().chunk(self.mesh.size())
        rank = self.mesh.get_local_rank()
        return parts[rank] if rank < len(parts) else whole.detach()[:0]

    def _register(self, module: nn.Module, name: str, parameter: Any) -> nn.Parameter | None:
        is_shard = isinstance(parameter, DTensor) and parameter.placements == (Shard(0),)
        if parameter is None or not parameter.ndim or is_shard:
            return None
        whole = parameter.full_tensor() if isinstance(parameter, DTensor) else parameter
        part = self._part(whole).to(self.device, copy=True)
        self._storages.add(part.untyped_storage().data_ptr())
        sizes: Any = {"shape": whole.shape, "stride": whole.stride()}
        shard = DTensor.from_local(part, self.mesh, [Shard(0)], run_check=False, **sizes)
        return nn.Parameter(shard, requires_grad=parameter.requires_grad)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        tensor: Any = args[0] if args else kwargs.get("tensor")
        if isinstance(tensor, DTensor) and func is torch.empty_like:  # of truncated normals
            result: Any = func(*args, **kwargs)
            self._storages.add(result.to_local().untyped_storage().data_ptr())
            return result
        changes = func.__name__.endswith("_") and not func.__name__.endswith("__")
        if not isinstance(tensor, DTensor) or not changes or func.__name__ == "requires_grad_":
            return func(*args, **kwargs)
        shard: Any = tensor.to_local().detach()
        if shard.untyped_storage().data_ptr() not in self._storages:
            message = "must not be fsdp2: the model initializes a part of a weight in place"
            raise InputError(message, option="--trainer.strategy")
        if not func.__name__.endswith(("normal_", "uniform_")):
            return func(*args, **kwargs)
        kwargs.pop("tensor", None)
        whole = torch.empty(tensor.shape, dtype=tensor.dtype, device=self.device)
        func(whole, *args[1:], **kwargs)
        shard.copy_(self._part(whole))
        return tensor
