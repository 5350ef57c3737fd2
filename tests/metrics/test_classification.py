"""ClassificationScores against scikit-learn, RegressionScores against scipy."""

import numpy as np
import pytest
import torch

from fourfold.metrics import ClassificationScores, RegressionScores

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
            name: sklearn.f1_score(
                labels, predicted, average=average, labels=None if k == 2 else range(k)
            ),
            "mcc": sklearn.matthews_corrcoef(labels, predicted),
        }
    )
    expected = sklearn.confusion_matrix(labels, predicted, labels=range(k))
    assert scores.counts() == expected.tolist()


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
    assert scores.compute() == pytest.approx(
        {
            "pearson": stats.pearsonr(predictions, labels)[0],
            "spearman": stats.spearmanr(predictions, labels)[0],
        },
        rel=1e-6,
    )


def test_correlations_of_nan_are_nan() -> None:
    scores = RegressionScores()
    scores.update(torch.full((3,), torch.nan), torch.tensor([1.0, 2.0, 3.0]))
    assert all(value != value for value in scores.compute().values())


def test_correlations_of_constants_are_zero() -> None:
    scores = RegressionScores()
    scores.update(torch.ones(3), torch.tensor([1.0, 2.0, 3.0]))
    assert scores.compute() == {"pearson": 0.0, "spearman": 0.0}
