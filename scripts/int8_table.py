"""Size, speed and quality of int8 weights beside fp32 and bf16 on a CPU.

    python scripts/int8_table.py OUT [--runs DIR] [--rounds 7]

Quality: the tiny recipes of translation, causal language modelling and image classification are
trained (a few minutes; finished runs in DIR are used again) and tested on their test splits. Speed:
models of laptop width with random weights decode 32 tokens or classify, in interleaved rounds; the
ratio to fp32 is the median over the rounds, with its range. OUT receives int8.csv and int8.md.
"""

import argparse
import csv
import logging
import statistics
import subprocess
import sys
import warnings
from collections.abc import Callable
from dataclasses import astuple, dataclass, fields
from pathlib import Path
from typing import Any

import torch
import yaml
from jsonargparse import ArgumentParser
from lightning import LightningDataModule, Trainer

import fourfold
from fourfold.checkpoints.files import find_checkpoint
from fourfold.environment import processor
from fourfold.layers.quantization import quantize
from fourfold.models import (
    CausalLM,
    CausalLMConfig,
    EncoderDecoder,
    EncoderDecoderConfig,
    SequenceClassifier,
    SequenceClassifierConfig,
    ViT,
    ViTConfig,
)
from fourfold.reproduce.interleaved_timing import interleave
from fourfold.tasks import load_task

ROOT = Path(__file__).resolve().parents[1]
# Recipe and the metric of its test.
RECIPES = {
    "vaswani2017/tiny": "test/bleu",
    "gpt2/tiny": "test/ppl_token",
    "vit/tiny": "test/top1",
}
PRECISIONS = {"fp32": "32-true", "bf16": "bf16-true", "int8": "32-true"}
WIDTH = {"d_model": 512, "n_layers": 6, "n_heads": 8, "d_ff": 2048}
VOCAB, N_NEW, LENGTH = 8000, 32, 64


@dataclass(frozen=True)
class Row:
    """One row of the table; an empty cell was not measured."""

    model: str
    measured: str
    precision: str
    megabytes: float
    per_second: float | str = ""
    ratio: float | str = ""
    lowest: float | str = ""
    highest: float | str = ""
    metric: str = ""
    value: float | str = ""


def megabytes(model: torch.nn.Module) -> float:
    """Return the memory of all weights and buffers, shared ones counted once, in MB."""
    tensors = {x.data_ptr(): x for x in [*model.parameters(), *model.buffers()]}
    return sum(x.numel() * x.element_size() for x in tensors.values()) / 1e6


def convert(model: Any, precision: str) -> Any:
    """Convert a model in fp32 to a precision of the table, in place."""
    if precision == "int8":
        quantize(model, "int8")
    return model.to(torch.bfloat16) if precision == "bf16" else model


def train(recipe: str, runs: Path) -> Path:
    """Train a recipe unless this was done before, and return its run directory."""
    run = runs / recipe
    if not (run / "checkpoints" / "best.ckpt").exists():
        command = [sys.executable, "-m", "fourfold", "fit", "--config", recipe]
        command += [
            "--run_dir",
            str(run),
            "--trainer.accelerator=cpu",
            "--trainer.precision=32-true",
        ]
        subprocess.run(command, check=True, cwd=ROOT, stdout=subprocess.DEVNULL)
    return run


def quality(recipe: str, metric: str, runs: Path) -> list[Row]:
    """Test a trained recipe in each precision."""
    parser = ArgumentParser(exit_on_error=False)
    parser.add_subclass_arguments(LightningDataModule, "data")
    section = yaml.safe_load((ROOT / "configs" / f"{recipe}.yaml").read_text())["data"]
    run, rows = train(recipe, runs), []
    for precision, name in PRECISIONS.items():
        data = parser.instantiate_classes(parser.parse_object({"data": section})).data
        task = load_task(find_checkpoint(run))
        convert(task.model, precision)
        trainer = Trainer(
            accelerator="cpu",
            precision=name,  # type: ignore[arg-type]
            logger=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            use_distributed_sampler=False,
        )
        (values,) = trainer.test(task, data, verbose=False)
        size = megabytes(task.model)
        rows.append(Row(recipe, "test split", precision, size, metric=metric, value=values[metric]))
    return rows


