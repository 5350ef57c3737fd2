"""torchmetrics as a program finds it that came through fourfold's door: lazy, and all there."""

import subprocess
import sys

HEAVY = ("scipy", "torchvision", "transformers")
OPENED = "from fourfold.commands.quick_import import LAZY, import_quickly"

# Each is the first that a process does with torchmetrics.
FIRST = [
    "import torchmetrics; torchmetrics.Accuracy(task='binary')",
    "from torchmetrics import Accuracy, Metric; assert issubclass(Accuracy, Metric)",
    "from torchmetrics import *; MeanMetric()",
    "import torchmetrics as t; assert {'BLEUScore', 'Metric'} <= {*t.__all__}",
    "from torchmetrics.text import BLEUScore; BLEUScore()",
    "from torchmetrics.aggregation import MeanMetric; MeanMetric()",
    "from torchmetrics.classification import MulticlassAccuracy; MulticlassAccuracy(2)",
    "import torchmetrics; torchmetrics.functional.accuracy",
    "import torchmetrics.functional as F; F.text.bleu_score",
    "import torchmetrics.functional.image, torchmetrics; torchmetrics.image",
    # It stays what it was: pickled, inspected, reloaded.
    "import pickle, torchmetrics as t; m = pickle.loads(pickle.dumps(t.MeanMetric()));"
    "assert type(m) is t.MeanMetric",
    "import importlib as i, inspect, torchmetrics as t, types;"
    "assert type(t) is not types.ModuleType; t.Accuracy; assert type(t) is types.ModuleType;"
    "assert 'Root package info' in inspect.getsource(t);"
    "del t.Accuracy; assert i.reload(t).Accuracy",
    "import torchmetrics as t; assert not hasattr(t, 'Acuracy')",
    # A version in which Lightning's names are elsewhere is loaded as ever.
    "LAZY['torchmetrics']['Metrics'] = 'torchmetrics.metric';"
    "import torchmetrics as t, types; assert type(t) is types.ModuleType;"
    "assert issubclass(t.Accuracy, t.Metric)",
]


def run(*lines: str) -> str:
    code = "\n".join([OPENED, "import sys", *lines])
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert not done.returncode, done.stderr
    return done.stdout


def test_lightning_and_our_tasks_load_no_metric_that_they_do_not_use() -> None:
    loaded = run(
        "training = import_quickly('fourfold.commands.training')",
        "import fourfold.metrics.sums, torchmetrics",
        "assert issubclass(fourfold.metrics.sums.Metric, torchmetrics.Metric)",
        "print([name for name in sys.modules if name.startswith('torchmetrics.text')])",
        f"print([name for name in {HEAVY} if name in sys.modules])",
    )
    assert loaded.split() == ["[]", "[]"]


def test_every_name_is_there_whichever_comes_first() -> None:
    # One process imports what takes long, and forks for each line.
    wrong = run(
        "import_quickly('torch')",
        "import os, lightning_utilities",
        *(
            f"try: import {name}\nexcept ImportError: pass"
            for name in ("scipy.signal", "torchvision", "transformers.models.clip.modeling_clip")
        ),
        f"for line in {FIRST!r}:",
        "    if not (child := os.fork()):",
        "        try: exec(line, {'LAZY': LAZY}); code = 0",
        "        except BaseException as error: print(repr(error), flush=True); code = 1",
        "        os._exit(code)",
        "    if os.waitpid(child, 0)[1]: print(line)",
    )
    assert wrong == ""


def test_the_collector_works_again_and_leaves_out_what_was_imported() -> None:
    run(
        "import gc",
        "assert import_quickly('torch').ones(1)",
        "assert gc.isenabled()",
        "assert gc.get_freeze_count() > 100_000",
        "assert import_quickly('torch') is sys.modules['torch']",
        "gc.disable()",
        "import_quickly('fourfold.models')",
        "assert not gc.isenabled()",
    )
