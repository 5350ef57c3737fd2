from pathlib import Path

from scripts.plot_curves import training_loss_note


def test_note_names_label_smoothing_and_dropout_if_the_training_loss_is_higher(
    tmp_path: Path,
) -> None:
    metrics = tmp_path / "metrics.csv"
    (tmp_path / "config.yaml").write_text(
        "model: {init_args: {label_smoothing: 0.1, config: {dropout: 0.2}}}"
    )
    metrics.write_text("step,train/loss,val/loss\n1,2.0,\n2,,1.5\n")
    note = "train/loss includes label smoothing 0.1 and dropout 0.2, val/loss does not"
    assert training_loss_note(metrics) == note
    metrics.write_text("step,train/loss,val/loss\n1,1.0,\n2,,1.5\n")
    assert training_loss_note(metrics) == ""
