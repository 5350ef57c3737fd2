"""Steps at which `AttentionProbe` warns and at which a training diverges, in provoked collapses.

    python -m scripts.entropy_collapse OUT [--seeds 5] [--max_steps 200]

A ViT with post-norm learns the built-in digits twice for each seed: with the learning rate of
configs/quickstart/images.yaml and a warm-up (control), and with ten times this learning rate
without warm-up (provoked). The probe measures the attention every ten steps. A training has
diverged at the step after which the mean loss of ten steps always is above 95 % of the loss of a
guess, ln 10; this is step 0 if the loss never falls below. OUT
gets collapse.csv with a row for each training, and entropies.csv with the mean loss and the entropy
of each layer, as a share of that of uniform attention, every ten steps.
"""

import argparse
import csv
import math
import sys
import tempfile
import warnings
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from statistics import mean
from typing import Any

from lightning import LightningModule, Trainer, seed_everything
from lightning.pytorch.loggers import CSVLogger

from fourfold.callbacks.monitoring.attention_probe import AttentionProbe
from fourfold.data import ImageData
from fourfold.errors import TrainingStopped
from fourfold.models import ViTConfig
from fourfold.optim import OptimizerConfig
from fourfold.schedules import ScheduleConfig
from fourfold.tasks import ImageClassification
from scripts.plot_curves import Curve, read_curve

LR = 2e-3
WARMUP_STEPS = 60
SETTINGS = {"control": (LR, WARMUP_STEPS), "provoked": (10 * LR, 0)}
N_LAYERS = 4
PROBE_STEPS = 10  # steps between two measurements, and of a mean loss
GUESS = 0.95 * math.log(10)  # loss above which a model does not distinguish the ten classes


class RecordingProbe(AttentionProbe):
    """Probe that records the step and the text of each warning."""

    def __init__(self) -> None:
        super().__init__(page=False)
        self.warned: list[tuple[int, str]] = []

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            super().on_validation_end(trainer, pl_module)
        self.warned += [
            (trainer.global_step, str(one.message))
            for one in caught
            if "has collapsed" in str(one.message)
        ]


def train(folder: Path, seed: int, lr: float, warmup_steps: int, max_steps: int) -> RecordingProbe:
    """Train one model, and return its probe; the folder gets metrics.csv."""
    seed_everything(seed, verbose=False)
    probe = RecordingProbe()
    task = ImageClassification(
        config=ViTConfig(
            d_model=48,
            n_layers=N_LAYERS,
            n_heads=4,
            d_ff=96,
            norm_placement="post",
            dropout=0.0,
            image_size=8,
            patch_size=4,
            n_channels=1,
            n_classes=None,
        ),
        optimizer=OptimizerConfig(lr=lr, weight_decay=0.0),
        schedule=ScheduleConfig(name="constant", warmup_steps=warmup_steps),
    )
    data = ImageData(source="digits", batch_size=64, seed=seed)
    trainer = Trainer(
        accelerator="cpu",
        max_steps=max_steps,
        max_epochs=-1,
        limit_val_batches=1,
        val_check_interval=PROBE_STEPS,
        check_val_every_n_epoch=None,
        num_sanity_val_steps=0,
        log_every_n_steps=1,
        logger=CSVLogger(str(folder), name="", version="", flush_logs_every_n_steps=1),
        callbacks=[probe],
        use_distributed_sampler=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=folder,
    )
    with suppress(TrainingStopped):  # the loss is infinite or not a number
        trainer.fit(task, data)
    return probe


def mean_losses(losses: Curve) -> list[float]:
    """Return the mean loss of each `PROBE_STEPS` successive steps."""
    values = [loss for _, loss in losses]
    begins = range(0, len(values) - PROBE_STEPS + 1, PROBE_STEPS)
    return [mean(values[begin : begin + PROBE_STEPS]) for begin in begins]


def divergence(means: list[float]) -> int | None:
    """Return the number of steps after which the mean loss stays that of a guess, or None."""
    low = [i for i, value in enumerate(means, 1) if value < GUESS]
    last = low[-1] if low else 0
    return None if last == len(means) else PROBE_STEPS * last


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("out", type=Path, help="folder of the results")
    parser.add_argument("--seeds", type=int, default=5, help="number of seeds (5)")
    parser.add_argument("--max_steps", type=int, default=200, help="training steps (200)")
    given = parser.parse_args(arguments)
    rows: list[dict[str, Any]] = []
    entropies: list[list[Any]] = []
    for seed in range(given.seeds):
        for name, (lr, warmup_steps) in SETTINGS.items():
            with tempfile.TemporaryDirectory() as folder:
                probe = train(Path(folder), seed, lr, warmup_steps, given.max_steps)
                file = Path(folder) / "metrics.csv"
                losses = read_curve(file, "train/loss")
                shares = [
                    [share for _, share in read_curve(file, f"attention/self.{i}/entropy_share")]
                    for i in range(N_LAYERS)
                ]
            means = mean_losses(losses)
            step, text = probe.warned[0] if probe.warned else ("", "")
            rows.append(
                {
                    "training": name,
                    "seed": seed,
                    "steps": len(losses),
                    "warning": step,
                    "layer": text.split("layer self.")[-1].split(" ")[0],
                    "divergence": "" if (at := divergence(means)) is None else at,
                    "least_entropy_share": min(map(min, shares)),
                    "last_loss": means[-1],
                }
            )
            print(rows[-1], flush=True)
            for i, values in enumerate(zip(means, *shares, strict=False), 1):
                entropies.append([name, seed, PROBE_STEPS * i, *(f"{x:.4g}" for x in values)])
    given.out.mkdir(parents=True, exist_ok=True)
    with (given.out / "collapse.csv").open("w", newline="", encoding="utf-8") as file:
        table = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        table.writeheader()
        for row in rows:
            table.writerow({k: f"{x:.4g}" if isinstance(x, float) else x for k, x in row.items()})
    with (given.out / "entropies.csv").open("w", newline="", encoding="utf-8") as file:
        lines = csv.writer(file, lineterminator="\n")
        layers = [f"layer {i}" for i in range(N_LAYERS)]
        lines.writerow(["training", "seed", "step", "mean loss", *layers])
        lines.writerows(entropies)
    return 0


if __name__ == "__main__":
    sys.exit(main())
