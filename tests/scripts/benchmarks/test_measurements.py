"""Tests of the ratios, ranges and reference operations of the benchmarks."""

import pytest
import torch

from scripts.benchmarks.measurements import Spread, copying, matrix_product, ratios


def test_ratios_are_taken_round_by_round() -> None:
    seconds = {"base": [1.0, 2.0], "other": [2.0, 4.0]}
    assert ratios(seconds, "base") == {"base": [1.0, 1.0], "other": [2.0, 2.0]}


def test_spread_is_formatted_as_median_and_range() -> None:
    spread = Spread.of([3.0, 1.0, 2000.0])
    assert spread == Spread(3.0, 1.0, 2000.0)
    assert spread.text(1.0, 1) == "3.0 [1.0, 2,000.0]"


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_matrix_product_counts_its_flops(dtype: torch.dtype) -> None:
    product, flops = matrix_product(dtype, torch.device("cpu"))
    assert product().shape == (32, 32)
    assert flops == 2 * 32**3


def test_copy_counts_bytes_read_and_written() -> None:
    copy, copied_bytes = copying(torch.device("cpu"))
    assert 2 * len(copy()) == copied_bytes
