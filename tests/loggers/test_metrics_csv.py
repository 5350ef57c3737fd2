from pathlib import Path

from fourfold.callbacks.metrics_csv import MetricsCSV


def lines(logger: MetricsCSV) -> list[str]:
    return logger.file.read_text().splitlines()


def test_columns_grow(tmp_path: Path) -> None:
    logger = MetricsCSV(tmp_path / "run")
    logger.log_metrics({"train/loss": 2.0}, step=0)
    logger.log_metrics({"val/loss": 1.5, "epoch": 0}, step=0)
    logger.log_metrics({"train/loss": 1.0}, step=1)
    assert lines(logger) == ["step,train/loss,val/loss,epoch", "0,2.0,,", "0,,1.5,0", "1,1.0,,"]


def test_a_resumed_run_goes_on_after_its_checkpoint(tmp_path: Path) -> None:
    logger = MetricsCSV(tmp_path)
    for step in range(4):
        logger.log_metrics({"loss": 4.0 - step}, step)
    resumed = MetricsCSV(tmp_path)
    resumed.rewind(2)
    resumed.log_metrics({"loss": 2.0, "lr": 0.1}, 2)
    assert lines(resumed) == ["step,loss,lr", "0,4.0,", "1,3.0,", "2,2.0,0.1"]
    resumed.rewind(0)
    assert lines(resumed) == ["step,loss,lr"]


def test_a_row_cut_off_by_a_kill_is_dropped(tmp_path: Path) -> None:
    logger = MetricsCSV(tmp_path)
    logger.log_metrics({"loss": 4.0, "lr": 1.0}, 0)
    logger.file.write_text(logger.file.read_text() + "1,3.")
    resumed = MetricsCSV(tmp_path)
    resumed.rewind(1)
    resumed.log_metrics({"loss": 3.0, "lr": 1.0}, 1)
    assert lines(resumed) == ["step,loss,lr", "0,4.0,1.0", "1,3.0,1.0"]


def test_nothing_to_rewind(tmp_path: Path) -> None:
    MetricsCSV(tmp_path / "none").rewind(0)
    assert not (tmp_path / "none").exists()
