"""Recurrent stacks: torch's weights, padding, steps, and both places of the reset gate."""

from typing import Any

import pytest
import torch
from torch import nn

from fourfold.models.recurrent.cells import RecurrentStack, flip
from fourfold.models.recurrent.decoder import Loop

KINDS: list[Any] = [("rnn", "after"), ("gru", "after"), ("gru", "before"), ("lstm", "after")]
TORCH: dict[str, Any] = {"rnn": nn.RNN, "gru": nn.GRU, "lstm": nn.LSTM}


def stack(cell: Any, reset: Any, **options: Any) -> RecurrentStack:
    torch.manual_seed(0)
    made = RecurrentStack(5, 6, 2, cell=cell, reset=reset, **options).double().eval()
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.normal_(std=0.5)
    return made


@pytest.mark.parametrize("cell", TORCH)
def test_weights_are_those_of_torch(cell: Any) -> None:
    ours = stack(cell, "after", bidirectional=True)
    theirs = TORCH[cell](5, 6, 2, batch_first=True, bidirectional=True).double()
    theirs.load_state_dict(ours.rnn.state_dict())
    x = torch.randn(3, 7, 5).double()
    y, state = ours(x)
    expected, final = theirs(x)
    assert torch.equal(y, expected)
    torch.testing.assert_close(state if cell == "lstm" else state[0], final, rtol=0, atol=0)
    ours.rnn.load_state_dict(theirs.state_dict())


@pytest.mark.parametrize(("cell", "reset"), KINDS)
@pytest.mark.parametrize("bidirectional", [False, True])
def test_padding_is_not_read(cell: Any, reset: Any, bidirectional: bool) -> None:
    ours = stack(cell, reset, bidirectional=bidirectional)
    x, lengths = torch.randn(3, 7, 5).double(), torch.tensor([4, 7, 1])
    start = tuple(torch.randn(2 * (1 + bidirectional), 3, 6).double() for _ in range(2))
    start = start[: 1 + (cell == "lstm")]
    y, state = ours(x, lengths, start)
    for i, n in enumerate(lengths.tolist()):
        alone, final = ours(x[i : i + 1, :n], None, tuple(part[:, i : i + 1] for part in start))
        torch.testing.assert_close(y[i, :n], alone[0], rtol=0, atol=1e-13)
        assert not y[i, n:].any()
        for found, expected in zip(state, final, strict=True):
            torch.testing.assert_close(found[:, i], expected[:, 0], rtol=0, atol=1e-13)


@pytest.mark.parametrize(("cell", "reset"), KINDS)
def test_steps_equal_the_whole_sequence(cell: Any, reset: Any) -> None:
    ours = stack(cell, reset)
    x = torch.randn(3, 7, 5).double()
    y, final = ours(x)
    # The last two of the five inputs of a step are known only then.
    loop = Loop(ours, x[..., :3], tuple(torch.zeros_like(part) for part in final))
    for t, products in enumerate(loop.products):
        torch.testing.assert_close(loop.step(products, x[:, t, 3:]), y[:, t], rtol=0, atol=1e-13)
    for found, expected in zip(loop.state, final, strict=True):
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-13)


def test_reset_gate_before_the_matrix_is_another_cell() -> None:
    before, after = stack("gru", "before", bias=False), stack("gru", "after", bias=False)
    after.load_state_dict(before.state_dict())
    x = torch.randn(1, 2, 5).double()
    found, other = before(x)[0], after(x)[0]
    assert not torch.isclose(found, other)[0, 1].any()
    w_ih, w_hh = (getattr(before.rnn, f"weight_{name}_l0") for name in ("ih", "hh"))
    r, z, n = (w_ih @ x[0, 0]).chunk(3)
    h = (1 - z.sigmoid()) * n.tanh()
    torch.testing.assert_close(RecurrentStack.forward(before, x[:, :1])[1][0][0, 0], h)
    r, z, n = (w_ih @ x[0, 1]).chunk(3)
    u_r, u_z, u_n = w_hh.chunk(3)
    n = (n + u_n @ ((r + u_r @ h).sigmoid() * h)).tanh()
    z = (z + u_z @ h).sigmoid()
    expected = z * h + (1 - z) * n
    torch.testing.assert_close(before(x)[1][0][0, 0], expected)


def test_forget_bias_is_added_to_one_of_two_biases() -> None:
    torch.manual_seed(0)
    plain = RecurrentStack(5, 6, 2)
    torch.manual_seed(0)
    biased = RecurrentStack(5, 6, 2, forget_bias=1.5)
    for (name, x), (_, y) in zip(plain.named_parameters(), biased.named_parameters(), strict=True):
        difference = torch.zeros_like(x)
        if "bias_ih" in name:
            difference[6:12] = 1.5
        torch.testing.assert_close(y - x, difference)


def test_dropout_is_between_layers_only() -> None:
    for cell, reset in KINDS:
        single = RecurrentStack(5, 6, 1, cell=cell, reset=reset, dropout=0.5)
        double = RecurrentStack(5, 6, 2, cell=cell, reset=reset, dropout=0.5)
        x = torch.randn(2, 3, 5)
        assert torch.equal(single(x)[0], single(x)[0])
        assert not torch.equal(double(x)[0], double(x)[0])
        assert torch.equal(double.eval()(x)[0], double(x)[0])


def test_rows_are_reversed_within_their_lengths() -> None:
    x = torch.arange(8).view(2, 4)
    assert flip(x, torch.tensor([4, 2])).tolist() == [[3, 2, 1, 0], [5, 4, 6, 7]]
    assert torch.equal(
        flip(x[..., None], torch.tensor([4, 2]))[..., 0], flip(x, torch.tensor([4, 2]))
    )
    assert torch.equal(flip(x, None), x.flip(1))
