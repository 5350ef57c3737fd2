"""Inputs that fuzzing found to end in a traceback, a hang, or words that nobody understands."""

import copy
import gzip
import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from tests.fuzz.conftest import World
from tests.fuzz.invariant import Case, Files, run

pytestmark = pytest.mark.timeout(300, method="thread")  # SIGALRM is the harness's


@pytest.fixture
def refused(tmp_path: Path) -> Callable[..., str]:
    """The sentence with which a command is refused, which leaves nothing behind."""

    def call(*argv: object, files: Files | None = None, stdin: bytes = b"") -> str:
        case = Case(tuple(map(str, argv)), files or {}, stdin)
        outcome = run(case, tmp_path / "here")
        assert not outcome.faults
        assert outcome.code == 2
        return outcome.error

    return call


Refused = Callable[..., str]

# A value in the config of a translation, and what is said of it.
CONFIGS: dict[tuple[str, ...], tuple[Any, str]] = {
    ("data",): ({}, "data: there is no class_path in it"),
    ("data", "class_path"): ("[1, 2]", "data: class_path is '[1, 2]', which is no class"),
    ("model", "class_path"): ("fourfold.data.ImageData", "fourfold.data.ImageData is no Task"),
    ("model", "init_args"): (None, "model: init_args must be a mapping"),
    ("model", "init_args", "optimizer"): ("x", "model.optimizer is x, but must be a mapping"),
    ("data", "init_args", "tokenizer"): (1, "data.tokenizer is 1, but must be a mapping"),
    ("data", "init_args", "hub"): ("", "data.hub is '', but must be null or a class_path"),
    ("checkpoint",): ([], "checkpoint is [], but must be a mapping"),
    ("trainer",): (7, "trainer is 7, but must be a mapping"),
    ("trainer", "accelerator"): ([1], "trainer.accelerator is [1], but must be a text or a class"),
    ("trainer", "deterministic"): (2.5, "must be one of warn or true or false or null"),
    ("trainer", "enable_progress_bar"): ("y" * 3000, "yyy...', but must be true or false"),
    ("model", "init_args", "config", "n_heads"): (5, "d_model 16 is not divisible by n_heads 5"),
    ("model", "init_args", "config", "d_ff"): (-1, "d_ff is -1, but must be at least 1"),
    ("data", "init_args", "max_tokens"): (0, "max_tokens must be at least 1, not 0"),
    ("data", "init_args", "num_workers"): (-1, "num_workers is -1, but must not be negative"),
}


@pytest.mark.parametrize("place", CONFIGS, ids=".".join)
def test_configs_are_refused_with_their_line(
    place: tuple[str, ...], world: World, refused: Refused
) -> None:
    tree = copy.deepcopy(world.whole["mt"])
    *above, last = place
    inner = tree
    for key in above:
        inner = inner[key]
    inner[last], said = CONFIGS[place]
    text = yaml.safe_dump(tree)
    error = refused("fit", "--config", "c.yaml", "--run_dir=r", files={"c.yaml": text.encode()})
    assert said in error
    assert error.startswith("fourfold: error: c.yaml, line ")


def test_a_value_on_the_command_line_is_blamed_on_no_file(world: World, refused: Refused) -> None:
    call = ("fit", "--config", world.configs["mt"], "--run_dir=r", "--model.config.n_heads=5")
    assert refused(*call).startswith("fourfold: error: d_model 16 is not divisible by n_heads 5")


def test_a_key_that_is_no_word(world: World, refused: Refused) -> None:
    content = world.configs["mt"].read_bytes() + b"? {a: 1}\n: 2\n"
    error = refused("fit", "--config=c.yaml", "--run_dir=r", files={"c.yaml": content})
    assert ": a key must be a word" in error


def test_half_of_a_character_in_a_config(world: World, refused: Refused) -> None:
    content = world.configs["mt"].read_bytes() + b'wandb_name: "\\ud800"\n'
    error = refused("fit", "--config=c.yaml", "--run_dir=r", files={"c.yaml": content})
    assert "half of a surrogate pair" in error


