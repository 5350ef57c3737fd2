"""nanoGPT's checkpoints, made here from a GPT-2 of transformers laid out as nanoGPT does."""

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as hf

import fourfold
from fourfold.cli import main
from tests.hub.foreign_models import GPT, ids

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
def test_the_same_logits(bias: bool, prefix: str, tmp_path: Path) -> None:
    theirs = gpt2(bias)
    torch.save(checkpoint(theirs, bias, prefix), tmp_path / "ckpt.pt")
    assert main(["import", str(tmp_path / "ckpt.pt"), str(tmp_path / "x.ckpt")]) == 0
    ours = fourfold.load(tmp_path / "x.ckpt")
    x = ids(3, 11)
    with torch.no_grad():
        torch.testing.assert_close(ours(x), theirs(x).logits, rtol=1e-5, atol=1e-5)
    if bias:  # transformers has no GPT-2 without biases
        assert main(["export", str(tmp_path / "x.ckpt"), str(tmp_path / "there")]) == 0
        back = hf.AutoModelForCausalLM.from_pretrained(tmp_path / "there").eval()
        with torch.no_grad():
            torch.testing.assert_close(back(x).logits, theirs(x).logits, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda c: c["model_args"].pop("n_head"), "model_args has no n_head"),
        (lambda c: c["model"].pop("transformer.ln_f.weight"), "no tensor for stack.norm.weight"),
        (lambda c: c.pop("model_args"), "nor a checkpoint of nanoGPT"),
        (lambda c: c["model_args"].update(n_head=5), "is not divisible by n_heads 5"),
    ],
)
def test_bad_files(change: Any, said: str, tmp_path: Path, capsys: Any) -> None:
    content = checkpoint(gpt2(True), True)
    change(content)
    torch.save(content, tmp_path / "ckpt.pt")
    assert main(["import", str(tmp_path / "ckpt.pt"), str(tmp_path / "x.ckpt")]) == 2
    assert said in capsys.readouterr().err
    assert not (tmp_path / "x.ckpt").exists()
