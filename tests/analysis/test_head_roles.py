"""Induction of trained models, and error rates of alignments that are given to heads."""

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

import fourfold
from fourfold.analysis.head_roles import AlignedPair, alignment_heads, induction
from fourfold.edits import set
from fourfold.errors import InputError
from fourfold.metrics.alignment import ReferenceLinks
from fourfold.models import (
    CausalLM,
    CausalLMConfig,
    RecurrentEncoderDecoder,
    RecurrentEncoderDecoderConfig,
)
from tests.fixtures.tiny_models import PAIRS, build, tokens

LENGTH, N_TOKENS = 6, 16


def trained(n_layers: int) -> Any:
    """Train a model on repeated random tokens, as page 16 of the course does."""
    torch.manual_seed(0)
    sizes: dict[str, Any] = {"d_model": 32, "n_heads": 1, "d_ff": 64, "vocab_size": N_TOKENS}
    options: dict[str, Any] = {"positions": "none", "rope_theta": 10_000.0, "init": "vaswani"}
    model = CausalLM(
        CausalLMConfig(
            n_layers=n_layers,
            max_len=32,
            dropout=0.0,
            attn_dropout=0.0,
            tie_embeddings=False,
            **sizes,
            **options,
        )
    )
    torch.nn.init.normal_(model.embed.tokens.weight)
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    noise = torch.Generator().manual_seed(1)
    for step in range(300):
        for group in optimizer.param_groups:
            group["lr"] = 5e-3 * min(1, (step + 1) / 20)
        first = torch.rand(32, N_TOKENS, generator=noise).argsort(1)
        period = torch.randint(4, 9, (32, 1), generator=noise)
        ids = first.gather(1, torch.arange(16)[None] % period)
        loss = F.cross_entropy(model(ids[:, :-1]).mT, ids[:, 1:])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return model.eval()


def test_two_layers_have_an_induction_head_and_one_layer_has_none() -> None:
    two, one = (induction(trained(n), 50, LENGTH) for n in (2, 1))
    assert list(two.weights) == ["0.self.head.0", "1.self.head.0"]
    assert two.weights["1.self.head.0"][0] > 0.7
    assert two.weights["0.self.head.0"][0] < 0.3
    assert two.change < -2.0
    assert two.control > 0
    # One layer knows which tokens have occurred, but not which of them is next.
    assert one.weights["0.self.head.0"][0] < 0.4
    assert one.change > -1.6


@torch.no_grad()
def test_induction_equals_a_loop_over_sequences() -> None:
    model = build("causal")
    allowed = torch.arange(3, 25)
    seen: list[Tensor] = []
    handle = model.register_forward_pre_hook(lambda _, args: seen.append(args[0].clone()))
    found = induction(model, 4, 5, tokens=allowed, seed=3)
    handle.remove()
    repeated, control = seen[0], seen[-1]
    assert repeated.shape == control.shape == (4, 10)
    assert torch.equal(repeated[:, :5], repeated[:, 5:])
    assert torch.equal(repeated[:, :5], control[:, :5])
    assert all(len(row.unique()) == 10 for row in control)
    assert {*control.flatten().tolist()} <= {*allowed.tolist()}
    for ids, change in ((repeated, found.change), (control, found.control)):
        parts: list[list[float]] = [[], []]
        for row in ids:
            logs = model(row[None])[0].log_softmax(-1)
            for i in range(1, 10):
                if i != 5:
                    parts[i // 5].append(-logs[i - 1, row[i]].item())
        assert change == pytest.approx(sum(parts[1]) / 16 - sum(parts[0]) / 16, abs=1e-9)
    maps = fourfold.attention_maps(model, repeated)
    for layer in range(2):
        for head in range(3):
            weights = [
                maps[f"self.{layer}"][row, head, query, query - 4].item()
                for row in range(4)
                for query in range(5, 10)
            ]
            value, uniform = found.weights[f"{layer}.self.head.{head}"]
            assert value == pytest.approx(sum(weights) / 20, abs=1e-6)
            assert uniform == pytest.approx(sum(1 / (q + 1) for q in range(5, 10)) / 5, abs=1e-6)
    with pytest.raises(InputError, match="length must be at least 2 and at most 11, got 12"):
        induction(model, 4, 12, tokens=allowed)


def pair(n_source: int, n_target: int, seed: int) -> AlignedPair:
    """Return a sentence pair whose word t is linked to word -t, with start and end tokens."""
    links = frozenset((n_source - 1 - t % n_source, t) for t in range(n_target))
    torch.manual_seed(seed)
    return AlignedPair(
        tokens(n_source + 1),
        tokens(n_target + 2),
        [*range(n_source), -1],
        [*range(n_target), -1],
        ReferenceLinks(links, links),
    )


def weights_of(one: AlignedPair) -> Tensor:
    """Return weights (1, T, S) that align a pair without an error."""
    weights = torch.full((1, len(one.tgt) - 1, len(one.src)), 0.1, dtype=torch.float64)
    for source, target in one.links.sure:
        weights[0, target, source] = 0.5
    return weights


@pytest.mark.parametrize("family", [*PAIRS, "recurrent"])
def test_a_head_with_the_reference_links_has_no_error(family: str) -> None:
    if family == "recurrent":
        sizes: dict[str, Any] = {"d_model": 8, "hidden_size": 8, "n_layers": 1, "max_len": 20}
        config = RecurrentEncoderDecoderConfig(
            vocab_size=29, decoder="luong", input_feeding=False, **sizes
        )
        model: Any = RecurrentEncoderDecoder(config).double().eval()
        name = "0.cross.head.0"
    else:
        model, name = build(family), "decoder.0.cross.head.1"
    one = pair(4, 4, 0)
    with fourfold.edit(model, {name.replace("head", "weights"): set(weights_of(one))}):
        found = alignment_heads(model, [one])
    assert found[name] == {"aer": 0.0, "precision": 1.0, "recall": 1.0}
    rest = [rates["aer"] for other, rates in found.items() if other != name]
    assert all(rate > 0 for rate in rest)
    assert len(rest) == (
        0
        if family == "recurrent"
        else sum(3 for path in model.attention_modules() if path.endswith("cross_attn")) - 1
    )


def test_error_rates_equal_a_loop_over_words() -> None:
    model = build("encoder_decoder")
    pairs = [pair(4, 3, 1), pair(5, 6, 2)]
    found = alignment_heads(model, pairs)
    for layer in range(2):
        for head in range(3):
            right, n_found, n_sure = 0, 0, 0
            for one in pairs:
                maps = fourfold.attention_maps(model, one.src[None], one.tgt[None, :-1])
                weights = maps[f"cross.{layer}"][0, head]
                # The step that predicts word t reads the tokens before it.
                links = {(int(weights[t, :-1].argmax()), t) for t in range(len(one.tgt) - 2)}
                right += len(links & one.links.sure)
                n_found += len(links)
                n_sure += len(one.links.sure)
            expected = {
                "aer": 1 - 2 * right / (n_found + n_sure),
                "precision": right / n_found,
                "recall": right / n_sure,
            }
            assert found[f"decoder.{layer}.cross.head.{head}"] == pytest.approx(expected)