OPTIONS = {
    "trainer.accumulate_grad_batches=0": "accumulate_grad_batches is 0, but must be at least 1",
    "trainer.devices=-1": "trainer.devices is -1, but on this CPU must be a number from 1 to ",
    "trainer.devices=99999": "trainer.devices is 99999, but on this CPU must be a number from 1",
    "model.config.d_model=1000000000": "the machine has too little memory",
    "model.config.d_ff=1000000000000000000": "d_ff is 1000000000000000000, but must be at most",
    "model.config.norm_eps=-1": "norm_eps is -1.0, but must lie in [0, 1)",
    "model.label_smoothing=2": "label_smoothing is 2.0, but must be at least 0 and below 1",
    "model.val_beam=-1": "val_beam is -1, but must be at least 0",
    "model.beam=0": "beam is 0, but must be at least 1",
}


@pytest.mark.parametrize("option", OPTIONS)
@pytest.mark.usefixtures("limited")
def test_options(option: str, world: World, refused: Refused) -> None:
    call = ("fit", "--config", world.configs["mt"], "--run_dir=r", f"--{option}")
    assert OPTIONS[option] in refused(*call)


@pytest.mark.usefixtures("limited")
def test_a_plan_of_what_torch_cannot_count(world: World, refused: Refused) -> None:
    sizes = ("--model.config.d_model=2147483640", "--model.config.d_ff=2147483640")
    error = refused("plan", "--config", world.configs["lm"], *sizes)
    assert "too little memory" in error


def test_a_plan_of_rows_that_the_model_cannot_read(world: World, refused: Refused) -> None:
    error = refused("plan", "--config", world.configs["tags"], "--model.config.max_len=1")
    assert "a row of the data has 16 tokens, but the model's max_len is 1" in error


def question(**changes: Any) -> bytes:
    answer = {"text": "one", "answer_start": 0}
    asked = {"id": 1, "question": "what", "answers": [answer], **changes}
    return json.dumps({"data": [{"paragraphs": [{"context": "one", "qas": [asked]}]}]}).encode()


# The family that reads a file, the file's name, what is in it, and what is said of that.
FILES = [
    ("tags", "f.conll", b"- " * 300 + b"\t\n", "f.conll, line 1: '- - - -"),
    ("classes", "f.csv", b'a,b,label\n"' + b"x" * 200_000, "f.csv, line 2: broken CSV"),
    ("classes", "f.jsonl", b"[" * 99_999, "f.jsonl, line 1: JSON that is nested too deeply"),
    (
        "classes",
        "f.jsonl",
        b'{"a": ' + b"9" * 5000 + b"}",
        "f.jsonl, line 1: a number with too many",
    ),
    (
        "classes",
        "f.jsonl",
        b'{"a": "\\ud800", "b": "", "label": ""}',
        "line 1: half of a surrogate",
    ),
    (
        "qa",
        "f.json",
        question(question=7),
        "question 1 is not in the format of SQuAD: 'question' is",
    ),
    (
        "qa",
        "f.json",
        question(answers=[[]]),
        "question 1 is not in the format of SQuAD: 'answer_start'",
    ),
    ("qa", "f.json", question(id=None), "f.json is not in the format of SQuAD: 'id' is missing"),
    ("qa", "f.json", b'{"data": 7}', "f.json is not in the format of SQuAD: 'data' is '7'"),
    ("qa", "f.json", question(answers=[{"text": "one", "answer_start": -3}]), "at character -3"),
]


@pytest.mark.parametrize(("family", "name", "content", "said"), FILES)
def test_files(
    family: str, name: str, content: bytes, said: str, world: World, refused: Refused
) -> None:
    call = ("fit", "--config", world.configs[family], "--run_dir=r", f"--data.train={name}")
    assert said in refused(*call, files={name: content})


def test_a_packed_array_that_is_damaged(world: World, refused: Refused) -> None:
    packed = bytearray(gzip.compress(bytes(range(200)) * 20))
    packed[20:60] = b"\xff" * 40
    files: Files = {f"d/train-{part}-ubyte.gz": bytes(packed)
                    for part in ("images-idx3", "labels-idx1")}  # fmt: skip
    call = ("fit", "--config", world.configs["vit"], "--run_dir=r", "--data.source=d")
    assert "d/train-images-idx3-ubyte.gz cannot be unpacked" in refused(*call, files=files)


