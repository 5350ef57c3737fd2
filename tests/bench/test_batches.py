import torch

from fourfold.bench.batches import draw
from fourfold.bench.shapes import FAMILIES, SIZES, Shape
from fourfold.losses import IGNORED

CPU = torch.device("cpu")


def test_a_batch_is_the_same_each_time() -> None:
    for family in FAMILIES:
        first, second = (draw(family, SIZES["tiny"][family], CPU) for _ in range(2))
        same = zip(first, second, strict=True)
        assert all(a.equal(b) for a, b in same if isinstance(a, torch.Tensor)), family


def test_a_masked_lm_is_asked_for_its_share() -> None:
    shape = SIZES["laptop"]["masked_lm"]
    batch = draw("masked_lm", shape, CPU)
    asked = batch.targets != IGNORED
    assert int(asked.sum()) == round(0.15 * shape.batch * shape.length) == 307
    assert batch.ids[asked].unique().tolist() == [3]


def test_sentences_have_lengths_begin_and_end() -> None:
    batch = draw("encoder_decoder", Shape(32, 1, 1, 500, 256, 13), CPU)
    lengths = batch.src_mask.sum(1)
    assert 12 < lengths.float().mean() < 14
    assert len(lengths.unique()) > 5
    last = torch.arange(256), lengths - 1
    assert batch.src[last].unique().tolist() == [2]
    assert batch.tgt[:, 0].unique().tolist() == [1]
    assert batch.tgt[torch.arange(256), batch.tgt_mask.sum(1) - 1].unique().tolist() == [2]
    assert not batch.src[~batch.src_mask].any()
    assert batch.src[batch.src_mask].min() > 0
