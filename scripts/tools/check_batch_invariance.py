"""Checks that gradients do not depend on micro-batches and processes; prints the deviations.

    python scripts/tools/check_batch_invariance.py [--only NAME]

All rows of a tiny dataset make one optimizer step. Its fp64 gradient from a single batch is
compared with the gradients of the same weights from micro-batches of 7 and 3 rows (images: 500
and 301 rows), from 2 and 3 processes, and from 2 processes with micro-batches, in fp64 and fp32,
and with the fp32 gradient from a single batch. A deviation is the largest difference of any
element, relative to the largest element.
"""

import argparse
import logging
import os
import sys
import tempfile
import warnings
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))
os.environ.setdefault("OMP_NUM_THREADS", "1")  # forked processes must not inherit threads

import torch  # noqa: E402
from lightning import Callback, Trainer  # noqa: E402

from tests.fixtures.tiny_tasks import TASKS, train, write_texts  # noqa: E402

ALL_ROWS = 100_000  # more than any tiny dataset has
LIMITS = {"64-true": 1e-12, "32-true": 1e-6}
# The contrastive loss compares a pair with the others of its micro-batch.
MICRO_BATCH_DEPENDENT = "image and text"
# The contrastive loss multiplies similarities by 14 (CLIP's initial temperature of 0.07), and their
# rounding errors with them: in fp32 the gradient of a single batch deviates by 1.4e-6.
LIMIT_FACTORS = {"image and text": 2.0}


def splits_of_step(n_rows: int) -> dict[str, dict[str, Any]]:
    """Return the rows of a micro-batch and the options of the Trainer, by name of the split."""
    sizes = (7, 3) if n_rows < 500 else (500, 301)
    accumulated = {
        f"micro-batches of {k}": {"max_rows": k, "accumulate_grad_batches": 10_000} for k in sizes
    }
    processes = {
        f"{n} processes": {"max_rows": -(-n_rows // n), "devices": n, "strategy": "ddp_fork"}
        for n in (2, 3)
    }
    both = processes["2 processes"] | accumulated[f"micro-batches of {sizes[0]}"]
    return {**accumulated, **processes, f"2 processes x micro-batches of {sizes[0]}": both}


class SaveGradients(Callback):
    """Save the gradients of the last step; rank 0 saves them, since all ranks have the same.

    The file of the initial weights is read if it exists, otherwise written.
    """

    def __init__(self, file: Path, weights: Path) -> None:
        self.file, self.weights = file, weights

    def on_train_start(self, trainer: Trainer, pl_module: Any) -> None:
        if self.weights.exists():
            pl_module.load_state_dict(torch.load(self.weights))  # copies into the module's dtype
        else:
            torch.save(pl_module.state_dict(), self.weights)

    def on_train_end(self, trainer: Trainer, pl_module: Any) -> None:
        if trainer.is_global_zero:
            torch.save({n: p.grad for n, p in pl_module.named_parameters()}, self.file)


def deviation(task: str, precision: str, texts: Path, folder: Path) -> dict[str, float]:
    """Return the relative deviation from the fp64 gradient of a single batch, by split."""
    weights = folder / "weights_at_start.pt"
    weights.unlink(missing_ok=True)

    def step(max_rows: int, precision: str, **options: Any) -> dict[str, torch.Tensor]:
        task_and_data = TASKS[task](texts, max_rows=max_rows)
        file = folder / "gradients.pt"
        callbacks = [SaveGradients(file, weights)]
        train(*task_and_data, folder, callbacks, precision=precision, **options)
        gradients: dict[str, torch.Tensor] = torch.load(file)
        return gradients

    single = step(ALL_ROWS, precision)  # draws the weights
    expected = single if precision == "64-true" else step(ALL_ROWS, "64-true")
    largest = max(float(gradient.abs().max()) for gradient in expected.values())
    _, data = TASKS[task](texts)
    splits = splits_of_step(len(data.split("train")))
    if task == MICRO_BATCH_DEPENDENT:
        splits = {name: options for name, options in splits.items() if "micro" not in name}
    gradients = {name: step(precision=precision, **options) for name, options in splits.items()}
    if precision != "64-true":
        gradients = {"a single batch": single, **gradients}
    return {
        name: max(float((actual[w].double() - expected[w]).abs().max()) for w in expected) / largest
        for name, actual in gradients.items()
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--only", default="", help="substring of the names of tasks")
    options = parser.parse_args()
    warnings.filterwarnings("ignore")
    for name in ("lightning.pytorch", "lightning.fabric"):
        logging.getLogger(name).setLevel(logging.ERROR)
    n_failed = 0
    with tempfile.TemporaryDirectory() as name:
        texts = write_texts(Path(name))
        for precision, limit in LIMITS.items():
            for task in (task for task in TASKS if options.only in task):
                found = deviation(task, precision, texts, texts)
                passed = max(found.values()) <= limit * LIMIT_FACTORS.get(task, 1.0)
                n_failed += not passed
                shown = ", ".join(f"{name} {value:.1e}" for name, value in found.items())
                print(f"{precision}  {task}: {shown}{'' if passed else '  FAILED'}", flush=True)
    return 1 if n_failed else 0


if __name__ == "__main__":
    sys.exit(main())
