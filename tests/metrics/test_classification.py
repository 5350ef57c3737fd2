"""Scores of classes and numbers against scikit-learn and scipy."""

import numpy as np
import pytest
import torch

from fourfold.metrics import ClassScores, NumberScores

sklearn = pytest.importorskip("sklearn.metrics")
stats = pytest.importorskip("scipy.stats")


@pytest.mark.parametrize("k", [2, 3, 7])
@pytest.mark.parametrize("seed", range(3))
def test_against_scikit_learn(k: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    labels, logits = rng.integers(k, size=41), rng.normal(size=(41, k))
    scores = ClassScores(k)
    for rows in np.array_split(np.arange(41), 1 + 2 * seed):
        scores.update(torch.tensor(logits[rows]), torch.tensor(labels[rows]))
    found, guessed = scores.compute(), logits.argmax(1)
    average = "binary" if k == 2 else "macro"
    name = "f1" if k == 2 else "f1_macro"
    assert found == pytest.approx(
        {
            "accuracy": sklearn.accuracy_score(labels, guessed),
            name: sklearn.f1_score(
                labels, guessed, average=average, labels=None if k == 2 else range(k)
            ),
            "matthews": sklearn.matthews_corrcoef(labels, guessed),
        }
    )
    expected = sklearn.confusion_matrix(labels, guessed, labels=range(k))
    assert scores.counts() == expected.tolist()


@pytest.mark.parametrize("kind", [torch.bfloat16, torch.float16])
def test_counts_stay_whole_in_a_task_of_low_precision(kind: torch.dtype) -> None:
    """Lightning casts all of a task, metrics included; from 256 on bf16 cannot count."""
    scores = torch.nn.ModuleList([ClassScores(2)]).to(kind)[0]
    for label, times in ((1, 3000), (0, 1000)):
        for _ in range(times):
            scores.update(torch.tensor([[0.0, 1.0]], dtype=kind), torch.tensor([label]))
    assert scores.counts() == [[0, 1000], [0, 3000]]
    assert scores.compute()["accuracy"] == 0.75


def test_one_class_alone() -> None:
    """GLUE counts a model that always says the same as 0."""
    scores = ClassScores(2)
    scores.update(torch.tensor([[1.0, 0.0]] * 4), torch.tensor([0, 1, 1, 0]))
    assert scores.compute() == {"accuracy": 0.5, "f1": 0.0, "matthews": 0.0}
    scores.reset()
    scores.update(torch.tensor([[0.0, 1.0]]), torch.tensor([1]))
    assert scores.compute() == {"accuracy": 1.0, "f1": 1.0, "matthews": 0.0}


@pytest.mark.parametrize("seed", range(3))
def test_against_scipy(seed: int) -> None:
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, 6, size=40).astype(np.float32)  # many are equal
    guesses = np.round(labels + rng.normal(size=40), 1 if seed else 4).astype(np.float32)
    scores = NumberScores()
    for rows in np.array_split(np.arange(40), 1 + seed):
        scores.update(torch.tensor(guesses[rows])[:, None], torch.tensor(labels[rows]))
    assert scores.compute() == pytest.approx(
        {
            "pearson": stats.pearsonr(guesses, labels)[0],
            "spearman": stats.spearmanr(guesses, labels)[0],
        },
        rel=1e-6,
    )


def test_what_is_no_number_correlates_with_nothing() -> None:
    scores = NumberScores()
    scores.update(torch.full((3,), torch.nan), torch.tensor([1.0, 2.0, 3.0]))
    assert all(value != value for value in scores.compute().values())


def test_what_does_not_vary_correlates_with_nothing() -> None:
    scores = NumberScores()
    scores.update(torch.ones(3), torch.tensor([1.0, 2.0, 3.0]))
    assert scores.compute() == {"pearson": 0.0, "spearman": 0.0}
