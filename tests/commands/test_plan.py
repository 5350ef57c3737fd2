"""Output of `fourfold plan`, compared with the figures of the papers and plain arithmetic."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fourfold.analysis.memory import format_bytes, training_memory
from fourfold.cli import main
from fourfold.commands.plan import USABLE_FRACTION, micro_batch_options
from fourfold.commands.plan import main as plan_command
from fourfold.commands.recipe import make_parser, parse, read_recipe
from fourfold.errors import InputError

Run = Callable[..., Any]
CONFIGS = Path(__file__).resolve().parents[2] / "configs"


@pytest.fixture
def plan(capsys: pytest.CaptureFixture[str]):
    def run(name: str, *options: str) -> dict[str, str]:
        assert main(["plan", "--config", str(CONFIGS / f"{name}.yaml"), *options]) == 0
        lines = capsys.readouterr().out.splitlines()
        cut = [line.rsplit("  ", 1) for line in lines if "  " in line.strip()]
        found = {key.strip(): value.strip() for key, value in cut if value}
        return found | {"batch": lines[-2], "options": lines[-1], "text": "\n".join(lines)}

    return run


def test_gpt2_small(plan) -> None:
    said = plan("gpt2/small")
    assert said["parameters"] == "124,439,808"
    assert said["blocks"] == "212.601 G"  # without the output matrix's 2 x 39.524
    assert said["FLOPs, forward, one row of 1,024 tokens"] == "291.648 G"  # 2 x 145.824 GMACs
    assert said["FLOPs, forward, per token"] == "284.81 M"
    step = 3 * 291.648e9 * 512
    assert float(said["FLOPs, training, one step"]) == pytest.approx(step, rel=1e-3)
    assert float(said["FLOPs, training, 600,000 steps"]) == pytest.approx(step * 6e5, rel=1e-3)


def test_activation_checkpointing_is_counted(plan) -> None:
    """With "block", GPT-2 small stores the inputs of twelve blocks, and one block completely."""
    stored = {}
    for mode in ("none", "block", "attention"):
        said = plan("gpt2/small", f"--model.activation_checkpointing={mode}")
        stored[mode] = float(said["activations"].removesuffix(" GiB"))
        assert said["activations"].endswith("GiB")
    assert stored["block"] < stored["none"] / 4
    assert stored["block"] < stored["attention"] < stored["none"]


def test_the_costs_of_vaswani_big(plan) -> None:
    """6 N tokens gives 9.6e18; counting attention and matrices alone comes close."""
    said = plan("vaswani2017/big")
    assert said["FLOPs, forward, one pair of 25 and 25 tokens"] == "10.749 G"  # 2 x 5.3743 GMACs
    assert float(said["FLOPs, training, 300,000 steps"]) == pytest.approx(9.6e18, rel=0.02)
    assert said["options"].endswith("--data.max_tokens 25000")


def test_vit_total_is_the_papers(plan) -> None:
    """ViT's Table 6 implies 35.2 GFLOPs an image: 2 a multiply-add, 3 passes a step."""
    said = plan("vit/b16")
    assert float(said["FLOPs, forward, one image"].split()[0]) == pytest.approx(35.2, rel=0.01)


def test_resnet_total_is_the_papers(plan) -> None:
    """Table 1 of He et al. 2015 counts 1.8 G multiply-adds of ResNet-18 with 1,000 classes."""
    options = {"stem": "imagenet", "image_size": 224, "n_channels": 3, "n_classes": 1000}
    said = plan("resnet/tiny", *(f"--model.config.{name}={x}" for name, x in options.items()))
    assert float(said["FLOPs, forward, one image"].split()[0]) == pytest.approx(3.6, rel=0.02)


@pytest.mark.parametrize("name", ["mae/tiny", "yang2016/tiny", "xu2015/tiny"])
def test_cost_that_is_not_known(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "--config", str(CONFIGS / f"{name}.yaml")]) == 2
    assert re.search(r"the cost of a \w+ is not known", capsys.readouterr().err)


