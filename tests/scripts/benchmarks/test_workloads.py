"""Tests of the synthetic batches."""

import torch

from fourfold.losses import IGNORE_INDEX
from scripts.benchmarks.workloads import FAMILIES, SIZES, Shape, make_batch

CPU = torch.device("cpu")


def test_batch_is_reproducible() -> None:
    for family in FAMILIES:
        first, second = (make_batch(family, SIZES["tiny"][family], CPU) for _ in range(2))
        pairs = zip(first, second, strict=True)
        assert all(a.equal(b) for a, b in pairs if isinstance(a, torch.Tensor)), family


def test_masked_lm_batch_masks_fifteen_percent() -> None:
    shape = SIZES["laptop"]["masked_lm"]
    batch = make_batch("masked_lm", shape, CPU)
    masked = batch.targets != IGNORE_INDEX
    assert int(masked.sum()) == round(0.15 * shape.batch * shape.length) == 307
    assert batch.ids[masked].unique().tolist() == [3]


def test_sentence_pairs_differ_in_length_and_have_special_tokens() -> None:
    batch = make_batch("encoder_decoder", Shape(32, 1, 1, 500, 256, 13), CPU)
    lengths = batch.src_mask.sum(1)
    assert 12 < lengths.float().mean() < 14
    assert len(lengths.unique()) > 5
    rows = torch.arange(256)
    assert batch.src[rows, lengths - 1].unique().tolist() == [2]
    assert batch.tgt[:, 0].unique().tolist() == [1]
    assert batch.tgt[rows, batch.tgt_mask.sum(1) - 1].unique().tolist() == [2]
    assert not batch.src[~batch.src_mask].any()
    assert batch.src[batch.src_mask].min() > 0
