"""`fourfold seeds`: train and test one recipe with several seeds, and summarise the metrics.

For each seed N, `fit` and `test` run in subprocesses, with the run directory DIR/seed_N, where DIR
is the value of `--run_dir`. If `fourfold seeds` was stopped, the same command resumes the training
that was interrupted and skips the seeds that are complete.
"""

import math
import os
import shlex
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fourfold.commands import subprocess_runs
from fourfold.commands.config_files import check_unedited, expand_arguments, fingerprints
from fourfold.commands.option_parser import OptionParser
from fourfold.commands.run_directory import RunDirectory
from fourfold.commands.train.options import check_seed
from fourfold.errors import InputError


def main(argv: Sequence[str]) -> int:
    """Train and test with each seed, then print and write a summary of the metrics.

    Args:
        argv: `--run_dir`, `--seeds`, and options of `fourfold fit`.

    Returns:
        The exit code: 0, or the code of the first `fit` or `test` that failed or was stopped.

    Raises:
        InputError: An option is invalid, or a config file changed while the command ran.
    """
    options, unknown = make_parser().parse_known_args(list(argv))
    if any(option.partition("=")[0] == "--seed_everything" for option in unknown):
        raise InputError("is set by `fourfold seeds`: use --seeds", option="--seed_everything")
    recipe = expand_arguments(unknown)
    seeds = parse_seeds(options.seeds)
    folder = Path(options.run_dir)
    # Weights & Biases shows the seeds as one group.
    environment = {"WANDB_RUN_GROUP": folder.name, **os.environ}
    results = {}
    configs = fingerprints(recipe)
    for seed in seeds:
        run = RunDirectory(folder / f"seed_{seed}")
        given = [*recipe, "--run_dir", str(run.path), "--seed_everything", str(seed)]
        subprocess_runs.wait_until_unlocked(run.path)
        for command in () if run.metrics_of(given) else ("fit", "test"):
            check_unedited(configs, recipe)  # each child reads the files again
            if code := subprocess_runs.run(command, given, environment):
                return code
        results[seed] = run.metrics_of(given) or {}
    summary = summarise(results)
    from fourfold.commands.metrics_report import show_seeds, write_metrics

    show_seeds(summary, f"test of {folder}, seeds {', '.join(map(str, seeds))}")
    command_line = shlex.join(["fourfold", "seeds", *argv])
    write_metrics(folder / "seeds.json", summary, {"command": command_line})
    print(f"wrote {folder / 'seeds.json'}", flush=True)
    return 0


def make_parser() -> OptionParser:
    """Return the parser of --run_dir and --seeds; all other options are those of `fourfold fit`."""
    parser = OptionParser(
        prog="fourfold seeds",
        usage="fourfold seeds --run_dir DIR [--seeds 0,1,2] --config FILE [--KEY VALUE ...]",
        description="Train and test the same recipe once with each seed, in DIR/seed_N. Print the\n"
        "mean, standard deviation (n - 1), best and individual values of every metric, and write\n"
        "them to DIR/seeds.json. All other options are those of `fourfold fit`.",
    )
    parser.add_argument("--run_dir", required=True, metavar="DIR", help="directory of the runs")
    help_text = "integers separated by commas (default %(default)s); each is a --seed_everything"
    parser.add_argument("--seeds", default="0,1,2", metavar="LIST", help=help_text)
    return parser


def parse_seeds(text: str) -> list[int]:
    """Return the seeds in a text such as "0,1,2", which must be different."""
    seeds = [int(entry) if entry.strip().isdecimal() else -1 for entry in text.split(",")]
    if min(seeds) < 0 or len(set(seeds)) < len(seeds):
        raise InputError(f"must be different integers such as 0,1,2, got {text}", option="--seeds")
    check_seed("--seeds", max(seeds))
    return seeds


def summarise(results: Mapping[int, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """Return the mean, sample standard deviation and best value over the seeds for each metric.

    Args:
        results: For each seed, a dict from the name of a metric to its value.

    Returns:
        For each numeric metric, a dict with mean, std, best (the minimum of a loss, otherwise the
        maximum) and seeds (the values by seed).
    """
    from fourfold.metrics import lower_is_better

    first = next(iter(results.values()))
    summary = {}
    for name, value in first.items():
        # metrics.json spells NaN and infinities as strings.
        is_number = isinstance(value, int | float) or value in ("nan", "inf", "-inf")
        if isinstance(value, bool) or not is_number:
            continue
        values = [float(metrics[name]) for metrics in results.values()]
        summary[name] = {
            "mean": statistics.fmean(values),
            "std": standard_deviation(values),
            "best": min(values) if lower_is_better(name) else max(values),
            "seeds": {str(seed): v for seed, v in zip(results, values, strict=True)},
        }
    return summary


def standard_deviation(values: Sequence[float]) -> float:
    """Return the sample standard deviation (n - 1); NaN for one value, and if one is not finite."""
    # statistics.stdev raises AttributeError on infinities and NaN.
    is_defined = len(values) > 1 and all(map(math.isfinite, values))
    return statistics.stdev(values) if is_defined else math.nan
