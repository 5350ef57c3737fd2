"""Train and test a recipe with every combination of the values of its options and with each seed.

Commas outside of brackets and quotes separate the values of an option:
  --model.optimizer.lr 1e-3,3e-3                      two values
  --model.optimizer.betas '[0.9,0.95],[0.9,0.99]'     two values, each a list
  --config gpt2/tiny,llama/tiny                       two recipes
`fourfold seeds`, which will be removed in version 0.4, does not separate values.

The run directories are DIR/SETTING/seed_N, or DIR/seed_N if no option is varied. If the command was
stopped or killed, the same command resumes the runs that were interrupted and skips those that are
complete. `sweep` prints mean, standard deviation (n - 1) and the difference to the first setting
that is complete, paired over the seeds, with its 95 percent t interval. It writes DIR/sweep.json
and DIR/sweep.png.
`seeds` prints mean, standard deviation, best and single values, and writes DIR/seeds.json.
All other options are those of `fourfold fit`.
"""

import itertools
import json
import os
import re
import shlex
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple
from zlib import crc32

import yaml

from fourfold.commands import subprocess_runs
from fourfold.commands.config_files import check_unedited, expand_arguments, fingerprints, read_tree
from fourfold.commands.option_parser import OptionParser
from fourfold.commands.run_directory import RunDirectory
from fourfold.commands.subprocess_runs import is_stop
from fourfold.commands.train.config_schema import check_keys
from fourfold.core.validation import check_choice, check_positive
from fourfold.errors import InputError, reading

OPTION = re.compile("--?[A-Za-z]")  # beginning of a word that is the name of an option
SEED = "--seed_everything"
MAX_NAME = 100  # characters of the name of a directory


class Run(NamedTuple):
    """Training and test of a setting, such as "lr=1e-3,d_model=64", with one seed."""

    setting: str
    seed: int
    folder: Path  # run directory
    given: list[str]  # options of `fourfold fit` and `fourfold test`


def main(argv: Sequence[str]) -> int:
    """Train and test with each setting and seed, then print and write a summary of the metrics.

    Args:
        argv: The command (sweep or seeds), its options, and options of `fourfold fit`.

    Returns:
        The exit code: 0, or the code of a run that was stopped, or else of the first that failed.

    Raises:
        InputError: An option is invalid, or a config file changed while the command ran.
    """
    command, *arguments = argv
    is_sweep = command == "sweep"
    options, words = make_parser(command).parse_known_args(arguments)
    if any(word.partition("=")[0] == SEED for word in words):
        raise InputError(f"is set by `fourfold {command}`: use --seeds", option=SEED)
    space = read_space(Path(options.space)) if options.space else {}
    listed = ",".join(map(str, space.pop(SEED[2:], (0, 1, 2))))
    check_positive("--jobs", options.jobs)
    seeds = parse_seeds(options.seeds or listed)
    folder, runs = Path(options.run_dir), []
    for setting, point in (make_grid(words, space) if is_sweep else {"": words}).items():
        recipe = expand_arguments(point)
        check_keys(recipe, ("model", "data"))
        for seed in seeds:
            path = folder / directory_name(setting) / f"seed_{seed}"
            given = [*recipe, "--run_dir", str(path), SEED, str(seed)]
            runs.append(Run(setting or folder.name, seed, path, given))
    codes = run_all(runs, options.jobs, stops=not is_sweep)
    failed = [code for code in codes if code]
    stopped = next(filter(is_stop, failed), 0)
    complete = [run for run, code in zip(runs, codes, strict=True) if not code]
    if complete and not (stopped or (failed and not is_sweep)):
        _report(command, folder, complete, shlex.join(["fourfold", *argv]))
    return stopped or next(iter(failed), 0)


def make_parser(command: str) -> OptionParser:
    """Return the parser of the options of `sweep` or `seeds`; all others are of `fourfold fit`."""
    usage = f"fourfold {command} --run_dir DIR [--seeds 0,1,2] --config FILE [--KEY VALUE ...]"
    parser = OptionParser(prog=f"fourfold {command}", usage=usage, description=__doc__)
    add = parser.add_argument
    add("--run_dir", required=True, metavar="DIR", help="directory of the runs")
    help_text = "integers separated by commas (default 0,1,2); each is a --seed_everything"
    add("--seeds", metavar="LIST", help=help_text)
    add("--jobs", type=int, default=1, metavar="N", help="runs at the same time (default 1)")
    parser.set_defaults(space=None)
    if command == "sweep":
        help_text = "YAML file of a W&B sweep (method: grid), whose parameters are options"
        add("--space", metavar="FILE", help=help_text)
    return parser


def parse_seeds(text: str) -> list[int]:
    """Return the seeds in a text such as "0,1,2", which must be different."""
    seeds = [int(entry) if entry.strip().isdecimal() else -1 for entry in text.split(",")]
    if min(seeds) < 0 or max(seeds) >= 2**32 or len(set(seeds)) < len(seeds):
        raise InputError(f"must be different integers such as 0,1,2, got {text}", option="--seeds")
    return seeds


