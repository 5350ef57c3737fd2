"""Tests of the demo's baselines against probabilities computed by hand and general properties."""

import importlib.util
import math
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest


@pytest.fixture(scope="module")
def baselines(root: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location("ngrams", root / "scripts/demo/ngrams.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules["ngrams"] = module
    spec.loader.exec_module(module)
    return module


def text(n: int, vocab: int = 12) -> list[int]:
    """Create tokens that are mostly the sum of the two previous ones."""
    rng = np.random.default_rng(0)
    ids = [1, 2]
    for _ in range(n):
        ids.append(int(rng.integers(vocab)) if rng.random() < 0.1 else (ids[-1] + ids[-2]) % vocab)
    return ids


def test_bigram_probabilities_computed_by_hand(baselines: ModuleType) -> None:
    # 0 1 0 2: bigrams 01, 10, 02, once each: no count of two, so the discount is 1 / (1 + 0) = 1.
    model = baselines.KneserNey([[0, 1, 0, 2]], vocab_size=4, order=2)
    assert model.discounts[1] == 1
    # A token's contexts: 0 begins the stream and follows 1; 1 and 2 follow 0; n1 = 2, n2 = 1.
    assert model.discounts[0] == pytest.approx(2 / (2 + 2))
    assert model.unigram[0] == pytest.approx((2 - 0.5 + 0.5 * 3 / 4) / 4)
    assert model.unigram[3] == pytest.approx(0.5 * 3 / 4 / 4)
    # After 0, everything is discounted away: what is left is the unigrams, two followers of two.
    assert model.probability([0], 1) == pytest.approx(model.unigram[1])


@pytest.mark.parametrize("order", [1, 2, 3])
@pytest.mark.parametrize("context", [[], [5], [3, 5], [11, 11], [99, 5]])
def test_probabilities_sum_to_one(baselines: ModuleType, order: int, context: list[int]) -> None:
    model = baselines.KneserNey([text(300)], vocab_size=20, order=order)
    p = model.distribution(context)
    assert p.sum() == pytest.approx(1)
    assert (p > 0).all(), "unseen tokens need a positive probability"
    one_by_one = [model.probability(context, token) for token in range(20)]
    np.testing.assert_allclose(p, one_by_one)


def test_higher_orders_reduce_the_loss(baselines: ModuleType) -> None:
    train, unseen = text(4000), np.array([text(4300)[-300:]])
    ids, targets = unseen[:, :-1], unseen[:, 1:]
    nll = [
        baselines.next_token_nll(baselines.KneserNey([train], 12, order), ids, targets) / 299
        for order in (1, 2, 3)
    ]
    best = -(0.9 + 0.1 / 12) * math.log(0.9 + 0.1 / 12) - 11 * (0.1 / 12) * math.log(0.1 / 12)
    assert nll[2] < nll[1] - 1
    assert abs(nll[0] - nll[1]) < 0.2, "one token before says nothing here"
    assert nll[2] == pytest.approx(best, abs=0.15)


def test_only_given_targets_count(baselines: ModuleType) -> None:
    model = baselines.KneserNey([text(100)], 12)
    ids = np.array([[1, 2, 3]])
    nll = baselines.next_token_nll(model, ids, np.array([[-100, 3, -100]]))
    assert nll == pytest.approx(-math.log(model.probability([1, 2], 3)))


def test_both_sides_are_exact_for_a_trigram_model(baselines: ModuleType) -> None:
    both = baselines.BidirectionalTrigrams([text(400)], 13, mask_id=12)
    known = both.model.probability
    left, right = [3, 4], [11, 6]
    by_hand = np.array(
        [
            known(left, x) * known([4, x], right[0]) * known([x, right[0]], right[1])
            for x in range(13)
        ]
    )
    np.testing.assert_allclose(both.distribution(left, right), by_hand / by_hand.sum())


def test_both_sides_beat_one(baselines: ModuleType) -> None:
    both = baselines.BidirectionalTrigrams([text(4000)], 13, mask_id=12)
    # In "a b x c d" of this text, x is a + b, and also d - c.
    p = both.distribution([3, 4], [11, 6])
    assert p.argmax() == 7
    assert p[7] > both.model.distribution([3, 4])[7]
    assert both.distribution([12, 4], [11, 6]).argmax() == 7, "a hidden neighbour is only unknown"
    np.testing.assert_allclose(both.distribution([3, 4], [12, 6]), both.model.distribution([3, 4]))


def test_hidden_places_with_mask_random_and_true_token(baselines: ModuleType) -> None:
    model = baselines.KneserNey([text(400)], 13, order=1)
    p = model.unigram
    ids, targets = np.array([[12, 5, 7]]), np.array([[3, 5, -100]])
    nll = baselines.masked_token_nll(model, ids, targets, mask_id=12)
    # A shown token is the answer with odds (1 + 1/V) to 1/V, times what p says.
    shown = p[5] * (1 + 1 / 13) / (p[5] * (1 + 1 / 13) + (1 - p[5]) / 13)
    assert nll == pytest.approx(-math.log(p[3]) - math.log(shown))


def test_copying(baselines: ModuleType) -> None:
    assert baselines.is_copied(["a", "b ", "c"], ["a", "b", "d"]).tolist() == [True, True, False]


def test_images(baselines: ModuleType) -> None:
    labels = np.array([0, 0, 1, 1, 1])
    pixels = np.array([[0.0, 1], [0, 3], [10, 0], [12, 0], [11, 0]])
    unseen, answers = np.array([[1.0, 2], [9, 1], [9, 0]]), np.array([0, 1, 0])
    assert baselines.most_frequent_class_accuracy(labels, answers) == pytest.approx(1 / 3)
    found = baselines.nearest_mean_accuracy((pixels, labels), (unseen, answers))
    assert found == pytest.approx(2 / 3)