def test_the_name_of_an_image_that_no_disk_can_have(world: World, refused: Refused) -> None:
    error = refused("classify", "--checkpoint", world.runs["vit"], stdin=b"x" * 5000)
    assert "line 1: There is no image file xxx" in error


def test_a_path_that_no_disk_can_have(refused: Refused) -> None:
    assert "File name too long" in refused("translate", "--checkpoint", "y" * 300)


def changed(world: World, family: str, change: Callable[[dict[str, Any]], Any]) -> bytes:
    """A trained checkpoint with something else in it."""
    content = torch.load(io.BytesIO(world.checkpoint(family)), weights_only=True)
    change(content)
    out = io.BytesIO()
    torch.save(content, out)
    return out.getvalue()


def put(*path: str, value: Any) -> Callable[[dict[str, Any]], None]:
    def change(content: dict[str, Any]) -> None:
        for key in path[:-1]:
            content = content[key]
        content[path[-1]] = value

    return change


ARGS = ("fourfold", "init_args")
CONTENTS = {
    "no section": (put("fourfold", value=None), "fourfold is 'None', but must be of the kind dict"),
    "no task": (put("fourfold", "task", value=7), "fourfold.task is '7'"),
    "a function": (put("fourfold", "task", value="load_task"), "the task 'load_task' is not known"),
    "no weights": (put("state_dict", value=[]), "state_dict is '[]'"),
    "no tensor": (put("state_dict", "model.x", value=1), "model.x in its state_dict is no tensor"),
    "a word": (put(*ARGS, "config", "d_model", value="x"), "d_model is 'x', but must be of"),
    "a truth": (put(*ARGS, "config", "d_ff", value=True), "d_ff is 'True', but must be of"),
    "a list": (put(*ARGS, "schedule", value=["x"]), "\"['x']\" is no ScheduleConfig"),
    "a stranger": (put(*ARGS, "optimizer", "x", value=1), "OptimizerConfig has no 'x'"),
    "an argument": (put(*ARGS, "beams", value=1), "Translation has no 'beams'"),
    "a giant": (put(*ARGS, "config", "d_ff", value=2**31 - 1), "that it describes is too large"),
    "no words": (put(*ARGS, "config", "vocab_size", value=None), "vocab_size is missing"),
    "artifacts": (put("fourfold", "data", "max_len", value="x"), "data.max_len is 'x'"),
}  # fmt: skip


@pytest.mark.parametrize("what", CONTENTS)
@pytest.mark.usefixtures("limited")
def test_what_a_checkpoint_says(what: str, world: World, refused: Refused) -> None:
    change, said = CONTENTS[what]
    files: Files = {"f.ckpt": changed(world, "mt", change)}
    for call in (("translate", "--checkpoint", "f.ckpt"), ("export", "f.ckpt", "out")):
        error = refused(*call, files=files, stdin=b"one\n")
        assert error.startswith("fourfold: error: f.ckpt: ")
        assert said in error


RECORDS = {
    "loops": (lambda c: c["loops"].clear(), "record of its training cannot be read"),
    "optimizer": (put("optimizer_states", value=[7]), "optimizer_states is '7'"),
    "rate": (lambda c: c["optimizer_states"][0]["param_groups"][0].update(lr="x"), "lr is 'x'"),
    "moments": (lambda c: c["optimizer_states"][0]["state"][0].update(step="x"), "step is 'x'"),
}


@pytest.mark.parametrize("what", RECORDS)
def test_what_a_checkpoint_says_of_its_training(what: str, world: World, refused: Refused) -> None:
    change, said = RECORDS[what]
    call = ("fit", "--config", world.configs["mt"], "--run_dir=r", "--ckpt_path=f.ckpt")
    more = ("--trainer.max_steps=2", "--trainer.max_epochs=2")
    files: Files = {"f.ckpt": changed(world, "mt", change)}
    assert said in refused(*call, *more, files=files)


def test_a_pickle_that_is_cut_off(refused: Refused) -> None:
    error = refused("translate", "--checkpoint=f.ckpt", files={"f.ckpt": b"\x80\x02."})
    assert "f.ckpt: the checkpoint is broken or cut off" in error


