"""Metrics against their definitions; how the data are cut must not matter."""

import math
import random
import re

import pytest
import sacrebleu
import torch

from fourfold.metrics import CorpusScores, Perplexity

NLL = [0.5, 2.25, 1.0, 3.5, 0.125]


def perplexity(cuts: list[int], words: int = 3, size: int = 20) -> dict[str, float]:
    metric = Perplexity()
    for i, part in enumerate(torch.tensor(NLL).split(cuts)):
        n = torch.tensor(len(part))
        metric.update(part.sum(), n, words if i == 0 else 0, size if i == 0 else 0, n // 2)
    return metric.compute()


def test_perplexity_is_per_token_per_word_and_per_byte() -> None:
    total = sum(NLL)
    result = perplexity([5])
    assert result["loss"] == pytest.approx(total / 5)
    assert result["ppl_token"] == pytest.approx(math.exp(total / 5))
    assert result["ppl_word"] == pytest.approx(math.exp(total / 3))
    assert result["ppl_byte"] == pytest.approx(math.exp(total / 20))
    assert result["accuracy"] == pytest.approx(2 / 5)


@pytest.mark.parametrize("cuts", [[1] * 5, [2, 3], [4, 1]])
def test_perplexity_does_not_depend_on_batches(cuts: list[int]) -> None:
    whole, cut = perplexity([5]), perplexity(cuts)
    for key in ("loss", "ppl_token", "ppl_word", "ppl_byte"):
        assert cut[key] == pytest.approx(whole[key], rel=1e-12)


def test_without_text_there_is_no_perplexity_of_text() -> None:
    assert set(perplexity([5], words=0, size=0)) == {"loss", "accuracy", "ppl_token"}


def test_a_hopeless_model_has_infinite_perplexity() -> None:
    metric = Perplexity()
    metric.update(torch.tensor(1e6), torch.tensor(2), 1, 4, torch.tensor(0))
    assert metric.compute()["ppl_token"] == math.inf
    metric.reset()
    metric.update(torch.tensor(0.0), torch.tensor(2), 0, 0, torch.tensor(2))
    assert metric.compute() == {"loss": 0.0, "accuracy": 1.0, "ppl_token": 1.0}


def test_many_small_numbers_are_not_lost() -> None:
    metric = Perplexity()
    metric.update(torch.tensor(2.0**25), torch.tensor(1), 0, 0, torch.tensor(0))
    for _ in range(8):
        metric.update(torch.tensor(1.0), torch.tensor(1), 0, 0, torch.tensor(0))
    assert metric.compute()["loss"] == (2.0**25 + 8) / 9


HYPOTHESES = [
    "the cat sat on the mat .",
    "a dog runs through the wet grass",
    "two men are playing chess outside .",
    "nothing alike here at all",
]
REFERENCES = [
    "the cat sat on the mat .",
    "a dog is running through the wet grass .",
    "two men play chess outside .",
    "a child eats an apple in the garden",
]


def scores(rows: list[int]) -> dict[str, object]:
    metric = CorpusScores()
    for start in range(0, len(rows), 3):
        part = rows[start : start + 3]
        metric.update(part, [HYPOTHESES[i] for i in part], [REFERENCES[i] for i in part])
    return metric.compute()


def test_scores_are_those_of_sacrebleu() -> None:
    found = scores([0, 1, 2, 3])
    assert found["bleu"] == sacrebleu.corpus_bleu(HYPOTHESES, [REFERENCES]).score
    assert found["chrf"] == sacrebleu.corpus_chrf(HYPOTHESES, [REFERENCES]).score
    assert 0 < found["bleu"] < 100
    assert found["exact_match"] == 0.25
    assert "tok:13a" in found["bleu_signature"]
    assert sacrebleu.__version__ in found["bleu_signature"]


def test_neither_order_nor_duplicates_change_a_score() -> None:
    expected = scores([0, 1, 2, 3])
    for seed in range(5):
        rows = [0, 1, 2, 3, 1, 0, 3]
        random.Random(seed).shuffle(rows)
        assert scores(rows) == expected


def test_bleu_is_of_the_corpus_not_a_mean_of_sentences() -> None:
    mean = sum(scores([i])["bleu"] for i in range(4)) / 4
    assert scores([0, 1, 2, 3])["bleu"] != pytest.approx(mean, rel=0.01)


def test_sentences_are_forgotten_between_epochs() -> None:
    metric = CorpusScores()
    metric.update([0, 3], [HYPOTHESES[0], HYPOTHESES[3]], [REFERENCES[0], REFERENCES[3]])
    metric.compute()
    metric.reset()
    metric.update([0], [HYPOTHESES[0]], [REFERENCES[0]])
    assert metric.compute()["exact_match"] == 1.0
    assert metric.compute()["bleu"] == pytest.approx(100.0)


@pytest.mark.parametrize(
    ("language", "tokens"),
    [("zh", "zh"), ("zh_TW", "zh"), ("ja", "ja-mecab|char"), ("de", "13a"), ("", "13a")],
)
def test_bleu_cuts_words_as_the_language_does(language: str, tokens: str) -> None:
    metric = CorpusScores()
    metric.update([0], ["那只猫坐在垫子上面。"], ["那只猫坐在垫子上。"])
    found = metric.compute(language)
    assert re.search(rf"tok:({tokens})(\W|$)", found["bleu_signature"])
    assert (found["bleu"] > 50) == (tokens != "13a")


def test_lists_of_unequal_length_are_refused() -> None:
    with pytest.raises(ValueError, match="zip"):
        CorpusScores().update([0, 1], ["a"], ["a"])


def test_ranks_are_put_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another rank has rows 2 and 3, and row 0 once more."""
    metric = CorpusScores()
    metric.update([1, 0], [HYPOTHESES[1], HYPOTHESES[0]], [REFERENCES[1], REFERENCES[0]])
    other = {i: (HYPOTHESES[i], REFERENCES[i]) for i in (3, 0, 2)}

    def all_gather_object(parts: list[object], own: object) -> None:
        parts[:] = [own, other]

    monkeypatch.setattr("torch.distributed.is_initialized", lambda: True)
    monkeypatch.setattr("torch.distributed.get_world_size", lambda: 2)
    monkeypatch.setattr("torch.distributed.all_gather_object", all_gather_object)
    pairs = [pair for _, pair in sorted(metric.gather().items())]
    assert pairs == list(zip(HYPOTHESES, REFERENCES, strict=True))
