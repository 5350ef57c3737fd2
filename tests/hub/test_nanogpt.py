"""nanoGPT's and minGPT's checkpoints, made here from a GPT-2 of transformers laid out as theirs."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as hf

import fourfold
from fourfold.cli import main
from fourfold.core.errors import InputError
from fourfold.hub import nanogpt
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


def mingpt(dtype: torch.dtype = torch.float32) -> tuple[Any, dict[str, Any]]:
    """A GPT-2 with a matrix of its own to the words, and its weights as minGPT has them."""
    torch.manual_seed(0)
    config = hf.GPT2Config(**GPT, n_layer=2, tie_word_embeddings=False)
    theirs = hf.GPT2LMHeadModel(config).eval().to(dtype)
    with torch.no_grad():
        for parameter in theirs.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return theirs, laid_out(theirs.state_dict())


def laid_out(state: dict[str, Any]) -> dict[str, Any]:
    masks = {f"transformer.h.{i}.attn.bias": torch.ones(1, 1, 23, 23).tril() for i in range(2)}
    turned = {n: x.mT.contiguous() if n.endswith(LINEAR) else x for n, x in state.items()}
    return {**turned, **masks}


def work_dir(folder: Path, weights: Any, **model: Any) -> Path:
    """As minGPT leaves it: config.json is written before the sizes are looked up."""
    folder.mkdir()
    torch.save(weights, folder / "model.pt")
    told = {"n_head": None, "resid_pdrop": 0.2, "embd_pdrop": 0.2, "attn_pdrop": 0.1, **model}
    (folder / "config.json").write_text(json.dumps({"system": {"seed": 3}, "model": told}))
    return folder


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_mingpt_logits_and_every_gradient(dtype: torch.dtype, tmp_path: Path) -> None:
    theirs, weights = mingpt(dtype)
    place = work_dir(tmp_path / "out", weights, n_head=3)
    ours: Any = fourfold.load(place / "model.pt").to(dtype)
    if dtype == torch.float64:  # what is read is fp32
        ours.load_state_dict(nanogpt._KEYS.read(weights, ours.state_dict(), "")[0])
    x, tolerance = ids(3, 11), {torch.float32: 1e-5, torch.float64: 1e-10}[dtype]
    mine, expected = ours(x), theirs(x).logits
    assert (mine - expected).abs().max() <= tolerance * expected.abs().max()
    for y in (mine, expected):
        torch.nn.functional.cross_entropy(y[:, :-1].flatten(0, 1), x[:, 1:].flatten()).backward()
    given = laid_out({name: p.grad for name, p in theirs.named_parameters()})
    wanted, _ = nanogpt._KEYS.read(given, ours.state_dict(), "")
    largest = max(float(g.abs().max()) for g in wanted.values())
    for name, p in ours.named_parameters():
        assert (p.grad - wanted[name]).abs().max() <= 2 * tolerance * largest, name
    assert (ours.config.dropout, ours.config.attn_dropout) == (0.2, 0.1)


def test_mingpt_goes_to_transformers(tmp_path: Path, capsys: Any) -> None:
    theirs, weights = mingpt()
    place = work_dir(tmp_path / "out", weights, n_head=3)
    assert main(["import", str(place), str(tmp_path / "x.ckpt")]) == 0
    assert "minGPT, " in capsys.readouterr().out
    assert main(["export", str(tmp_path / "x.ckpt"), str(tmp_path / "there")]) == 0
    back = hf.AutoModelForCausalLM.from_pretrained(tmp_path / "there").eval()
    with torch.no_grad():
        x = ids(2, 9)
        torch.testing.assert_close(back(x).logits, theirs(x).logits, rtol=1e-5, atol=1e-5)


def test_mingpt_heads_by_the_word_for_all_sizes(tmp_path: Path) -> None:
    _, weights = mingpt()
    place = work_dir(tmp_path / "out", weights, model_type="gpt-nano")
    assert fourfold.load(place).config.n_heads == 3


@pytest.mark.parametrize(
    ("model", "drop", "said"),
    [
        ({"model_type": "gpt"}, "", "do not show how many heads there are"),
        ({"n_head": 5}, "", "is not divisible by n_heads 5"),
        ({"n_head": 3, "embd_pdrop": 0.0}, "", "resid_pdrop and embd_pdrop differ"),
        ({"n_head": 3}, "transformer.wpe.weight", "transformer.wpe.weight"),
        ({"n_head": 3}, "lm_head.weight", "no tensor for head.own.weight"),
    ],
)
def test_bad_work_dirs(model: Any, drop: str, said: str, tmp_path: Path, capsys: Any) -> None:
    _, weights = mingpt()
    weights.pop(drop, None)
    place = work_dir(tmp_path / "out", weights, **model)
    assert main(["import", str(place / "model.pt"), str(tmp_path / "x.ckpt")]) == 2
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1
    (place / "config.json").unlink()
    with pytest.raises(InputError):
        fourfold.load(place / "model.pt")
