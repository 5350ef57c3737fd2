"""Tiny recipes of the four families, and the command line as a function."""

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest
import yaml

SHAPE = {"d_model": 16, "n_layers": 1, "n_heads": 2, "d_ff": 32}
WORDS = ["one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten"]


class Result(NamedTuple):
    code: int
    out: str
    err: str


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Callable[..., Result]:
    """`fourfold` in this process."""
    from fourfold.cli import main

    def call(*arguments: object) -> Result:
        capsys.readouterr()
        code = main([str(argument) for argument in arguments])
        return Result(code, *capsys.readouterr())

    return call


def write_text(folder: Path) -> None:
    folder.mkdir()
    # Sentences of three number words, and their translation: the same, backwards.
    rows = [[WORDS[i * k % 10] for k in (1, 3, 7)] for i in range(1, 41)]
    for name, part in (("train", rows), ("val", rows[:8]), ("test", rows[8:20])):
        (folder / f"{name}.en").write_text("".join(" ".join(row) + "\n" for row in part))
        (folder / f"{name}.de").write_text("".join(" ".join(row[::-1]) + "\n" for row in part))
        # Pairs that are the same or not, and words that are numbers below six or not.
        pairs = [(row, row if i % 2 else row[::-1], i % 2) for i, row in enumerate(part)]
        table = [f"{' '.join(a)}\t{' '.join(b)}\t{('other', 'same')[k]}\n" for a, b, k in pairs]
        (folder / f"{name}.tsv").write_text("a\tb\tlabel\n" + "".join(table))
        tags = [[f"{w}\t{'B-low' if w in WORDS[:5] else 'O'}\n" for w in row] for row in part]
        (folder / f"{name}.conll").write_text("\n".join("".join(words) for words in tags))


def _text_parts(folder: Path) -> dict[str, object]:
    return {"source": "files"} | {n: str(folder / f"{n}.en") for n in ("train", "val", "test")}


def recipes(text: Path) -> dict[str, dict[str, object]]:
    """Model and data of each family; each trains a step in milliseconds."""
    tokenizer = {"vocab_size": 60}
    pairs = {n: str(text / f"{n}.{{lang}}") for n in ("train", "val", "test")}
    return {
        "vit": {
            "model": ("ImageClassification", {"image_size": 8, "patch_size": 4, "n_channels": 1}),
            "data": ("ImageData", {"batch_size": 256}),
        },
        "captions": {
            "model": (
                "Captioning",
                {
                    "max_len": 20,
                    "encoder": {**SHAPE, "image_size": 8, "patch_size": 4, "n_channels": 1},
                },
            ),
            "data": (
                "CaptionData",
                {"batch_size": 256, "max_len": 20, "tokenizer": {"vocab_size": 150}},
            ),
        },
        "mt": {
            "model": ("Translation", {"max_len": 32}),
            "data": (
                "TranslationData",
                {
                    "source": "files",
                    "src_lang": "en",
                    "tgt_lang": "de",
                    "max_tokens": 64,
                    "max_len": 32,
                    "tokenizer": tokenizer,
                    **pairs,
                },
            ),
        },
        "lm": {
            "model": ("CausalLanguageModeling", {"max_len": 16}),
            "data": (
                "CausalTextData",
                {
                    **_text_parts(text),
                    "block_size": 16,
                    "batch_size": 4,
                    "tokenizer": {"kind": "byte_bpe", "vocab_size": 300},
                },
            ),
        },
        "classes": {
            "model": ("SequenceClassification", {"max_len": 16}),
            "data": (
                "SequenceData",
                {
                    "source": "files",
                    "text": ["a", "b"],
                    "max_len": 16,
                    "batch_size": 8,
                    "tokenizer": tokenizer,
                    **{n: str(text / f"{n}.tsv") for n in pairs},
                },
            ),
        },
        "tags": {
            "model": ("TokenClassification", {"max_len": 16}),
            "data": (
                "TokenData",
                {
                    "max_len": 16,
                    "batch_size": 8,
                    "tokenizer": tokenizer,
                    **{n: str(text / f"{n}.conll") for n in pairs},
                },
            ),
        },
        "mlm": {
            "model": ("MaskedLanguageModeling", {"max_len": 16}),
            "data": (
                "MaskedTextData",
                {
                    **_text_parts(text),
                    "documents": "line",
                    "layout": "documents",
                    "max_len": 16,
                    "batch_size": 4,
                    "tokenizer": {"kind": "wordpiece", "vocab_size": 80},
                },
            ),
        },
    }


@pytest.fixture(scope="session")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("corpus") / "text"
    write_text(folder)
    return folder


@pytest.fixture(scope="session")
def configs(tmp_path_factory: pytest.TempPathFactory, text: Path) -> dict[str, Path]:
    """A config file for each family, of six steps."""
    folder = tmp_path_factory.mktemp("configs") / "small"
    folder.mkdir()
    files = {}
    for name, recipe in recipes(text).items():
        (task, shape), (data, arguments) = recipe["model"], recipe["data"]  # type: ignore[misc]
        content = {
            "model": {
                "class_path": f"fourfold.tasks.{task}",
                "init_args": {
                    "config": {
                        **SHAPE,
                        **shape,
                        **({"n_classes": None} if name == "vit" else {"vocab_size": None}),
                    }
                },
            },
            "data": {"class_path": f"fourfold.data.{data}", "init_args": arguments},
            "trainer": {"max_steps": 6, "accelerator": "cpu", "log_every_n_steps": 2},
            "tensorboard": False,
            "log_samples": False,
        }
        files[name] = folder / f"{name}.yaml"
        files[name].write_text(yaml.safe_dump(content))
    return files


@pytest.fixture(scope="session")
def trained(
    configs: dict[str, Path], tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str], Path]:
    """The run directory of a family, trained for a few steps when first asked for."""
    from fourfold.cli import main

    folder = tmp_path_factory.mktemp("trained")

    def train(name: str) -> Path:
        run = folder / name
        if not run.exists():
            assert main(["fit", "--config", str(configs[name]), "--run_dir", str(run)]) == 0
        return run

    return train


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty directory to run in."""
    monkeypatch.chdir(tmp_path)
    return tmp_path
