"""Cases of kill_test.py: every task with every setting that could affect exact resume.

The baselines that consist of convolutions are left out. `damage` damages the files of a killed
training.
"""

import random
import shutil
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from tests.fixtures.tiny_files import write_labelled

CONFIGS = Path(__file__).resolve().parents[2] / "configs"

# Epochs have seven batches, so that a run has several. Dropout makes the random state matter. Every
# step is logged, so that metrics.csv shows the losses.
COMMON = (
    *("--trainer.accelerator=cpu", "--trainer.limit_train_batches=7", "--tensorboard=false"),
    *("--trainer.limit_val_batches=2", "--trainer.log_every_n_steps=1", "--trainer.max_steps=24"),
    *("--trainer.max_epochs=-1", "--checkpoint.every_n_steps=5", "--log_every_seconds=0"),
    "--model.config.dropout=0.1",
    "--log_samples=false",
    "--trainer.callbacks+=scripts.tools.kill_pause.Pause",
)
PAIRS = ("--data.rows=400", "--data.max_tokens=512", "--model.val_num_beams=0")
LUONG = ("luong2015/tiny", *PAIRS)
TINY: dict[str, tuple[str, ...]] = {
    "translation": ("vaswani2017/tiny", *PAIRS),
    "masked LM": ("bert/tiny", "--data.batch_size=8"),
    "causal LM": ("gpt2/tiny", "--data.batch_size=8"),
    "prefix LM": ("gpt2/tiny_prefix", "--data.batch_size=8"),
    "hybrid LM": ("gpt_bert/tiny", "--data.batch_size=8"),
    "span corruption": ("t5/tiny_span", "--data.batch_size=8"),
    "images": ("deit/tiny",),
    "masked images": ("mae/tiny",),
    "text to text": ("t5/tiny", *PAIRS),
    "image and text": ("clip/tiny",),
    "recurrent": (*LUONG, "--model.scheduled_sampling=0.3"),
    "recurrent local-p": (*LUONG, "--model.config.attn_weights=local_p"),
    "recurrent REINFORCE": (*LUONG, "--model.config.attn_weights=hard_sample"),
    "recurrent Gumbel": (*LUONG, "--model.config.attn_weights=hard_gumbel"),
    "recurrent exact": (
        *(*LUONG, "--model.config.input_feeding=false", "--model.config.mix_outputs=true"),
    ),
    "recurrent LM": ("recurrence/tiny", "--data.batch_size=8"),
    "RNNsearch": ("bahdanau2015/tiny", *PAIRS),
    "joined": ("joined/tiny", *PAIRS),
    "captions": ("captions/tiny",),
    "recurrent captions": ("xu2015/tiny",),
    "recurrent captions REINFORCE": ("xu2015/tiny", "--model.config.attention=hard_sample"),
    "sequences": ("finetune/tiny", "--data.batch_size=8"),
    "documents": ("yang2016/tiny", "--data.batch_size=8"),
    "ladder": ("bishop/tiny", "--model.config.rung=norm", "--data.batch_size=8"),
}
SETTINGS: dict[str, tuple[str, ...]] = {
    "plain": (),
    "two workers": ("--data.num_workers=2",),
    "accumulation 3": ("--trainer.accumulate_grad_batches=3", "--trainer.max_steps=12"),
    "validation every 3": ("--trainer.val_check_interval=3",),
    "epochs only": ("--checkpoint.every_n_steps=null",),
    "EMA": ("--ema_decay=0.9",),
    "average of 2": ("--average_last_checkpoints=2", "--average_every_n_steps=4"),
    "bf16-mixed": ("--trainer.precision=bf16-mixed",),
    "two processes": ("--trainer.devices=2", "--trainer.strategy=ddp_fork"),
    "all combined": (
        *("--data.num_workers=1", "--trainer.accumulate_grad_batches=2", "--ema_decay=0.9"),
        *("--trainer.val_check_interval=3", "--trainer.precision=bf16-mixed"),
        *("--trainer.max_steps=14", "--trainer.gradient_clip_val=0.5"),
    ),
}


class Case(NamedTuple):
    """Options of one `fourfold fit` command, without its run directory."""

    task: str
    setting: str
    options: list[str]


