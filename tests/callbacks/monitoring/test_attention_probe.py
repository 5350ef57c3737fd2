"""AttentionProbe: logged statistics, an unchanged training, and the warning of collapse."""

import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning import Callback
from lightning.pytorch.loggers.logger import DummyLogger

from fourfold.analysis.attention_maps import attention_maps
from fourfold.analysis.attention_statistics import row_entropy
from fourfold.callbacks.monitoring import attention_probe
from fourfold.callbacks.monitoring.attention_probe import AttentionProbe
from tests.commands.test_look import read_document
from tests.fixtures import tiny_tasks

SHORT = {"max_epochs": 2, "limit_val_batches": 1, "limit_train_batches": 2}


class Recorder(DummyLogger):
    def __init__(self) -> None:
        super().__init__()
        self.logged: list[dict[str, float]] = []

    def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
        if any(name.startswith("attention/") for name in metrics):
            self.logged.append(metrics)


class UseRecorder(Callback):
    """Callback that replaces the loggers of the Trainer."""

    def __init__(self, logger: Recorder) -> None:
        self.logger = logger

    def on_fit_start(self, trainer: Any, pl_module: Any) -> None:
        trainer.loggers = [self.logger]


def train(name: str, texts: Path, folder: Path, probe: AttentionProbe | None) -> Any:
    """Train a tiny task for two epochs, and return its weights, the logged metrics and the task."""
    task, data = tiny_tasks.TASKS[name](texts)
    recorder = Recorder()
    callbacks = [UseRecorder(recorder), *([] if probe is None else [probe])]
    weights = tiny_tasks.train(task, data, folder, callbacks, **SHORT)
    return weights, recorder.logged, task, data


@pytest.mark.parametrize("name", ["causal LM", "recurrent"])
def test_statistics_are_logged_and_training_does_not_change(
    name: str, texts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attention_probe, "MAX_SHARE", float("inf"))
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    plain, nothing, *_ = train(name, texts, tmp_path / "a", None)
    probed, logged, *_ = train(name, texts, tmp_path / "b", AttentionProbe())
    assert not nothing
    assert len(logged) == 2
    assert all(torch.equal(weight, probed[key]) for key, weight in plain.items())
    kind = "self.0" if name == "causal LM" else "cross.0"
    for metrics in logged:
        assert metrics[f"attention/{kind}/entropy"] >= 0
        assert 0 <= metrics[f"attention/{kind}/entropy_share"] <= 1 + 1e-6
        counts = [value for key, value in metrics.items() if f"{kind}/heads_" in key]
        assert len(counts) == (5 if name == "causal LM" else 2)
        assert 0 <= sum(counts) <= 2
        assert (f"attention/{kind}/distance" in metrics) == (name == "causal LM")
    assert not list((tmp_path / "a").rglob("look.html"))
    (page,) = (tmp_path / "b").rglob("look.html")
    assert page.parent.name == "val"
    document = read_document(page)
    assert len(document["rows"]) == 4
    assert document["provenance"]["checkpoint"] == f"step {4 if name == 'causal LM' else 2}"


def test_later_pages_are_left_out_in_a_short_training(texts: Path, tmp_path: Path) -> None:
    _, logged, *_ = train("causal LM", texts, tmp_path, AttentionProbe())
    (page,) = tmp_path.rglob("look.html")
    assert len(logged) == 2
    assert read_document(page)["provenance"]["checkpoint"] == "step 2"


def test_entropy_is_that_of_the_first_rows(texts: Path, tmp_path: Path) -> None:
    _, logged, task, data = train("causal LM", texts, tmp_path, AttentionProbe(n_rows=2))
    batches = [data.split("val").batch(torch.tensor([i]).numpy(), 0, 0) for i in range(2)]
    for layer in range(task.config.n_layers):
        maps = [attention_maps(task.model, batch.ids) for batch in batches]
        entropies = [row_entropy(x[f"self.{layer}"]).mean() for x in maps]
        expected = float(sum(entropies)) / 2
        assert logged[-1][f"attention/self.{layer}/entropy"] == pytest.approx(expected, rel=1e-4)


def test_probes_follow_every_nth_validation(texts: Path, tmp_path: Path) -> None:
    probe = AttentionProbe(every_n_validations=2)
    assert len(train("causal LM", texts, tmp_path, probe)[1]) == 1
    restored = AttentionProbe(every_n_validations=2)
    restored.load_state_dict(probe.state_dict())
    assert restored.n_validations == 2


def test_collapse_is_warned_of_at_the_second_probe_in_a_row() -> None:
    probe = AttentionProbe()
    name = "attention/self.3/entropy_share"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for share in (0.05, 0.5, 0.05):
            probe._warn({name: share})
    with pytest.warns(UserWarning, match=r"layer self\.3 has collapsed: its entropy is 4\.0%"):
        probe._warn({name: 0.04})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        probe._warn({name: 0.04})  # once for each layer
