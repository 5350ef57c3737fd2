"""Steps at which `AttentionProbe` warns and at which the loss diverges, in provoked collapses.

    python -m scripts.entropy_collapse OUT [--seeds 5] [--max_steps 300]

A causal LM with post-norm learns the built-in text twice for each seed: with a learning rate of
1e-3 and a warm-up of 100 steps (control), and with ten times this learning rate without warm-up
(provoked). The probe measures the attention every ten steps. A training has diverged at the first
step after which the mean loss of ten steps is 0.5 nats above the smallest earlier one. OUT gets
collapse.csv with a row for each training, and entropies.csv with the entropy of each layer.
"""

import argparse
import csv
import sys
import tempfile
import warnings
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from statistics import mean

from lightning import Trainer, seed_everything
from lightning.pytorch.loggers import CSVLogger

from fourfold.callbacks.monitoring.attention_probe import AttentionProbe
from fourfold.data import CausalTextData
from fourfold.errors import TrainingStopped
from fourfold.models import CausalLMConfig
from fourfold.optim import OptimizerConfig
from fourfold.schedules import ScheduleConfig
from fourfold.tasks import CausalLanguageModeling
from fourfold.tokenization.training import TokenizerConfig
from scripts.plot_curves import Curve, read_curve

LR = 1e-3
WARMUP_STEPS = 100
SETTINGS = {"control": (LR, WARMUP_STEPS), "provoked": (10 * LR, 0)}
N_LAYERS = 6
PROBE_STEPS = 10  # steps between two measurements
RISE = 0.5  # nats above the smallest mean loss at which a training has diverged


class RecordingProbe(AttentionProbe):
    """Probe that records the step and the text of each warning."""

    def __init__(self) -> None:
        super().__init__(page=False)
        self.warned: list[tuple[int, str]] = []

    def on_validation_end(self, trainer: Trainer, pl_module: CausalLanguageModeling) -> None:
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
    task = CausalLanguageModeling(
        config=CausalLMConfig(
            d_model=64,
            n_layers=N_LAYERS,
            n_heads=4,
            d_ff=256,
            norm_placement="post",
            dropout=0.0,
            attn_dropout=0.0,
            vocab_size=None,
            max_len=64,
        ),
        optimizer=OptimizerConfig(lr=lr, weight_decay=0.0),
        schedule=ScheduleConfig(name="constant", warmup_steps=warmup_steps),
    )
    data = CausalTextData(
        tokenizer=TokenizerConfig(kind="char"), block_size=64, batch_size=16, seed=seed
    )
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


def divergence(losses: Curve) -> int | None:
    """Return the number of steps after which the loss has diverged, or None."""
    least = float("inf")
    for end in range(10, len(losses) + 1, 10):
        value = mean(loss for _, loss in losses[end - 10 : end])
        if not value <= least + RISE:  # also if the loss is not a number
            return losses[end - 1][0] + 1
        least = min(least, value)
    return None


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("out", type=Path, help="folder of the results")
    parser.add_argument("--seeds", type=int, default=5, help="number of seeds (5)")
    parser.add_argument("--max_steps", type=int, default=300, help="training steps (300)")
    given = parser.parse_args(arguments)
    rows, entropies = [], []
    for seed in range(given.seeds):
        for name, (lr, warmup_steps) in SETTINGS.items():
            with tempfile.TemporaryDirectory() as folder:
                probe = train(Path(folder), seed, lr, warmup_steps, given.max_steps)
                file = Path(folder) / "metrics.csv"
                losses = read_curve(file, "train/loss")
                shares = {
                    layer: read_curve(file, f"attention/self.{layer}/entropy_share")
                    for layer in range(N_LAYERS)
                }
            step, text = probe.warned[0] if probe.warned else ("", "")
            rows.append(
                {
                    "training": name,
                    "seed": seed,
                    "steps": len(losses),
                    "warning": step,
                    "layer": text.split("layer self.")[-1].split(" ")[0],
                    "divergence": divergence(losses) or "",
                    "least_entropy_share": min(x for one in shares.values() for _, x in one),
                    "last_loss": mean(loss for _, loss in losses[-10:]),
                }
            )
            print(rows[-1], flush=True)
            for layer, curve in shares.items():
                entropies += [[name, seed, layer, at + 1, f"{x:.4g}"] for at, x in curve]
    given.out.mkdir(parents=True, exist_ok=True)
    with (given.out / "collapse.csv").open("w", newline="", encoding="utf-8") as file:
        table = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        table.writeheader()
        for row in rows:
            table.writerow({k: f"{x:.4g}" if isinstance(x, float) else x for k, x in row.items()})
    with (given.out / "entropies.csv").open("w", newline="", encoding="utf-8") as file:
        lines = csv.writer(file, lineterminator="\n")
        lines.writerow(["training", "seed", "layer", "step", "entropy_share"])
        lines.writerows(entropies)
    return 0


if __name__ == "__main__":
    sys.exit(main())
