from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from fourfold.callbacks.runtime.ddp_evaluation import DDPUnevenEvaluation


def validate(rank: int, file: str, seen: Any) -> None:
    options: Any = {"timeout": timedelta(seconds=60)}
    dist.init_process_group("gloo", f"file://{file}", rank=rank, world_size=2, **options)
    model = nn.BatchNorm1d(2)
    wrapped = DistributedDataParallel(model)
    trainer: Any = SimpleNamespace(strategy=SimpleNamespace(model=wrapped))
    callback, pl_module = DDPUnevenEvaluation(), SimpleNamespace()
    assert model.running_mean is not None
    model.running_mean.fill_(rank + 1.0)
    callback.on_validation_start(trainer, pl_module)  # type: ignore[arg-type]
    means = [model.running_mean.tolist()]
    model.running_mean.fill_(rank + 3.0)
    wrapped.eval()
    with torch.no_grad():
        for _ in range(2 - rank):  # rank 0 has one batch more
            wrapped(torch.zeros(3, 2))
    means.append(model.running_mean.tolist())
    callback.on_validation_end(trainer, pl_module)  # type: ignore[arg-type]
    wrapped(torch.zeros(3, 2))
    means.append(model.running_mean.tolist())
    seen[rank] = means
    dist.barrier()
    dist.destroy_process_group()


def test_buffers_are_broadcast_once_per_validation(tmp_path: Path) -> None:
    with mp.Manager() as manager:
        seen = manager.dict()
        mp.spawn(validate, (str(tmp_path / "file"), seen), nprocs=2)
        assert dict(seen) == {
            0: [[1.0, 1.0], [3.0, 3.0], [3.0, 3.0]],
            1: [[1.0, 1.0], [4.0, 4.0], [3.0, 3.0]],
        }
