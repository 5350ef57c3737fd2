"""The engine of the live page computes what torch computes, for all families and under edits."""

import json
import shutil
import subprocess
from functools import partial
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import fourfold
from fourfold.commands.recipe import make_parser, parse, read_recipe
from fourfold.core.attention import Attention
from fourfold.edits import drop, dump_edits, hide, scale, zero
from fourfold.errors import InputError
from fourfold.explorer.weights import FP16_PARAMETERS, pack_model
from fourfold.layers.quantization import quantize
from tests.fixtures.engine_cases import CASES, expected, inputs, packed, stored
from tests.fixtures.tiny_models import VARIANTS, build

pytestmark = pytest.mark.skipif(shutil.which("node") is None, reason="needs node")
ENGINE, PURE = (files("fourfold.explorer") / name for name in ("engine.js", "pure.js"))
EDITS_PER_MODEL = 3
TINY = ("bert", "deit", "gpt1", "gpt2", "gpt_bert", "joined", "llama", "modernbert", "recall")
RECIPES = (
    *(f"quickstart/{name}" for name in ("causal_lm", "images", "masked_lm", "translation")),
    *(f"{name}/tiny" for name in (*TINY, "roberta", "t5", "vaswani2017", "vit")),
)


@pytest.fixture
def check(tmp_path: Path, root: Path) -> Any:
    """Return a function that runs the tests of engine.test.cjs on some cases."""

    def run(cases: list[dict[str, Any]], engine: Any = ENGINE) -> str:
        file = tmp_path / "cases.json"
        file.write_text(json.dumps(cases))
        script = str(root / "tests" / "explorer" / "engine.test.cjs")
        result = subprocess.run(
            ["node", "--test", script],
            env={"CASES": str(file), "ENGINE": str(engine), "PURE": str(PURE)},
            capture_output=True,
            text=True,
            timeout=300,
        )
        return "" if result.returncode == 0 else result.stdout

    return run


def random_edits(names: dict[str, Any], random: np.random.Generator, length: int = 7) -> str:
    """JSON of one or two random edits of tensors, heads or neurons."""
    edits = {}
    for name in random.choice(list(names), random.integers(1, 3), replace=False).tolist():
        size = names[name]
        is_whole = size is None or random.random() < 0.2
        operations: list[Any] = [zero, scale(float(random.uniform(-1, 2)))]
        if name.endswith("weights"):
            keys, queries = (random.choice(length, 2, replace=False).tolist() for _ in range(2))
            kinds = [partial(operation, keys) for operation in (hide, drop)]
            operations += [kind(*more) for kind in kinds for more in ([], [queries])]
        chosen = operations[random.integers(len(operations))]
        edits[name if is_whole else f"{name}.{random.integers(size)}"] = chosen
    return dump_edits(edits)


def case(name: str, model: Any, edits: list[str]) -> dict[str, Any]:
    """Input of a packed model, and its logits and attention weights under each of some edits."""
    given, *arguments = inputs(model.model)
    runs = [{"edits": one, **expected(model.model, one, *arguments)} for one in edits]
    return {"name": name, **stored(model), "input": given, "runs": runs}


def test_logits_and_weights_are_those_of_torch_also_under_edits(check) -> None:
    random, cases = np.random.default_rng(0), []
    for i, (family, name, changes) in enumerate(CASES):
        torch.manual_seed(i)
        model = packed(family, changes, 8 if i % 2 else 16)
        names = model.index["edits"]
        edits = ["{}", *(random_edits(names, random) for _ in range(EDITS_PER_MODEL))]
        if i % 5 == 0:
            edits.append(dump_edits({"*.self.head.1": scale(0.5), "*.ff.out": scale(1.5)}))
        cases.append(case(f"{family} {name}", model, edits))
    assert sum(len(one["runs"]) for one in cases) > 30 + len(cases)
    assert not check(cases)


def test_tanh_in_place_of_the_error_function_is_noticed(check, tmp_path: Path) -> None:
    """The two forms of GELU differ by 5e-4 at most."""
    source = ENGINE.read_text(encoding="utf-8")
    right = "(1 + erf(x * Math.SQRT1_2))"
    assert source.count(right) == 1
    wrong = tmp_path / "engine.js"
    wrong.write_text(source.replace(right, "(1 + Math.tanh(0.79788456 * (x + 0.044715 * x ** 3)))"))
    torch.manual_seed(0)
    cases = [case("masked", packed("masked", {}, 16), ["{}"])]
    assert not check(cases)
    assert "logits differ" in check(cases, wrong)


@pytest.mark.slow
def test_models_of_the_demo_and_of_the_tiny_recipes(check, root: Path) -> None:
    parser, cases = make_parser("test"), []
    for name in RECIPES:
        config = parse(parser, ["--config", str(root / "configs" / f"{name}.yaml")])
        options = config["model"]["init_args"]["config"]
        for field, value in (("vocab_size", 90), ("n_classes", 10)):
            if field in options and options[field] is None:
                options[field] = value
        task = read_recipe(parser, config).task
        torch.manual_seed(0)
        model = pack_model(type(task).model_class(task.config).eval())
        cases.append(case(name, model, ["{}"]))
    assert not check(cases)


