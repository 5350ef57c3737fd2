import sys
from collections.abc import Callable, Iterator
from dataclasses import is_dataclass
from inspect import signature
from pathlib import Path
from pkgutil import resolve_name
from typing import Any, get_args, get_type_hints

import pytest
import torch
import yaml

from fourfold.commands.config_files import locate
from fourfold.commands.recipe import make_parser, parse
from fourfold.errors import InputError

ROOT = Path(__file__).resolve().parents[3]

Run = Callable[..., Any]

# Option: essential words of the message.
INVALID_OPTIONS = {
    "--trainer.max_epohcs=3": "trainer.max_epohcs is not a known key; did you mean"
    " trainer.max_epochs?",
    # Options cannot be abbreviated.
    "--trainer.max_epoch=3": "trainer.max_epoch is not a known key; did you mean"
    " trainer.max_epochs?",
    "--model.config.n_head=3": "model.config.n_head is not a known key; did you mean"
    " model.config.n_heads?",
    "--model.config.d_modl=30": "did you mean model.config.d_model?",
    "--model.init_args.config.d_modl=30": "did you mean model.config.d_model?",
    "--model.label_smothing=0.1": "did you mean model.label_smoothing?",
    "--data.batchsize=3": "did you mean data.batch_size?",
    "--lr=1": "lr is not a known key; did you mean model.optimizer.lr?",
    "--warmup_steps=1": "did you mean model.schedule.warmup_steps?",
    "--batch_size=3": "batch_size is not a known key; did you mean data.batch_size?",
    "--checkpoint.savetopk=2": "did you mean checkpoint.save_top_k?",
    "--model=ImageClasification": "got ImageClasification; did you mean ImageClassification?",
    "--data=fourfold.data.ImagData": "did you mean ImageData?",
    "--model=fourfold.data.ImageData": "model must be a class of fourfold or of your module",
    # The last line of jsonargparse's message is the first.
    "--data=nomodule.Mine": "data: Given value: nomodule.Mine; Expected a path but nomodule.Mine",
    "--trainer.callbacks=EarlyStoping": "trainer.callbacks: Given value: EarlyStoping; Expected",
    "--trainer.plugins=best": "trainer.plugins: Given value: best; ",
    "--trainer.max_epochs=three": "trainer.max_epochs must be an integer or null, got three",
    "--model.config.d_model=30.5": "model.config.d_model must be an integer, got 30.5",
    "--model.config.activation=swiglu": "; swiglu is feed_forward: glu with",
    "--resume=yes": "resume must be one of auto, must, never, got 'yes'",
    "--trainer.precision=bf16-mixd": "; did you mean bf16-mixed?",
    "--trainer.deterministic=foo": "trainer.deterministic must be one of warn, true or",
    "--trainer.max_time=soon": "trainer: `Timer(duration='soon')` is not a valid duration.",
    "--trainer=7": 'trainer: Parser key "trainer": Unable to load config "7"',
    "--data=fourfold.tasks.Translation": "data must be a class of fourfold or of your module, got",
    "--data.tokenizer=a": "data.tokenizer is not a known key\n",
    "extra": "unrecognized arguments: extra",
    # Detected when the options are checked or the classes are built.
    "--model.config.norm=layr": "must be one of layer, rms, got 'layr'; did you mean layer?",
    "--model.config.d_model=33": "d_model",
    "--data.seed=-1": "seed",
    "--trainer.accelerator=gpux": "trainer: You selected an invalid accelerator name:",
    "--trainer.accelerator=cuda": "trainer: `CUDAAccelerator` can not run on your system",
    "--trainer.strategy=dpp": "trainer: You selected an invalid strategy name: `strategy='dpp'`",
    "--ema_decay=2": "--ema_decay must be above 0 and below 1, got 2.0",
    "--average_last_checkpoints=-1": "average_last_checkpoints must be at least 0, got -1",
    "--checkpoint.every_n_steps=0": "checkpoint.every_n_steps must be at least 1, got 0",
}


