"""int8 weights: outputs, size, independence of the batch, and rejected arguments."""

import copy
from pathlib import Path
from typing import Any

import pytest
import torch

import fourfold
from fourfold.checkpoints import native_directory
from fourfold.errors import InputError
from fourfold.kernels.int8 import int8_linear, quantize_rows
from fourfold.layers.quantization import quantize
from fourfold.models import CausalLM, CausalLMConfig
from tests.fixtures.tiny_models import CONFIGS, MODELS, V, tokens


def n_bytes(model: Any) -> int:
    return sum(x.numel() * x.element_size() for x in model.state_dict().values())


@pytest.mark.parametrize("family", MODELS)
def test_int8_outputs_are_close_and_weights_are_smaller(family: str) -> None:
    torch.manual_seed(0)
    model: Any = MODELS[family](CONFIGS[family]).eval()
    if family == "vit":
        torch.nn.init.normal_(model.heads[0].weight)  # initialized to 0
    small = copy.deepcopy(model)
    quantize(small, "int8")
    inputs = {"vit": [torch.randn(3, 2, 8, 8)], "causal": [tokens(3, 7)], "masked": [tokens(3, 7)]}
    arguments = inputs.get(family, [tokens(3, 7), tokens(3, 5)])
    with torch.no_grad():
        expected, output = model(*arguments), small(*arguments)
    distance = (output - expected).norm() / expected.norm()
    assert 0 < distance < 0.03
    assert n_bytes(small) < 0.6 * n_bytes(model)


def test_int8_products_do_not_depend_on_the_batch() -> None:
    x, weight, bias = torch.randn(5, 3, 16), torch.randn(24, 16), torch.randn(24)
    matrix = quantize_rows(weight)
    together = int8_linear(x, matrix, bias)
    for row, alone in zip(together, x, strict=True):
        assert torch.equal(int8_linear(alone[None], matrix, bias)[0], row)
    assert int8_linear(x.bfloat16(), matrix, bias).dtype == torch.bfloat16
    zeros = int8_linear(torch.zeros(1, 16), matrix, bias)
    assert torch.equal(zeros[0], bias)


def test_a_tied_matrix_is_stored_once_and_decodes(tmp_path: Path) -> None:
    model = CausalLM(CausalLMConfig(d_model=16, n_layers=1, n_heads=2, d_ff=32, vocab_size=V))
    native_directory.write(model.eval(), tmp_path)
    small: Any = fourfold.load(tmp_path, quantize="int8")
    values = {x.data_ptr() for x in small.state_dict().values() if x.dtype == torch.int8}
    assert small.head.weight.values.data_ptr() in values
    assert sum(x.shape == (V, 16) for x in small.state_dict().values()) == 1
    ids = tokens(3, 4)
    h, weight, bias = small.head.output(small.hidden(ids))
    torch.testing.assert_close(h @ weight.T, small(ids), rtol=0.05, atol=0.05)
    assert bias is None
    out = fourfold.generate(small, ids, max_new_tokens=6)
    assert torch.equal(fourfold.generate(small, ids[1:2], max_new_tokens=6), out[1:2])
    assert torch.equal(fourfold.generate(small, ids, max_new_tokens=6, use_cache=False), out)


def test_wrong_quantizations_are_rejected() -> None:
    model = CausalLM(CausalLMConfig(d_model=16, n_layers=1, n_heads=2, d_ff=32, vocab_size=V))
    with pytest.raises(InputError, match="quantize must be int8 or not given, got 'int4'"):
        quantize(model, "int4")
    with pytest.raises(InputError, match="--quantize int8 needs the device cpu, got meta"):
        quantize(model.to("meta"), "int8", "--quantize")