@pytest.mark.parametrize("content", [{}, {"a": 1}, {"a": torch.zeros(2)}])
def test_a_file_of_torch_that_is_no_checkpoint(
    content: dict[str, Any], world: World, refused: Refused
) -> None:
    out = io.BytesIO()
    torch.save(content, out)
    call = ("test", "--config", world.configs["mt"], "--run_dir=r", "--ckpt_path=f.ckpt")
    error = refused(*call, files={"f.ckpt": out.getvalue()})
    assert "not a checkpoint written by" in error or "none that fourfold has written" in error


def test_a_replay_that_is_none(world: World, refused: Refused) -> None:
    data = changed(world, "mt", put("replay", value={"batch": {}}))
    error = refused("replay", "f.ckpt", files={"f.ckpt": data})
    assert "f.ckpt: not a file that a stopped training has written" in error


def test_classes_without_names(world: World, refused: Refused) -> None:
    data = changed(world, "classes", put("fourfold", "data", "class_names", value=["x"]))
    error = refused("classify", "--checkpoint=f.ckpt", files={"f.ckpt": data}, stdin=b"a\tb\n")
    assert "it names 1 classes, but its model has 2" in error


def test_words_without_vectors(world: World, refused: Refused) -> None:
    """The tokenizer of a larger model."""
    other = torch.load(io.BytesIO(world.checkpoint("lm")), weights_only=True)["fourfold"]["data"]
    data = changed(world, "mt", put("fourfold", "data", "tokenizer", value=other["tokenizer"]))
    error = refused("translate", "--checkpoint=f.ckpt", files={"f.ckpt": data}, stdin=b"one\n")
    assert "f.ckpt: its tokenizer has " in error


def test_imported_weights_are_measured_but_not_resumed(
    world: World, refused: Refused, tmp_path: Path
) -> None:
    """They have no training in them, nor the version of Lightning that it asks for first."""
    file, there = tmp_path / "f.ckpt", str(world.exported["vit"])
    assert run(Case(("import", there, str(file))), tmp_path / "a").code == 0
    call = ("--config", str(world.configs["vit"]), "--run_dir=r", "--ckpt_path", str(file))
    assert run(Case(("test", *call)), tmp_path / "b") == (0, "", [])
    assert "the checkpoint holds weights alone" in refused("fit", *call)


# A file of a directory of transformers, a key of it, another value, and what is said of that.
FOREIGN = [
    ("mlm", "config.json", "hidden_size", "x", "d_model is 'x', but must be of the kind int"),
    ("mlm", "config.json", "hidden_size", True, "d_model is 'True'"),
    ("mlm", "config.json", "vocab_size", None, "vocab_size is missing"),
    ("mlm", "config.json", "hidden_act", [], "hidden_act cannot be '[]'"),
    ("mlm", "config.json", "intermediate_size", 10**30, "but must be at most 2147483647"),
    ("mlm", "config.json", "type_vocab_size", -1, "n_segments is -1, but must not be negative"),
    ("mlm", "config.json", "hidden_dropout_prob", None, "dropout is 'None'"),
    ("lm", "config.json", "n_inner", [7], "d_ff is '[7]'"),
    ("vit", "config.json", "id2label", 7, "id2label cannot be '7'"),
    ("vit", "config.json", "id2label", dict.fromkeys("abcdefghij", "x"), "does not give a name"),
    ("vit", "preprocessor_config.json", "image_mean", 0.5, "image_mean is 0.5, but must be"),
    ("vit", "preprocessor_config.json", "size", None, "size is None, but must be"),
    ("vit", "preprocessor_config.json", "resample", [], "resample is [], but must be 2 or 3"),
]  # fmt: skip


@pytest.mark.parametrize(("family", "file", "key", "value", "said"), FOREIGN)
def test_what_a_directory_of_transformers_says(
    family: str, file: str, key: str, value: Any, said: str, world: World, refused: Refused
) -> None:
    files: Files = {f"d/{p.name}": p.read_bytes() for p in world.exported[family].iterdir()}
    tree = json.loads((world.exported[family] / file).read_text())
    files[f"d/{file}"] = json.dumps({**tree, key: value}).encode()
    assert said in refused("import", "d", "out.ckpt", files=files)
