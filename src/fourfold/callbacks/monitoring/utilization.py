"""Model FLOPs utilization (MFU) of a training (Chowdhery et al. 2022, appendix B).

MFU is the number of FLOPs that the model needs per second, divided by the peak of the GPUs. The
model needs those of a forward pass three times, also if activations are computed again.
"""

import re
from typing import Any

import torch
from lightning import Trainer

from fourfold.core.precision import PRECISIONS, canonical_precision
from fourfold.layers.base_model import on_meta

# Peaks of NVIDIA's data sheets in TFLOP/s, without sparsity: bf16 and fp16 with sums in fp32, TF32,
# fp32. A GPU without TF32 has no bf16 either. The first name in the name of a device counts.
PEAKS: dict[str, tuple[float, float | None, float]] = {
    "H100 PCIe": (756.0, 378.0, 51.0),
    "H100 NVL": (835.0, 417.5, 60.0),
    "H100": (989.4, 494.7, 66.9),
    "H200 NVL": (835.5, 417.5, 60.0),
    "H200": (989.4, 494.7, 66.9),
    "A100": (312.0, 156.0, 19.5),
    "L4": (121.0, 60.0, 30.3),
    "T4": (65.0, None, 8.1),
    "RTX 3090": (71.0, 35.6, 35.6),
    "RTX 4090": (165.2, 82.6, 82.6),
    "V100-PCIE": (112.0, None, 14.0),
    "V100": (125.0, None, 15.7),
}


def peak_flops(device_name: str, precision: str) -> float | None:
    """Return the FLOP/s of a GPU in matrix products, or None if they are unknown.

    Args:
        device_name: Name of the GPU, as `torch.cuda.get_device_name` returns it.
        precision: Lightning's name of the precision. In fp32, TF32 counts if
            `torch.set_float32_matmul_precision` allows it.

    Example:
        >>> peak_flops("NVIDIA A100-SXM4-80GB", "bf16-mixed")
        312000000000000.0
    """
    matches = (x for name, x in PEAKS.items() if re.search(rf"\b{name}\b(?! Ti)", device_name))
    half, tf32, single = next(matches, (None, None, None))
    compute = PRECISIONS[canonical_precision(precision)].compute
    if compute == "float32" and torch.get_float32_matmul_precision() == "highest":
        tf32 = single
    by_type = {"float16": half, "bfloat16": tf32 and half, "float32": tf32 or single}
    teraflops = by_type.get(compute)
    return None if teraflops is None else teraflops * 1e12


def training_flops(task: Any, batch: Any) -> float | None:
    """Count the FLOPs of the forward and backward pass of a batch; None if they are unknown.

    Padding counts. They are unknown if layers are frozen, because the backward pass then omits a
    part of the products, and for the models for which `fourfold plan` prints none.
    """
    from fourfold.analysis.flops import TRAINING_TO_FORWARD, forward_flops  # of a GPU only

    if not task.model.has_known_cost or not all(p.requires_grad for p in task.parameters()):
        return None
    with on_meta():
        model = task.model_class(task.config)  # unlike that of the task, not compiled or sharded
    inputs = [getattr(batch, name) for name in ("images", "src", "ids") if hasattr(batch, name)]
    if not inputs:
        return None
    options = {}
    if hasattr(batch, "src"):
        options = {"length": batch.tgt.shape[1] - 1, "source": batch.src.shape[1]}
    elif hasattr(batch, "ids"):
        options = {"length": batch.ids.shape[1]}
    masking = None if model.can_generate else getattr(task.datamodule, "masking", None)
    share = getattr(masking, "mlm_probability", 1.0)  # the head reads the masked tokens alone
    flops = forward_flops(model, **options, head_fraction=share)
    return TRAINING_TO_FORWARD * len(inputs[0]) * flops.total


def flops_share(trainer: Trainer, task: Any, batch: Any) -> float:
    """Return the MFU of a rate of one unit (token or image) per second; 0 if it is unknown."""
    device = trainer.strategy.root_device
    if device.type != "cuda" or not hasattr(task, "model_class"):  # not a task of fourfold
        return 0.0
    peak = peak_flops(torch.cuda.get_device_name(device), str(trainer.precision))
    flops = None if peak is None else training_flops(task, batch)
    if not peak or not flops:
        return 0.0
    return flops / task.n_units(batch) / (peak * trainer.world_size)
