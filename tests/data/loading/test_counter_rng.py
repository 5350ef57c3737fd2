"""Counter-based random numbers: independence of the batch, of streams, and distribution."""

import numpy as np
import pytest

from fourfold.data.loading.counter_rng import integers, uniform


def test_numbers_of_a_row_do_not_depend_on_the_batch() -> None:
    all_rows = uniform(3, 7, np.arange(50), 20)
    rows = np.array([41, 0, 17])
    assert (uniform(3, 7, rows, 20) == all_rows[rows]).all()
    assert (uniform(3, 7, rows, 8) == all_rows[rows, :8]).all()


@pytest.mark.parametrize("other", [(4, 7, 0), (3, 8, 0), (3, 7, 1), (7, 3, 0)])
def test_seed_epoch_and_stream_give_independent_numbers(other: tuple[int, int, int]) -> None:
    seed, epoch, stream = other
    rows = np.arange(40)
    a = uniform(3, 7, rows, 50)
    b = uniform(seed, epoch, rows, 50, stream)
    assert not np.isin(a, b).any()
    assert abs(np.corrcoef(a.ravel(), b.ravel())[0, 1]) < 0.1


def test_numbers_are_uniform_and_uncorrelated() -> None:
    x = uniform(0, 0, np.arange(400), 400)
    assert 0 <= x.min() < x.max() < 1
    counts = np.histogram(x, 50, (0, 1))[0]
    assert ((counts - 3200) ** 2 / 3200).sum() < 100  # chi-square, 49 degrees of freedom
    for a, b in ((x[1:], x[:-1]), (x[:, 1:], x[:, :-1]), (x, x.T)):
        assert abs(np.corrcoef(a.ravel(), b.ravel())[0, 1]) < 0.02


def test_integers_cover_their_range() -> None:
    numbers = integers(1, 2, np.arange(3000), 7)
    assert set(numbers.tolist()) == set(range(7))