@pytest.mark.parametrize("family", ["causal", "encoder_decoder", "t5"])
def test_greedy_text_and_cache(check, family: str) -> None:
    """The engine writes what `generate` or `beam_search` writes, and a cache changes nothing."""
    torch.manual_seed(3)
    changes = VARIANTS["mistral"] if family == "causal" else {}  # rotary, with a window
    model = packed(family, changes, 16)
    edits = dump_edits({"*.self.k.1": scale(0.3), "*.self.head.0": zero})
    one = case(family, model, ["{}", edits])
    first = torch.tensor([one["input"]["ids" if family == "causal" else "source"]])
    options: dict[str, Any] = {"max_new_tokens": 6, "eos_id": 28}
    with torch.inference_mode(), fourfold.edit(model.model, fourfold.edits.load_edits(edits)):
        if family == "causal":
            ids = fourfold.generate(model.model, first, temperature=0.0, **options)[0, 9:]
        else:
            ids = fourfold.beam_search(model.model, first, 1, bos_id=1, **options)[0][0, 1:]
    wanted = ids.tolist()
    wanted = wanted[: wanted.index(28) + 1] if 28 in wanted else wanted
    one["generated"] = {"edits": edits, "ids": wanted, "start": 1, "ends": [28], "maxNew": 6}
    assert not check([one])


@pytest.mark.parametrize("precision", [8, 16])
def test_stored_tensors_are_the_rounded_weights(precision: int) -> None:
    torch.manual_seed(0)
    model = build("encoder_decoder")
    found = pack_model(model, precision)
    before, after = model.state_dict(), found.model.state_dict()
    assert set(found.index["tensors"]) >= set(dict(model.named_parameters()))
    for name, place in found.index["tensors"].items():
        values = unpack(place, found.data)
        if name in after:
            np.testing.assert_array_equal(values.reshape(after[name].shape), after[name].numpy())
            largest = before[name].abs().amax(-1, keepdim=True)
            limit = 0.5 / 127 if precision == 8 else 2**-11
            assert bool(((before[name] - after[name]).abs() <= limit * largest + 1e-7).all())
    assert all(x.dtype == torch.float64 for x in before.values())  # the model is not changed


def unpack(place: dict[str, Any], data: bytes) -> np.ndarray:
    """Values of a stored tensor."""
    count, at = int(np.prod(place["shape"])), place["offset"]
    if place["kind"] == "float32":
        return np.frombuffer(data, "<f4", count, at)
    if place["kind"] == "float16":
        planes = np.frombuffer(data, "u1", 2 * count, at).reshape(2, count)
        return np.ascontiguousarray(planes.T).view("<f2")[:, 0].astype(np.float32)
    rows = place["shape"][0]
    scales = np.frombuffer(data, "<f4", rows, at)
    return np.frombuffer(data, "i1", count, at + 4 * rows).reshape(rows, -1) * scales[:, None]


def test_precision_follows_the_size() -> None:
    small = build("causal")
    large = build("causal", vocab_size=FP16_PARAMETERS // 12)
    kinds = [
        {one["kind"] for one in pack_model(model).index["tensors"].values()}
        for model in (small, large)
    ]
    assert kinds == [{"float16", "float32"}, {"int8", "float32"}]
    with pytest.raises(InputError, match="precision must be"):
        pack_model(small, 4)


def test_weights_beyond_fp16_are_stored_in_fp32() -> None:
    model = build("causal")
    with torch.no_grad():
        model.embed.tokens.weight[0, 0] = 1e6
    place = pack_model(model, 16).index["tensors"]["embed.tokens.weight"]
    assert place["kind"] == "float32"


def with_entmax(model: Any) -> Any:
    for module in model.modules():
        if isinstance(module, Attention):
            module.normalize = lambda scores: scores.relu()
    return model


def quantized(model: Any) -> Any:
    quantize(model.float(), "int8")
    return model


REFUSED = {
    "reads an image and a text": lambda: fourfold.create("clip-vit-base-patch32", device="meta"),
    "reads an image and writes a text": lambda: captioner(),
    "has a convolutional stem": lambda: build("vit", patch_embedding="convolutional"),
    "is a baseline": lambda: ladder(),
    "no softmax": lambda: with_entmax(build("causal")),
    "has a recurrent state": lambda: recurrent(),
    "has a Int8Embedding": lambda: quantized(build("causal")),
    "is a MaskedAutoencoder": lambda: masked_autoencoder(),
}


def captioner() -> Any:
    from fourfold.models import CompositeEncoderDecoder, ImageToTextConfig, ViTConfig

    size: dict[str, Any] = {"d_model": 8, "n_layers": 1, "n_heads": 2, "d_ff": 8}
    encoder = ViTConfig(**size, image_size=8, patch_size=4)
    return CompositeEncoderDecoder(ImageToTextConfig(**size, vocab_size=9, encoder=encoder))


def ladder() -> Any:
    from fourfold.models import LadderLM, LadderLMConfig

    return LadderLM(LadderLMConfig(vocab_size=9, d_model=8, n_layers=1, n_heads=2, d_ff=8))


def recurrent() -> Any:
    from fourfold.models import RecurrentEncoderDecoder, RecurrentEncoderDecoderConfig

    config = RecurrentEncoderDecoderConfig(vocab_size=9, d_model=8, hidden_size=8)
    return RecurrentEncoderDecoder(config)


def masked_autoencoder() -> Any:
    from fourfold.models import MaskedAutoencoder, MaskedAutoencoderConfig

    size: dict[str, Any] = {"d_model": 8, "n_layers": 1, "n_heads": 2, "d_ff": 8}
    return MaskedAutoencoder(MaskedAutoencoderConfig(**size, image_size=8, patch_size=4))


@pytest.mark.parametrize("reason", REFUSED)
def test_other_models_are_refused_with_the_reason(reason: str) -> None:
    with pytest.raises(InputError, match=f"the model .*{reason}.*, which a live page cannot"):
        pack_model(REFUSED[reason]())