def test_an_image_costs_beside_its_text(plan) -> None:
    said = plan("clip/b32", "--devices", "8", "--memory", "40")
    assert said["parameters"] == "151,277,313"
    # ViT-B/32 without its classifier is 4.409 GMACs, the text tower 77 tokens of 12 x 3.15 M and
    # attention: 2.945 + 0.073.
    assert float(said["FLOPs, forward, one image with 77 tokens"].split()[0]) == pytest.approx(
        2 * (4.37 + 3.02), rel=0.01
    )
    assert "FLOPs, forward, per token" not in said
    assert (
        said["options"] == "the contrastive loss then compares 2,048 pairs, which is another recipe"
    )


def test_a_masked_lm_trains_its_head_on_hidden_places_alone(plan) -> None:
    said = plan("bert/base")
    blocks, head = 2 * 48.318e9, 2 * 512 * 768 * (768 + 30522)
    expected = 3 * 256 * (blocks + 0.15 * head)
    assert float(said["FLOPs, training, one step"]) == pytest.approx(expected, rel=1e-3)


@pytest.mark.parametrize(
    ("name", "total"), [("gpt2/medium", 512), ("vit/l16", 4096), ("bert/large", 256)]
)
@pytest.mark.parametrize(("devices", "memory"), [(1, 24), (8, 40), (4, 80)])
def test_the_split_keeps_the_batch_and_fits(
    name: str, total: int, devices: int, memory: int, plan
) -> None:
    options = ["--trainer.precision", "bf16-mixed", "--devices", str(devices)]
    said = plan(name, *options, "--memory", str(memory))
    words = said["options"].split()
    values = dict(zip(words[::2], map(int, words[1::2]), strict=True))
    micro = values["--data.batch_size"]
    accumulation = values["--trainer.accumulate_grad_batches"]
    assert values["--trainer.devices"] == devices
    assert micro * accumulation * devices == total
    used = float(said["memory, bf16-mixed, one device"].split()[0])
    assert used <= USABLE_FRACTION * memory
    assert accumulation == 1 or 2 * used > USABLE_FRACTION * memory / 3  # not smaller than need be


def test_the_options_it_prints_are_a_recipe_of_the_same_batch(plan) -> None:
    options = plan("vit/b16", "--devices", "8", "--memory", "20")["options"].split()
    parser = make_parser("test")
    config = parse(parser, ["--config", str(CONFIGS / "vit/b16.yaml"), *options])
    recipe = read_recipe(parser, config)
    assert recipe.devices * recipe.global_batch == 4096


def test_small_amounts_of_memory_have_small_units(plan) -> None:
    text = plan("gpt2/tiny")["text"]
    assert " KiB" in text
    assert " 0.00 " not in text


def test_a_sentence_is_not_longer_than_max_len(plan) -> None:
    options = ("--model.config.vocab_size=100", "--model.config.max_len")
    short, long = (plan("quickstart/translation", *options, n)["text"] for n in ("16", "25"))
    assert short != long == plan("quickstart/translation", *options, "99")["text"]


def test_a_device_is_of_one_node(plan) -> None:
    overlay = ["--config", str(CONFIGS / "trainer/ddp.yaml"), "--trainer.num_nodes", "2"]
    said = plan("gpt2/small", *overlay)
    assert "512 rows = 16 devices x 32 x accumulation 1" in said["text"]
    assert "\n  --trainer.devices 8 --trainer.accumulate_grad_batches 1 " in said["text"]
    with pytest.raises(InputError, match="--devices must be a multiple of the 2 nodes, got 15"):
        plan_command(["--config", str(CONFIGS / "gpt2/small.yaml"), *overlay, "--devices", "15"])


def test_validations_stay_where_they_are_if_a_step_has_more_parts(plan) -> None:
    name = "gpt2/single_gpu_shakespeare_char"
    more = ["--model.init_args.config.vocab_size", "65"]  # said, so that the data are not asked
    recipe = read_recipe(
        p := make_parser("test"), parse(p, ["--config", f"{CONFIGS}/{name}.yaml", *more])
    )
    every = recipe.trainer["val_check_interval"] / recipe.accumulation
    words = plan(name, "--memory", "1.5", *more)["options"].split()
    values = dict(zip(words[::2], map(int, words[1::2]), strict=True))
    accumulation = values["--trainer.accumulate_grad_batches"]
    assert accumulation > recipe.accumulation
    assert values["--trainer.val_check_interval"] == every * accumulation
    assert "--trainer.val_check_interval" not in plan(name, *more)["options"]


