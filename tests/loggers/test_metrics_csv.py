from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fourfold.loggers import metrics_csv
from fourfold.loggers.metrics_csv import MetricsCSVLogger, RewindMetricsCSV


def lines(logger: MetricsCSVLogger) -> list[str]:
    return logger.file.read_text().splitlines()


def test_new_metrics_add_columns(tmp_path: Path) -> None:
    logger = MetricsCSVLogger(tmp_path / "run")
    logger.log_metrics({"train/loss": 2.0}, step=1)
    logger.log_metrics({"val/loss": 1.5, "epoch": 0}, step=1)
    logger.log_metrics({"train/loss": 1.0}, step=2)
    assert lines(logger) == ["step,train/loss,val/loss,epoch", "1,2.0,,", "1,,1.5,0", "2,1.0,,"]


def test_resumed_run_replaces_rows_after_its_checkpoint(tmp_path: Path) -> None:
    logger = MetricsCSVLogger(tmp_path)
    for step in range(1, 5):
        logger.log_metrics({"loss": 5.0 - step}, step)
    resumed = MetricsCSVLogger(tmp_path)
    resumed.rewind(2)
    resumed.log_metrics({"loss": 2.0, "train/lr": 0.1}, 3)
    assert lines(resumed) == ["step,loss,train/lr", "1,4.0,", "2,3.0,", "3,2.0,0.1"]
    resumed.rewind(0)
    assert lines(resumed) == ["step,loss,train/lr"]


def test_validation_after_the_checkpoint_of_its_step_is_removed(tmp_path: Path) -> None:
    """With accumulation, a validation may follow a checkpoint before the next optimizer step."""
    logger = MetricsCSVLogger(tmp_path)
    logger.log_metrics({"train/loss": 2.0}, step=1)
    logger.log_metrics({"val/loss": 3.0}, step=1)
    saved = logger.n_rows
    logger.log_metrics({"val/loss": 2.5}, step=1)
    logger.log_metrics({"train/loss": 1.0}, step=2)
    resumed = MetricsCSVLogger(tmp_path)
    resumed.rewind(1, saved)
    assert lines(resumed) == ["step,train/loss,val/loss", "1,2.0,", "1,,3.0"]
    assert resumed.n_rows == saved == 2
    resumed.log_metrics({"val/loss": 2.5, "val/accuracy": 0.5}, step=1)
    assert resumed.n_rows == len(lines(resumed)) - 1 == 3


def test_incomplete_row_of_a_killed_run_is_removed(tmp_path: Path) -> None:
    logger = MetricsCSVLogger(tmp_path)
    logger.log_metrics({"loss": 4.0, "train/lr": 1.0}, 1)
    logger.file.write_text(logger.file.read_text() + "2,3.")
    resumed = MetricsCSVLogger(tmp_path)
    resumed.rewind(1)
    resumed.log_metrics({"loss": 3.0, "train/lr": 1.0}, 2)
    assert lines(resumed) == ["step,loss,train/lr", "1,4.0,1.0", "2,3.0,1.0"]


def test_rewind_without_a_file_writes_nothing(tmp_path: Path) -> None:
    MetricsCSVLogger(tmp_path / "none").rewind(0)
    assert not (tmp_path / "none").exists()


@pytest.mark.parametrize(
    "content",
    [
        b"\x93NUMPY\x01\x00\xff" * 99,
        b"",
        b"ste",
        b"step,loss\n0,4.0\nx\n1,3.0\n",
        b'step,loss\n0,"' + b"4" * 200_000,
        None,
    ],
)
def test_damaged_file_is_renamed(
    content: bytes | None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    logger = MetricsCSVLogger(tmp_path)
    if content is None:
        logger.file.mkdir()
    else:
        logger.file.write_bytes(content)
    logger.rewind(1)
    logger.log_metrics({"loss": 3.0}, 2)
    assert lines(logger) == ["step,loss", "2,3.0"]
    kept = tmp_path / "metrics.csv.corrupted"
    assert kept.is_dir() if content is None else kept.read_bytes() == content
    message = "metrics.csv: the file is damaged; renamed to metrics.csv.corrupted"
    assert message in capsys.readouterr().err


def test_rows_are_flushed_before_a_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    logger = MetricsCSVLogger(tmp_path)
    logger.log_metrics({"loss": 3.0}, 1)
    synced: list[Path] = []
    monkeypatch.setattr(metrics_csv, "sync", synced.append)
    trainer: Any = SimpleNamespace(loggers=[logger], is_global_zero=True)
    RewindMetricsCSV().on_save_checkpoint(trainer, None, {})  # type: ignore[arg-type]
    assert synced == [logger.file]
