"""Tests of the decoding benchmarks."""

from importlib.util import find_spec

import pytest
import torch

from scripts.benchmarks.decoding import CASES
from scripts.benchmarks.workloads import NUM_BEAMS, SIZES, Settings

CPU = torch.device("cpu")


@pytest.mark.parametrize(("workload", "family"), CASES)
def test_fourfold_and_its_peers_decode_the_same_tokens(workload: str, family: str) -> None:
    pytest.importorskip("transformers")
    peers = ["transformers"]
    if family == "llama" and find_spec("litgpt"):
        peers.append("litgpt")
    settings = Settings(size="tiny", precision="fp32")
    shape = SIZES["tiny"][family]
    for case in CASES[workload, family](settings, shape, CPU, peers):
        assert list(case.functions) == ["fourfold", *peers]
        assert case.equal_rows() == dict.fromkeys(peers, 1.0)
        shapes = {function().shape for function in case.functions.values()}
        assert shapes == {(case.batch_size, case.n_new)}
        assert case.weight_bytes == 4 * sum(p.numel() for p in case.model.parameters())


def test_precision_is_the_data_type_of_the_weights() -> None:
    settings = Settings(size="tiny", precision="bf16")
    (case,) = CASES["beam", "encoder_decoder"](settings, SIZES["tiny"]["encoder_decoder"], CPU, [])
    assert list(case.functions) == ["fourfold"]
    assert case.name == f"batch 4, beam {NUM_BEAMS}"
    assert {p.dtype for p in case.model.parameters()} == {torch.bfloat16}
