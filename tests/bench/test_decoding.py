import pytest
import torch

from fourfold.bench.decoding import DECODERS
from fourfold.bench.shapes import BEAM, SIZES, Settings

CPU = torch.device("cpu")
FAMILY = {"greedy": "causal_lm", "beam": "encoder_decoder"}


@pytest.mark.parametrize("work", DECODERS)
def test_both_write_the_same(work: str) -> None:
    pytest.importorskip("transformers")
    settings = Settings(size="tiny", precision="fp32")
    for job in DECODERS[work](settings, SIZES["tiny"][FAMILY[work]], CPU, True):
        assert list(job.ways) == ["fourfold", "transformers"]
        assert job.same_rows() == 1.0
        assert {way().shape for way in job.ways.values()} == {(job.rows, job.new)}
        assert job.weight_bytes == 4 * sum(p.numel() for p in job.model.parameters())


def test_ours_alone_in_half_precision() -> None:
    settings = Settings(size="tiny", precision="bf16")
    (job,) = DECODERS["beam"](settings, SIZES["tiny"]["encoder_decoder"], CPU, False)
    assert list(job.ways) == ["fourfold"]
    assert job.what == f"batch 4, beam {BEAM}"
    assert {p.dtype for p in job.model.parameters()} == {torch.bfloat16}
