"""Fine-tune masked and causal language models on tasks of GLUE, and compare their scores.

The table has the score of each task in percent, as mean and standard deviation over the seeds, and
the difference to the first checkpoint (repeat --checkpoint). `constant` is the score of a model
that always answers with the most frequent class.

All other options are those of `fourfold seeds` and `fourfold fit`, such as --seeds 0,1,2 and
--trainer.max_epochs 3. The trainings are in DIR/MODEL/TASK, where MODEL depends on the weights of
the checkpoint. If the command was stopped, the same command skips the trainings that are complete.
"""

import json
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from zlib import crc32

import numpy as np
import torch

from fourfold.checkpoints.init_from import read_source
from fourfold.commands import metrics_report, option_parser, sweep
from fourfold.commands.infer.evaluate import show
from fourfold.core.validation import check_choice
from fourfold.data.text.glue import GLUE_TASKS, GlueData
from fourfold.metrics import ClassificationScores, RegressionScores
from fourfold.metrics.significance import standard_deviation

RECIPES = {"MaskedLM": "finetune/babylm_glue", "CausalLM": "finetune/babylm_causal_glue"}


def main(argv: Sequence[str]) -> int:
    """Train and test each checkpoint on each task, then print and write a table of the scores.

    Args:
        argv: `evaluate glue` and its arguments.

    Returns:
        The exit code: 0, or the code of the first training or test that failed or was stopped.

    Raises:
        InputError: An option, a checkpoint or a file is invalid.
    """
    parser = option_parser.OptionParser(prog="fourfold evaluate glue", description=__doc__)
    add = parser.add_argument
    add("folder", metavar="FOLDER", help="folder with TASK/train.tsv and TASK/dev.tsv, or .gz")
    add("--checkpoint", required=True, action="append", metavar="PATH", help="as for `evaluate`")
    add("--tasks", default="CoLA,SST-2,MRPC,RTE", metavar="LIST", help="default: %(default)s")
    add("--out", required=True, metavar="DIR", help="directory of trainings and metrics.json")
    options, further = parser.parse_known_args(argv[2:])
    rows = [_constant(task, options.folder) for task in options.tasks.split(",")]
    models = {chr(ord("A") + i): _model(path) for i, path in enumerate(options.checkpoint)}
    for row in rows:
        for letter, (name, *recipe) in models.items():
            run, task = Path(options.out, name, row[""]), ["--data.task", row[""]]
            given = [*recipe, *further, *task, "--data.folder", options.folder]
            if code := sweep.main(["seeds", *given, "--run_dir", str(run)]):
                return code
            found = json.loads((run / "seeds.json").read_text())[f"test/{row['metric']}"]
            row[f"{letter} seeds"] = [100 * float(value) for value in found["seeds"].values()]
    means = {key: np.mean([row[key] for row in rows], 0).tolist() for key in [*rows[0]][2:]}
    rows.append({"": "mean of tasks", "metric": "", **means})
    for row in rows:
        for letter in models:
            row[letter] = np.mean(row[f"{letter} seeds"]).item()
            row[f"{letter} std"] = standard_deviation(row[f"{letter} seeds"])
        row |= {f"{letter}-A": row[letter] - row["A"] for letter in [*models][1:]}
    show({"all": rows})
    print(*(f"{letter}: {shlex.join(recipe)}" for letter, (_, *recipe) in models.items()), sep="\n")
    content, command = {"tasks": rows, "models": models}, shlex.join(["fourfold", *argv])
    metrics_report.write_metrics(Path(options.out, "metrics.json"), content, {"command": command})
    return 0


def _constant(task: str, folder: str) -> dict[str, Any]:
    """Return a row with the score on dev.tsv, in percent, of the most frequent label in train.tsv.

    All labels of both files are checked.
    """
    data: Any = GlueData(task, folder=folder)  # type: ignore[call-arg]
    labels = {name: torch.from_numpy(data.encode_labels(x)) for name, x in data.read().items()}
    scores = ClassificationScores(len(data.classes)) if data.classes else RegressionScores()
    scores.update(labels["train"].mode().values.expand(len(labels["val"])), labels["val"])
    metric = GLUE_TASKS[task].metric
    return {"": task, "metric": metric, "constant": 100 * scores.compute()[metric]}


def _model(path: str) -> list[str]:
    """Return a name for the weights of a checkpoint, and its options of `fourfold fit`."""
    model = read_source(path)
    family = f"{type(model).__name__}{'' if model.tokenizer else ' without a tokenizer'}"
    check_choice(f"the model of {path}", family, tuple(RECIPES))
    code = 0
    for tensor in model.state_dict().values():
        code = crc32(tensor.flatten().view(torch.uint8).numpy(), code)
    return [f"{Path(path).name}-{code:08x}", "--config", RECIPES[family], "--model.init_from", path]
