"""Report of the demo: a table with baselines, loss curves and an attention map."""

import json
import re
from pathlib import Path

import matplotlib

matplotlib.use("Agg")  # needs no display, whatever MPLBACKEND is

import matplotlib.pyplot as plt
import numpy as np
import torch

from demo_baselines import data_of
from demo_runs import TASKS, clock
from fourfold.analysis.attention_maps import attention_maps
from fourfold.loggers.samples import layer_maps, token_names
from fourfold.tasks import load_task
from plot_curves import read_curve

Row = tuple[str, str, str, str, str]
HEADER: Row = ("task", "test metric", "model", "baselines", "time")
# Title, metric and description of the metric of each task.
METRICS = {
    "translation": ("translation en-de", "test/exact_match", "exact match"),
    "causal_lm": ("causal LM", "test/ppl_byte", "perplexity per byte (lower is better)"),
    "masked_lm": ("masked LM", "test/ppl_token", "perplexity of masked tokens (lower is better)"),
    "images": ("image classification", "test/top1", "top-1 accuracy"),
}
LANGUAGE_MODELS = ("causal_lm", "masked_lm")

MONTH = r"(?:Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec)[a-z]*"
DATE = rf"(?:[A-Z][a-z]+day, )?{MONTH} \d+(?:, \d{{4}})?(?: – (?:{MONTH} )?\d+, \d{{4}})?"
SPAN = r"(?:in )?\d+ (?:year|month|week|day|hour|minute|second)s?(?: ago)?"


def sentence_category(sentence: str) -> str:
    """Classify an English sentence of the built-in translations by its content."""
    if not re.sub(rf"{DATE}|{SPAN}|\band\b|[\s,]", "", sentence):
        return "only dates and durations"
    if not re.search(r"\d", sentence):
        return "only names and numbers in words"
    return "amounts of money or measure, and mixed"


def report(folder: Path, found: dict[str, dict[str, float]], quick: bool = False) -> None:
    """Print the table, and write table and figures to `folder`."""
    metrics = {
        task: json.loads((folder / task / "metrics.json").read_text(encoding="utf-8"))
        for task in TASKS
    }
    rows = [HEADER]
    for task, (title, metric, name) in METRICS.items():
        simple = ", ".join(f"{value:.3g} {who}" for who, value in found[task].items())
        seconds = float((folder / task / "seconds").read_text())
        rows.append((title, name, f"{metrics[task][metric]:.3g}", simple, clock(seconds)))
        if task == "translation" and not quick:
            rows += exact_match_by_category(folder / task / "predictions.txt")
    lines = [
        compare_with_baseline(task, metrics[task][METRICS[task][1]], found[task])
        for task in LANGUAGE_MODELS
    ]
    print("", plain_table(rows), "", *lines, sep="\n")
    (folder / "table.md").write_text(markdown(rows) + "\n" + "\n".join(lines) + "\n", "utf-8")
    plot_curves(folder)
    plot_attention(folder, quick)
    print(f"In {folder}/: table.md, curves.png, attention.png, and the run directories.")


def exact_match_by_category(predictions: Path) -> list[Row]:
    """Return a row with the exact match of each category of sentences."""
    data = data_of("translation")
    translated = predictions.read_text(encoding="utf-8").split("\n")[:-1]
    right: dict[str, list[bool]] = {}
    triples = zip(data.sources("test"), data.references("test"), translated, strict=True)
    for source, reference, ours in triples:
        right.setdefault(sentence_category(source), []).append(ours == reference)
    return [
        ("", f"- {kind} ({len(hits)} of {len(translated)})", f"{np.mean(hits):.3g}", "", "")
        for kind, hits in sorted(right.items(), reverse=True)
    ]


def compare_with_baseline(task: str, ours: float, simple: dict[str, float]) -> str:
    """Describe the perplexity of a language model relative to the best baseline."""
    name, best = min(simple.items(), key=lambda pair: pair[1])
    change = ours / best - 1
    verdict = "beats" if change < 0 else "does not beat"
    where = "lower" if change < 0 else "higher"
    return f"The {METRICS[task][0]} {verdict} {name}: its perplexity is {abs(change):.0%} {where}."


def plain_table(rows: list[Row]) -> str:
    """Format the table with aligned columns."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(HEADER))]
    lines = ["  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)) for row in rows]
    return "\n".join(line.rstrip() for line in [lines[0], "-" * len(lines[0]), *lines[1:]])


def markdown(rows: list[Row]) -> str:
    """Format the table as Markdown."""
    rule = ("---",) * len(HEADER)
    return "\n".join("| " + " | ".join(row) + " |" for row in [rows[0], rule, *rows[1:]]) + "\n"


def plot_curves(folder: Path) -> None:
    """Plot training and validation loss of each run over optimizer steps as curves.png."""
    figure, axes = plt.subplots(2, 2, figsize=(10, 6.5), layout="constrained")
    for axis, (task, (title, _, _)) in zip(axes.flat, METRICS.items(), strict=True):
        for column, style in (("train/loss", "-"), ("val/loss", "o--")):
            curve = read_curve(folder / task / "metrics.csv", column)
            axis.plot(*zip(*curve, strict=True), style, label=column, linewidth=1, markersize=4)
        axis.set(title=title, xlabel="step", ylabel="loss")
        axis.grid(alpha=0.3)
        axis.legend()
    figure.savefig(folder / "curves.png", dpi=120)
    plt.close(figure)


def plot_attention(folder: Path, quick: bool = False) -> None:
    """Plot the cross-attention of each decoder layer for one sentence as attention.png.

    Heads are averaged.
    """
    task = load_task(folder / "translation" / "checkpoints" / "best.ckpt")
    source = choose_example(data_of("translation", quick).sources("test"))
    tokens = task.tokenizer
    src = torch.tensor([[*tokens.encode(source), tokens.eos_id]])
    output = tokens.encode(task.generate_texts(src, None, 4)[0])
    tgt = torch.tensor([[tokens.bos_id, *output]])
    source_names = token_names(tokens, src[0].tolist())
    target_names = token_names(tokens, [*output, tokens.eos_id])
    maps = attention_maps(task.model, "cross_attn", lambda: task.model(src, tgt))
    layer_maps(maps, target_names, source_names).save(folder, "attention")


def choose_example(sentences: list[str]) -> str:
    """Return the first short sentence that starts with a weekday.

    Its date has another word order in German.
    """
    fitting = [s for s in sentences if re.match(r"[A-Z][a-z]+day, ", s) and len(s) <= 45]
    return fitting[0] if fitting else min(sentences, key=len)
