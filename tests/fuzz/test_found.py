"""Inputs for which fuzzing found a traceback, a hang or an unclear message."""

import copy
import io
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from safetensors.torch import load

from fourfold.errors import InputError
from fourfold.tasks import load_task
from tests.fuzz.conftest import World
from tests.fuzz.invariant import Case, Files, run

pytestmark = pytest.mark.timeout(300, method="thread")  # the harness uses SIGALRM


@pytest.fixture
def refused(tmp_path: Path) -> Callable[..., str]:
    """Return a function that runs a command and returns the message of its rejection."""

    def call(*argv: object, files: Files | None = None, stdin: bytes = b"") -> str:
        case = Case(tuple(map(str, argv)), files or {}, stdin)
        outcome = run(case, tmp_path / "here")
        assert not outcome.faults
        assert outcome.code == 2
        return outcome.error

    return call


Refused = Callable[..., str]

# Key in the config of a translation: invalid value, and the expected message, in which @ is the
# line of the key, and ^ that of the mapping around it.
CONFIGS: dict[tuple[str, ...], tuple[Any, str]] = {
    ("data",): ({}, "c.yaml:@: data must have a class_path"),
    ("data", "class_path"): (
        "[1, 2]",
        "c.yaml:@: data must be a class of fourfold or of your module, got [1, 2]",
    ),
    ("model", "class_path"): (
        "fourfold.data.ImageData",
        "c.yaml:@: model must be a class of fourfold or of your module, got fourfold.data.",
    ),
    ("model", "init_args"): (
        None,
        "c.yaml:^: model: Given value: {'class_path': 'fourfold.tasks.Translation', 'init_args'",
    ),
    ("model", "init_args", "optimizer"): (
        "x",
        'c.yaml:@: model.optimizer: Parser key "optimizer": Unable to load config "x"',
    ),
    ("data", "init_args", "tokenizer"): (1, "c.yaml:@: data.tokenizer must be a mapping, got 1"),
    ("data", "init_args", "hub"): ("", "c.yaml:@: data.hub: Given value:; Expected a path but"),
    ("checkpoint",): ([], "c.yaml:@: checkpoint must be a mapping, got a list"),
    ("trainer",): (7, "c.yaml:@: trainer must be a mapping, got 7"),
    ("trainer", "accelerator"): (
        [1],
        "c.yaml:@: trainer.accelerator: Given value: [1]; ",
    ),
    ("trainer", "deterministic"): (
        2.5,
        "c.yaml:@: trainer.deterministic: Given value: 2.5; ",
    ),
    ("trainer", "enable_progress_bar"): (
        "y" * 3000,
        "c.yaml:@: trainer.enable_progress_bar: Given value: yyy",
    ),
    ("model", "init_args", "config", "n_heads"): (5, "d_model must be divisible by n_heads (5)"),
    ("model", "init_args", "config", "d_ff"): (-1, "d_ff must be at least 1, got -1"),
    ("data", "init_args", "max_tokens"): (0, "max_tokens must be at least 1, got 0"),
    ("data", "init_args", "num_workers"): (-1, "num_workers must be at least 0, got -1"),
}


