"""What scripts/kill_test.py trains: every task under every setting that could spoil a resume.

Only the rivals are left out, an LSTM and a ResNet.
"""

from pathlib import Path
from typing import NamedTuple

from scripts.tiny_files import write_labelled

CONFIGS = Path(__file__).resolve().parents[1] / "configs"

# Epochs of seven batches, so that a run has several; dropout, which a resume must draw again; each
# step is logged, or the file would show nothing.
COMMON = (
    *("--trainer.accelerator=cpu", "--trainer.limit_train_batches=7", "--tensorboard=false"),
    *("--trainer.limit_val_batches=2", "--trainer.log_every_n_steps=1", "--trainer.max_steps=24"),
    *("--trainer.max_epochs=-1", "--checkpoint.every_n_steps=5", "--progress_seconds=0"),
    "--model.config.dropout=0.1",
    "--pictures=false",
)
PAIRS = ("--data.rows=400", "--data.max_tokens=512", "--model.val_beam=0")
TINY: dict[str, tuple[str, ...]] = {
    "translation": ("vaswani2017/tiny", *PAIRS),
    "masked LM": ("bert/tiny", "--data.batch_size=8"),
    "causal LM": ("gpt2/tiny", "--data.batch_size=8"),
    "images": ("deit/tiny",),
    "text to text": ("t5/tiny", *PAIRS),
    "image and text": ("clip/tiny",),
    "joined": ("joined/tiny", *PAIRS),
    "captions": ("captions/tiny",),
    "sequences": ("finetune/tiny", "--data.batch_size=8"),
}
SETTINGS: dict[str, tuple[str, ...]] = {
    "plain": (),
    "two workers": ("--data.num_workers=2",),
    "accumulation 3": ("--trainer.accumulate_grad_batches=3", "--trainer.max_steps=12"),
    "validation every 3": ("--trainer.val_check_interval=3",),
    "epochs only": ("--checkpoint.every_n_steps=null",),
    "EMA": ("--ema_decay=0.9",),
    "average of 2": ("--average_last=2", "--average_every_n_steps=4"),
    "bf16-mixed": ("--trainer.precision=bf16-mixed",),
    "two processes": ("--trainer.devices=2", "--trainer.strategy=ddp_fork"),
    "all of it": (
        *("--data.num_workers=1", "--trainer.accumulate_grad_batches=2", "--ema_decay=0.9"),
        *("--trainer.val_check_interval=3", "--trainer.precision=bf16-mixed"),
        *("--trainer.max_steps=14", "--trainer.gradient_clip_val=0.5"),
    ),
}


class Case(NamedTuple):
    """One command of `fourfold fit`, without its run directory."""

    task: str
    setting: str
    options: list[str]


def write_files(folder: Path) -> None:
    """What the tasks without embedded data read."""
    for number, split in enumerate(("train", "val", "test")):
        write_labelled(folder, split, 120 if split == "train" else 16, number)


def tasks(folder: Path) -> dict[str, list[str]]:
    """Options of each task."""
    sizes = ["d_model=32", "n_layers=1", "n_heads=2", "d_ff=64", "vocab_size=null", "max_len=96"]
    encoder = [f"--model.config.{size}" for size in sizes]
    text = ["--data.tokenizer.kind=char", "--data.max_len=96", "--data.batch_size=16"]

    def files(ending: str) -> list[str]:
        return [f"--data.{split}={folder / split}.{ending}" for split in ("train", "val", "test")]

    pairs = ["--data=SequenceData", "--data.source=files", *files("tsv"), "--data.label=kind"]
    columns = ['--data.text=["a","b"]', "--model.config.n_classes=null"]
    found = {
        name: ["--config", str(CONFIGS / f"{tiny}.yaml"), *more]
        for name, (tiny, *more) in TINY.items()
    }
    return found | {
        "tokens": ["--model=TokenClassification", *encoder, "--model.config.n_classes=null",
                   "--data=TokenData", *files("conll"), *text],
        "questions": ["--model=QuestionAnswering", *encoder, "--data=QuestionData", *files("json"),
                      *text, "--data.stride=10", "--data.max_question=30"],
        "causal classes": ["--model=CausalSequenceClassification", *encoder, *pairs, *columns,
                           *text],
    }  # fmt: skip


def cases(folder: Path, n: int, only: str = "") -> list[Case]:
    """N cases with `only` in their names; each meets another task and another setting in turn."""
    known, settings = list(tasks(folder).items()), list(SETTINGS.items())
    rounds = range(len(settings))
    every = [
        Case(task, setting, [*options, *COMMON, *more])
        for shift in rounds
        for i, (task, options) in enumerate(known)
        for setting, more in [settings[(i + shift) % len(settings)]]
    ]
    found = [case for case in every if only in case.task or only in case.setting]
    return found[:n]
