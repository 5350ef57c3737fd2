"""Tables of the data: equal in every process, and compared over the ranks before the first step."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from lightning import Trainer

from fourfold.errors import InputError
from tests.fixtures.processes import together
from tests.fixtures.tiny_tasks import TASKS

ROOT = Path(__file__).parents[2]

# Tasks whose DataModule another task has.
REPEATED = {"text to text", "recurrent", "joined", "recurrent captions", "causal classes"}
# Prints the digests of the tables of every DataModule, and of each kind of tokenizer, as JSON.
PRINT_TABLES = """
import json, sys
from pathlib import Path
from fourfold.training.equal_tables import artifacts_of
from fourfold.training.equal_tables import table_digests
from fourfold.tokenization.training import TokenizerConfig, train_tokenizer
from tests.fixtures.tiny_tasks import TASKS
texts = Path(sys.argv[1])
found = {}
for name in sys.argv[2:]:
    _, data = TASKS[name](texts)
    found[name] = table_digests(artifacts_of(data), data.splits)
lines = (texts / "train.txt").read_text().split("\\n")
for kind in ("bpe", "byte_bpe", "wordpiece", "word", "char"):  # rank 0 sends the others unigram's
    tokenizer = train_tokenizer(TokenizerConfig(kind, vocab_size=300), lines, mask=True)
    found[kind] = table_digests({"tokenizer": tokenizer.to_str()}, {})
print(json.dumps(found))
"""


def test_tables_do_not_depend_on_the_hash_seed(texts: Path) -> None:
    pytest.importorskip("sklearn", reason="needs the package scikit-learn")
    names = sorted(set(TASKS) - REPEATED)
    command = [sys.executable, "-c", PRINT_TABLES, str(texts), *names]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    options: dict[str, Any] = {"stdout": subprocess.PIPE, "text": True, "cwd": ROOT}
    running = [
        subprocess.Popen(command, env=environment | {"PYTHONHASHSEED": seed}, **options)
        for seed in ("1", "2")
    ]
    found = [json.loads(process.communicate()[0].splitlines()[-1]) for process in running]
    assert [process.returncode for process in running] == [0, 0]
    assert set(found[0]) > set(names)
    assert all("train split" in found[0][name] for name in names)
    assert found[0] == found[1]


def replace_artifact(data: Any, name: str, value: object) -> None:
    data.artifacts = lambda artifacts=data.artifacts: artifacts() | {name: value}


CHANGES: dict[str, Callable[[Any], object]] = {
    "class_names": lambda data: replace_artifact(data, "class_names", data.class_names[::-1]),
    "tokenizer": lambda data: replace_artifact(data, "tokenizer", "{}"),
    "val split": lambda data: data.splits.update(val=data.splits["train"]),
    "": lambda data: None,
}


@pytest.mark.parametrize("command", ["fit", "test"])
@pytest.mark.parametrize("table", CHANGES)
def test_ranks_with_different_tables_are_refused_before_the_first_step(
    table: str, command: str, texts: Path, tmp_path: Path
) -> None:
    def run(rank: int) -> int:
        task, data = TASKS["sequences"](texts)
        trainer = Trainer(
            accelerator="cpu",
            devices=2,
            strategy="ddp",
            max_steps=1,
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            use_distributed_sampler=False,
            default_root_dir=tmp_path,
        )

        def build(plain: Callable[[], Any] = data.build) -> Any:
            data.splits = plain()
            if rank == 1:
                CHANGES[table](data)
            return data.splits

        data.build = build
        try:
            getattr(trainer, command)(task, data)
        except InputError as error:
            assert trainer.global_step == 0
            print(error)
            return 2
        return 0

    ended = together(2, run, tmp_path, timeout=60)
    assert [end.code for end in ended] == [2 if table else 0] * 2, ended
    if table:
        message = f"the data must be equal on all ranks, but rank 1 has another {table} than rank 0"
        assert [end.out.splitlines()[-1] for end in ended] == [message] * 2
