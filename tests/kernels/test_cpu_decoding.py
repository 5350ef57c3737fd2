"""Products of a few rows by strips, against F.linear."""

import gc
import itertools

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import fourfold
from fourfold.kernels import linear as module
from fourfold.kernels.linear import Linear, few_rows, linear
from fourfold.kernels.rows import sums_fast
from fourfold.models import CausalLM, CausalLMConfig

TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 1e-2, torch.float64: 1e-12}

pytestmark = pytest.mark.skipif(
    not sums_fast(torch.empty(1)), reason="torch has no kernel for strips on this machine"
)


ALL = [torch.empty(module.CACHED // 4 + 1, device="meta")]  # more than stays in a cache


@pytest.fixture(autouse=True)
def small_matrices_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LEAST", 2**14)


@pytest.fixture
def laid_out(monkeypatch: pytest.MonkeyPatch) -> list[Tensor]:
    """The matrices that are laid out from now on."""
    seen, plain = [], module.Strips.fill

    def fill(strips: module.Strips, weight: Tensor) -> None:
        seen.append(weight)
        plain(strips, weight)

    monkeypatch.setattr(module.Strips, "fill", fill)
    return seen


def lasting(weight: Tensor) -> Tensor:
    """As a model holds it."""
    return nn.Parameter(weight, requires_grad=False)


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize(("n_out", "n_in"), [(192, 128), (400, 96), (17, 1024), (1000, 65)])
def test_it_is_f_linear(n_out: int, n_in: int, dtype: torch.dtype, laid_out: list[Tensor]) -> None:
    torch.manual_seed(0)
    weight = lasting(torch.randn(n_out, n_in, dtype=dtype) / n_in**0.5)
    bias = torch.randn(n_out, dtype=dtype)
    for shape, given in itertools.product(
        [(1,), (4,), (5,), (64,), (65,), (3, 1), (1, 2, 2), (0,), ()], [None, bias]
    ):
        x = torch.randn(*shape, n_in, dtype=dtype)
        with torch.inference_mode(), few_rows(ALL):
            found = linear(x, weight, given)
        wanted = F.linear(x, weight, given)
        assert found.shape == wanted.shape
        assert found.dtype == dtype
        error = (found - wanted).abs().max() if found.numel() else torch.zeros(())
        assert error <= TOLERANCE[dtype] * 4, shape
    assert bool(laid_out) == (dtype != torch.float64)


@pytest.mark.parametrize("threads", [1, 2, 5, 16])
def test_any_number_of_threads(threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    weight, x = lasting(torch.randn(384, 64)), torch.randn(2, 64)
    with torch.inference_mode(), few_rows(ALL):
        torch.testing.assert_close(linear(x, weight), F.linear(x, weight), rtol=1e-4, atol=1e-4)


def test_weights_are_what_they_are_at_the_time() -> None:
    """However they were changed: averaged weights are swapped in through `.data`."""
    layer, x = Linear(256, 256), torch.randn(1, 256)
    for change in (lambda: None, lambda: layer.weight.data.mul_(2), lambda: layer.bfloat16()):
        change()
        x = x.to(layer.weight.dtype)
        with torch.inference_mode(), few_rows(ALL):
            found = layer(x)
        wanted = F.linear(x, layer.weight, layer.bias)
        torch.testing.assert_close(found, wanted, rtol=1e-2, atol=1e-2)


def test_each_matrix_is_laid_out_once_and_only_where_it_helps(laid_out: list[Tensor]) -> None:
    small, large = Linear(8, 8), Linear(256, 256)
    with torch.inference_mode():
        large(torch.randn(1, 256))
        assert not laid_out
        with few_rows(ALL):
            for _ in range(3):
                small(torch.randn(1, 8))
                large(torch.randn(1, 256))
            large(torch.randn(100, 256))
        assert [id(weight) for weight in laid_out] == [id(large.weight)]
        with few_rows(ALL), torch.autocast("cpu", torch.bfloat16):
            pass
        with torch.autocast("cpu", torch.bfloat16), few_rows(ALL):
            assert large(torch.randn(1, 256)).dtype == torch.bfloat16
        assert len(laid_out) == 1


def test_no_more_than_there_is_room_for(
    laid_out: list[Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = Linear(256, 256), Linear(256, 256)
    monkeypatch.setattr(module, "MOST", first.weight.numel() * 4 + 1)
    x = torch.randn(1, 256)
    with torch.inference_mode(), few_rows(ALL):
        torch.testing.assert_close(second(first(x)), F.linear(F.linear(
            x, first.weight, first.bias), second.weight, second.bias))  # fmt: skip
    assert len(laid_out) == 1


def test_a_matrix_that_is_made_anew_for_each_use(laid_out: list[Tensor]) -> None:
    """Of a parametrised layer: the next one's may get the number that the last one's had."""
    layers = [nn.utils.parametrizations.weight_norm(Linear(256, 256)) for _ in range(12)]
    x = torch.randn(1, 256)
    wanted = [F.linear(x, layer.weight, layer.bias) for layer in layers]
    with torch.inference_mode(), few_rows(ALL):
        found = [layer(x) for layer in layers]
    for mine, theirs in zip(found, wanted, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-4)
    assert not laid_out


def test_memory_goes_with_the_matrix() -> None:
    before = len(module._memory)
    layer = nn.Sequential(Linear(256, 256))
    with torch.inference_mode(), few_rows(ALL):
        layer(torch.randn(1, 256))
    assert len(module._memory) == before + 1
    del layer
    gc.collect()
    assert len(module._memory) == before


def test_what_stays_in_a_cache_is_left_as_it_is(laid_out: list[Tensor]) -> None:
    layer, x = Linear(256, 256), torch.randn(1, 256)
    with torch.inference_mode(), few_rows(layer.parameters()):
        layer(x)
    assert not laid_out


@pytest.mark.parametrize("rows", [1, 3, 8])
def test_a_model_writes_the_same(
    rows: int, laid_out: list[Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "CACHED", 0)
    torch.manual_seed(0)
    config = CausalLMConfig(
        d_model=128, n_layers=2, n_heads=4, d_ff=256, vocab_size=501, max_len=40, attn_dropout=0.0
    )
    model = CausalLM(config).eval()
    ids = torch.randint(4, 501, (rows, 7))
    found = fourfold.generate(model, ids, max_new=20)
    assert len(laid_out) == 13  # four of attention and two of each block, and the words
    with torch.inference_mode():
        for _ in range(20):
            ids = torch.cat([ids, model(ids)[:, -1:].argmax(-1)], dim=1)
    assert torch.equal(found, ids)
