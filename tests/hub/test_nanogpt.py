"""Tests of nanoGPT and minGPT checkpoints, which are made from GPT-2 of transformers."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as hf

import fourfold
from fourfold.cli import main
from fourfold.errors import InputError
from fourfold.hub import nanogpt
from tests.fixtures.hf_models import GPT, random_ids

LINEAR = ("attn.c_attn.weight", "attn.c_proj.weight", "mlp.c_fc.weight", "mlp.c_proj.weight")
ARGS = {"n_layer": 2, "n_head": 3, "n_embd": 36, "block_size": 23, "vocab_size": 61, "dropout": 0.0}


def gpt2(bias: bool) -> Any:
    torch.manual_seed(0)
    model = hf.GPT2LMHeadModel(hf.GPT2Config(**GPT, n_layer=2, activation_function="gelu")).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
            if name.endswith("bias") and not bias:
                parameter.zero_()
    return model


def checkpoint(model: Any, bias: bool, prefix: str = "") -> dict[str, Any]:
    state = {
        prefix + name: x.mT.contiguous() if name.endswith(LINEAR) else x
        for name, x in model.state_dict().items()
        if bias or not name.endswith("bias")
    }
    return {"model": state, "model_args": {**ARGS, "bias": bias}, "iter_num": 7, "config": {}}


@pytest.mark.parametrize(("bias", "prefix"), [(True, ""), (False, ""), (False, "_orig_mod.")])
def test_nanogpt_logits_match(bias: bool, prefix: str, tmp_path: Path) -> None:
    hf_model = gpt2(bias)
    torch.save(checkpoint(hf_model, bias, prefix), tmp_path / "ckpt.pt")
    assert main(["import", str(tmp_path / "ckpt.pt"), str(tmp_path / "x.ckpt")]) == 0
    model = fourfold.load(tmp_path / "x.ckpt")
    x = random_ids(3, 11)
    with torch.no_grad():
        torch.testing.assert_close(model(x), hf_model(x).logits, rtol=1e-5, atol=1e-5)
    if bias:  # GPT-2 of transformers always has biases
        assert main(["export", str(tmp_path / "x.ckpt"), str(tmp_path / "there")]) == 0
        back = hf.AutoModelForCausalLM.from_pretrained(tmp_path / "there").eval()
        with torch.no_grad():
            torch.testing.assert_close(back(x).logits, hf_model(x).logits, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda c: c["model_args"].pop("n_head"), "model_args has no entry n_head"),
        (
            lambda c: c["model_args"].update(n_layer=1000),
            "n_layers must be at most the number of tensors in the weights",
        ),
        (lambda c: c["model"].pop("transformer.ln_f.weight"), "no tensor for stack.norm.weight"),
        (lambda c: c.pop("model_args"), "not a checkpoint written by fourfold"),
        (lambda c: c["model_args"].update(n_head=5), "n_heads"),
    ],
)
def test_invalid_nanogpt_file_is_rejected(
    change: Any, message: str, tmp_path: Path, capsys: Any
) -> None:
    content = checkpoint(gpt2(True), True)
    change(content)
    torch.save(content, tmp_path / "ckpt.pt")
    assert main(["import", str(tmp_path / "ckpt.pt"), str(tmp_path / "x.ckpt")]) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "x.ckpt").exists()


def mingpt(dtype: torch.dtype = torch.float32) -> tuple[Any, dict[str, Any]]:
    """Create a GPT-2 with an untied output matrix, and its weights in the layout of minGPT."""
    torch.manual_seed(0)
    config = hf.GPT2Config(**GPT, n_layer=2, tie_word_embeddings=False)
    hf_model = hf.GPT2LMHeadModel(config).eval().to(dtype)
    with torch.no_grad():
        for parameter in hf_model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return hf_model, to_mingpt_layout(hf_model.state_dict())


def to_mingpt_layout(state: dict[str, Any]) -> dict[str, Any]:
    masks = {f"transformer.h.{i}.attn.bias": torch.ones(1, 1, 23, 23).tril() for i in range(2)}
    transposed = {n: x.mT.contiguous() if n.endswith(LINEAR) else x for n, x in state.items()}
    return {**transposed, **masks}


def work_dir(folder: Path, weights: Any, **model: Any) -> Path:
    """Create the `work_dir` of minGPT, whose config.json precedes the lookup of sizes."""
    folder.mkdir()
    torch.save(weights, folder / "model.pt")
    settings = {"n_head": None, "resid_pdrop": 0.2, "embd_pdrop": 0.2, "attn_pdrop": 0.1, **model}
    (folder / "config.json").write_text(json.dumps({"system": {"seed": 3}, "model": settings}))
    return folder


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_mingpt_logits_and_all_gradients_match(dtype: torch.dtype, tmp_path: Path) -> None:
    hf_model, weights = mingpt(dtype)
    folder = work_dir(tmp_path / "out", weights, n_head=3)
    model: Any = fourfold.load(folder / "model.pt").to(dtype)
    if dtype == torch.float64:  # `load` converts to fp32
        model.load_state_dict(nanogpt._KEYMAP.to_native(weights, model.state_dict())[0])
    x, tolerance = random_ids(3, 11), {torch.float32: 1e-5, torch.float64: 1e-10}[dtype]
    actual, expected = model(x), hf_model(x).logits
    assert (actual - expected).abs().max() <= tolerance * expected.abs().max()
    for y in (actual, expected):
        torch.nn.functional.cross_entropy(y[:, :-1].flatten(0, 1), x[:, 1:].flatten()).backward()
    hf_gradients = to_mingpt_layout({name: p.grad for name, p in hf_model.named_parameters()})
    expected_gradients, _ = nanogpt._KEYMAP.to_native(hf_gradients, model.state_dict())
    largest = max(float(g.abs().max()) for g in expected_gradients.values())
    for name, p in model.named_parameters():
        assert (p.grad - expected_gradients[name]).abs().max() <= 2 * tolerance * largest, name
    assert (model.config.dropout, model.config.attn_dropout) == (0.2, 0.1)


def test_mingpt_model_is_exported_to_transformers(tmp_path: Path, capsys: Any) -> None:
    hf_model, weights = mingpt()
    folder = work_dir(tmp_path / "out", weights, n_head=3)
    assert main(["import", str(folder), str(tmp_path / "x.ckpt")]) == 0
    assert "minGPT, " in capsys.readouterr().out
    assert main(["export", str(tmp_path / "x.ckpt"), str(tmp_path / "there")]) == 0
    back = hf.AutoModelForCausalLM.from_pretrained(tmp_path / "there").eval()
    with torch.no_grad():
        x = random_ids(2, 9)
        torch.testing.assert_close(back(x).logits, hf_model(x).logits, rtol=1e-5, atol=1e-5)


def test_mingpt_heads_follow_from_the_model_type(tmp_path: Path) -> None:
    _, weights = mingpt()
    folder = work_dir(tmp_path / "out", weights, model_type="gpt-nano")
    assert fourfold.load(folder).config.n_heads == 3


@pytest.mark.parametrize(
    ("model", "drop", "message"),
    [
        ({"model_type": "gpt"}, "", "must be in config.json, since the weights do not"),
        ({"n_head": 5}, "", "n_heads"),
        ({"n_head": 3, "embd_pdrop": 0.0}, "", "model.embd_pdrop=0.0 must be equal"),
        ({"n_head": 3}, "transformer.wpe.weight", "transformer.wpe.weight"),
        ({"n_head": 3}, "lm_head.weight", "no tensor for head.own.weight"),
    ],
)
def test_invalid_mingpt_work_dir_is_rejected(
    model: Any, drop: str, message: str, tmp_path: Path, capsys: Any
) -> None:
    _, weights = mingpt()
    weights.pop(drop, None)
    folder = work_dir(tmp_path / "out", weights, **model)
    assert main(["import", str(folder / "model.pt"), str(tmp_path / "x.ckpt")]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
    (folder / "config.json").unlink()
    with pytest.raises(InputError):
        fourfold.load(folder / "model.pt")
