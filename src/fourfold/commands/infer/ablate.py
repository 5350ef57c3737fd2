"""Measure how the loss of a checkpoint changes without each head or sub-layer.

The output of one head, or of all heads or hidden neurons of one sub-layer, is replaced. The
examples are rows of the run directory's own data, and the loss is that on which the task trains, in
evaluation mode. zero also removes what a value bias adds to every token; mean puts the mean over
other rows in its place, resample the vector of a random token of other rows. The intervals are over
rows, and p has Holm's correction. If a head has no effect, other heads may do the same.

--curve removes ever more heads together, the least important first. The order is that of gradients
or of single ablations, both on rows of the training split, or random (three orders).
"""

import shlex
from collections.abc import Mapping, Sequence
from itertools import takewhile
from pathlib import Path
from typing import Any

import numpy as np
from lightning.fabric.utilities import move_data_to_device

from fourfold.analysis.interventions import Effect, ablation, head_gradients, pruning_curve
from fourfold.checkpoints.files import find_checkpoint, is_run
from fourfold.commands import compare_runs
from fourfold.commands.infer.devices import choose_device
from fourfold.commands.metrics_report import write_metrics
from fourfold.commands.option_parser import OptionParser
from fourfold.commands.recipe import make_parser, parse, read_recipe
from fourfold.core.validation import check_positive
from fourfold.errors import InputError
from fourfold.training.loading import load_task

SIGNIFICANT = 0.05
ROWS_TO_COMPARE = 8  # in an example of a contrastive task, whose loss is 0 for one row


def main(argv: Sequence[str]) -> int:
    """Print effects or curves, write them as ablation.json or curve.json with a PNG, return 0.

    Raises:
        InputError: An option, the checkpoint or its data are invalid.
    """
    parser = OptionParser(prog="fourfold ablate", description=__doc__)
    add = parser.add_argument
    add("--checkpoint", required=True, metavar="PATH", help="run directory, or a checkpoint in it")
    parser.add_allow_class()
    add("--by", choices=("head", "layer"), default="head", help="what is removed (%(default)s)")
    kinds = ("zero", "mean", "resample")
    add("--kind", choices=kinds, default="zero", help="what is put in its place (%(default)s)")
    add("--curve", action="store_true", help="loss by number of removed heads, for several orders")
    splits = ("val", "test", "train")
    add("--split", choices=splits, default="val", help="split of the rows (%(default)s)")
    add("--rows", type=int, default=100, metavar="N", help="number of rows (%(default)s)")
    add("--device", default="cpu", help="auto, cpu, cuda or cuda:N (%(default)s)")
    add("--out", metavar="DIR", help="write a JSON and a PNG file into this folder")
    options = parser.parse_args(list(argv))
    check_positive("--rows", options.rows)
    if options.curve and (options.by, options.kind) != ("head", "zero"):
        raise InputError("must not be given with another --by or --kind", option="--curve")
    path = Path(options.checkpoint)
    path = find_checkpoint(path) if is_run(path) else path
    config = path.absolute().parent.parent / "config.yaml"
    if not config.is_file():
        raise InputError("must be in a run directory, whose data are used", option="--checkpoint")
    task: Any = load_task(path, classes=tuple(options.allow_class))
    recipe_parser = make_parser("fourfold ablate")
    data: Any = read_recipe(recipe_parser, parse(recipe_parser, ["--config", str(config)])).data
    data.prepare_data()
    data.setup()
    device = choose_device(options.device)
    task.to(device)
    rows = choose_rows(len(data.split(options.split)), options.rows)
    size = ROWS_TO_COMPARE if task.compares_rows else 1
    examples = batches(data, options.split, rows, size, device)
    others = []
    if options.kind != "zero" or options.curve:
        used: Any = rows if options.split == "train" else []
        free = np.setdiff1d(np.arange(len(data.split("train"))), used)
        others = batches(data, "train", free[choose_rows(len(free), options.rows)], size, device)
    used_rows = f"{len(examples) * size} rows of the {options.split} split"
    if options.curve:
        base, found = curves(task, examples, others)
        show_curves(base, found, used_rows)
    else:
        base, effects = ablation(
            task.model, examples, task.step, by=options.by, kind=options.kind, others=others
        )
        found = {"effects": effects}
        show(base, effects, used_rows)
    if options.out is not None:
        file = Path(options.out) / ("curve.json" if options.curve else "ablation.json")
        content = {name: [effect._asdict() for effect in rows] for name, rows in found.items()}
        command = {"command": shlex.join(["fourfold", "ablate", *argv])}
        write_metrics(file, {"loss": base, **content}, command)
        image = file.with_suffix(".png")
        draw_curves(found, image) if options.curve else draw(effects, image, options.kind)
    return 0


