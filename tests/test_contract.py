"""The public contract of design.md, section 7: names, arguments, defaults, shapes."""

import inspect
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

import fourfold
from fourfold.models import (
    CausalLM,
    CausalLMConfig,
    EncoderDecoder,
    EncoderDecoderConfig,
    MaskedLM,
    MaskedLMConfig,
    ViT,
    ViTConfig,
)

SHAPE: dict[str, Any] = {"d_model": 16, "n_layers": 1, "n_heads": 2, "d_ff": 24}
TEXT: dict[str, Any] = {**SHAPE, "vocab_size": 31, "max_len": 40}


def causal() -> CausalLM:
    return CausalLM(CausalLMConfig(**{**TEXT, "d_ff": 64})).eval()


def pairs() -> EncoderDecoder:
    # Marian's sinusoids and bias, so that transformers has the architecture.
    config = EncoderDecoderConfig(
        **TEXT, positions="sinusoidal_halves", output_bias=True, norm_eps=1e-5
    )
    return EncoderDecoder(config).eval()


def images() -> ViT:
    return ViT(ViTConfig(**SHAPE, image_size=8, patch_size=4, n_classes=3)).eval()


def masked() -> MaskedLM:
    return MaskedLM(MaskedLMConfig(**TEXT)).eval()


def parameters(function: Any) -> dict[str, Any]:
    return {name: p.default for name, p in inspect.signature(function).parameters.items()}


@pytest.mark.parametrize("make", [causal, pairs, images, masked])
def test_save_and_load(make: Any, tmp_path: Path) -> None:
    model = make()
    for place in (tmp_path / "a", str(tmp_path / "b")):
        assert fourfold.save(model, place) is None
        assert {"config.json", "model.safetensors"} <= {p.name for p in Path(place).iterdir()}
        again = fourfold.load(place)
        assert isinstance(again, torch.nn.Module)
        assert type(again) is type(model)
        assert not again.training
        assert type(again.config) is type(model.config)
        assert again.state_dict().keys() == model.state_dict().keys()


def test_save_keeps_the_data_type(tmp_path: Path) -> None:
    fourfold.save(causal().bfloat16(), tmp_path / "one")
    once = fourfold.load(tmp_path / "one")
    assert {p.dtype for p in once.parameters()} <= {torch.float32, torch.bfloat16}
    fourfold.save(once, tmp_path / "two")
    kept = [load_file(tmp_path / name / "model.safetensors") for name in ("one", "two")]
    assert {x.dtype for x in kept[1].values()} == {x.dtype for x in kept[0].values()}
    assert {x.dtype for x in kept[0].values()} == {torch.bfloat16}


def test_load_accepts_a_checkpoint_and_a_run_directory(tmp_path: Path) -> None:
    from fourfold.cli import main

    fourfold.save(causal(), tmp_path / "hf")
    checkpoint = tmp_path / "run" / "checkpoints" / "last.ckpt"
    assert main(["import", str(tmp_path / "hf"), str(checkpoint)]) == 0
    for place in (checkpoint, tmp_path / "run"):
        model = fourfold.load(place)
        assert not model.training
        assert model.config == fourfold.load(tmp_path / "hf").config


def test_masked_lm_signature() -> None:
    model, ids = masked(), torch.randint(31, (2, 7))
    mask = torch.tensor([[True] * 7, [True] * 4 + [False] * 3])
    assert model(ids).shape == (2, 7, 31)
    assert model(ids, segments=None, mask=None).shape == (2, 7, 31)
    assert model(ids, segments=torch.zeros_like(ids), mask=mask).shape == (2, 7, 31)
    assert model.encode(ids, mask=mask).shape == (2, 7, 16)


def test_causal_lm_signature() -> None:
    model, ids = causal(), torch.randint(31, (2, 7))
    assert model(ids).shape == model(ids, mask=None, cache=None).shape == (2, 7, 31)


def test_encoder_decoder_signature() -> None:
    model, src, tgt = pairs(), torch.randint(31, (2, 7)), torch.randint(31, (2, 5))
    assert model(src, tgt).shape == (2, 5, 31)
    masks = {"src_mask": torch.ones(2, 7, dtype=torch.bool), "tgt_mask": None}
    assert model(src, tgt, **masks).shape == (2, 5, 31)
    assert model.encode(src).shape == (2, 7, 16)


def test_vit_signature() -> None:
    model = images()
    assert model(torch.randn(2, 3, 8, 8)).shape == (2, 3)
    assert model.encode(torch.randn(2, 3, 8, 8)).shape == (2, 5, 16)


def test_generate() -> None:
    defaults = parameters(fourfold.generate)
    wanted = {"eos_id": None, "temperature": None, "top_k": None, "top_p": None, "seed": None}
    assert {name: defaults[name] for name in wanted} == wanted
    assert list(defaults)[:2] == ["model", "ids"]
    model, ids = causal(), torch.randint(31, (2, 7))
    out = fourfold.generate(model, ids, max_new_tokens=5)
    assert isinstance(out, torch.Tensor)
    assert out.shape == (2, 12)
    assert torch.equal(out[:, :7], ids)
    drawn = [
        fourfold.generate(
            model, ids, max_new_tokens=5, eos_id=None, temperature=0.8, top_k=9, top_p=0.9, seed=s
        )
        for s in (1, 1, 2)
    ]
    assert torch.equal(drawn[0], drawn[1])
    assert not torch.equal(drawn[0], drawn[2])


def test_beam_search() -> None:
    defaults = parameters(fourfold.beam_search)
    assert list(defaults)[:2] == ["model", "src"]
    assert (defaults["num_beams"], defaults["length_penalty"]) == (None, None)
    src = torch.randint(4, 31, (2, 7))
    ids, scores = fourfold.beam_search(
        pairs(), src, num_beams=4, length_penalty=0.6, max_new_tokens=9, bos_id=1, eos_id=2
    )
    assert ids.shape[0] == len(src)
    assert scores.shape[0] == len(src)
    assert not ids.is_floating_point()
    assert scores.is_floating_point()


@pytest.mark.parametrize("verb", ["translate", "generate"])
def test_inference_commands_have_their_options(verb: str) -> None:
    from fourfold.commands.infer.main import make_parser

    known = make_parser(verb)._option_string_actions
    wanted = {"--checkpoint", "--num-beams", "--length-penalty", "--max-new-tokens"}
    if verb == "generate":
        wanted |= {"--temperature", "--top-k", "--top-p"}
    assert wanted <= known.keys()


def test_all_commands_exist() -> None:
    from fourfold.cli import COMMANDS

    verbs = {"translate", "generate", "fill", "classify"}
    assert {"fit", "validate", "test", "predict", "import", "export", "plan"} | verbs <= set(
        COMMANDS
    )