@pytest.mark.parametrize("place", CONFIGS, ids=".".join)
def test_invalid_config_is_rejected_with_its_line(
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
    lines = [0, *lines_of(text, place)]
    assert said.replace("@", str(lines[-1])).replace("^", str(lines[-2])) in error
    assert error.startswith("fourfold: error: ")


def lines_of(text: str, place: tuple[str, ...]) -> list[int]:
    """Return the line of each key on the way to a value of a YAML text."""
    node = yaml.compose(text)
    lines = []
    for key in place:
        found = {k.value: (k.start_mark.line + 1, value) for k, value in node.value}
        line, node = found[key]
        lines.append(line)
    return lines


def test_error_of_a_command_line_option_names_no_file(world: World, refused: Refused) -> None:
    call = ("fit", "--config", world.configs["mt"], "--run_dir=r", "--model.config.d_model=5")
    assert refused(*call).startswith("fourfold: error: model.config.d_model must be divisible")


def test_key_that_is_not_a_string(world: World, refused: Refused) -> None:
    content = world.configs["mt"].read_bytes() + b"? {a: 1}\n: 2\n"
    error = refused("fit", "--config=c.yaml", "--run_dir=r", files={"c.yaml": content})
    assert "c.yaml:32: a mapping or list is not a known key" in error


def test_lone_surrogate_in_a_config(world: World, refused: Refused) -> None:
    content = world.configs["mt"].read_bytes() + b'wandb_name: "\\ud800"\n'
    error = refused("fit", "--config=c.yaml", "--run_dir=r", files={"c.yaml": content})
    assert "invalid YAML: found invalid Unicode character escape code" in error
    assert "c.yaml:" in error


OPTIONS = {
    "trainer.accumulate_grad_batches=0": "accumulate_grad_batches must be at least 1, got 0",
    "trainer.devices=-1": "should be an int > 0",
    "trainer.fast_dev_run=é\u2028": "fast_dev_run must be true or false or an integer, got é",
    "model.config.d_model=1000000000": "d_model must be at most 1048576, got 1000000000",
    "model.config.d_ff=1000000000000000000": "d_ff must be at most 4194304",
    "model.config.norm_eps=-1": "norm_eps must be at least 0 and below 1, got -1",
    "model.label_smoothing=2": "label_smoothing must be at least 0 and below 1, got 2",
    "model.val_num_beams=-1": "val_num_beams must be at least 0 and at most 1024, got -1",
    "model.num_beams=0": "num_beams must be at least 1, got 0",
    "data.tokenizer.vocab_size=1000000000": "tokenizer.vocab_size must be at most 16777216, got",
    "data.tokenizer.min_frequency=-1": "tokenizer.min_frequency must be at least 0 and at most",
}


@pytest.mark.parametrize("option", OPTIONS)
@pytest.mark.usefixtures("limited")
def test_invalid_option_is_rejected(option: str, world: World, refused: Refused) -> None:
    call = ("fit", "--config", world.configs["mt"], "--run_dir=r", f"--{option}")
    assert OPTIONS[option] in refused(*call)


@pytest.mark.usefixtures("limited")
def test_plan_of_a_model_beyond_the_limits_of_torch(world: World, refused: Refused) -> None:
    sizes = ("--model.config.d_model=2147483640", "--model.config.d_ff=2147483640")
    error = refused("plan", "--config", world.configs["lm"], *sizes)
    assert "d_model must be at most 1048576, got 2147483640" in error


def test_plan_of_rows_longer_than_max_len(world: World, refused: Refused) -> None:
    error = refused("plan", "--config", world.configs["tags"], "--model.config.max_len=1")
    assert "length must be at most max_len (1), got 16" in error


def question(**changes: Any) -> bytes:
    answer = {"text": "one", "answer_start": 0}
    asked = {"id": 1, "question": "what", "answers": [answer], **changes}
    return json.dumps({"data": [{"paragraphs": [{"context": "one", "qas": [asked]}]}]}).encode()


# Family that reads the file, name of the file, its content, and the expected message.
FILES = [
    ("tags", "f.conll", b"- " * 300 + b"\t\n", "f.conll:1: the word has no tag"),
    ("classes", "f.csv", b'a,b,label\n"' + b"x" * 200_000, "f.csv:2: invalid CSV"),
    ("classes", "f.jsonl", b"[" * 99_999, "f.jsonl:1: the JSON is nested too deeply"),
    (
        "classes",
        "f.jsonl",
        b'{"a": ' + b"9" * 5000 + b"}",
        "f.jsonl:1: invalid JSON (Exceeds the limit (4300 digits)",
    ),
    (
        "classes",
        "f.jsonl",
        b'{"a": "\\ud800", "b": "", "label": ""}',
        "f.jsonl:1: an escape is half of a surrogate",
    ),
    (
        "qa",
        "f.json",
        question(question=7),
        "f.json: question must be of type str, got '7'",
    ),
    (
        "qa",
        "f.json",
        question(answers=[[]]),
        "f.json: the content is invalid",
    ),
    ("qa", "f.json", b'{"data": 7}', "f.json: the content is invalid"),
    ("qa", "f.json", question(answers=[{"text": "one", "answer_start": -3}]), "at character -3"),
]


@pytest.mark.parametrize(("family", "name", "content", "said"), FILES)
def test_invalid_data_file_is_rejected(
    family: str, name: str, content: bytes, said: str, world: World, refused: Refused
) -> None:
    call = ("fit", "--config", world.configs[family], "--run_dir=r", f"--data.train={name}")
    assert said in refused(*call, files={name: content})


def test_image_name_longer_than_the_file_system_allows(world: World, refused: Refused) -> None:
    error = refused("classify", "--checkpoint", world.runs["vit"], stdin=b"x" * 5000)
    assert "the image cannot be read: File name too long" in error


def test_checkpoint_path_longer_than_the_file_system_allows(refused: Refused) -> None:
    assert "there is no such checkpoint" in refused("translate", "--checkpoint", "y" * 300)


def changed(world: World, family: str, change: Callable[[dict[str, Any]], Any]) -> bytes:
    """Return the bytes of a trained checkpoint after a change of its content."""
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


ARGS = ("fourfold", "task", "init_args")
CONFIG = ("fourfold", "model", "config")
CONTENTS = {
    "no section": (put("fourfold", value=7), "fourfold must be of type dict, got '7'"),
    "an old version": (put("fourfold", "version", value=1), "an earlier version of fourfold"),
    "no task": (put("fourfold", "task", value=7), "fourfold.task must be of type dict"),
    "no weights": (put("state_dict", value=[]), "state_dict must be of type dict"),
    "no tensor": (put("state_dict", "model.x", value=1), "state_dict.model.x must be a tensor"),
    "a word": (put(*CONFIG, "d_model", value="x"), "d_model must be of type int, got 'x'"),
    "a truth": (put(*CONFIG, "d_ff", value=True), "d_ff must be of type int, got 'True'"),
    "a giant": (put(*CONFIG, "d_ff", value=4 << 20), "describes a model of"),
    "no words": (put(*CONFIG, "vocab_size", value=None), "vocab_size must be given"),
    "artifacts": (put("fourfold", "data", "max_len", value="x"), "data.max_len must be of type"),
    "no model": (put("fourfold", "model", "class", value="os.path"), "the class os.path"),
}
# Content that only `load_task` reads.
TASK_CONTENTS = {
    "a function": (
        put("fourfold", "task", "class", value="fourfold.training.loading.load_task"),
        "fourfold.training.loading.load_task is not a task",
    ),
    "another module": (
        put("fourfold", "task", "class", value="os.system"),
        "allow its import with --allow_class os.system",
    ),
    "a list": (put(*ARGS, "schedule", value=["x"]), "ScheduleConfig must be a mapping"),
    "a stranger": (put(*ARGS, "optimizer", "x", value=1), "x is not a field of OptimizerConfig"),
    "an argument": (put(*ARGS, "beams", value=1), "beams is not an argument of Translation"),
}


@pytest.mark.parametrize("what", TASK_CONTENTS)
@pytest.mark.usefixtures("limited")
def test_invalid_task_of_a_checkpoint_is_rejected(what: str, world: World, tmp_path: Path) -> None:
    change, said = TASK_CONTENTS[what]
    (tmp_path / "f.ckpt").write_bytes(changed(world, "mt", change))
    with pytest.raises(InputError, match=rf"f\.ckpt: .*{said}"):
        load_task(tmp_path / "f.ckpt")


@pytest.mark.parametrize("what", CONTENTS)
@pytest.mark.usefixtures("limited")
def test_invalid_content_of_a_checkpoint_is_rejected(
    what: str, world: World, refused: Refused
) -> None:
    change, said = CONTENTS[what]
    files: Files = {"f.ckpt": changed(world, "mt", change)}
    for call in [("translate", "--checkpoint", "f.ckpt"), ("export", "f.ckpt", "out")]:
        error = refused(*call, files=files, stdin=b"one\n")
        assert error.startswith("fourfold: error: f.ckpt: ")
        assert said in error


RECORDS = {
    "loops": (lambda c: c["loops"].clear(), "loops.fit_loop must be of type dict"),
    "optimizer": (put("optimizer_states", value=[7]), "optimizer_states must be of type dict"),
    "rate": (
        lambda c: c["optimizer_states"][0]["param_groups"][0].update(lr="x"),
        "lr must be of type float",
    ),
    "moments": (
        lambda c: c["optimizer_states"][0]["state"][0].update(step="x"),
        "step must be of type Tensor",
    ),
}


@pytest.mark.parametrize("what", RECORDS)
def test_invalid_training_state_of_a_checkpoint_is_rejected(
    what: str, world: World, refused: Refused
) -> None:
    change, said = RECORDS[what]
    call = ("fit", "--config", world.configs["mt"], "--run_dir=r", "--ckpt_path=f.ckpt")
    more = ("--trainer.max_steps=2", "--trainer.max_epochs=2")
    files: Files = {"f.ckpt": changed(world, "mt", change)}
    assert said in refused(*call, *more, files=files)


def test_truncated_pickle_is_rejected(refused: Refused) -> None:
    error = refused("translate", "--checkpoint=f.ckpt", files={"f.ckpt": b"\x80\x02."})
    assert "f.ckpt: the checkpoint is corrupted or incomplete" in error


@pytest.mark.parametrize("content", [{}, {"a": 1}, {"a": torch.zeros(2)}])
def test_torch_file_without_a_checkpoint_is_rejected(
    content: dict[str, Any], world: World, refused: Refused
) -> None:
    out = io.BytesIO()
    torch.save(content, out)
    call = ("test", "--config", world.configs["mt"], "--run_dir=r", "--ckpt_path=f.ckpt")
    error = refused(*call, files={"f.ckpt": out.getvalue()})
    assert "not a checkpoint written by" in error or "none that fourfold has written" in error


def test_wrong_number_of_class_names_is_rejected(world: World, refused: Refused) -> None:
    data = changed(world, "classes", put("fourfold", "data", "class_names", value=["x"]))
    error = refused("classify", "--checkpoint=f.ckpt", files={"f.ckpt": data}, stdin=b"a\tb\n")
    assert "it has 1 class names for 2 classes" in error


def test_tokenizer_with_more_entries_than_embeddings_is_rejected(
    world: World, refused: Refused
) -> None:
    """The tokenizer belongs to a model with a larger vocabulary."""
    other = torch.load(io.BytesIO(world.checkpoint("lm")), weights_only=True)["fourfold"]["data"]
    data = changed(world, "mt", put("fourfold", "data", "tokenizer", value=other["tokenizer"]))
    error = refused("translate", "--checkpoint=f.ckpt", files={"f.ckpt": data}, stdin=b"one\n")
    assert "f.ckpt: the model has a tokenizer with 300 entries, but" in error


def test_imported_weights_can_be_tested_but_not_resumed(
    world: World, refused: Refused, tmp_path: Path
) -> None:
    """An imported checkpoint contains no state of a training and no version of Lightning."""
    file, there = tmp_path / "f.ckpt", str(world.exported["vit"])
    assert run(Case(("import", there, str(file))), tmp_path / "a").code == 0
    call = ("--config", str(world.configs["vit"]), "--run_dir=r", "--ckpt_path", str(file))
    assert run(Case(("test", *call)), tmp_path / "b")[:3] == (0, "", [])
    assert "f.ckpt: the" in refused("fit", *call)


# Family, file of the Hugging Face directory, key, invalid value, and the expected message.
FOREIGN = [
    ("mlm", "config.json", "hidden_size", "x", "d_model must be of type int, got 'x'"),
    ("mlm", "config.json", "hidden_size", True, "d_model must be of type int, got 'True'"),
    (
        "mlm",
        "config.json",
        "vocab_size",
        None,
        "vocab_size must be given: no dataset can fill it in",
    ),
    (
        "mlm",
        "config.json",
        "hidden_act",
        [],
        "d/config.json: the content is invalid: unhashable type: 'list'",
    ),
    ("mlm", "config.json", "intermediate_size", 10**30, "d_ff must be at most 4194304, got"),
    (
        "mlm",
        "config.json",
        "type_vocab_size",
        -1,
        "n_segments must be at least 0 and at most 65536, got -1",
    ),
    (
        "mlm",
        "config.json",
        "hidden_dropout_prob",
        None,
        "dropout must be of type float or int, got 'None'",
    ),
    ("lm", "config.json", "n_inner", [7], "d_ff must be of type int, got '[7]'"),
    ("vit", "config.json", "id2label", 7, "d/config.json: id2label must be of type dict, got '7'"),
    (
        "vit",
        "config.json",
        "id2label",
        dict.fromkeys("abcdefghij", "x"),
        "d/config.json: the content is invalid: invalid literal",
    ),
    (
        "vit",
        "preprocessor_config.json",
        "image_mean",
        0.5,
        "preprocessor_config.json: the content is invalid: object of type 'float'",
    ),
    (
        "vit",
        "preprocessor_config.json",
        "size",
        [],
        "size must be a number or [height, width], got []",
    ),
    ("mlm", "config.json", "model_type", [], "d/config.json: the content is invalid: unhashable"),
    (
        "vit",
        "preprocessor_config.json",
        "size",
        {"shortest_edge": 30_000},
        "size must be at most 16384, got 30000",
    ),
    ("vit", "preprocessor_config.json", "size", {"longest_edge": 8}, "size must be of type int"),
    ("vit", "preprocessor_config.json", "resample", [], "resample must be 2 or 3, got []"),
]


@pytest.mark.parametrize(("family", "file", "key", "value", "said"), FOREIGN)
def test_invalid_value_in_a_hugging_face_directory_is_rejected(
    family: str, file: str, key: str, value: Any, said: str, world: World, refused: Refused
) -> None:
    files: Files = {f"d/{p.name}": p.read_bytes() for p in world.exported[family].iterdir()}
    tree = json.loads((world.exported[family] / file).read_text())
    files[f"d/{file}"] = json.dumps({**tree, key: value}).encode()
    assert said in refused("import", "d", "out.ckpt", files=files)


def test_resume_from_a_checkpoint_without_one_weight(world: World, refused: Refused) -> None:
    tree = torch.load(io.BytesIO(world.checkpoint("classes")), weights_only=True)
    del tree["state_dict"]["model.stack.blocks.0.ff_norm.weight"]
    out = io.BytesIO()
    torch.save(tree, out)
    call = ("fit", "--config", world.configs["classes"], "--run_dir", "r", "--ckpt_path", "f.ckpt")
    said = refused(*call, "--trainer.max_steps=2", files={"f.ckpt": out.getvalue()})
    assert "f.ckpt: the weights do not match the model's config" in said


def directory(world: World, family: str) -> Files:
    """Return the files of an exported directory, which a test changes."""
    return {f"d/{p.name}": p.read_bytes() for p in world.exported[family].iterdir()}


def test_index_with_a_long_name_of_a_shard(world: World, refused: Refused) -> None:
    files = directory(world, "lm")
    del files["d/model.safetensors"]
    index = {"weight_map": {"transformer.wte.weight": "y" * 5000}}
    files["d/model.safetensors.index.json"] = json.dumps(index).encode()
    assert "d/yyy" in refused("import", "d", "out.ckpt", files=files)


def test_unknown_token_outside_of_the_vocabulary(world: World, refused: Refused) -> None:
    files = directory(world, "classes")
    tree = json.loads(files["d/tokenizer.json"])  # type: ignore[arg-type]
    tree["model"]["unk_token"] = "zz"
    files["d/tokenizer.json"] = json.dumps(tree).encode()
    fit = ("fit", "--config", world.configs["classes"], "--run_dir=r")
    error = refused(*fit, "--data.tokenizer.file=d/tokenizer.json", files=files)
    assert "d/tokenizer.json: the tokenizer fails for this text" in error


def test_template_that_makes_half_of_a_surrogate_pair(world: World, refused: Refused) -> None:
    files = directory(world, "lm") | {"d/chat_template.jinja": b'{{ "\\ud800" }}'}
    call = ("generate", "--chat", "--checkpoint=d", "--max-new-tokens=3")
    assert "chat_template cannot be rendered" in refused(*call, files=files, stdin=b"one\n")


@pytest.mark.parametrize("value", [7, [], {}, {"config": 7}, {"config": {"model_type": []}}])
def test_invalid_record_of_the_source_of_a_checkpoint(
    value: Any, world: World, refused: Refused
) -> None:
    data = changed(world, "mt", put("source", value=value))
    assert "f.ckpt: " in refused("export", "f.ckpt", "out", files={"f.ckpt": data})


@pytest.mark.parametrize("header", [b"9" * 5000 + b" 16\n", b"2 " + b"9" * 5000 + b"\n"])
def test_word_vectors_whose_first_line_has_5000_digits(
    header: bytes, world: World, refused: Refused
) -> None:
    content = header + b"one" + b" 0.5" * 16 + b"\n"
    fit = ("fit", "--config", world.configs["lm"], "--run_dir=r", "--model.init_from=v.txt")
    assert "v.txt:1: the vectors must have 16 numbers" in refused(*fit, files={"v.txt": content})


KINDS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "int": lambda x: x.int(),
    "bool": lambda x: x.bool(),
    "complex": lambda x: x.to(torch.complex64),
    "meta": lambda x: x.to("meta"),
    "sparse": lambda x: torch.zeros_like(x).to_sparse(),
    "expanded": lambda x: torch.zeros(1).expand(x.shape),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("command", ["export", "fit", "import"])
def test_tensor_that_is_no_weight(kind: str, command: str, world: World, refused: Refused) -> None:
    name = "model.stack.blocks.0.ff.up.weight"

    def change(content: dict[str, Any]) -> None:
        content["state_dict"][name] = KINDS[kind](content["state_dict"][name])

    files: Files = {"f.ckpt": changed(world, "lm", change)}
    more = ("--config", world.configs["lm"], "--run_dir=r", "--ckpt_path=f.ckpt")
    call = ("fit", *more, "--trainer.max_steps=2", "--trainer.max_epochs=2")
    if command == "export":
        call = ("export", "f.ckpt", "out")
    if command == "import":
        files = directory(world, "lm")
        weights = load(files.pop("d/model.safetensors"))  # type: ignore[arg-type]
        name = "transformer.h.0.mlp.c_fc.weight"
        out = io.BytesIO()
        torch.save({**weights, name: KINDS[kind](weights[name])}, out)
        files["d/pytorch_model.bin"] = out.getvalue()
        call = ("import", "d", "out.ckpt")
    problem = "(has [0-9]+ elements, more than|must have numbers of type float32, got)"
    error = refused(*call, files=files)
    assert re.search(rf"(f\.ckpt|d/?): .*{name.removeprefix('model.')} {problem}", error)


def test_many_layers_that_share_one_storage(world: World, refused: Refused) -> None:
    """The file is small, but the model would have 400 layers."""

    def change(content: dict[str, Any]) -> None:
        state = content["state_dict"]
        content["fourfold"]["model"]["config"]["n_layers"] = 400
        for name in [name for name in state if ".blocks.0." in name]:
            state |= {name.replace(".0.", f".{i}.", 1): state[name] for i in range(400)}

    data = changed(world, "lm", change)
    error = refused("export", "f.ckpt", "out", files={"f.ckpt": data})
    assert "f.ckpt: the config describes a model of" in error
