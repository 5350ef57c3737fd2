"""What the demo shows at its end: a table with baselines, the loss curves, an attention map."""

import json
import re
from pathlib import Path

import matplotlib

matplotlib.use("Agg")  # no display, whatever the environment says

import matplotlib.pyplot as plt
import numpy as np
import torch

from curves import read_curve
from demo_baselines import data_of
from demo_runs import TASKS, clock
from fourfold.tasks import load_task
from fourfold.tasks.showing import cross_attention, token_names

Row = tuple[str, str, str, str, str]
HEADER: Row = ("task", "measured on the test split", "model", "baselines", "time")
# Of each task: its name in the table, the metric, and what to call it.
SHOWN = {
    "translation": ("translation en-de", "test/exact_match", "exact match"),
    "causal_lm": ("causal LM", "test/ppl_byte", "perplexity per byte (less is better)"),
    "masked_lm": ("masked LM", "test/ppl_token", "perplexity of hidden tokens (less is better)"),
    "images": ("image classes", "test/top1", "top-1 accuracy"),
}
LANGUAGE_MODELS = ("causal_lm", "masked_lm")

MONTH = r"(?:Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec)[a-z]*"
DATE = rf"(?:[A-Z][a-z]+day, )?{MONTH} \d+(?:, \d{{4}})?(?: – (?:{MONTH} )?\d+, \d{{4}})?"
SPAN = r"(?:in )?\d+ (?:year|month|week|day|hour|minute|second)s?(?: ago)?"


def kind_of(sentence: str) -> str:
    """What an English sentence of the embedded translations speaks of."""
    if not re.sub(rf"{DATE}|{SPAN}|\band\b|[\s,]", "", sentence):
        return "only dates and durations"
    if not re.search(r"\d", sentence):
        return "only names and numbers in words"
    return "amounts of money or measure, and mixed"


def report(folder: Path, found: dict[str, dict[str, float]], quick: bool = False) -> None:
    """Print the table, and write it and the pictures into `folder`."""
    metrics = {
        task: json.loads((folder / task / "metrics.json").read_text(encoding="utf-8"))
        for task in TASKS
    }
    rows = [HEADER]
    for task, (title, metric, name) in SHOWN.items():
        simple = ", ".join(f"{value:.3g} {who}" for who, value in found[task].items())
        seconds = float((folder / task / "seconds").read_text())
        rows.append((title, name, f"{metrics[task][metric]:.3g}", simple, clock(seconds)))
        if task == "translation" and not quick:
            rows += by_kind(folder / task / "predictions.txt")
    lines = [compared(task, metrics[task][SHOWN[task][1]], found[task]) for task in LANGUAGE_MODELS]
    print("", aligned(rows), "", *lines, sep="\n")
    (folder / "table.md").write_text(markdown(rows) + "\n" + "\n".join(lines) + "\n", "utf-8")
    draw_curves(folder)
    draw_attention(folder, quick)
    print(f"In {folder}/: table.md, curves.png, attention.png, and what each run left.")


def by_kind(predictions: Path) -> list[Row]:
    """Exact match of each kind of sentence, with how many there are."""
    data = data_of("translation")
    translated = predictions.read_text(encoding="utf-8").split("\n")[:-1]
    right: dict[str, list[bool]] = {}
    triples = zip(data.sources("test"), data.references("test"), translated, strict=True)
    for source, reference, ours in triples:
        right.setdefault(kind_of(source), []).append(ours == reference)
    return [
        ("", f"- {kind} ({len(hits)} of {len(translated)})", f"{np.mean(hits):.3g}", "", "")
        for kind, hits in sorted(right.items(), reverse=True)
    ]


def compared(task: str, ours: float, simple: dict[str, float]) -> str:
    """Whether a language model beats the strongest baseline, and by how much."""
    name, best = min(simple.items(), key=lambda pair: pair[1])
    change = ours / best - 1
    verdict = "beats" if change < 0 else "does not beat"
    where = "lower" if change < 0 else "higher"
    return f"The {SHOWN[task][0]} {verdict} {name}: its perplexity is {abs(change):.0%} {where}."


def aligned(rows: list[Row]) -> str:
    """The table for a screen."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(HEADER))]
    lines = ["  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)) for row in rows]
    return "\n".join(line.rstrip() for line in [lines[0], "-" * len(lines[0]), *lines[1:]])


def markdown(rows: list[Row]) -> str:
    """The table for a page."""
    rule = ("---",) * len(HEADER)
    return "\n".join("| " + " | ".join(row) + " |" for row in [rows[0], rule, *rows[1:]]) + "\n"


def draw_curves(folder: Path) -> None:
    """curves.png: training and validation loss of each run by optimizer steps."""
    figure, axes = plt.subplots(2, 2, figsize=(10, 6.5), layout="constrained")
    for axis, (task, (title, _, _)) in zip(axes.flat, SHOWN.items(), strict=True):
        for column, style in (("train/loss", "-"), ("val/loss", "o--")):
            curve = read_curve(folder / task / "metrics.csv", column)
            axis.plot(*zip(*curve, strict=True), style, label=column, linewidth=1, markersize=4)
        axis.set(title=title, xlabel="step", ylabel="loss")
        axis.grid(alpha=0.3)
        axis.legend()
    figure.savefig(folder / "curves.png", dpi=120)
    plt.close(figure)


def draw_attention(folder: Path, quick: bool = False) -> None:
    """attention.png: where each decoder layer looks while it writes a sentence, heads averaged."""
    task = load_task(folder / "translation" / "checkpoints" / "best.ckpt")
    source = an_example(data_of("translation", quick).sources("test"))
    tokens = task.tokenizer
    src = torch.tensor([[*tokens.encode(source), tokens.eos_id]])
    written = tokens.encode(task.write_texts(src, None, 4)[0])
    tgt = torch.tensor([[tokens.bos_id, *written]])
    pieces = token_names(tokens, src[0].tolist())
    answer = token_names(tokens, [*written, tokens.eos_id])
    maps = cross_attention(task.model, answer, pieces, lambda: task.model(src, tgt))
    maps._replace(title=source).save(folder, "attention")


def an_example(sentences: list[str]) -> str:
    """The first short sentence that begins with a weekday: German puts its date the other way."""
    fitting = [s for s in sentences if re.match(r"[A-Z][a-z]+day, ", s) and len(s) <= 45]
    return fitting[0] if fitting else min(sentences, key=len)
