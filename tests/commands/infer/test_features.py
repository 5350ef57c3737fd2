"""`fourfold evaluate features`: k-NN and logistic regression against other implementations."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from sklearn.linear_model import LogisticRegression
from sklearn.preprocessing import StandardScaler

import fourfold
from fourfold.cli import main
from fourfold.commands.infer import features
from fourfold.commands.infer.features import embed, knn, logistic_regression
from fourfold.data import ImageData
from fourfold.data.vision.eval_transforms import EvalTransform, TransformConfig
from fourfold.models import CausalLM, CausalLMConfig, ViT, ViTConfig

SHAPE: dict[str, Any] = {"d_model": 16, "n_layers": 1, "n_heads": 2, "d_ff": 24}
SHAPE |= {"image_size": 8, "patch_size": 4, "n_channels": 1, "n_classes": 10, "init": "bert"}


def vit(**options: Any) -> ViT:
    torch.manual_seed(0)
    model = ViT(ViTConfig(**SHAPE, **options)).eval()
    model.artifacts = EvalTransform(TransformConfig(), 8, 1).artifacts()
    return model


@pytest.mark.parametrize(("k", "temperature"), [(1, 0.07), (5, 0.07), (20, 1.0), (500, 0.01)])
def test_knn_equals_a_loop(k: int, temperature: float) -> None:
    generator = torch.Generator().manual_seed(k)
    train = torch.randn(60, 4, dtype=torch.float64, generator=generator)
    test = torch.randn(30, 4, dtype=torch.float64, generator=generator)
    labels = torch.randint(0, 3, (60,), generator=generator)
    found = knn(train, labels, test, k, temperature).argmax(1).tolist()
    for x, predicted in zip(test.tolist(), found, strict=True):
        scored = []
        for y, label in zip(train.tolist(), labels.tolist(), strict=True):
            product = sum(a * b for a, b in zip(x, y, strict=True))
            scored.append((product / math.hypot(*x) / math.hypot(*y), label))
        votes = [0.0, 0.0, 0.0]
        for similarity, label in sorted(scored, reverse=True)[:k]:
            votes[label] += math.exp(similarity / temperature)
        assert predicted == votes.index(max(votes))


@pytest.mark.parametrize("c", [1e-3, 1.0, 100.0])
def test_logistic_regression_equals_scikit_learn(c: float) -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(120, 5)) * [1, 10, 0.1, 1, 1] + 3
    labels = (x[:, 0] + rng.normal(size=120) > 3).astype(int) + (x[:, 1] > 8)
    scaler = StandardScaler().fit(x)
    theirs = LogisticRegression(C=c, tol=1e-10, max_iter=10_000).fit(scaler.transform(x), labels)
    test = rng.normal(size=(40, 5)) * 5
    wanted = torch.from_numpy(theirs.predict_log_proba(scaler.transform(test)))
    tensors = (torch.from_numpy(x), torch.from_numpy(labels), torch.from_numpy(test))
    found = logistic_regression(*tensors, c).log_softmax(1)
    torch.testing.assert_close(found, wanted, rtol=1e-3, atol=1e-3)


@torch.no_grad()
def test_features_are_the_class_token_or_the_mean_of_the_patches() -> None:
    data = ImageData()
    batch: Any = data.split("test").batch(np.arange(7), 0, 0)
    store = data.split_sources["test"].subset(np.arange(7))
    for options, n_prefix in (({}, 1), ({"pool": "mean"}, 0), ({"distillation": True}, 2)):
        model = vit(**options)
        h = model.encode(batch.images).double()
        mean = h[:, n_prefix:].mean(1)
        torch.testing.assert_close(embed(model, store, "mean", 3), mean)
        torch.testing.assert_close(embed(model, store, None, 3), h[:, 0] if n_prefix else mean)


def test_the_command_does_not_read_the_test_split_to_choose(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    fourfold.save(vit(), tmp_path / "a")
    fourfold.save(vit(pool="mean", positions="sincos2d"), tmp_path / "b")
    regression, sizes = features.logistic_regression, []

    def count(train: Any, labels: Any, test: Any, c: float) -> Any:
        sizes.append((len(train), len(test)))
        return regression(train, labels, test, c)

    monkeypatch.setattr(features, "logistic_regression", count)
    monkeypatch.setattr(features, "STRENGTHS", [0.01, 1.0])
    call = ["evaluate", "features", "digits", "--checkpoint", "a", "--checkpoint", "b"]
    assert main([*call, "--out", "out"]) == 0
    said = capsys.readouterr().out
    assert "k-NN" in said
    assert "logistic" in said
    found = json.loads((tmp_path / "out/metrics.json").read_text())
    n_train, n_test = len(ImageData().split("train")), len(ImageData().split("test"))
    assert sizes[2] == sizes[5] == (n_train, n_test)
    for train, held_out in sizes[:2] + sizes[3:5]:
        assert train + held_out == n_train
        assert abs(held_out / n_train - 0.2) < 0.02
    assert [row[""] for row in found["models"]] == ["a", "b"]
    for row in found["models"]:
        assert 60 < row["k-NN"] <= 100  # features of random weights; chance is 10
        assert 60 < row["logistic"] <= 100
        assert row["C"] in (0.01, 1.0)
    assert found["run"]["command"] == f"fourfold {' '.join(call)} --out out"


def test_a_text_model_is_rejected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    shape = {"d_model": 16, "n_layers": 1, "n_heads": 2, "d_ff": 24, "vocab_size": 9}
    fourfold.save(CausalLM(CausalLMConfig(**shape)), tmp_path / "text")
    assert main(["evaluate", "features", "digits", "--checkpoint", "text"]) == 2
    assert "must be a ViT or a masked autoencoder, got a CausalLM" in capsys.readouterr().err


def test_pictures_of_a_folder_need_not_be_square(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    fourfold.save(vit(), tmp_path / "model")
    for i in range(40):
        file = Path("pictures", f"class{i % 2}", f"{i}.png")
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.new("L", (20, 12 + i % 3), 40 + i + 150 * (i % 2)).save(file)
    monkeypatch.setattr(features, "STRENGTHS", [1.0])
    assert main(["evaluate", "features", "pictures", "--checkpoint", "model"]) == 0
    assert "100" in capsys.readouterr().out
