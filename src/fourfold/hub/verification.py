"""Verification of an exported directory: the library that reads it is compared with the model."""

import json
import math
from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import tokenizers
import torch
from PIL import Image
from torch import Tensor
from torch.nn.functional import normalize

from fourfold.atomic_files import sha256
from fourfold.data.vision.eval_transforms import eval_transform
from fourfold.data.vision.image_stores import PIL_MODES
from fourfold.environment import now, versions
from fourfold.errors import InputError
from fourfold.families import lookup
from fourfold.generation.generate import generate
from fourfold.hub.directory import CONFIG_FILE, write_json
from fourfold.hub.graph_files import METADATA, load_graph, relative_difference
from fourfold.hub.graphs import Graph, make_graphs
from fourfold.hub.preprocessing import PREPROCESSOR_FILE
from fourfold.json_files import read_json
from fourfold.layers.generation_defaults import GenerationDefaults
from fourfold.tokenization.pretrained import TOKENIZER_FILE

Graphs = Mapping[str, Graph]
CERTIFICATE = "verification.json"
PACKAGES = {"transformers": "transformers", "onnx": "onnxruntime", "torch-export": "torch"}
TOLERANCE = 1e-4  # largest difference of outputs, divided by the largest output if that exceeds 1
PAIRS = (("a b", "c"), ("", "1 2 3"), ("d é", "f"))
LENGTHS = (1, 2, 7, 33, 128)  # tokens of the longest row of a batch
# One more such length, if the model reads so many: `BEYOND` more than its window, or `LONGEST`.
BEYOND, LONGEST = 8, 512
NOT_COMPARED = (
    *("padding side and maximum length of the tokenizer", "images and greedy search of graphs"),
    *("inputs longer than the rows", "data types other than fp32", "sampling and beam search"),
)
PROMPT, NEW_TOKENS = 8, 16
IMAGE_SIZES = ((8, 8), (31, 57), (200, 96), (224, 224), (640, 333))  # width and height in pixels
_INPUTS = ("input_ids", "attention_mask", "token_type_ids", "pixel_values")
# Outputs of graphs, and their names in transformers if these differ.
_OUTPUTS = {
    "logits": "prediction_logits",
    "next_sentence_logits": "seq_relationship_logits",
    **{name: name for name in ("last_hidden_state", "image_embeds", "text_embeds")},
}


def check_runtime(file_format: str) -> None:
    """Raise InputError unless the library that reads a format is known and installed."""
    known = [name for name, package in PACKAGES.items() if find_spec(package)]
    if file_format not in known:
        message = f"needs a --format whose library is installed ({', '.join(known)}), got"
        raise InputError(f"{message} {file_format}", option="--verify")


def verify(model: Any, folder: Path, file_format: str) -> dict[str, Any]:
    """Compare an exported directory with the model, and write the certificate, a JSON file.

    Compared are, as far as the model has them: token ids of a hundred texts, ids and types of three
    pairs, preprocessed images, outputs in fp32 for batches with padding, and greedy search (but not
    images and greedy search with graphs, whose cache `write_graphs` has compared).

    Args:
        model: The model in fp32, on the CPU and in eval mode.
        folder: The directory.
        file_format: A key of `PACKAGES`.

    Returns:
        The content of the certificate. Its entry `failure` is the first problem, or None.
    """
    package, failure, compared = PACKAGES[file_format], None, dict[str, Any]()
    try:
        with torch.no_grad(), torch.random.fork_rng():
            torch.manual_seed(0)
            open_runtime: Any = _Transformers if file_format == "transformers" else _Graphs
            runtime = open_runtime(folder, model)
            for check in (_check_texts, _check_images, _check_outputs, _check_greedy):
                compared |= check(model, runtime)
    except Exception as error:  # a library raises any class for files that it cannot read
        problem = f"{package} cannot read or run it: {type(error).__name__}: {error}"
        failure = str(error) if isinstance(error, InputError) else problem
    report = {
        "format": file_format,
        "date": now(),
        "versions": versions("fourfold", "torch", "tokenizers", package),
        "sha256": {x.name: sha256(x) for x in sorted(folder.iterdir()) if x.is_file()},
        "compared": compared,
        "not_compared": NOT_COMPARED,
        "failure": failure,
        "passed": failure is None,
    }
    write_json(folder / CERTIFICATE, report)
    return report