@pytest.mark.parametrize("option", INVALID_OPTIONS)
def test_invalid_option_is_reported_in_one_line(
    option: str, run: Run, configs: dict[str, Path], here: Path
) -> None:
    if option.endswith("=cuda") and torch.cuda.is_available():
        pytest.skip("needs a machine without GPUs")
    result = run("fit", "--config", configs["vit"], option)
    assert result.code == 2
    assert INVALID_OPTIONS[option] in result.err
    assert result.err.startswith("fourfold: error: ")
    assert result.err.count("\n") == 1
    assert not list(here.iterdir())


# Content of a config file: essential words of the message.
INVALID_CONFIGS = {
    "modle: {}": "bad.yaml:1: modle is not a known key; did you mean model?",
    "data:\n  init_args:\n    batchsize: 3": "bad.yaml:3: data.batchsize is not a known key",
    "trainer:\n  max_epoch: 3": "bad.yaml:2: trainer.max_epoch is not a known key; did",
    "model:\n  init_args:\n    config:\n      d_modl: 3": "bad.yaml:4: model.config.d_modl",
    "model:\n  class_path: fourfold.tasks.Translaton": "fourfold.tasks.Translaton; did you mean"
    " Translation?",
    "model:\n  init_args:\n    config: 7": "bad.yaml:3: model.config must be a mapping, got 7",
    "model:\n  init_args:\n    config: {d_model: x}": "bad.yaml:3: model.config.d_model: Expected",
    "trainer: 7": "bad.yaml:1: trainer must be a mapping, got 7",
    "data: {class_path: 7}": "bad.yaml:1: data must be a class of fourfold or of your module, got",
    "data: {init_args: 7}": "bad.yaml:1: data: Given value: {'init_args': 7}; ",
    "trainer: [1, 2": "bad.yaml:1: invalid YAML",
    "- model": "bad.yaml: a config must be a mapping",
    "": "bad.yaml: a config must be a mapping",
}


@pytest.mark.parametrize("content", INVALID_CONFIGS)
def test_invalid_config_is_reported_with_file_and_line(
    content: str, run: Run, configs: dict[str, Path], here: Path
) -> None:
    (here / "bad.yaml").write_text(content)
    result = run("fit", "--config", configs["vit"], "--config", "bad.yaml")
    assert result.code == 2
    assert INVALID_CONFIGS[content] in result.err


# Options of the tasks whose values have no limits.
UNLIMITED = tuple(
    f"model.{name}"
    for name in (
        *("config.forget_bias", "doubly_stochastic", "entropy_weight", "reward_weight"),
        *("teacher_weight", "temperature", "z_loss", "discriminator_weight"),
    )
)


def numeric_options(above: str, kind: type[Any]) -> Iterator[tuple[str, str]]:
    """Yield the dotted name and a bad value of each number that a class takes, at all levels."""
    for name, hint in get_type_hints(kind).items():
        types = {*get_args(hint), hint}
        if is_dataclass(hint):
            yield from numeric_options(f"{above}.{name}", hint)
        elif name in signature(kind).parameters and types & {int, float} and str not in types:
            yield f"{above}.{name}", "-1e-4" if float in types else "-7"


@pytest.mark.timeout(900)
def test_error_of_a_number_has_the_whole_name_of_its_option() -> None:
    parser, seen = make_parser("test"), set[str]()
    # These may have any value; without a window, the error of rope_local_theta names the window.
    exempt = ("attn_scale", "length_penalty", "rope_theta", "rope_local_theta", "layer_scale")
    exempt += UNLIMITED
    for file in sorted((ROOT / "configs").rglob("tiny*.yaml")):
        task = resolve_name(yaml.safe_load(file.read_text())["model"]["class_path"])
        for name, value in numeric_options("model", task):
            if name in seen or name.endswith(exempt):
                continue
            seen.add(name)
            arguments = ["--config", str(file), f"--{name}={value}"]
            with pytest.raises(InputError) as caught:
                parser.instantiate(parse(parser, arguments))
            assert name in str(locate(caught.value, arguments)), (name, str(caught.value))
    assert len(seen) > 100
    assert {"model.optimizer.lr", "model.config.encoder.n_layers", "model.label_smoothing"} < seen


