"""Scores of classes and labels against scikit-learn, and of numbers against scipy."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torchmetrics.functional.classification import multiclass_f1_score

from fourfold.metrics import ClassificationScores, MultiLabelScores, RegressionScores

sklearn = pytest.importorskip("sklearn.metrics")
stats = pytest.importorskip("scipy.stats")


@pytest.mark.parametrize("k", [2, 3, 7])
@pytest.mark.parametrize("seed", range(3))
def test_classification_scores_equal_scikit_learn(k: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    labels, logits = rng.integers(k, size=41), rng.normal(size=(41, k))
    scores = ClassificationScores(k)
    for rows in np.array_split(np.arange(41), 1 + 2 * seed):
        scores.update(torch.tensor(logits[rows]), torch.tensor(labels[rows]))
    result = scores.compute()
    predicted = logits.argmax(1)
    average = "binary" if k == 2 else "macro"
    name = "f1" if k == 2 else "macro_f1"
    assert result == pytest.approx(
        {
            "accuracy": sklearn.accuracy_score(labels, predicted),
            name: sklearn.f1_score(labels, predicted, average=average),
            "mcc": sklearn.matthews_corrcoef(labels, predicted),
        }
    )
    expected = sklearn.confusion_matrix(labels, predicted, labels=range(k))
    assert scores.counts() == expected.tolist()


@settings(max_examples=60, deadline=None)
@given(
    k=st.integers(3, 12),
    pairs=st.lists(st.tuples(st.integers(0, 11), st.integers(0, 11)), min_size=1, max_size=12),
)
def test_macro_f1_counts_the_classes_of_truth_and_prediction(
    k: int, pairs: list[tuple[int, int]]
) -> None:
    """Many of the k classes occur in neither."""
    predicted, labels = (torch.tensor([pair[i] % k for pair in pairs]) for i in (0, 1))
    scores = ClassificationScores(k)
    scores.update(torch.eye(k)[predicted], labels)
    found = scores.compute()["macro_f1"]
    by_torchmetrics = multiclass_f1_score(predicted, labels, num_classes=k, average="macro")
    assert found == pytest.approx(float(by_torchmetrics), abs=1e-6)
    by_sklearn = sklearn.f1_score(labels, predicted, average="macro", zero_division=0)
    assert found == pytest.approx(by_sklearn, abs=1e-12)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_counts_stay_exact_in_a_task_of_low_precision(dtype: torch.dtype) -> None:
    """Lightning casts a task with its metrics; bfloat16 cannot count beyond 256."""
    scores = torch.nn.ModuleList([ClassificationScores(2)]).to(dtype)[0]
    for label, times in ((1, 3000), (0, 1000)):
        for _ in range(times):
            scores.update(torch.tensor([[0.0, 1.0]], dtype=dtype), torch.tensor([label]))
    assert scores.counts() == [[0, 1000], [0, 3000]]
    assert scores.compute()["accuracy"] == 0.75


def test_mcc_of_a_single_class_is_zero() -> None:
    """GLUE gives 0 to a model that always predicts one class."""
    scores = ClassificationScores(2)
    scores.update(torch.tensor([[1.0, 0.0]] * 4), torch.tensor([0, 1, 1, 0]))
    assert scores.compute() == {"accuracy": 0.5, "f1": 0.0, "mcc": 0.0}
    scores.reset()
    scores.update(torch.tensor([[0.0, 1.0]]), torch.tensor([1]))
    assert scores.compute() == {"accuracy": 1.0, "f1": 1.0, "mcc": 0.0}


@pytest.mark.parametrize("seed", range(3))
def test_regression_scores_equal_scipy(seed: int) -> None:
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, 6, size=40).astype(np.float32)  # with ties
    predictions = np.round(labels + rng.normal(size=40), 1 if seed else 4).astype(np.float32)
    scores = RegressionScores()
    for rows in np.array_split(np.arange(40), 1 + seed):
        scores.update(torch.tensor(predictions[rows])[:, None], torch.tensor(labels[rows]))
    predictions, labels = predictions.astype(np.float64), labels.astype(np.float64)
    assert scores.compute() == pytest.approx(
        {
            "pearson": stats.pearsonr(predictions, labels)[0],
            "spearman": stats.spearmanr(predictions, labels)[0],
            "mae": np.abs(predictions - labels).mean(),
        },
        rel=1e-12,
    )


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(-5, 5), st.floats(-1e3, 1e3)), min_size=2, max_size=30))
def test_spearman_equals_scipy_with_ties_and_few_pairs(pairs: list[tuple[int, float]]) -> None:
    predictions, labels = (torch.tensor(x, dtype=torch.float64) for x in zip(*pairs, strict=True))
    scores = RegressionScores()
    scores.update(predictions, labels)
    found = scores.compute()["spearman"]
    if len(predictions.unique()) < 2 or len(labels.unique()) < 2:
        assert found == 0.0
    else:
        assert found == pytest.approx(stats.spearmanr(predictions, labels)[0], abs=1e-12)
        perfect = RegressionScores()
        perfect.update(labels, labels)
        assert perfect.compute()["spearman"] == pytest.approx(1.0, abs=1e-12)


def test_correlations_of_nan_are_nan() -> None:
    scores = RegressionScores()
    scores.update(torch.full((3,), torch.nan), torch.tensor([1.0, 2.0, 3.0]))
    assert all(value != value for value in scores.compute().values())


def test_correlations_of_constants_are_zero() -> None:
    scores = RegressionScores()
    scores.update(torch.ones(3), torch.tensor([1.0, 2.0, 3.0]))
    assert scores.compute() == {"pearson": 0.0, "spearman": 0.0, "mae": 1.0}


def multi_label(n: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return logits (n, 4) and labels (n, 4); label 3 never occurs, and some logits are equal."""
    generator = torch.Generator().manual_seed(seed)
    labels = (torch.rand(n, 4, generator=generator) < torch.tensor([0.5, 0.2, 0.7, 0.0])).float()
    logits = (labels + torch.randn(n, 4, generator=generator)).mul(4).round() / 4
    return logits, labels


def test_multi_label_scores_are_those_of_sklearn() -> None:
    scores = MultiLabelScores(4)
    logits, labels = multi_label(200, 0)
    for part in range(0, 200, 7):  # logits of a batch may all be between 0 and 1
        scores.update(logits[part : part + 7], labels[part : part + 7])
    found = {name: float(x) for name, x in scores.compute().items()}
    p, y = logits.sigmoid().numpy(), labels.numpy()
    mean_precision = sklearn.average_precision_score(y, p)  # 0 for the label 3
    f1 = {x: sklearn.f1_score(y, p > 0.5, average=x, zero_division=0) for x in ("micro", "macro")}
    expected = {"map": mean_precision, "micro_f1": f1["micro"], "macro_f1": f1["macro"]}
    assert found == pytest.approx(expected, abs=1e-6)


def test_logits_between_0_and_1_are_no_probabilities() -> None:
    scores = MultiLabelScores(2)
    scores.update(torch.tensor([[0.2, 0.3], [0.1, 0.4]]), torch.ones(2, 2))
    assert float(scores.compute()["micro_f1"]) == 1.0
