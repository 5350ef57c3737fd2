"""Tests of fourfold's models in the benchmarks and of their FLOPs."""

from dataclasses import replace

import torch

from fourfold.core.block import Block
from scripts.benchmarks.contenders import TASKS, batch_flops, fourfold_contender
from scripts.benchmarks.workloads import FAMILIES, SIZES, WORKLOADS, Shape, make_batch

CPU = torch.device("cpu")


def test_gpu_sizes_have_the_published_numbers_of_parameters() -> None:
    n_parameters = {}
    for family, shape in SIZES["gpu"].items():
        n_out = {50304: 50257}.get(shape.n_out, shape.n_out)  # GPT-2's vocabulary is padded
        with torch.device("meta"):
            contender = fourfold_contender(family, replace(shape, n_out=n_out), 0.0)
        n_parameters[family] = contender.n_parameters
    assert n_parameters == {
        "causal_lm": 124_439_808,
        "llama": 123_551_232,
        "masked_lm": 109_514_298,
        "vit": 86_567_656,
        "encoder_decoder": 63_082_496,
    }


def test_flops_exclude_padding() -> None:
    shape = Shape(32, 2, 2, 101, 4, 8)
    batch = make_batch("encoder_decoder", shape, CPU)
    unpadded = batch._replace(
        src_mask=torch.ones_like(batch.src_mask), tgt_mask=torch.ones_like(batch.tgt_mask)
    )
    flops = batch_flops("encoder_decoder", shape, batch)
    assert 0 < flops < batch_flops("encoder_decoder", shape, unpadded)


def test_flops_of_a_masked_lm_include_the_head_at_masked_positions_only() -> None:
    small, large = (Shape(32, 2, 2, n_out, 2, 16) for n_out in (100, 1100))
    difference = batch_flops("masked_lm", large, None) - batch_flops("masked_lm", small, None)
    assert abs(difference - 2 * 2 * 16 * 32 * 1000 * 0.15) < 4


def test_every_block_is_compiled() -> None:
    for family in FAMILIES:
        contender = fourfold_contender(family, SIZES["tiny"][family], 0.0)
        compiled = contender.compile(contender.module)
        blocks = [block for block in compiled.modules() if isinstance(block, Block)]
        assert blocks
        assert all(block._compiled_call_impl is not None for block in blocks), family


def test_every_family_can_be_trained() -> None:
    assert tuple(TASKS) == FAMILIES == WORKLOADS["train"]
