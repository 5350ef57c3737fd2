"""Convolutional language models: reach, padding, formulas of the blocks, decoding and cost."""

from itertools import cycle, islice
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import fourfold
from fourfold.analysis.flops import forward_flops, parameters
from fourfold.core.kv_cache import KVCache
from fourfold.errors import InputError
from fourfold.models import ConvolutionalLM, ConvolutionalLMConfig

SHAPE: dict[str, Any] = {"d_model": 12, "n_layers": 2, "vocab_size": 29, "max_len": 80}
BLOCKS = pytest.mark.parametrize("block", ["gated", "bytenet"])


def model(**options: Any) -> ConvolutionalLM:
    torch.manual_seed(0)
    config = ConvolutionalLMConfig(**{**SHAPE, "dropout": 0.0, **options})
    return ConvolutionalLM(config).double().eval()


@BLOCKS
@pytest.mark.parametrize(
    ("n_layers", "kernel", "dilations", "reach"),
    [
        (3, 3, (1,), 6),  # two tokens in each layer
        (2, 2, (1,), 2),
        (5, 3, (1, 2, 4, 8, 16), 62),  # of ByteNet
        (4, 2, (1, 3), 8),  # the dilations repeat
    ],
)
def test_jacobian_is_zero_exactly_beyond_the_reach(
    block: Any, n_layers: int, kernel: int, dilations: tuple[int, ...], reach: int
) -> None:
    lm = model(block=block, n_layers=n_layers, kernel_size=kernel, dilations=dilations)
    x = torch.randn(1, 70, 12, dtype=torch.float64, requires_grad=True)
    (gradient,) = torch.autograd.grad(lm.stack(x)[0, 66].square().sum(), x)
    found = (gradient[0].abs().sum(-1) > 0).nonzero().flatten().tolist()
    assert found[0] == 66 - reach
    taps = {0}
    for dilation in islice(cycle(dilations), n_layers):
        taps = {tap + i * dilation for tap in taps for i in range(kernel)}
    assert found == sorted(66 - tap for tap in taps)


def test_blocks_equal_the_formulas_of_the_papers() -> None:
    x = torch.randn(2, 7, 12, dtype=torch.float64)
    block = model(dilations=(2,)).stack.blocks[0]  # type: ignore[union-attr, index]
    taps = [F.pad(x, (0, 0, shift, 0))[:, :7] for shift in (4, 2, 0)]
    a, b = (
        sum(tap @ w.T for tap, w in zip(taps, block.conv.weight.unbind(2), strict=True))
        + block.conv.bias
    ).chunk(2, -1)
    torch.testing.assert_close(block(x, None), (x + a * b.sigmoid()) * 0.5**0.5)
    block = model(block="bytenet").stack.blocks[0]  # type: ignore[union-attr, index]
    h = block.norms[1](block.reduce(block.norms[0](x).relu())).relu()
    taps = [F.pad(h, (0, 0, shift, 0))[:, :7] for shift in (2, 1, 0)]
    h = sum(tap @ w.T for tap, w in zip(taps, block.conv.weight.unbind(2), strict=True))
    h = block.expand(block.norms[2](h + block.conv.bias).relu())
    torch.testing.assert_close(block(x, None), x + h)


@BLOCKS
@pytest.mark.parametrize("side", ["left", "right"])
def test_padding_does_not_change_the_logits(block: Any, side: str) -> None:
    lm, ids = model(block=block, dilations=(1, 2)), torch.randint(29, (1, 6))
    places = (3, 0) if side == "left" else (0, 3)
    mask = F.pad(torch.ones_like(ids), places).bool()
    padded = lm(F.pad(ids, places, value=7), mask=mask)
    torch.testing.assert_close(padded[mask], lm(ids)[0])


def test_generation_continues_the_most_likely_token() -> None:
    lm, ids = model(block="bytenet"), torch.randint(29, (2, 5))
    found = fourfold.generate(lm, ids, max_new_tokens=3)
    for _ in range(3):
        ids = torch.cat([ids, lm(ids)[:, -1:].argmax(-1)], 1)
    assert torch.equal(found, ids)


def test_parameters_and_flops_follow_the_formula() -> None:
    lm = model(n_layers=3)
    assert parameters(lm).blocks == 3 * (3 * 12 * 24 + 24)
    flops = forward_flops(lm, 10)
    assert flops.blocks == 2 * 3 * 10 * 3 * 12 * 24
    assert flops.head == 2 * 10 * 12 * 29


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"dilations": ()}, "dilations must be at least 1, got 0"),
        ({"dilations": (1, "2")}, "dilations must be of type int"),
        ({"kernel_size": 0}, "kernel_size must be at least 1, got 0"),
        ({"block": "bytenet", "d_model": 3}, "d_model must be even for bytenet, got 3"),
        ({"block": "dense"}, "block must be one of gated, bytenet"),
    ],
)
def test_invalid_configs_raise(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        ConvolutionalLMConfig(**options)


def test_documents_and_caches_raise() -> None:
    ids = torch.arange(9)[None]
    with pytest.raises(InputError, match="cannot separate packed documents"):
        model().hidden(ids, documents=torch.zeros_like(ids))
    with pytest.raises(InputError, match="cache must be None"):
        model().hidden(ids, cache=KVCache())
