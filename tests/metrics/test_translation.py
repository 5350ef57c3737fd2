"""TranslationScores against sacreBLEU: corpus level, order and duplicates, languages, ranks."""

import math
import random
import re

import pytest
import sacrebleu

from fourfold import metrics
from fourfold.errors import InputError
from fourfold.metrics import TranslationScores
from fourfold.metrics.base import RowMetric

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


def scores_of(rows: list[int]) -> dict[str, object]:
    metric = TranslationScores()
    for start in range(0, len(rows), 3):
        batch = rows[start : start + 3]
        metric.update(batch, [HYPOTHESES[i] for i in batch], [REFERENCES[i] for i in batch])
    return metric.compute()


def test_scores_equal_those_of_sacrebleu() -> None:
    scores = scores_of([0, 1, 2, 3])
    assert scores["bleu"] == sacrebleu.corpus_bleu(HYPOTHESES, [REFERENCES]).score
    assert scores["chrf"] == sacrebleu.corpus_chrf(HYPOTHESES, [REFERENCES]).score
    assert 0 < scores["bleu"] < 100
    assert scores["exact_match"] == 0.25
    assert "tok:13a" in str(scores["bleu_signature"])
    assert sacrebleu.__version__ in str(scores["bleu_signature"])


def test_groups_have_the_bleu_of_their_examples() -> None:
    metric = TranslationScores()
    metric.update([0, 1, 2, 3], HYPOTHESES, REFERENCES)
    scores = metric.compute(groups={"short": {3, 0}, "empty": {7}, "all": range(4)})
    chosen = sacrebleu.corpus_bleu(HYPOTHESES[::3], [REFERENCES[::3]])
    assert scores["bleu_short"] == chosen.score != scores["bleu"]
    assert scores["bleu_all"] == scores["bleu"]
    assert "bleu_empty" not in scores


def test_order_and_duplicates_do_not_change_scores() -> None:
    expected = scores_of([0, 1, 2, 3])
    for seed in range(5):
        rows = [0, 1, 2, 3, 1, 0, 3]
        random.Random(seed).shuffle(rows)
        assert scores_of(rows) == expected


def test_bleu_is_computed_on_the_corpus() -> None:
    mean = sum(scores_of([i])["bleu"] for i in range(4)) / 4  # type: ignore[misc]
    assert scores_of([0, 1, 2, 3])["bleu"] != pytest.approx(mean, rel=0.01)


def test_reset_drops_all_rows() -> None:
    metric = TranslationScores()
    metric.update([0, 3], [HYPOTHESES[0], HYPOTHESES[3]], [REFERENCES[0], REFERENCES[3]])
    metric.compute()
    metric.reset()
    metric.update([0], [HYPOTHESES[0]], [REFERENCES[0]])
    assert metric.compute()["exact_match"] == 1.0
    assert metric.compute()["bleu"] == pytest.approx(100.0)


@pytest.mark.parametrize(
    ("language", "tokenizer"),
    [
        *[(code, "zh") for code in ("zh", "zh_TW", "zho_Hans", "cmn", "yue", "yue_Hant", "wuu")],
        *[(code, "ja-mecab|char") for code in ("ja", "jpn", "jpn_Jpan", "ja_XX")],
        *[(code, "ko-mecab|char") for code in ("ko", "kor_Hang", "ko-KR")],
        *[(code, "char") for code in ("th", "tha_Thai", "khm", "lo", "lao_Laoo", "my", "mya")],
        *[(code, "13a") for code in ("", "de", "DE", "deu_Latn", "en_XX", "pt-BR", "ja_Latn")],
    ],
)
def test_bleu_tokenizer_follows_the_language(language: str, tokenizer: str) -> None:
    metric = TranslationScores()
    metric.update([0], ["那只猫坐在垫子上面。"], ["那只猫坐在垫子上。"])
    scores = metric.compute(language)
    assert re.search(rf"tok:({tokenizer})(\W|$)", scores["bleu_signature"])
    assert (scores["bleu"] > 50) == (tokenizer != "13a")


@pytest.mark.parametrize("code", ["German", "de_DE.UTF-8", "d", "de,fr"])
def test_unknown_language_is_an_error_that_names_the_option(code: str) -> None:
    metric = TranslationScores()
    metric.update([0], ["a"], ["a"])
    with pytest.raises(InputError, match=r"^data\.tgt_lang must be the code of a language.*got '"):
        metric.compute(code)


@pytest.mark.parametrize("name", metrics.__all__)
def test_metric_of_no_example_is_an_error_or_a_number(name: str) -> None:
    kind = getattr(metrics, name)
    if not isinstance(kind, type) or not issubclass(kind, RowMetric):
        return
    if kind is metrics.RegressionScores:
        empty = {"pearson": 0.0, "spearman": 0.0, "mae": math.nan}
        assert kind().compute() == pytest.approx(empty, nan_ok=True)
        return
    with pytest.raises(InputError, match=f"^{name} has no example to score"):
        kind().compute()


def test_lists_of_unequal_lengths_are_rejected() -> None:
    with pytest.raises(ValueError, match="zip"):
        TranslationScores().update([0, 1], ["a"], ["a"])


def test_rows_of_all_ranks_are_gathered(monkeypatch: pytest.MonkeyPatch) -> None:
    metric = TranslationScores()
    metric.update([1, 0], [HYPOTHESES[1], HYPOTHESES[0]], [REFERENCES[1], REFERENCES[0]])
    other_rank = [(i, (HYPOTHESES[i], REFERENCES[i])) for i in (3, 0, 2)]

    def all_gather_object(values: list[object], value: object) -> None:
        values[:] = [value, other_rank]

    monkeypatch.setattr("torch.distributed.is_initialized", lambda: True)
    monkeypatch.setattr("torch.distributed.get_world_size", lambda: 2)
    monkeypatch.setattr("torch.distributed.all_gather_object", all_gather_object)
    pairs = [pair for _, pair in sorted(metric.gather().items())]
    assert pairs == list(zip(HYPOTHESES, REFERENCES, strict=True))