def test_norms_over_a_batch_are_not_cut() -> None:
    tiny = ["--config", str(CONFIGS / "resnet/tiny.yaml")]
    assert micro_batch_options(tiny, None) == {}
    with pytest.raises(InputError, match=r"trainer\.devices must be 1, got 2: batch norms"):
        micro_batch_options([*tiny, "--config", str(CONFIGS / "trainer/ddp_cpu.yaml")], None)


def test_it_says_when_an_overlay_multiplies_the_batch(plan) -> None:
    said = plan("vit/b16", "--config", str(CONFIGS / "trainer/ddp.yaml"))
    assert "as configured, 8 devices take 32,768 rows" in said["text"]
    assert "4,096 rows = 8 devices x 512 x accumulation 1" in said["text"]


def test_without_a_memory_the_estimate_is_of_the_batch_as_it_stands(plan) -> None:
    said = plan("gpt2/tiny", "--model.init_args.config.vocab_size", "1000")
    parser = make_parser("test")
    arguments = ["--config", str(CONFIGS / "gpt2/tiny.yaml")]
    arguments += ["--model.init_args.config.vocab_size", "1000"]
    recipe = read_recipe(parser, parse(parser, arguments))
    used = training_memory(recipe.task.model, 16, length=128)
    assert said["memory, 32-true, one device"] == format_bytes(used.total)


def test_steps_that_only_the_hub_knows(plan) -> None:
    assert "its steps depend on data not available" in plan("gpt1/base")["text"]


def test_steps_of_epochs_are_counted_in_the_data() -> None:
    parser = make_parser("test")
    arguments = ["--config", str(CONFIGS / "vit/tiny.yaml"), "--trainer.max_epochs", "3"]
    recipe = read_recipe(parser, parse(parser, arguments))
    assert recipe.steps == 3 * recipe.data.n_train_batches()
    assert recipe.task.config.n_classes == 10  # type: ignore[attr-defined]
    for limit, batches in (("2", 2), ("0.5", recipe.data.n_train_batches() // 2), ("1.0", None)):
        more = [*arguments, f"--trainer.limit_train_batches={limit}"]
        limited = read_recipe(parser, parse(parser, more))
        assert limited.steps == 3 * (batches or recipe.data.n_train_batches())


@pytest.mark.parametrize(
    ("given", "devices"), [("auto", 1), ("3", 3), ("-1", 1), ("0,2", 2), ("[0, 1, 5]", 3)]
)
def test_devices(given: str, devices: int) -> None:
    parser = make_parser("test")
    arguments = ["--config", str(CONFIGS / "vit/b16.yaml"), f"--trainer.devices={given}"]
    assert read_recipe(parser, parse(parser, arguments)).devices == devices


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--memory", "0.5"], "not even the smallest micro-batch fits"),
        (["--devices", "3"], "--devices must divide the global batch of 512, got 3"),
        (["--devices", "0"], "--devices must divide the global batch of 512, got 0"),
        (["--trainer.precision", "transformer-engine"], "trainer.precision must be one of"),
        (["--model.init_args.config.n_heads", "5"], "d_model must be divisible by n_heads"),
        (["--memry", "3"], "memry"),
    ],
)
def test_a_wrong_option_is_one_sentence(
    options: list[str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["plan", "--config", str(CONFIGS / "gpt2/small.yaml"), *options]) == 2
    error = capsys.readouterr().err
    assert sentence in error
    assert error.count("\n") == 1


def test_a_config_that_is_not_there(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "--config", "nowhere.yaml"]) == 2
    assert "nowhere.yaml" in capsys.readouterr().err


def test_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "--help"]) == 0
    assert "--memory GIB" in capsys.readouterr().out
    assert main(["plan"]) == 2
