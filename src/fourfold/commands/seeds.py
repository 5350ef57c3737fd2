"""`fourfold seeds`: the same training with several seeds, and what their tests say together.

Each seed is a `fit` and a `test` of its own in RUN_DIR/seed_N, so that a command that was stopped
goes on where it stood, and nothing of one training is left for the next.
"""

import os
import shlex
import statistics
from argparse import ArgumentParser
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fourfold.commands import child
from fourfold.commands.config_files import fingerprints, refuse_edited
from fourfold.commands.run_directory import RunDirectory
from fourfold.core.errors import InputError


def main(argv: Sequence[str]) -> int:
    """Train and test with each seed, then print and write mean, standard deviation and best.

    Raises:
        InputError: The seeds are not whole numbers, or no run directory is named.
    """
    options, rest = _options(argv)
    seeds = parse_seeds(options.seeds)
    folder = Path(options.run_dir)
    # In Weights & Biases, where that is asked for, the seeds stand together.
    environment = {"WANDB_RUN_GROUP": folder.name, **os.environ}
    found, configs = {}, fingerprints(rest)
    for seed in seeds:
        run = RunDirectory(folder / f"seed_{seed}")
        given = [*rest, "--run_dir", str(run.path), "--seed_everything", str(seed)]
        with child.locked(run.path) as held:
            for verb in () if run.metrics_of(given) else ("fit", "test"):
                refuse_edited(configs, rest)  # each child reads them anew
                if code := child.run(verb, given, environment, [held]):
                    return code
            found[seed] = run.metrics_of(given) or {}
    summary = summarise(found)
    from fourfold.commands.results import show_seeds, write_metrics

    show_seeds(summary, f"test of {folder}, seeds {', '.join(map(str, seeds))}")
    command = ["fourfold", "seeds", *argv]
    write_metrics(folder / "seeds.json", summary, {"command": shlex.join(command)})
    print(f"wrote {folder / 'seeds.json'}", flush=True)
    return 0


def _options(argv: Sequence[str]) -> tuple[Any, list[str]]:
    parser = ArgumentParser(prog="fourfold seeds", add_help=False, allow_abbrev=False)
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--run_dir", "--run-dir")
    options, rest = parser.parse_known_args(list(argv))
    if options.run_dir is None:
        raise InputError("name a directory for the runs: --run_dir DIR")
    if any(option.partition("=")[0] == "--seed_everything" for option in rest):
        raise InputError("--seed_everything is what `fourfold seeds` sets itself: give --seeds")
    return options, rest


def parse_seeds(text: str) -> list[int]:
    """Seeds of a list such as "0,1,2".

    Raises:
        InputError: One is no whole number below 2**32, or stands twice.
    """
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() for part in parts):
        raise InputError(f"--seeds is {text!r}, but must be whole numbers such as 0,1,2")
    seeds = [int(part) for part in parts]
    for seed in seeds:
        check_seed("--seeds", seed)
    if len(set(seeds)) < len(seeds):
        raise InputError(f"--seeds {text} names a seed twice")
    return seeds


def check_seed(name: str, seed: int | None) -> None:
    """Refuse a seed that numpy's generator cannot have; None and a bool are Lightning's words.

    Raises:
        InputError: Names the option and its value.
    """
    if seed is not None and not 0 <= seed < 2**32:
        raise InputError(f"{name} is {seed}, but must lie between 0 and {2**32 - 1}")


def summarise(found: Mapping[int, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """For each metric that is a number: mean, standard deviation (n - 1), best, and each seed's."""
    from fourfold.metrics import less_is_better
    from fourfold.papers.cells import std

    first = next(iter(found.values()))
    summary = {}
    for name, value in first.items():
        # What JSON has no number for stands there as a word.
        is_number = isinstance(value, int | float) or value in ("nan", "inf", "-inf")
        if isinstance(value, bool) or not is_number:
            continue
        values = [float(metrics[name]) for metrics in found.values()]
        summary[name] = {
            "mean": statistics.fmean(values),
            "std": std(values),
            "best": min(values) if less_is_better(name) else max(values),
            "seeds": {str(seed): v for seed, v in zip(found, values, strict=True)},
        }
    return summary
