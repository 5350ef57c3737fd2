"""Certificates of exported directories: equal outputs pass, and every kind of difference fails."""

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning import Trainer
from safetensors.torch import load_file, save_file

import fourfold
from fourfold.checkpoints.save import write_graphs
from fourfold.errors import InputError
from fourfold.hub.verification import CERTIFICATE, check_runtime, verify
from tests.fixtures import tiny_tasks
from tests.fixtures.hf_models import MODELS, make_model

FEW = ("bert-pretraining", "bert-spans", "roberta-tags", "gpt2", "gemma3", "bart", "t5", "siglip")
# The class without a head has no logits in transformers; fourfold multiplies by the embeddings.
HEADLESS = ("llama-encoder",)


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=() if name in FEW else pytest.mark.slow)
        for name in MODELS
        if name not in HEADLESS
    ],
)
def test_export_of_each_architecture_passes(name: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    make_model(name).save_pretrained(tmp_path / "theirs")
    model = fourfold.load(tmp_path / "theirs")
    fourfold.save(model, tmp_path / "ours")
    state = torch.get_rng_state()
    report = verify(model, tmp_path / "ours", "transformers")
    assert report["passed"], report["failure"]
    assert report["compared"]["outputs"]["largest difference"] < 1e-4
    window, readable = getattr(model.config, "window", None), model.config.max_len or 512
    if window:
        longest = max(128, window + 8)
        assert report["compared"]["outputs"]["tokens of the longest row"][-1] == min(
            longest, readable
        )
    assert ("greedy search" in report["compared"]) == model.can_generate
    assert torch.equal(torch.get_rng_state(), state)
    assert json.loads((tmp_path / "ours" / CERTIFICATE).read_text()) == json.loads(
        json.dumps(report)
    )


def trained(kind: str, folder: Path) -> Any:
    """Return the model of a tiny task after one step of training, with its tokenizer."""
    made = {**tiny_tasks.TASKS, **tiny_tasks.FAMILIES}[kind]
    task, data = made(tiny_tasks.write_texts(folder))
    trainer = Trainer(
        max_steps=1,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        limit_val_batches=0,
        use_distributed_sampler=False,
    )
    trainer.fit(task, data)
    trainer.save_checkpoint(folder / "x.ckpt")
    return fourfold.load(folder / "x.ckpt")


@pytest.mark.parametrize("kind", ["causal", "masked", "images", "translation"])
def test_tokenizer_and_preprocessing_are_compared(kind: str, tmp_path: Path) -> None:
    model = trained(kind, tmp_path)
    fourfold.save(model, tmp_path / "there")
    report = verify(model, tmp_path / "there", "transformers")
    assert report["passed"], report["failure"]
    if kind == "images":
        assert len(report["compared"]["images"]["sizes"]) == 5
    else:
        assert report["compared"]["texts"] > 100
        assert report["compared"].get("pairs") == (3 if kind == "masked" else None)
    digest = hashlib.sha256((tmp_path / "there" / "model.safetensors").read_bytes()).hexdigest()
    assert report["sha256"]["model.safetensors"] == digest


@pytest.mark.slow
@pytest.mark.parametrize("file_format", ["onnx", "torch-export"])
@pytest.mark.parametrize("kind", ["causal", "masked", "images", "translation", "captions"])
def test_graphs_pass(kind: str, file_format: str, tmp_path: Path) -> None:
    model = trained(kind, tmp_path)
    (tmp_path / "there").mkdir()
    write_graphs(model, tmp_path / "there", file_format)
    report = verify(model, tmp_path / "there", file_format)
    assert report["passed"], report["failure"]
    compared = {"outputs"} | ({"texts"} if model.tokenizer else set())
    compared |= {"pairs"} if kind == "masked" else set()
    assert set(report["compared"]) == compared
    if kind == "causal":  # another tokenizer
        change_json(tmp_path / "there" / "tokenizer.json", lowercase)
        report = verify(model, tmp_path / "there", file_format)
        assert "the text" in report["failure"]


def change_json(file: Path, change: Callable[[dict[str, Any]], object]) -> None:
    content = json.loads(file.read_text())
    change(content)
    file.write_text(json.dumps(content))


def lowercase(tokenizer: dict[str, Any]) -> None:
    tokenizer["normalizer"] = {"type": "Lowercase"}


def plain_template(tokenizer: dict[str, Any]) -> None:
    tokenizer["post_processor"] = None


def one_type(tokenizer: dict[str, Any]) -> None:
    for part in find_pair(tokenizer["post_processor"]):
        next(iter(part.values()))["type_id"] = 0


def find_pair(processor: dict[str, Any]) -> list[dict[str, Any]]:
    found = [processor, *processor.get("processors", [])]
    return next(x["pair"] for x in found if "pair" in x)


def change_weight(folder: Path, name: str) -> None:
    tensors = load_file(folder / "model.safetensors")
    (key,) = [x for x in tensors if x.endswith(name)]
    tensors[key] = tensors[key] + torch.randn(tensors[key].shape)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


CHANGES: dict[str, tuple[str, Callable[[Path], object], str]] = {
    "weight": ("causal", lambda x: change_weight(x, "h.0.ln_1.bias"), "the logits of up to 1 "),
    "normalizer": (
        "causal",
        lambda x: change_json(x / "tokenizer.json", lowercase),
        "the text ",
    ),
    "template": (
        "masked",
        lambda x: change_json(x / "tokenizer.json", plain_template),
        "the text '' has the input_ids [",
    ),
    "pair": (
        "masked",
        lambda x: change_json(x / "tokenizer.json", one_type),
        "the pair ('a b', 'c') has the token_type_ids [1, 1]",
    ),
    "no tokenizer": ("causal", lambda x: (x / "tokenizer.json").unlink(), "cannot read or run it"),
    "end token": (
        "translation",
        lambda x: (
            change_json(x / "generation_config.json", lambda y: y.update(bos_token_id=5))
            if (x / "generation_config.json").exists()
            else change_json(x / "config.json", lambda y: y.update(decoder_start_token_id=5))
        ),
        "greedy search generates the ids [",
    ),
    "mean": (
        "images",
        lambda x: change_json(x / "preprocessor_config.json", lambda y: y.update(image_mean=[0.2])),
        "the pixels of an image of (8, 8) differ from the export by",
    ),
    "crop": (
        "images",
        lambda x: change_json(
            x / "preprocessor_config.json", lambda y: y.update(do_center_crop=False)
        ),
        "the pixels of an image of (31, 57)",
    ),
    "damaged": (
        "causal",
        lambda x: (x / "model.safetensors").write_bytes(b"0" * 99),
        "transformers cannot read or run it: SafetensorError",
    ),
}


@pytest.mark.parametrize("case", CHANGES)
def test_difference_is_named(case: str, tmp_path: Path) -> None:
    kind, change, message = CHANGES[case]
    model = trained(kind, tmp_path)
    fourfold.save(model, tmp_path / "there")
    change(tmp_path / "there")
    report = verify(model, tmp_path / "there", "transformers")
    assert message in report["failure"]
    assert not report["passed"]
    assert json.loads((tmp_path / "there" / CERTIFICATE).read_text())["passed"] is False


@pytest.mark.parametrize("file_format", ["checkpoint", "timm"])
def test_format_without_a_runtime_is_rejected(file_format: str) -> None:
    with pytest.raises(InputError, match=rf"^--verify needs a --format .*, got {file_format}$"):
        check_runtime(file_format)
