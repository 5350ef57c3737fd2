"""Norm of the gradient at each training step of a tanh RNN, with and without clipping.

    python -m scripts.clipping_curves OUT [--length 100] [--max_steps 300] [--lr 0.2]

An RNN whose recurrent matrix is 1.5 times an orthogonal matrix learns the copy task of Arjovsky et
al. 2016 by SGD, once without clipping and once with the norm of the gradient clipped to 1 (Pascanu
et al. 2013). Seed, data and initial weights are the same. The norm is that before clipping. A
training stops at the first loss that is infinite or not a number. OUT gets norms.csv (steps in
rows), norms.png and summary.json.
"""

import argparse
import csv
import json
import sys
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from itertools import zip_longest
from pathlib import Path
from statistics import mean, median

from lightning import Callback, LightningModule, Trainer, seed_everything
from lightning.pytorch.loggers import CSVLogger
from matplotlib.figure import Figure
from torch import nn

from fourfold.data import SyntheticSequenceData
from fourfold.errors import TrainingStopped
from fourfold.models import RecurrentLMConfig
from fourfold.optim import OptimizerConfig
from fourfold.schedules import ScheduleConfig
from fourfold.tasks import RecurrentLanguageModeling
from scripts.plot_curves import read_curve

GAIN = 1.5
CLIPPING = {"without clipping": None, "clipped to 1": 1.0}


class OrthogonalMatrix(Callback):
    """Callback that sets the recurrent matrix to GAIN times an orthogonal matrix."""

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        for name, weight in pl_module.named_parameters():
            if "weight_hh" in name:
                nn.init.orthogonal_(weight, gain=GAIN)


def train(
    folder: Path, length: int, max_steps: int, lr: float, clip: float | None
) -> tuple[list[float], list[float]]:
    """Train a model, and return the loss and the norm of the gradient at each step.

    Args:
        folder: Folder of the log.
        length: Length of the copy task.
        max_steps: Number of steps of 32 sequences.
        lr: Learning rate of SGD.
        clip: Largest norm of a gradient; None means no clipping.
    """
    seed_everything(0, verbose=False)
    task = RecurrentLanguageModeling(
        config=RecurrentLMConfig(
            d_model=32,
            hidden_size=64,
            cell="rnn",
            dropout=0.0,
            vocab_size=None,
            max_len=length + 20,
        ),
        optimizer=OptimizerConfig(name="sgd", lr=lr, weight_decay=0.0),
        schedule=ScheduleConfig(name="constant"),
    )
    data = SyntheticSequenceData(task="copy", length=length, batch_size=32)
    trainer = Trainer(
        accelerator="cpu",
        max_steps=max_steps,
        max_epochs=-1,
        gradient_clip_val=clip,
        limit_val_batches=0,
        log_every_n_steps=1,
        logger=CSVLogger(str(folder), name="", version="", flush_logs_every_n_steps=1),
        callbacks=[OrthogonalMatrix()],
        use_distributed_sampler=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    with suppress(TrainingStopped):  # the loss is infinite or not a number
        trainer.fit(task, data)
    file = folder / "metrics.csv"
    losses, norms = (
        [value for _, value in read_curve(file, f"train/{name}")] for name in ("loss", "grad_norm")
    )
    return losses, norms


def plot(norms: dict[str, list[float]], image: Path) -> None:
    """Plot the norms over the steps, on a logarithmic axis."""
    figure = Figure(figsize=(6, 4), layout="tight")
    axis = figure.subplots()
    for name, values in norms.items():
        axis.plot(range(1, len(values) + 1), values, label=name, linewidth=0.8)
    axis.axhline(1.0, color="black", linestyle=":", linewidth=0.8)
    axis.set(xlabel="optimizer step", ylabel="norm of the gradient before clipping", yscale="log")
    axis.legend()
    figure.savefig(image, dpi=110)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("out", type=Path, help="folder of the results")
    parser.add_argument("--length", type=int, default=100, help="length of the copy task (100)")
    parser.add_argument("--max_steps", type=int, default=300, help="training steps (300)")
    parser.add_argument("--lr", type=float, default=0.2, help="learning rate of SGD (0.2)")
    given = parser.parse_args(arguments)
    norms, summary = {}, {}
    with tempfile.TemporaryDirectory() as folder:
        for index, (name, clip) in enumerate(CLIPPING.items()):
            run = Path(folder) / str(index)
            losses, norms[name] = train(run, given.length, given.max_steps, given.lr, clip)
            summary[name] = {
                "steps": len(norms[name]),
                "median_norm": median(norms[name]),
                "largest_norm": max(norms[name]),
                "steps_above_1": sum(norm > 1 for norm in norms[name]) / len(norms[name]),
                "first_loss": losses[0],
                "last_loss": mean(losses[-20:]),
            }
    given.out.mkdir(parents=True, exist_ok=True)
    with (given.out / "norms.csv").open("w", newline="", encoding="utf-8") as file:
        rows = csv.writer(file, lineterminator="\n")
        rows.writerow(["step", *norms])
        for step, values in enumerate(zip_longest(*norms.values()), 1):
            rows.writerow([step, *("" if value is None else f"{value:.4g}" for value in values)])
    (given.out / "summary.json").write_text(json.dumps(summary, indent=2) + "\n")
    plot(norms, given.out / "norms.png")
    print(json.dumps(summary, indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main())