def read_space(file: Path) -> dict[str, list[Any]]:
    """Return the values of each parameter in the file of a W&B sweep.

    Raises:
        InputError: The file cannot be read, is not a grid, or has a parameter without values.
    """
    read_tree(file)  # reports errors with their line
    with reading(file):
        content = yaml.safe_load(file.read_text(encoding="utf-8"))
        check_choice("method", content["method"], ("grid",))
        parameters = content["parameters"].items()
        return {
            name: list(x["values"] if "values" in x else [x["value"]]) for name, x in parameters
        }


def split_values(text: str) -> list[str]:
    """Divide a text at the commas outside of brackets and quotes; quotes of a part are removed."""
    try:
        nodes: Any = yaml.compose(f"[{text}]", yaml.SafeLoader)
    except yaml.YAMLError:
        return [text]
    parts = [
        x.value
        if isinstance(x, yaml.ScalarNode)
        else f"[{text}"[x.start_mark.index : x.end_mark.index]
        for x in nodes.value
    ]
    return parts if len(parts) > 1 else [text]


def make_grid(words: Sequence[str], space: Mapping[str, list[Any]]) -> dict[str, list[str]]:
    """Return the command line of each combination of values, by name, such as "lr=1e-3,d_model=64".

    Raises:
        InputError: An option has a value twice.
    """
    choices, option = [], ""
    for word in words:
        before, equals, value = word.partition("=") if OPTION.match(word) else ("", "", word)
        option = before.lstrip("-") or option
        choices.append([(option, x, before + equals + x) for x in split_values(value)])
    for name, values in space.items():
        texts = [value if isinstance(value, str) else json.dumps(value) for value in values]
        choices.append([(name, text, f"--{name}={text}") for text in texts])
    grid: dict[str, list[str]] = {}
    for point in itertools.product(*choices):
        varied = [x for x, choice in zip(point, choices, strict=True) if len(choice) > 1]
        setting = ",".join(f"{name.rpartition('.')[2]}={value}" for name, value, _ in varied)
        if setting in grid:
            raise InputError(f"must have different values, got {setting} twice", option="--KEY")
        grid[setting] = [word for _, _, word in point]
    return grid


def directory_name(setting: str) -> str:
    """Return the name of a setting, without characters that are unusual in names of files."""
    name = re.sub(r"[^\w.,=+-]", "_", setting)
    is_same = name == setting and len(name) <= MAX_NAME
    return name if is_same else f"{name[:MAX_NAME]}-{crc32(setting.encode()):08x}"


def run_all(runs: Sequence[Run], jobs: int, *, stops: bool) -> list[int]:
    """Execute runs in a number of jobs, except those that are complete; return their exit codes.

    No run is started after a signal has stopped one, nor, with `stops`, after a failure.

    Raises:
        InputError: A complete run has other options, or a config file was edited.
    """
    configs = {name: value for run in runs for name, value in fingerprints(run.given).items()}
    complete = {run.folder for run in runs if RunDirectory(run.folder).metrics_of(run.given)}
    failed: list[int] = []

    def execute(run: Run) -> int:
        if run.folder in complete or (stops and failed) or any(map(is_stop, failed)):
            return 0
        code = _train_and_test(run, configs, log=jobs > 1)
        if code:
            failed.append(code)
        if code or jobs > 1:
            state = subprocess_runs.describe_exit(code) if code else "complete"
            print(f"{run.folder}: {state}", file=sys.stderr, flush=True)
        return code

    with subprocess_runs.forwarded_signals(), ThreadPoolExecutor(jobs) as pool:
        return list(pool.map(execute, runs))


def _train_and_test(run: Run, configs: Mapping[str, str], *, log: bool) -> int:
    """Execute one run and return its exit code; with `log`, append its output to DIR/seed_N.log."""
    # Weights & Biases shows the seeds of a setting as one group.
    environment = {"WANDB_RUN_GROUP": run.folder.parent.name, **os.environ}
    file = run.folder.with_suffix(".log") if log else None
    run.folder.parent.mkdir(parents=True, exist_ok=True)
    subprocess_runs.wait_until_unlocked(run.folder)
    for command in () if RunDirectory(run.folder).metrics_of(run.given) else ("fit", "test"):
        check_unedited(configs, run.given)  # each child reads the files again
        if code := subprocess_runs.run(command, run.given, environment, log=file):
            return code
    return 0


def _report(command: str, folder: Path, runs: Sequence[Run], command_line: str) -> None:
    """Print and write the summary of complete runs."""
    from fourfold.commands import compare_runs, metrics_report

    results: dict[str, dict[int, dict[str, float]]] = {}
    for run in runs:
        metrics = compare_runs.read_metrics(run.folder, validation=command == "sweep")
        results.setdefault(run.setting, {})[run.seed] = metrics
    settings = {name: compare_runs.summarise(by_seed) for name, by_seed in results.items()}
    if command == "sweep":
        compare_runs.add_differences(settings)
        reference = next(iter(settings))  # the first that is complete
        metrics_report.show_settings(settings, f"{folder}: differences to {reference}")
        compare_runs.draw_settings(settings, folder / "sweep.png")
        content: dict[str, Any] = {"reference": reference, "settings": settings}
    else:
        content = settings[runs[0].setting]
        seeds = ", ".join(str(run.seed) for run in runs)
        metrics_report.show_seeds(content, f"test of {folder}, seeds {seeds}")
    metrics_report.write_metrics(folder / f"{command}.json", content, {"command": command_line})
    print(f"wrote {folder / command}.json", flush=True)
