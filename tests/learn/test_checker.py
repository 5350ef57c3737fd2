"""`check` with solutions that are no solutions: errors, wrong kinds of results, changed inputs."""

import functools
import re

import pytest
import torch
from torch import nn

from fourfold.errors import InputError
from fourfold.learn import WrongSolution, check


def right(x, n_heads):
    return x.unflatten(-1, (n_heads, -1)).transpose(1, 2)


def with_error(x, n_heads):
    half = x.shape[-1] // n_heads
    return half.foo


def without_result(x, n_heads):
    right(x, n_heads)


def of_numpy(x, n_heads):
    return right(x, n_heads).numpy()


def of_int(x, n_heads):
    return right(x, n_heads).long()


def two_results(x, n_heads):
    return right(x, n_heads), n_heads


def in_place(x, n_heads):
    return right(x.mul_(1).add_(1).sub_(1 + 1e-6), n_heads)


def of_other_shape(x, n_heads):
    return right(x, n_heads).mT


X = r"\(\[\[\[[-.\d, \[\]]+\]\]\], 2\)"


@pytest.mark.parametrize(
    ("solution", "message"),
    [
        (with_error, rf"with_error{X} raises AttributeError in line \d+: 'int' object has no .*"),
        (without_result, rf"not solved: without_result{X} returns None"),
        (of_numpy, rf"of_numpy{X} returns ndarray; expected float \(1, 2, 2, 2\)"),
        (of_int, rf"of_int{X} returns torch.int64 \(1, 2, 2, 2\); expected float \(1, 2, 2, 2\)"),
        (two_results, rf"two_results{X} returns float \(1, 2, 2, 2\), int; expected float .*"),
        (in_place, rf"in_place{X} changes an argument in place"),
        (
            lambda x, n_heads: x,
            rf"<lambda>{X} returns float \(1, 2, 4\); expected float \(1, 2, 2, 2\)",
        ),
        (lambda x: x, rf"<lambda>{X} raises TypeError: .*takes 1 positional argument.*"),
    ],
)
def test_message_of_a_solution_that_gives_no_result(solution, message) -> None:
    with pytest.raises(WrongSolution) as caught:
        check("heads", solution)
    assert re.fullmatch(f"heads: {message}", str(caught.value))


def test_a_shape_that_differs_only_for_unequal_sizes_is_found() -> None:
    with pytest.raises(WrongSolution, match=r"returns float \(2, 3, 6, 4\); expected float"):
        check("heads", lambda x, n: right(x, n) if len(x) == 1 else right(x, n).mT)


def test_line_of_an_error_is_that_of_the_solution() -> None:
    line = with_error.__code__.co_firstlineno + 2
    with pytest.raises(WrongSolution, match=f"in line {line}:") as caught:
        check("heads", with_error)
    assert isinstance(caught.value.__cause__, AttributeError)


def test_modules_and_partial_functions_are_solutions(capsys: pytest.CaptureFixture[str]) -> None:
    class Heads(nn.Module):
        def forward(self, x, n_heads):
            return right(x, n_heads)

    check("heads", Heads())
    check("heads", functools.partial(right))
    assert capsys.readouterr().out == "heads: right\n" * 2


def test_a_mistake_in_some_calls_only_is_not_named() -> None:
    """A solution that has a mistake for the small inputs and another one for the others."""

    def changing(x, n_heads):
        if len(x) == 1:
            return x.reshape(len(x), n_heads, x.shape[1], -1)
        return right(x, n_heads).flip(1)

    with pytest.raises(WrongSolution, match="heads: Head h has the channels"):
        check("heads", changing)


def test_an_error_after_a_known_mistake_does_not_hide_it() -> None:
    def failing(x, n_heads):
        return x.reshape(len(x), n_heads, x.shape[1], -1) if len(x) == 1 else x.foo

    with pytest.raises(WrongSolution, match="heads: a reshape without a transposition"):
        check("heads", failing)


def test_results_without_a_gradient_are_right_where_none_is_needed() -> None:
    check("heads", lambda x, n_heads: right(x, n_heads).detach())


def test_the_check_leaves_the_random_numbers_alone() -> None:
    torch.manual_seed(0)
    expected = torch.rand(1)
    torch.manual_seed(0)
    check("heads", right)
    assert torch.equal(torch.rand(1), expected)


def test_unknown_names_are_refused() -> None:
    with pytest.raises(InputError, match=r"name must be one of self_attention, .*, got 'head'"):
        check("head", right)