def curves(
    task: Any, examples: Sequence[Any], others: Sequence[Any]
) -> tuple[float, dict[str, list[Effect]]]:
    """Return the loss, and the effects of removing ever more heads by the name of their order."""
    gradients = head_gradients(task.model, others, task.step)
    changes = {x.name: x.change for x in ablation(task.model, others, task.step)[1]}
    scores = {"gradient": gradients, "ablation": changes}
    orders = {name: sorted(score, key=score.__getitem__) for name, score in scores.items()}
    generator = np.random.default_rng(0)
    orders |= {f"random {i}": generator.permutation(list(changes)).tolist() for i in (1, 2, 3)}
    found = {}
    for name, order in orders.items():
        base, found[name] = pruning_curve(task.model, examples, task.step, order)
    return base, found


def show_curves(base: float, found: Mapping[str, Sequence[Effect]], rows: str) -> None:
    """Print the change of the loss by number of removed heads, and how many can be removed."""
    print("heads removed", *(f"{name:>10}" for name in found))
    for effects in zip(*found.values(), strict=True):
        print(f"{effects[0].name:>13}", *(f"{effect.change:>+10.4f}" for effect in effects))
    free = [list(takewhile(lambda x: x.low <= 0, effects)) for effects in found.values()]
    print("no loss up to", *(f"{effects[-1].name if effects else 0:>10}" for effects in free))
    print(f"loss {base:.4f} over {rows}; a loss is a change whose 95 % interval is above 0")


def draw_curves(found: Mapping[str, Sequence[Effect]], file: Path) -> None:
    """Draw the change of the loss by share of removed heads, with intervals, into a PNG file."""

    def plot(axis: Any, _title: str) -> None:
        for i, (name, effects) in enumerate(found.items()):
            numbers, changes, lows, highs, _ = zip(*effects, strict=True)
            shares = np.array((0, *numbers), float) / int(numbers[-1])
            style = {"color": f"C{min(i, 2)}"}
            axis.plot(shares, (0, *changes), "o-", markersize=3, label=name, **style)
            axis.fill_between(shares, (0, *lows), (0, *highs), alpha=0.2, **style)
        axis.legend(fontsize=7)
        axis.set_xlabel("share of removed heads", fontsize=7)

    compare_runs.draw(("change of the loss, with 95 % intervals over rows",), 3.5, plot, file)


def choose_rows(size: int, n: int) -> np.ndarray:
    """Return n indices at equal distances below `size`, or all.

    Example:
        >>> choose_rows(10, 4).tolist()
        [0, 2, 5, 7]
    """
    n = min(n, size)
    return np.arange(n) * size // max(n, 1)


def batches(data: Any, split: str, rows: np.ndarray, size: int, device: Any) -> list[Any]:
    """Return batches of `size` rows of a split; the loss of a row may depend on the others."""
    source = data.split(split)
    chunks = [rows[i : i + size] for i in range(0, len(rows) - size + 1, size)]
    return [move_data_to_device(source.batch(chunk, 0, 0), device) for chunk in chunks]


def show(base: float, effects: Sequence[Effect], rows: str) -> None:
    """Print the effects, the largest first, and the number that cannot be told from zero."""
    width = max(len(effect.name) for effect in effects)
    print(f"{'without':<{width}}  {'change':>9}  {'95 % interval':>20}  {'p (Holm)':>8}")
    for name, change, low, high, p in sorted(effects, key=lambda effect: -effect.change):
        interval = f"[{low:+.4f}, {high:+.4f}]"
        print(f"{name:<{width}}  {change:>+9.4f}  {interval:>20}  {p:>8.4f}")
    n = sum(effect.p >= SIGNIFICANT for effect in effects)
    print(f"loss {base:.4f} over {rows}; no change can be told from 0")
    print(f"(p >= {SIGNIFICANT}) for {n} of {len(effects)}")


def draw(effects: Sequence[Effect], file: Path, kind: str) -> None:
    """Draw the effects with their intervals, in the order of the model, into a PNG file."""
    names, changes, lows, highs, _ = zip(*effects, strict=True)

    def plot(axis: Any, _title: str) -> None:
        axis.axvline(0.0, color="gray", linewidth=0.8)
        axis.hlines(range(len(names)), lows, highs)
        axis.plot(changes, range(len(names)), "o", markersize=3)
        axis.set_yticks(range(len(names)), names, fontsize=7)
        axis.invert_yaxis()

    title = f"change of the loss ({kind}), with 95 % intervals over rows"
    compare_runs.draw((title,), 1.2 + 0.2 * len(names), plot, file)
