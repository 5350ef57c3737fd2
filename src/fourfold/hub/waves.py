"""Sinusoidal positions in the order that transformers wants: all sines, then all cosines."""

from dataclasses import replace

import torch
from torch import Tensor, nn

from fourfold.models import EncoderDecoder

# Where a matrix touches the residual stream: what it reads, or what it adds.
_READS = ("tokens", "q", "k", "v", "up", "gate", "own")
_WRITES = ("out", "down")


def in_halves(model: nn.Module) -> nn.Module:
    """The same function with interleaved waves (Vaswani 3.5) put in halves (Marian, Pegasus).

    Nothing in a transformer but its positions knows the order of the channels of the residual
    stream: exchange them in all that reads it or adds to it, and the logits stay the same.
    """
    if not isinstance(model, EncoderDecoder) or model.config.positions != "sinusoidal":
        return model
    width = model.config.d_model
    order = torch.cat([torch.arange(0, width, 2), torch.arange(1, width, 2)])
    other = EncoderDecoder(replace(model.config, positions="sinusoidal_halves"))
    state = {name: _exchanged(name, x, order) for name, x in model.state_dict().items()}
    other.load_state_dict(state)
    return other


def _exchanged(name: str, x: Tensor, order: Tensor) -> Tensor:
    *_, module, kind = name.split(".")
    if module in _READS and kind == "weight":
        return x[:, order.to(x.device)]
    if module in _WRITES or module.endswith("norm"):
        return x[order.to(x.device)]
    return x
