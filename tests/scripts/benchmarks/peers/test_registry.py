"""Tests that peers have the sizes and losses of fourfold's models."""

from pathlib import Path

import pytest
import torch

from fourfold.errors import InputError
from scripts.benchmarks.contenders import evaluation_step, fourfold_contender, training_step
from scripts.benchmarks.peers.registry import (
    PEERS,
    Peer,
    PeerUnavailable,
    build_contender,
    check_available,
    peers_with,
)
from scripts.benchmarks.workloads import FAMILIES, PEER_NAMES, SIZES, Settings, make_batch

CPU = torch.device("cpu")
PACKAGED = [
    (peer, family)
    for family in FAMILIES
    for peer in peers_with(family, PEER_NAMES)
    if peer != "nanogpt"
]
NANOGPT = """
import torch
from dataclasses import dataclass
@dataclass
class GPTConfig:
    block_size: int
    vocab_size: int
    n_layer: int
    n_head: int
    n_embd: int
    dropout: float
    bias: bool
class GPT(torch.nn.Module):
    def __init__(self, config):
        super().__init__()
        self.tokens = torch.nn.Embedding(config.vocab_size, config.n_embd)
    def forward(self, ids, targets=None):
        logits = self.tokens(ids) @ self.tokens.weight.T
        return logits, torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())
"""


@pytest.mark.parametrize(("name", "family"), PACKAGED)
def test_peer_has_the_same_sizes_and_trains(name: str, family: str) -> None:
    pytest.importorskip(PEERS[name].package)
    shape = SIZES["tiny"][family]
    try:
        peer = build_contender(name, family, shape, Settings(size="tiny"))
    except PeerUnavailable as error:
        pytest.skip(str(error))
    reference = fourfold_contender(family, shape, 0.0)
    tolerance = 0.0 if name in ("transformers", "timm") else 0.1
    assert peer.n_parameters == pytest.approx(reference.n_parameters, rel=tolerance)
    batch = make_batch(family, shape, CPU)
    with torch.no_grad():
        expected, before = (c.loss(c.module.eval(), batch) for c in (reference, peer))
    # With random weights, both are about the logarithm of the number of outputs.
    assert before.item() == pytest.approx(expected.item(), rel=0.25)
    step = training_step(peer, batch, "bf16", CPU)
    for _ in range(8):
        step()
    with torch.no_grad():
        assert peer.loss(peer.module.eval(), batch) < before
    evaluation_step(peer, batch, "bf16", CPU)()


def test_missing_package_makes_a_peer_unavailable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(PEERS, "timm", Peer("no_such_package", PEERS["timm"].families))
    with pytest.raises(PeerUnavailable, match="not installed"):
        check_available("timm", Settings())
    with pytest.raises(PeerUnavailable, match="requires --nanogpt FILE"):
        check_available("nanogpt", Settings())


def test_nanogpt_is_imported_from_a_file(tmp_path: Path) -> None:
    file = tmp_path / "model.py"
    file.write_text(NANOGPT)
    shape = SIZES["tiny"]["causal_lm"]
    settings = Settings(size="tiny", nanogpt=str(file))
    contender = build_contender("nanogpt", "causal_lm", shape, settings)
    training_step(contender, make_batch("causal_lm", shape, CPU), "fp32", CPU)()
    assert contender.n_parameters == 101 * 32


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "--nanogpt must be an existing file"),
        ("x = 1", "must be nanoGPT's model.py"),
    ],
)
def test_wrong_nanogpt_file_is_rejected(content: str | None, message: str, tmp_path: Path) -> None:
    file = tmp_path / "model.py"
    if content is not None:
        file.write_text(content)
    settings = Settings(nanogpt=str(file))
    with pytest.raises(InputError, match=message):
        build_contender("nanogpt", "causal_lm", SIZES["tiny"]["causal_lm"], settings)
