"""Compiled blocks: the option, what it compiles, and that it trains the same."""

import csv
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from fourfold.callbacks.runtime.compile_blocks import compile_blocks
from fourfold.core.block import Block, Stack
from fourfold.core.config import TransformerConfig
from fourfold.generation import beam_search, generate
from fourfold.models import EncoderDecoder, EncoderDecoderConfig


@pytest.fixture
def eager(monkeypatch: pytest.MonkeyPatch) -> list[bool | None]:
    """Stand-in for `torch.compile` that works without a compiler."""
    asked: list[bool | None] = []
    plain = nn.Module.compile

    def compile_(module: nn.Module, *, dynamic: bool | None) -> None:
        assert isinstance(module, Block)
        asked.append(dynamic)
        plain(module, backend="eager", dynamic=dynamic)

    monkeypatch.setattr(nn.Module, "compile", compile_)
    return asked


def losses(run: Path) -> list[float]:
    with (run / "metrics.csv").open() as file:
        return [float(row["train/loss"]) for row in csv.DictReader(file) if row["train/loss"]]


STEPS = ("--trainer.max_steps=3", "--trainer.log_every_n_steps=1")
PLAIN = ("--model.config.dropout=0", "--model.config.attn_dropout=0")  # compiled it draws anew
CHARACTERS = "--data.tokenizer.kind=char"  # sentences of different lengths


@pytest.mark.parametrize(
    ("task", "more", "dynamic"), [("mt", [CHARACTERS], True), ("vit", [], False)]
)
def test_each_block_once(
    task: str,
    more: list[str],
    dynamic: bool,
    run: Any,
    configs: dict[str, Path],
    tmp_path: Path,
    eager: list[bool | None],
) -> None:
    fit = ("fit", "--config", configs[task], *STEPS, *PLAIN, *more)
    assert run(*fit, f"--run_dir={tmp_path / 'plain'}").code == 0
    assert not eager
    assert run(*fit, f"--run_dir={tmp_path / 'compiled'}", "--compile=true").code == 0
    assert set(eager) == {dynamic}
    found, wanted = tmp_path / "compiled", tmp_path / "plain"
    assert losses(found) == pytest.approx(losses(wanted), rel=1e-4)
    names = [
        list(torch.load(directory / "checkpoints/last.ckpt", weights_only=True)["state_dict"])
        for directory in (found, wanted)
    ]
    assert names[0] == names[1]


@pytest.fixture
def no_graphs() -> Iterator[None]:
    """Nothing is known from other tests, whose graphs would serve here, too."""
    torch.compiler.reset()
    yield
    torch.compiler.reset()


def counting(calls: list[int]) -> Any:
    """A compiler of graphs that only counts how often each is run."""

    def compile_(graph: torch.fx.GraphModule, example: list[Any]) -> Any:
        calls.append(0)
        number = len(calls) - 1

        def run(*given: Any) -> Any:
            calls[number] += 1
            return graph(*given)

        return run

    return compile_


@pytest.mark.usefixtures("no_graphs")
def test_a_search_leaves_training_compiled() -> None:
    shape: Any = {"d_model": 8, "n_layers": 2, "n_heads": 2, "d_ff": 8, "vocab_size": 11}
    model, calls = EncoderDecoder(EncoderDecoderConfig(**shape, max_len=40)), list[int]()
    compiler = counting(calls)
    for block in (m for m in model.modules() if isinstance(m, Block)):
        block.compile(backend=compiler, dynamic=True)
    src, tgt = torch.randint(3, 11, (3, 9)), torch.randint(3, 11, (3, 6))  # no two sizes alike
    model(src, tgt)
    graphs = len(calls)
    beam_search(model, src, num_beams=2, max_new_tokens=12, bos_id=1, eos_id=2)
    generate(model, src, 12, bos_id=1)
    calls[:] = [0] * len(calls)
    for length in (4, 5, 7):
        model(src[:, :8], torch.randint(3, 11, (3, length)))
    assert len(calls) == graphs
    assert sum(calls) == 3 * 4  # two layers a side


@pytest.mark.usefixtures("no_graphs")
def test_layers_of_any_drop_path_share_their_graphs() -> None:
    calls = list[int]()
    stack = Stack(TransformerConfig(d_model=8, n_layers=12, n_heads=2, d_ff=8, drop_path=0.1))
    compiler = counting(calls)
    for block in stack.blocks:
        block.compile(backend=compiler, dynamic=False)
    stack(torch.zeros(2, 3, 8))
    assert len(calls) == 2  # that of the first never drops
    assert sum(calls) == 12


@pytest.mark.usefixtures("no_graphs")
def test_more_graphs_than_torch_expects_are_compiled_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """Past its limit, 8, torch would compile what it knows and nothing new."""
    calls, plain = list[int](), nn.Module.compile
    compiler = counting(calls)
    monkeypatch.setattr(
        nn.Module, "compile", lambda self, dynamic: plain(self, backend=compiler, dynamic=dynamic)
    )
    stack = Stack(TransformerConfig(d_model=8, n_layers=1, n_heads=2, d_ff=8))
    with torch._dynamo.config.patch(recompile_limit=8):
        compile_blocks(stack, dynamic=False)
        for length in range(1, 13):
            stack(torch.zeros(1, length, 8))
    assert len(calls) == sum(calls) == 12


@pytest.mark.slow
def test_really(run: Any, configs: dict[str, Path], tmp_path: Path) -> None:
    fit = ("fit", "--config", configs["mt"], *STEPS, *PLAIN, CHARACTERS)
    assert run(*fit, f"--run_dir={tmp_path / 'plain'}").code == 0
    assert run(*fit, f"--run_dir={tmp_path / 'compiled'}", "--compile=true").code == 0
    assert losses(tmp_path / "compiled") == pytest.approx(losses(tmp_path / "plain"), rel=1e-3)
