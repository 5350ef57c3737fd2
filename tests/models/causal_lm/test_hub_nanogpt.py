"""Tests of nanoGPT checkpoints, which are made from GPT-2 of transformers."""

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as hf

import fourfold
from fourfold.cli import main
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
        (lambda c: c["model_args"].pop("n_head"), "the content is invalid: 'n_head'"),
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
