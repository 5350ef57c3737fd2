import numpy as np
import pytest

from fourfold.data.noise import integers, uniform


def test_rows_get_the_same_numbers_in_any_batch():
    rows = np.arange(50)
    whole = uniform(3, 7, rows, 20)
    some = np.array([41, 0, 17])
    assert (uniform(3, 7, some, 20) == whole[some]).all()
    assert (uniform(3, 7, some, 8) == whole[some, :8]).all()  # nor does the width matter


@pytest.mark.parametrize("other", [(4, 7, 0), (3, 8, 0), (3, 7, 1), (7, 3, 0)])
def test_seed_epoch_and_stream_each_give_other_numbers(other):
    seed, epoch, stream = other
    rows = np.arange(40)
    ours, theirs = uniform(3, 7, rows, 50), uniform(seed, epoch, rows, 50, stream)
    assert not np.isin(ours, theirs).any()
    assert abs(np.corrcoef(ours.ravel(), theirs.ravel())[0, 1]) < 0.1


def test_numbers_are_even_and_rows_and_places_are_unrelated():
    x = uniform(0, 0, np.arange(400), 400)
    assert 0 <= x.min() < x.max() < 1
    counts = np.histogram(x, 50, (0, 1))[0]
    assert ((counts - 3200) ** 2 / 3200).sum() < 100  # chi-square, 49 degrees of freedom
    for a, b in ((x[1:], x[:-1]), (x[:, 1:], x[:, :-1]), (x, x.T)):
        assert abs(np.corrcoef(a.ravel(), b.ravel())[0, 1]) < 0.02


def test_integers_reach_every_number_below_their_bound():
    drawn = integers(1, 2, np.arange(3000), 7)
    assert set(drawn.tolist()) == set(range(7))