def test_error_of_a_config_file_has_the_whole_name_of_its_option(
    run: Run, configs: dict[str, Path], here: Path
) -> None:
    text = "model:\n  init_args:\n    optimizer:\n      lr: -1.0\n"
    (here / "bad.yaml").write_text(text)
    error = run("fit", "--config", configs["vit"], "--config", "bad.yaml").err
    assert error == "fourfold: error: bad.yaml:4: model.optimizer.lr must be above 0, got -1.0\n"


@pytest.mark.parametrize("option", ["--trainer.max_steps=3", "--checkpoint.monitor=val/loss"])
@pytest.mark.parametrize("value", ["7", "[1]", "null"])
def test_section_that_is_no_mapping_is_rejected_with_an_option_of_the_section(
    option: str, value: str, run: Run, configs: dict[str, Path], here: Path
) -> None:
    section = option[2:].split(".")[0]
    (here / "bad.yaml").write_text(f"seed_everything: 0\n{section}: {value}")
    result = run("fit", "--config", configs["vit"], "--config", "bad.yaml", option)
    assert result.code == 2
    assert f"bad.yaml:2: {section} must be a mapping" in result.err


def test_invalid_value_on_the_command_line_has_no_file(
    run: Run, configs: dict[str, Path], here: Path
) -> None:
    result = run("fit", "--config", configs["vit"], "--trainer.max_steps", "x")
    error = "trainer.max_steps must be an integer, got x"
    assert result.err == f"fourfold: error: {error}\n"


def test_unreadable_config_is_reported_with_its_name(run: Run, here: Path) -> None:
    (here / "bytes.yaml").write_bytes(b"model: \xff")
    for name in ("nofile.yaml", "bytes.yaml"):
        result = run("fit", "--config", name)
        assert result.code == 2
        assert result.err.startswith(f"fourfold: error: {name}: ")


def test_model_and_data_are_required(run: Run, here: Path) -> None:
    assert "the following arguments are required: fit.data, fit.model" in run("fit").err


def test_repeated_allow_class_extends_the_list(
    run: Run, configs: dict[str, Path], here: Path
) -> None:
    options = ["--allow_class", "a.B", "--allow-class=c.D", "--allow_class=[e.F]"]
    result = run("fit", "--config", configs["vit"], *options, "--print_config")
    assert yaml.safe_load(result.out)["allow_class"] == ["a.B", "c.D", "e.F"]


@pytest.mark.parametrize("verb", ["plan", "fit"])
def test_config_imports_the_modules_that_it_names(
    verb: str, configs: dict[str, Path], here: Path, run: Run
) -> None:
    """docs/trust.md warns of it."""
    (here / f"named_by_{verb}.py").write_text("print('imported')\nclass Hook: ...\n")
    path = f"named_by_{verb}.Hook"
    callback = f"--trainer.callbacks+={{class_path: {path}}}"
    assert "imported" in run(verb, "--config", configs["vit"], callback).out
    assert path.split(".")[0] in sys.modules


def test_config_can_call_functions(configs: dict[str, Path], here: Path, run: Run) -> None:
    """docs/trust.md warns of it."""
    (here / "called.py").write_text("def f(trainer, module):\n    print('called')\n")
    path = "lightning.pytorch.callbacks.LambdaCallback"
    callback = f"{{class_path: {path}, init_args: {{on_fit_start: called.f}}}}"
    result = run(
        *("fit", "--config", configs["vit"], "--run_dir", "r", "--trainer.max_steps=1"),
        f"--trainer.callbacks+={callback}",
    )
    assert (result.code, "called" in result.out) == (0, True)
