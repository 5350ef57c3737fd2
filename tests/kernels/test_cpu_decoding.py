"""Products of few rows by column strips, compared with F.linear."""

import gc
import itertools

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import fourfold
from fourfold.core.feed_forward import Linear
from fourfold.kernels import cpu_decoding as module
from fourfold.kernels.cpu_decoding import decode_layout, linear, supports_weighted_sums
from fourfold.models import CausalLM, CausalLMConfig

TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 1e-2, torch.float64: 1e-12}

pytestmark = pytest.mark.skipif(
    not supports_weighted_sums(torch.empty(1)),
    reason="torch has no kernel for strips on this machine",
)


ALL = [torch.empty(module.CACHED_BYTES // 4 + 1, device="meta")]  # more than fits in the cache


@pytest.fixture(autouse=True)
def pack_small_matrices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MIN_MATRIX_ELEMENTS", 2**14)


@pytest.fixture
def packed_matrices(monkeypatch: pytest.MonkeyPatch) -> list[Tensor]:
    """Return a list that records the matrices copied into strips."""
    packed: list[Tensor] = []
    original = module.ColumnStrips.fill

    def fill(strips: module.ColumnStrips, weight: Tensor) -> None:
        packed.append(weight)
        original(strips, weight)

    monkeypatch.setattr(module.ColumnStrips, "fill", fill)
    return packed


def second_product(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Compute a product twice, since a matrix is copied into strips at its second use."""
    linear(x, weight, bias)
    return linear(x, weight, bias)


def as_parameter(weight: Tensor) -> Tensor:
    return nn.Parameter(weight, requires_grad=False)


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize(("n_out", "n_in"), [(192, 128), (400, 96), (17, 1024), (1000, 65)])
def test_linear_equals_f_linear(
    n_out: int, n_in: int, dtype: torch.dtype, packed_matrices: list[Tensor]
) -> None:
    torch.manual_seed(0)
    weight = as_parameter(torch.randn(n_out, n_in, dtype=dtype) / n_in**0.5)
    bias = torch.randn(n_out, dtype=dtype)
    for shape, given in itertools.product(
        [(1,), (4,), (5,), (64,), (65,), (3, 1), (1, 2, 2), (0,), ()], [None, bias]
    ):
        x = torch.randn(*shape, n_in, dtype=dtype)
        with torch.inference_mode(), decode_layout(ALL):
            actual = second_product(x, weight, given)
        expected = F.linear(x, weight, given)
        assert actual.shape == expected.shape
        assert actual.dtype == dtype
        error = (actual - expected).abs().max() if actual.numel() else torch.zeros(())
        assert error <= TOLERANCE[dtype] * 4, shape
    assert bool(packed_matrices) == (dtype != torch.float64)


@pytest.mark.parametrize("threads", [1, 2, 5, 16])
def test_linear_is_correct_for_any_number_of_threads(
    threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    weight, x = as_parameter(torch.randn(384, 64)), torch.randn(2, 64)
    with torch.inference_mode(), decode_layout(ALL):
        actual = second_product(x, weight)
    torch.testing.assert_close(actual, F.linear(x, weight), rtol=1e-4, atol=1e-4)


def test_changed_weights_are_used() -> None:
    """Weight averaging, for example, changes weights through `.data`."""
    layer, x = Linear(256, 256), torch.randn(1, 256)
    for change in (lambda: None, lambda: layer.weight.data.mul_(2), lambda: layer.bfloat16()):
        change()
        x = x.to(layer.weight.dtype)
        with torch.inference_mode(), decode_layout(ALL):
            actual = second_product(x, layer.weight, layer.bias)
        expected = F.linear(x, layer.weight, layer.bias)
        torch.testing.assert_close(actual, expected, rtol=1e-2, atol=1e-2)


def test_a_matrix_is_packed_at_its_second_use(packed_matrices: list[Tensor]) -> None:
    """The first token after a prompt reads each matrix once, and a copy takes longer than that."""
    layer, x = Linear(256, 256), torch.randn(1, 256)
    for n_uses, n_packed in ((1, 0), (2, 1), (3, 2)):
        with torch.inference_mode(), decode_layout(ALL):
            for _ in range(n_uses):
                layer(x)
        assert len(packed_matrices) == n_packed


def test_only_large_matrices_are_packed_once(packed_matrices: list[Tensor]) -> None:
    small, large = Linear(8, 8), Linear(256, 256)
    with torch.inference_mode():
        large(torch.randn(1, 256))
        assert not packed_matrices
        with decode_layout(ALL):
            for _ in range(3):
                small(torch.randn(1, 8))
                large(torch.randn(1, 256))
            large(torch.randn(100, 256))
        assert [id(weight) for weight in packed_matrices] == [id(large.weight)]
        with decode_layout(ALL), torch.autocast("cpu", torch.bfloat16):
            pass
        with torch.autocast("cpu", torch.bfloat16), decode_layout(ALL):
            assert large(torch.randn(1, 256)).dtype == torch.bfloat16
        assert len(packed_matrices) == 1


def test_strips_do_not_exceed_the_memory_limit(
    packed_matrices: list[Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = Linear(256, 256), Linear(256, 256)
    monkeypatch.setattr(module, "MAX_STRIP_BYTES", first.weight.numel() * 4 + 1)
    x = torch.randn(1, 256)
    with torch.inference_mode(), decode_layout(ALL):
        hidden = F.linear(x, first.weight, first.bias)
        expected = F.linear(hidden, second.weight, second.bias)
        for _ in range(2):
            torch.testing.assert_close(second(first(x)), expected)
    assert len(packed_matrices) == 1


def test_weights_of_parametrized_layers_are_not_packed(packed_matrices: list[Tensor]) -> None:
    """Each use computes a new tensor, which may have the id of a deleted one."""
    layers = [nn.utils.parametrizations.weight_norm(Linear(256, 256)) for _ in range(12)]
    x = torch.randn(1, 256)
    expected = [F.linear(x, layer.weight, layer.bias) for layer in layers]
    with torch.inference_mode(), decode_layout(ALL):
        actual = [layer(x) for layer in layers for _ in range(2)][::2]
    for product, reference in zip(actual, expected, strict=True):
        torch.testing.assert_close(product, reference, rtol=1e-4, atol=1e-4)
    assert not packed_matrices


def test_memory_is_freed_with_the_matrix() -> None:
    before = len(module._memory)
    layer = nn.Sequential(Linear(256, 256))
    with torch.inference_mode(), decode_layout(ALL):
        second_product(torch.randn(1, 256), layer[0].weight)
    assert len(module._memory) == before + 1
    del layer
    gc.collect()
    assert len(module._memory) == before


def test_memory_of_an_unused_model_is_freed_for_another(monkeypatch: pytest.MonkeyPatch) -> None:
    """The limit holds for all models of the process together."""
    layers = [Linear(256, 256) for _ in range(4)]
    module._memory.clear()
    monkeypatch.setattr(module, "MAX_STRIP_BYTES", int(2.5 * 4 * 256 * 288))
    x = torch.randn(1, 256)
    for number, layer in enumerate(layers):
        with torch.inference_mode(), decode_layout(ALL):
            found = second_product(x, layer.weight, layer.bias)
        torch.testing.assert_close(found, F.linear(x, layer.weight, layer.bias))
        assert len(module._memory) == min(number + 1, 2)
        assert layer.weight in module._memory
    with torch.inference_mode(), decode_layout(ALL):  # what a context uses is not freed
        for layer in layers:
            second_product(x, layer.weight)
        kept = [layer.weight in module._memory for layer in layers]
    assert kept == [True, True, False, False]


def test_few_row_indices_are_kept() -> None:
    for n in (*range(1, 40), 5000, 7):
        rows, offsets = module.consecutive_terms(3, n, 1000)
        assert torch.equal(rows.view(3, n)[1], torch.arange(1000, 1000 + n, dtype=torch.int32))
        assert offsets.tolist() == [0, n, 2 * n]
        assert module.consecutive_terms(3, n, 1000)[0] is rows
    assert module.consecutive_terms.cache_info().currsize <= 16


def test_small_models_are_not_packed(packed_matrices: list[Tensor]) -> None:
    layer, x = Linear(256, 256), torch.randn(1, 256)
    with torch.inference_mode(), decode_layout(layer.parameters()):
        second_product(x, layer.weight)
    assert not packed_matrices


@pytest.mark.parametrize("rows", [1, 3, 8])
def test_packed_model_generates_the_same_tokens(
    rows: int, packed_matrices: list[Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "CACHED_BYTES", 0)
    torch.manual_seed(0)
    config = CausalLMConfig(
        d_model=128, n_layers=2, n_heads=4, d_ff=256, vocab_size=501, max_len=40, attn_dropout=0.0
    )
    model = CausalLM(config).eval()
    ids = torch.randint(4, 501, (rows, 7))
    actual = fourfold.generate(model, ids, max_new_tokens=20)
    assert len(packed_matrices) == 13  # six of each block, and the token embedding
    with torch.inference_mode():
        for _ in range(20):
            ids = torch.cat([ids, model(ids)[:, -1:].argmax(-1)], dim=1)
    assert torch.equal(actual, ids)
