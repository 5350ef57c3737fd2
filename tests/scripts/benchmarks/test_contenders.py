import torch

from fourfold.bench import ours
from fourfold.bench.batches import draw
from fourfold.bench.shapes import FAMILIES, SIZES, WORKS, Shape
from fourfold.core.stack import Block

CPU = torch.device("cpu")


def test_the_named_sizes_are_the_published_models() -> None:
    found = {}
    for family, shape in SIZES["gpu"].items():
        with torch.device("meta"):
            found[family] = ours.build(family, shape, 0.0).parameters
    assert found == {
        "causal_lm": 124_439_808,
        "masked_lm": 109_514_298,
        "vit": 86_567_656,
        "encoder_decoder": 63_082_496,
    }


def test_padding_is_no_work() -> None:
    shape = Shape(32, 2, 2, 101, 4, 8)
    batch = draw("encoder_decoder", shape, CPU)
    cost = ours.forward_cost("encoder_decoder", shape, batch)
    full = batch._replace(
        src_mask=torch.ones_like(batch.src_mask), tgt_mask=torch.ones_like(batch.tgt_mask)
    )
    assert 0 < cost < ours.forward_cost("encoder_decoder", shape, full)


def test_a_masked_lm_pays_for_the_words_it_is_asked_for() -> None:
    """Else its share of the matrix product's rate would look better than it is."""
    few, many = (Shape(32, 2, 2, words, 2, 16) for words in (100, 1100))
    costs = [ours.forward_cost("masked_lm", shape, None) for shape in (few, many)]
    assert abs((costs[1] - costs[0]) - 2 * 2 * 16 * 32 * 1000 * 0.15) < 4


def test_each_block_is_compiled() -> None:
    for family in FAMILIES:
        way = ours.build(family, SIZES["tiny"][family], 0.0)
        compiled = way.compile(way.module)
        blocks = [block for block in compiled.modules() if isinstance(block, Block)]
        assert blocks
        assert all(block._compiled_call_impl is not None for block in blocks), family


def test_every_family_has_works() -> None:
    assert all(family in WORKS["train"] for family in ours.TASKS)
    assert tuple(ours.TASKS) == tuple(ours.COSTS) == FAMILIES