class _Transformers:
    """Model, tokenizer and image processor of a directory of transformers."""

    def __init__(self, folder: Path, model: Any) -> None:
        import transformers

        transformers.logging.set_verbosity_error()
        transformers.logging.disable_progress_bar()
        name = read_json(folder / CONFIG_FILE)["architectures"][0]
        if model.can_generate and not hasattr(model, "decode"):
            name = "AutoModelForCausalLM"  # the directory may name the class without a head
        self.model = getattr(transformers, name).from_pretrained(folder, dtype=torch.float32).eval()
        if model.can_generate:  # an option of greedy search that fourfold does not have
            self.model.generation_config.forced_eos_token_id = None
        if (folder / TOKENIZER_FILE).exists():
            self.encode: Any = transformers.AutoTokenizer.from_pretrained(folder)
        if (folder / PREPROCESSOR_FILE).exists():
            processor = transformers.AutoImageProcessor.from_pretrained(folder)
            self.pixels = lambda image: processor(image, return_tensors="pt")["pixel_values"][0]

    def outputs(self, given: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the outputs of the model by their names in graphs."""
        found = dict(self.model(**given))
        if "start_logits" in found:
            found["logits"] = torch.stack([found["start_logits"], found["end_logits"]], -1)
        named = {name: found[x] for name, x in _OUTPUTS.items() if x in found}
        if "next_sentence_logits" in named:  # the classes have the opposite order
            named["next_sentence_logits"] = named["next_sentence_logits"].flip(-1)
        return found | named

    def greedy(self, given: Mapping[str, Tensor], n_new: int) -> Tensor:
        """Return the ids of `n_new` new tokens."""
        ids, mask = given["input_ids"], given["attention_mask"]
        limits = {"min_new_tokens": n_new, "max_new_tokens": n_new, "num_beams": 1}
        found = self.model.generate(ids, attention_mask=mask, do_sample=False, **limits)
        return found[:, 1 if self.model.config.is_encoder_decoder else ids.shape[1] :]


class _Graphs:
    """Graphs in files of torch.export or ONNX, and the tokenizer beside them."""

    pixels = None

    def __init__(self, folder: Path, model: Any) -> None:
        self.graphs = make_graphs(model)
        described = read_json(folder / METADATA)["graphs"]
        self.run = {name: load_graph(folder / x["file"]) for name, x in described.items()}
        if (folder / TOKENIZER_FILE).exists():
            self.backend: Any = tokenizers.Tokenizer.from_file(str(folder / TOKENIZER_FILE))

    def encode(self, *texts: str, **options: Any) -> dict[str, list[int]]:
        """Return token ids and types; the options are those of transformers."""
        self.backend.encode_special_tokens = options.pop("split_special_tokens", False)
        found = self.backend.encode(*texts, **options)
        return {"input_ids": found.ids, "token_type_ids": found.type_ids}

    def outputs(self, given: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the outputs by name."""
        return _run_graphs(self.graphs, given, self.run)


def _run_graphs(graphs: Graphs, given: Mapping[str, Any], run: Any) -> dict[str, Any]:
    """Return inputs and outputs by name; keys and values are named as inputs of a decoder.

    `run` has the functions of graphs in files; a graph that it lacks runs in this process.
    """
    state = {"encoder_attention_mask": given.get("attention_mask"), **given}
    sizes: dict[Any, Any] = {"batch": len(next(iter(given.values()))), "past": 0}
    for name, graph in graphs.items():
        if name == "decoder" and "decoder_input_ids" in state:
            state["input_ids"] = state["decoder_input_ids"]
        for x in graph.inputs:  # keys and values of no tokens
            if x.name not in state:
                state[x.name] = torch.zeros([sizes.get(n, n) for n in x.shape])
        inputs = [state[x.name] for x in graph.inputs]
        outputs = run[name](inputs) if name in run else graph(*inputs)
        names = (output.replace("present.", "past_key_values.") for output in graph.outputs)
        state |= zip(names, outputs, strict=True)
    return state


def _batch(model: Any, graphs: Graphs, length: int, left: bool = False) -> dict[str, Tensor]:
    """Return random inputs by name: three rows of `length`, half as many tokens and one token.

    The rows of a model that fills texts up to `max_len` with a token have this length.
    """
    lengths = torch.tensor([length, -(-length // 2), 1])
    if hasattr(model.config, "pad_id"):  # SigLIP, which has no mask in transformers
        length = int(lengths.fill_(model.config.max_len)[0])
    real = torch.arange(length) < lengths[:, None]
    sizes = {"batch": 3, "length": length, "source": length, "past + length": length}
    defaults = model.generation_defaults or GenerationDefaults()
    special = [defaults.pad_id or 0, defaults.eos_id or 0]
    special += model.tokenizer.special_ids if model.tokenizer else []
    given = {}
    specs = [(name, spec) for name, graph in graphs.items() for spec in graph.inputs]
    for name, spec in (pair for pair in specs if pair[1].name in _INPUTS):
        value = spec.sample(sizes)
        if spec.name == "input_ids":
            ordinary = set(range(spec.n_values or 0)).difference(special)
            value[torch.isin(value, torch.tensor(special))] = min(ordinary, default=0)
            value[torch.arange(3), lengths - 1] = special[1]  # at which CLIP pools
            value[~real] = special[0]
        elif spec.name == "attention_mask":
            value = real.long()
        is_target = name == "decoder" and "encoder" in graphs
        given[f"decoder_{spec.name}" if is_target else spec.name] = value.flip(1) if left else value
    return given


def _check_texts(model: Any, runtime: Any) -> dict[str, Any]:
    """Compare token ids of texts, and token ids and types of pairs."""
    if model.tokenizer is None:
        return {}
    compared: dict[str, set[Any]] = {"texts": set(), "pairs": set()}
    for texts, options, expected in _token_cases(model):
        found = runtime.encode(*texts, **options)
        for key, ours in expected.items():
            if ours != (theirs := found[key]):
                i = next(i for i in range(len(ours) + 1) if ours[: i + 1] != theirs[: i + 1])
                named = f"the pair {texts}" if texts[1:] else f"the text {texts[0][:40]!r}"
                message = f"has the {key} {ours[i : i + 5]} from token {i} here,"
                raise InputError(f"{message} but {theirs[i : i + 5]} in the export", option=named)
        compared["pairs" if texts[1:] else "texts"].add(texts)
    return {name: len(found) for name, found in compared.items() if found}


def _token_cases(model: Any) -> Iterator[tuple[tuple[str, ...], dict[str, Any], dict[str, Any]]]:
    """Iterate over texts, options of the tokenizer of transformers, and expected ids and types.

    Texts are encoded with the special tokens in the text, and with those of a template.
    """
    tokenizer, n_separators = model.tokenizer, model.artifacts.get("n_separators", 1)
    texts = json.loads(Path(__file__).with_name("hostile_texts.json").read_text(encoding="utf-8"))
    texts += [f"a{token}b {token}" for token in tokenizer.special_tokens[:10]]
    single, pair = lookup("token_templates", model)
    if tokenizer.prepended_id is not None and "{bos}" not in single:
        single = "{bos} " + single
    parts = {"{bos}": [tokenizer.bos_id], "{eos}": [tokenizer.eos_id]}
    split = {"split_special_tokens": True}
    for text in texts:
        parts["$A"] = tokenizer.encode(text)
        filled = [token for part in single.split() for token in parts[part]]
        yield (text,), split, {"input_ids": filled}
        ids = tokenizer.encode_special(text)
        yield (text,), {"add_special_tokens": False}, {"input_ids": ids}
    for given in PAIRS if pair else ():
        parts["$A"], parts["$B"] = map(tokenizer.encode, given)
        words = pair.replace("{between}", "{eos}:0 " * (n_separators - 1)).split()
        typed = [(token, int(word[-1])) for word in words for token in parts[word[:-2]]]
        expected = {"input_ids": [token for token, _ in typed]}
        if getattr(model.config, "n_segments", 0) > 1:
            expected["token_type_ids"] = [kind for _, kind in typed]
        yield given, split, expected


def _check_images(model: Any, runtime: Any) -> dict[str, Any]:
    """Compare the pixels of preprocessed random pictures."""
    if "crop_pct" not in model.artifacts or runtime.pixels is None:
        return {}
    transform, mode = eval_transform(model.artifacts), PIL_MODES[model.artifacts["n_channels"]]
    # One of 256 levels, since not all image processors round to levels.
    limit, largest = 1.01 / 255 / min(model.artifacts["std"]), 0.0
    for size in IMAGE_SIZES:
        noise = np.random.default_rng(0).integers(0, 256, (*size[::-1], 3), dtype=np.uint8)
        image = Image.fromarray(noise).convert(mode)
        ours, theirs = transform(image), runtime.pixels(image)
        # If a margin of the crop is a half pixel, torchvision and transformers round differently.
        crops = ((ours, theirs), (ours[:, :-1], theirs[:, 1:]), (ours[..., :-1], theirs[..., 1:]))
        differences = (float((x - y).abs().max()) for x, y in crops if x.shape == y.shape)
        difference = min(differences, default=math.inf)
        largest = max(largest, _within(limit, difference, f"pixels of an image of {size}"))
    return {"images": {"sizes": IMAGE_SIZES, "largest difference": largest}}


def _within(limit: float, difference: float, name: str) -> float:
    """Return a difference; InputError if it exceeds the limit or is NaN."""
    if not difference <= limit:
        message = f"differ from the export by {difference:.1e}, more than {limit:.1e}"
        raise InputError(message, option=f"the {name}")
    return difference


def _readable(model: Any, length: int) -> int:
    """Return `length`, or the number of tokens that the model reads if that is smaller."""
    configs = (model.config, getattr(model.config, "encoder", None))
    return min(length, *(getattr(x, "max_len", None) or length for x in configs))


def _check_outputs(model: Any, runtime: Any) -> dict[str, Any]:
    """Compare the outputs for batches of several lengths with padding."""
    graphs, largest = make_graphs(model), 0.0
    beyond = (getattr(model.config, "window", None) or LONGEST - BEYOND) + BEYOND
    lengths = sorted({_readable(model, length) for length in (*LENGTHS, beyond)})
    for length in lengths:
        given = _batch(model, graphs, length)
        real = given.get("attention_mask", torch.empty(0, 0)).bool()
        ours, theirs = _run_graphs(graphs, given, {}), runtime.outputs(given)
        for name in ours.keys() & _OUTPUTS:
            pair = [ours[name], theirs[name]]
            if name.endswith("embeds"):  # transformers normalizes them
                pair = [normalize(x) for x in pair]
            if pair[0].shape[:2] == real.shape:
                pair = [x[real] for x in pair]
            named = f"{name} of up to {length} tokens"
            largest = max(largest, _within(TOLERANCE, relative_difference(*pair), named))
    return {"outputs": {"tokens of the longest row": lengths, "largest difference": largest}}


def _check_greedy(model: Any, runtime: Any) -> dict[str, Any]:
    """Compare new tokens of greedy search, with padding before the prompts of a causal LM."""
    longest = _readable(model, PROMPT + NEW_TOKENS)
    prompt = min(PROMPT, -(-longest // 2))
    n_new = min(NEW_TOKENS, longest - prompt)
    if not model.can_generate or n_new < 1 or isinstance(runtime, _Graphs):
        return {}
    graphs = make_graphs(model)
    given = _batch(model, graphs, prompt, left="encoder" not in graphs)
    options: dict[str, Any] = {"temperature": 0.0, "min_new_tokens": n_new}
    source = given["pixel_values"] if "pixel_values" in given else given["input_ids"]
    mask = given.get("attention_mask")
    ours = generate(model, source, n_new, mask=None if mask is None else mask.bool(), **options)
    if "encoder" in graphs:
        given["decoder_input_ids"], prompt = ours[:, :1], 1
    mine, others = ours[:, prompt:].tolist(), runtime.greedy(given, n_new).tolist()
    if mine != others:
        message = f"generates the ids {mine} here, but {others} in the export"
        raise InputError(message, option="greedy search")
    return {"greedy search": {"prompts": len(ours), "new tokens": n_new}}
