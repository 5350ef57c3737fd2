"""CaptionScores against a hand-computed case, sacreBLEU on the same words, and the bootstrap."""

import math
import random

import pytest
from sacrebleu.metrics import BLEU

from fourfold.metrics import CaptionScores
from fourfold.metrics.caption_bleu import caption_tokens

WORDS = ["a", "dog", "man", "runs", "on", "grass", "red"]


def scores_of(pairs: list[tuple[str, list[str]]]) -> dict[str, float]:
    metric = CaptionScores()
    for row, (hypothesis, references) in enumerate(pairs):
        metric.update([row], [hypothesis], [references])
    return metric.compute()


def random_pairs(n: int) -> list[tuple[str, list[str]]]:
    rng = random.Random(0)

    def text() -> str:
        return " ".join(rng.choices(WORDS, k=rng.randint(4, 9)))

    return [(text(), [text() for _ in range(rng.randint(1, 5))]) for _ in range(n)]


def test_hand_computed_case() -> None:
    scores = scores_of(
        [
            ("Dog, dog on the grass!", ["a dog runs on grass today", "the dog on the grass"]),
            ("a man", ["A man runs fast.", "a man on a red bicycle"]),
        ]
    )
    # The closest references have 5 and 4 words. The second "dog" matches nothing.
    precisions = [6 / 7, 4 / 5, 2 / 3, 1 / 2]
    for order in range(1, 5):
        mean = math.prod(precisions[:order]) ** (1 / order)
        assert scores[f"bleu{order}"] == pytest.approx(100 * math.exp(1 - 9 / 7) * mean)
    assert scores["length_ratio"] == pytest.approx(7 / 9)
    assert scores["n_distinct"] == 2


@pytest.mark.parametrize("order", [1, 2, 3, 4])
def test_bleu_equals_sacrebleu_on_the_same_words(order: int) -> None:
    pairs = random_pairs(40)
    reference = BLEU(tokenize="none", smooth_method="none", max_ngram_order=order, force=True)
    most = max(len(several) for _, several in pairs)
    columns = [[(several + [None] * most)[i] for _, several in pairs] for i in range(most)]
    expected = reference.corpus_score([text for text, _ in pairs], columns).score
    scores = scores_of(pairs)
    assert expected > 1
    assert scores[f"bleu{order}"] == pytest.approx(expected, rel=1e-12)
    assert scores[f"bleu{order}_low"] < expected < scores[f"bleu{order}_high"]


def test_interval_shrinks_with_more_images() -> None:
    def width(scores: dict[str, float]) -> float:
        return scores["bleu1_high"] - scores["bleu1_low"]

    few, many = scores_of(random_pairs(20)), scores_of(random_pairs(320))
    assert 2 < width(few) / width(many) < 8  # 4 in the limit
    assert scores_of(random_pairs(20)) == few


def test_equal_captions_are_counted_once() -> None:
    scores = scores_of([("a dog", ["a dog"]), ("a dog", ["a cat"]), ("two dogs", ["dogs"])])
    assert scores["n_distinct"] == 2


def test_no_matches_give_zero() -> None:
    scores = scores_of([("", ["a dog"]), ("cats", ["a dog"])])
    assert scores["bleu1"] == scores["bleu1_high"] == 0.0


def test_punctuation_and_case_do_not_change_scores() -> None:
    changed = scores_of([("A DOG  runs -- on 'grass' ...", ["a dog runs on grass"])])
    assert changed["bleu4"] == pytest.approx(100.0)
    assert caption_tokens("they're 3 don't-s; O'Neil") == [
        *("they", "'re", "3", "do", "n't", "s", "o", "neil")
    ]
