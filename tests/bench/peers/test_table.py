"""Peers have our shapes, their losses are ours, and one that is not there is named."""

from pathlib import Path

import pytest
import torch

from fourfold.bench import ours
from fourfold.bench.batches import draw
from fourfold.bench.peers import table
from fourfold.bench.peers.table import TABLE, Absent, Peer, build_peer, having, require
from fourfold.bench.shapes import FAMILIES, PEERS, SIZES, Settings
from fourfold.bench.ways import evaluation, training
from fourfold.core.errors import InputError

CPU = torch.device("cpu")
PACKAGED = [
    (peer, family) for family in FAMILIES for peer in having(family, PEERS) if peer != "nanogpt"
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
        self.words = torch.nn.Embedding(config.vocab_size, config.n_embd)
    def forward(self, ids, targets=None):
        logits = self.words(ids) @ self.words.weight.T
        return logits, torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())
"""


@pytest.mark.parametrize(("name", "family"), PACKAGED)
def test_a_peer_is_of_our_shape_and_learns(name: str, family: str) -> None:
    pytest.importorskip(TABLE[name].package)
    shape = SIZES["tiny"][family]
    try:
        way = build_peer(name, family, shape, Settings(size="tiny"))
    except Absent as why:
        pytest.skip(str(why))
    mine = ours.build(family, shape, 0.0)
    if name in ("transformers", "timm"):
        assert way.parameters == mine.parameters
    else:  # norms, biases and an output matrix: see the peer's module
        assert way.parameters == pytest.approx(mine.parameters, rel=0.1)
    batch = draw(family, shape, CPU)
    with torch.no_grad():
        found, loss = (w.loss(w.module.eval(), batch) for w in (mine, way))
    # Random weights say nothing yet: about the logarithm of the number of words.
    assert loss.item() == pytest.approx(found.item(), rel=0.25)
    step = training(way, [batch], "bf16", CPU)
    for _ in range(8):
        step()
    with torch.no_grad():
        assert way.loss(way.module.eval(), batch) < loss
    evaluation(way, [batch], "bf16", CPU)()


def test_what_is_not_installed_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(table.TABLE, "timm", Peer("no_such_package", TABLE["timm"].families))
    with pytest.raises(Absent, match="not installed"):
        require("timm", Settings())
    with pytest.raises(Absent, match="not given: --nanogpt FILE"):
        require("nanogpt", Settings())


def test_nanogpt_is_a_file(tmp_path: Path) -> None:
    file = tmp_path / "model.py"
    file.write_text(NANOGPT)
    shape = SIZES["tiny"]["causal_lm"]
    way = build_peer("nanogpt", "causal_lm", shape, Settings(size="tiny", nanogpt=str(file)))
    training(way, [draw("causal_lm", shape, CPU)], "fp32", CPU)()
    assert way.parameters == 101 * 32


@pytest.mark.parametrize(
    ("content", "said"),
    [(None, "no such file"), ("x = 1", "not nanoGPT's model.py"), ("1 / 0", "does not run")],
)
def test_another_file_is_said(content: str | None, said: str, tmp_path: Path) -> None:
    file = tmp_path / "model.py"
    if content is not None:
        file.write_text(content)
    with pytest.raises(InputError, match=said):
        build_peer("nanogpt", "causal_lm", SIZES["tiny"]["causal_lm"], Settings(nanogpt=str(file)))