def write_files(folder: Path) -> None:
    """Write the files of the tasks that have no built-in data."""
    for number, split in enumerate(("train", "val", "test")):
        write_labelled(folder, split, 120 if split == "train" else 16, number)


def tasks(folder: Path) -> dict[str, list[str]]:
    """Return the options of each task."""
    sizes = ["d_model=32", "n_layers=1", "n_heads=2", "d_ff=64", "vocab_size=null", "max_len=96"]
    encoder = [f"--model.config.{size}" for size in sizes]
    text = ["--data.tokenizer.kind=char", "--data.max_len=96", "--data.batch_size=16"]

    def files(ending: str) -> list[str]:
        return [f"--data.{split}={folder / split}.{ending}" for split in ("train", "val", "test")]

    pairs = ["--data=SequenceData", "--data.source=files", *files("tsv"), "--data.label=kind"]
    columns = ['--data.text=["a","b"]', "--model.config.n_classes=null"]
    recipes = {
        name: ["--config", str(CONFIGS / f"{tiny}.yaml"), *more]
        for name, (tiny, *more) in TINY.items()
    }
    words = ["--data=TokenData", *files("conll"), "--model.config.n_classes=null"]
    asked = ["--data=QuestionData", *files("json"), "--data.doc_stride=10"]
    asked.append("--data.max_query_length=30")
    return recipes | {
        "tokens": ["--model=TokenClassification", *encoder, *words, *text],
        "questions": ["--model=QuestionAnswering", *encoder, *asked, *text],
        "causal classes": [
            "--model=CausalSequenceClassification",
            *encoder,
            *pairs,
            *text,
            *columns,
        ],
    }


def cases(folder: Path, n: int, only: Sequence[str] = ("",)) -> list[Case]:
    """Return at most `n` cases; consecutive cases differ in task and setting.

    The name of the task or of the setting contains one of the substrings `only`.
    """
    known_tasks = list(tasks(folder).items())
    settings = list(SETTINGS.items())
    combinations = [
        Case(task, setting, [*options, *COMMON, *more])
        for shift in range(len(settings))
        for i, (task, options) in enumerate(known_tasks)
        for setting, more in [settings[(i + shift) % len(settings)]]
    ]
    named = [case for case in combinations if any(x in y for x in only for y in case[:2])]
    return named[:n]


def _flip_directory_bit(data: bytes, file: Path) -> bytes:
    """Mark an entry of a checkpoint's zip archive as a directory, which torch leaves unread."""
    with zipfile.ZipFile(file) as archive:
        start = archive.start_dir
    at = data.rindex(b"PK\x01\x02", start) + 38  # external attributes of the last entry
    return data[:at] + bytes([data[at] ^ 0x10]) + data[at + 1 :]


# Content of a damaged file; None replaces the file by a directory.
DAMAGES: dict[str, Callable[[bytes, Path], bytes | None]] = {
    "junk": lambda data, file: random.Random(len(data)).randbytes(len(data)),
    "truncated": lambda data, file: data[: len(data) // 2],
    "empty": lambda data, file: b"",
    "directory": lambda data, file: None,
    "one bit": _flip_directory_bit,
}


def damage(run: Path, name: str, way: str) -> None:
    """Damage a file of a run directory; hard links to the file stay intact."""
    file = run / name
    data = file.read_bytes()
    damaged = DAMAGES[way](data, file)
    file.unlink()
    if damaged is None:
        file.mkdir()
        shutil.copy(__file__, file)
    else:
        file.write_bytes(damaged)


def damage_some(run: Path, rng: random.Random) -> dict[str, str]:
    """Damage some files that are not needed to resume, and return the way of each.

    last.ckpt is damaged only if there is a previous.ckpt.
    """
    names = ["config.yaml", "metrics.csv"]
    if (run / "checkpoints/previous.ckpt").is_file():
        names.append("checkpoints/last.ckpt")
    existing = [name for name in names if (run / name).is_file()]
    chosen = rng.sample(existing, rng.randint(min(1, len(existing)), len(existing)))
    ways = {}
    for name in chosen:
        possible = [way for way in DAMAGES if way != "one bit" or name.endswith(".ckpt")]
        ways[name] = rng.choice(possible)
        damage(run, name, ways[name])
    return ways