def workloads() -> dict[str, tuple[Callable[[], Any], dict[str, Callable[[Any], object]]]]:
    """Return constructors of models and, by description, functions that run them."""
    ids = torch.randint(VOCAB, (32, LENGTH), generator=torch.Generator().manual_seed(0))
    images = torch.randn(8, 3, 224, 224, generator=torch.Generator().manual_seed(0))
    text = {**WIDTH, "vocab_size": VOCAB, "max_len": 256}
    image = {"d_model": 384, "n_layers": 12, "n_heads": 6, "d_ff": 1536}

    def decode(n: int) -> Callable[[Any], object]:
        return lambda model: fourfold.generate(
            model, ids[:n, :16], max_new=N_NEW, eos_id=None, bos_id=0, pad_id=0
        )

    def classify(x: torch.Tensor) -> Callable[[Any], object]:
        return lambda model: model(x.to(next(model.parameters()).dtype) if x.ndim == 4 else x)

    decoding = {f"decoding, batch {n}, tokens": decode(n) for n in (1, 32)}
    texts = {f"batch {n}, sentences of {LENGTH} tokens": classify(ids[:n]) for n in (1, 32)}
    pictures = {f"batch {n}, images": classify(images[:n]) for n in (1, 8)}
    return {
        "causal LM, 6 x 512": (lambda: CausalLM(CausalLMConfig(**text)), decoding),
        "encoder-decoder, 6 + 6 x 512": (
            lambda: EncoderDecoder(EncoderDecoderConfig(**text)),
            decoding,
        ),
        "text classifier, 6 x 512": (
            lambda: SequenceClassifier(SequenceClassifierConfig(**text, n_classes=2)),
            texts,
        ),
        "ViT-S/16, 12 x 384": (lambda: ViT(ViTConfig(**image)), pictures),
    }


def speed(rounds: int) -> list[Row]:
    """Measure each workload in each precision."""
    rows = []
    for name, (make, runs) in workloads().items():
        models = {}
        for precision in PRECISIONS:
            torch.manual_seed(0)
            models[precision] = convert(make().eval(), precision)
        for measured, run in runs.items():
            calls = {p: lambda run=run, model=model: run(model) for p, model in models.items()}
            with torch.inference_mode():
                seconds = interleave(calls, rounds)
            n = int(measured.split("batch ")[1].split(",")[0])
            items = n * N_NEW if "decoding" in measured else n
            for precision, times in seconds.items():
                ratios = [a / b for a, b in zip(seconds["fp32"], times, strict=True)]
                rate = items / statistics.median(times)
                spread = (statistics.median(ratios), min(ratios), max(ratios))
                size = megabytes(models[precision])
                rows.append(Row(name, measured, precision, size, rate, *spread))
            print(f"{name}, {measured}: int8 {rows[-1].ratio:.2f} times fp32", flush=True)
    return rows


def table(rows: list[Row]) -> str:
    """Format the rows as a Markdown table, with the processor above it."""
    about = f"{processor()}, {torch.get_num_threads()} threads, torch {torch.__version__}"
    lines = [
        f"{about}. Speed: items a second, and the ratio to fp32 as median (range) of interleaved"
        " rounds; a ratio below 1 is slower than fp32. Only the tested recipes are trained.",
        "",
        "| model | measured | weights | MB | items/s | speed / fp32 | quality |",
        "| --- | --- | --- | ---: | ---: | ---: | ---: |",
    ]
    for x in rows:
        rate = f"{x.per_second:.1f}" if x.per_second else ""
        ratio = f"{x.ratio:.2f} ({x.lowest:.2f}-{x.highest:.2f})" if x.ratio else ""
        value = f"{x.metric} {x.value:.4g}" if x.metric else ""
        lines.append(
            f"| {x.model} | {x.measured} | {x.precision} | {x.megabytes:.1f} | {rate} | {ratio}"
            f" | {value} |"
        )
    return "\n".join(lines) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("out", type=Path, help="directory for the tables")
    parser.add_argument("--runs", type=Path, default=Path("runs/int8"), help="trained recipes")
    parser.add_argument("--rounds", type=int, default=7, help="measured rounds of each workload")
    options = parser.parse_args()
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", module="lightning")
    rows = speed(options.rounds)
    for recipe, metric in RECIPES.items():
        rows += quality(recipe, metric, options.runs.resolve())
    options.out.mkdir(parents=True, exist_ok=True)
    with (options.out / "int8.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow([field.name for field in fields(Row)])
        writer.writerows(map(astuple, rows))
    (options.out / "int8.md").write_text(table(rows))
    print(table(rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
